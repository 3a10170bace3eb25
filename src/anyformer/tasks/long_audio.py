"""Transcribe recordings of any length, a window at a time, with timestamps.

A window is the longest input of the model. If the model writes timestamps, the next window begins at the end of the
last complete sentence [Radford et al. 2022]; otherwise windows overlap, and the middle of each window is used.
"""

from __future__ import annotations

import dataclasses
import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.generation import generate
from anyformer.generation.ctc import TokenSpan, merge_frames, prefixes
from anyformer.generation.defaults import settings_for
from anyformer.generation.options import Settings
from anyformer.generation.speech_prompt import language_id
from anyformer.inputs.audio_features import AudioProcessor
from anyformer.inputs.recordings import ENDINGS, AudioRecording, Source, streams
from anyformer.inputs.tokenizer import Tokenizer
from anyformer.models.base import TransformerModule
from anyformer.models.call import Call
from anyformer.parts.head.speech import SpeechNeck

MAX_COMPRESSION = 2.4  # a text that zlib compresses by more than this factor is repetitive
MIN_LOG_PROB = -1.0  # mean per token; a less likely text is sampled again
SILENCE_THRESHOLD = 0.6  # probability of silence above which an unlikely text is dropped
WINDOW, OVERLAP = 30, 5  # seconds, for CTC: the end of a window is also read in the next window


@dataclasses.dataclass(frozen=True)
class Segment:
    """The tokens of a recording from `start` to `end`, in seconds."""

    start: float
    end: float
    tokens: list[int]


def files(folder: Path) -> list[Path]:
    """List the recordings in a folder, sorted by name."""
    paths = sorted(file for file in folder.rglob("*") if file.suffix.lower() in ENDINGS and file.is_file())
    if not paths:
        raise ValueError(f"{folder}: no sound in this folder ({', '.join(ENDINGS)})")
    return paths


# -- CTC --------------------------------------------------------------------------------------------------------------


@torch.inference_mode()
def ctc_tokens(model: TransformerModule, processor: AudioProcessor, source: Source, beams: int) -> list[int]:
    """Return the CTC tokens of a recording, from the joined frames of its windows."""
    if beams > 1:
        return prefixes(frames(model, processor, source), model.spec.head.blank, beams)[0][0]
    return [span.token for span in best_path(model, processor, source)]


def best_path(model: TransformerModule, processor: AudioProcessor, source: Source) -> list[TokenSpan]:
    """Return the tokens of the most likely path. No tensors are kept between windows: small tensors between the large
    ones would keep the memory of all windows allocated."""
    windows = frames(model, processor, source)
    return merge_frames((token for window in windows for token in window.argmax(-1).tolist()), model.spec.head.blank)


@torch.inference_mode()
def ctc_words(
    model: TransformerModule, tokenizer: Tokenizer, processor: AudioProcessor, source: Source
) -> list[Segment]:
    """Return the words of a recording, each from the first frame of its letters to the last."""
    spans = best_path(model, processor, source)
    frame = frame_spacing(model, processor)[0] / processor.sampling_rate  # seconds
    groups = group_words(spans, lambda ids: tokenizer.decode(ids, skip_special_tokens=True))
    return [Segment(word[0].start * frame, word[-1].end * frame, [span.token for span in word]) for word in groups]


def group_words(spans: Sequence[TokenSpan], decode: Callable[[list[int]], str]) -> list[list[TokenSpan]]:
    """Group tokens by word; separators and tokens without text belong to no word."""
    groups: list[list[TokenSpan]] = []
    since: list[int] = []  # tokens since the start of the last word, including those without text
    word = ""
    for span in spans:
        words = decode([*since, span.token]).split()
        if len(words) > bool(word):
            groups.append([span])
            since, word = [span.token], words[-1]
            continue
        since.append(span.token)
        if word and words != [word]:
            groups[-1].append(span)
            word = words[0]
    return groups


def frames(model: TransformerModule, processor: AudioProcessor, source: Source) -> Iterator[Tensor]:
    """Yield log-probabilities (T, V) of each window, without the frames that other windows cover."""
    (hop, reach), rate = frame_spacing(model, processor), processor.sampling_rate
    margin = -(-OVERLAP * rate // hop)  # frames
    size, step = WINDOW * rate // hop * hop, (WINDOW * rate // hop - 2 * margin) * hop
    buffer, first = np.zeros(0, np.float32), True
    with AudioRecording.open(source) as recording:
        for block in recording.blocks(rate):
            buffer = np.concatenate((buffer, block))
            while len(buffer) > size + hop * margin:  # enough for this window and another one
                log_probs = window_log_probs(model, processor, buffer[:size])
                yield log_probs[0 if first else margin : margin + step // hop]
                buffer, first = buffer[step:], False
    if len(buffer) < reach:
        raise ValueError(f"{recording.name}: {len(buffer)} samples are less than a frame of {reach}")
    yield window_log_probs(model, processor, buffer)[0 if first else margin :]


def frame_spacing(model: TransformerModule, processor: AudioProcessor) -> tuple[int, int]:
    """Return the samples from one output frame to the next, and the minimum number of samples of a recording."""
    embedding, neck = model.spec.embedding, model.spec.encoder.neck
    if processor.kind == "bank":
        return processor.hop_length * embedding.hop, 2 * processor.hop_length
    adapter = neck.adapter if isinstance(neck, SpeechNeck) else None
    reduction = adapter.stride**adapter.depth if adapter is not None else 1
    return embedding.stem.hop * reduction, embedding.stem.reach


def window_log_probs(model: TransformerModule, processor: AudioProcessor, samples: np.ndarray) -> Tensor:
    inputs = processor(samples, processor.sampling_rate)
    if processor.kind == "bank":  # the last frame is half padding
        count = int(inputs["attention_mask"].sum())
        values = {"input_features": inputs["input_features"][:, :count]}
    else:
        values = {"input_values": inputs["input_values"]}
    values = {name: value.to(model.device, model.dtype) for name, value in values.items()}
    return model(**values, return_dict=True).logits[0].float().log_softmax(-1).cpu()


# -- pieces -----------------------------------------------------------------------------------------------------------


def pieces(processor: AudioProcessor, source: Source) -> Iterator[np.ndarray]:
    """Yield the samples of a recording in pieces of at most about WINDOW seconds, for a model without timestamps. Each
    piece ends at the quietest point of its last OVERLAP seconds, so that no word is split."""
    rate = processor.sampling_rate
    size, tail, shortest = WINDOW * rate, OVERLAP * rate, 2 * processor.hop_length
    buffer, first = np.zeros(0, np.float32), True
    with AudioRecording.open(source) as recording:
        for block in recording.blocks(rate):
            buffer = np.concatenate((buffer, block))
            while len(buffer) >= size + shortest:
                cut = size - tail + quietest(buffer[size - tail : size], rate // 10)
                yield buffer[:cut]
                buffer, first = buffer[cut:], False
    if first and len(buffer) < shortest:
        raise ValueError(f"{recording.name}: {len(buffer)} samples are less than two frames of {processor.hop_length}")
    if len(buffer) >= shortest:
        yield buffer


def quietest(samples: np.ndarray, width: int) -> int:
    """Return the middle of the `width` samples with the least power; if several are equal, of the last."""
    total = np.concatenate(([0.0], np.cumsum(np.square(samples, dtype=np.float64))))
    power = (total[width:] - total[:-width])[::-1]
    return len(samples) - width + width // 2 - int(np.argmin(power))


def sentences(
    model: TransformerModule, tokenizer: Tokenizer, processor: AudioProcessor, source: Source, **options: Any
) -> Iterator[str]:
    """Yield the text of each piece of a recording."""
    options = {"max_new_tokens": model.spec.decoder_embedding.max_length or 448, **options}  # default: Whisper's
    for samples in pieces(processor, source):
        read = processor(samples, processor.sampling_rate, return_attention_mask=True)
        inputs: dict[str, Any] = {
            name: value.to(model.device, model.dtype if value.is_floating_point() else None)
            for name, value in read.items()
            if name in model.inputs
        }
        (ids,) = generate(model, **inputs, **{"do_sample": False, **options})
        if text := tokenizer.decode(ids.tolist(), skip_special_tokens=True).strip():
            yield text


# -- sentences and times ----------------------------------------------------------------------------------------------


class AudioWindows:
    """The spectrogram of a recording, read one window at a time. A long recording is read twice, first to find its
    maximum. For a stream, the maximum so far is used, and its length is known only at its end."""

    def __init__(self, processor: AudioProcessor, source: Source, num_frames: int) -> None:
        self.processor, self.source, self.size = processor, source, num_frames
        self.start = 0  # frame index of `held`
        self.live = streams(source)
        self.short, self.total, self.loudest = False, math.inf if self.live else 0.0, torch.tensor(-torch.inf)
        self.held, self.rest = torch.zeros(processor.feature_size, 0), self.stream()  # powers; normalized in `take`
        if self.live:
            return
        with AudioRecording.open(source) as recording:
            samples = recording.read(processor.sampling_rate, num_frames * processor.hop_length + 1)
        self.short = len(samples) <= num_frames * processor.hop_length
        if not len(samples):
            raise ValueError(f"{recording.name}: the recording is empty")
        if self.short:
            length, rate = num_frames * processor.hop_length, processor.sampling_rate
            self.held, self.rest = processor(samples, rate, max_length=length)["input_features"][0], iter(())
            self.total = self.held.shape[1]
            return
        for powers in self.stream():
            self.total, self.loudest = self.total + powers.shape[1], torch.maximum(self.loudest, powers.max())

    def stream(self) -> Iterator[Tensor]:
        with AudioRecording.open(self.source) as recording:
            yield from self.processor.stream(recording.blocks(self.processor.sampling_rate))

    def take(self, start: int) -> tuple[Tensor, int]:
        """Return the window (M, size) at frame `start`, which never decreases, and the number of its real frames."""
        wanted = start + self.size + self.live  # one more frame of a stream shows that it continues
        while self.start + self.held.shape[1] < wanted and (more := next(self.rest, None)) is not None:
            drop = min(max(start - self.start, 0), self.held.shape[1])
            self.held, self.start = torch.cat((self.held[:, drop:], more), dim=1), self.start + drop
            if self.live:
                self.loudest = torch.maximum(self.loudest, more.max())
        if (end := self.start + self.held.shape[1]) < wanted:
            self.total = end
        window = self.held[:, start - self.start : start - self.start + self.size]
        window = window if self.short else self.processor.normalize(window, self.loudest)
        return F.pad(window, (0, self.size - window.shape[1])), window.shape[1]


@dataclasses.dataclass
class Transcript:
    """The state of a transcription: the segments so far and the next frame."""

    windows: AudioWindows
    language: str | None = None  # language token
    place: int = 0  # next frame
    segments: list[Segment] = dataclasses.field(default_factory=list)

    @property
    def has_more(self) -> bool:
        return self.place < self.windows.total


class Transcriber:
    """A speech-to-text model with its tokenizer and audio processor."""

    def __init__(
        self, model: TransformerModule, tokenizer: Tokenizer, processor: AudioProcessor, **options: Any
    ) -> None:
        self.model, self.tokenizer, self.processor, self.options = model, tokenizer, processor, options
        embedding = model.spec.embedding
        if processor.kind != "mel" or processor.feature_size != embedding.channels:
            kinds = {"mel": f"{processor.feature_size} channels", "bank": "windows of any length", "values": "samples"}
            wanted = f"{embedding.channels} channels of windows of a fixed length"
            raise ValueError(f"the folder prepares {kinds[processor.kind]}, and this model reads {wanted}")
        self.size = embedding.position.length * embedding.hop if embedding.whole else processor.chunk_frames
        self.settings: Settings = settings_for(model, {})
        silent = self.settings.no_timestamps_token_id
        self.first = model.spec.head.vocab_size if silent is None else silent + 1
        self.step = processor.hop_length * embedding.hop / processor.sampling_rate  # seconds between two timestamps

    def open(self, source: Source, language: str | None = None) -> Transcript:
        return Transcript(AudioWindows(self.processor, source, self.size), self.language_token(language))

    def language_token(self, language: str | None) -> str | None:
        """Return the token of a language by its code or name."""
        if language is None:
            return None
        known = self.settings.lang_to_id or {}
        if not known:
            raise ValueError("language: this model transcribes one language")
        token = language_id(language, self.settings)
        return next(name for name, number in known.items() if number == token)

    @torch.inference_mode()
    def start(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return the encoder states of windows (B, M, F), and the probabilities (B, V) of the first token."""
        features = features.to(self.model.device, self.model.dtype)
        memory, _ = self.model.encode(Call({"input_features": features}, kernel=self.model.kernel))
        begin = self.settings.decoder_start_token_id
        begin = self.model.spec.start_token if begin is None else begin
        ids = torch.full((len(features), 1), begin, device=self.model.device)
        step = Call({"decoder_input_ids": ids, "encoder_outputs": memory}, kernel=self.model.kernel)
        scores = self.model(step)["logits"][:, -1]
        return memory, scores.float().softmax(-1)

    def languages(self, chances: Tensor) -> list[list[tuple[str, float]]]:
        """(B, V) -> per row, the language tokens and their probabilities among all languages, most likely first."""
        known = self.settings.lang_to_id
        if not known:
            raise ValueError("this model has no language tokens: it transcribes one language")
        share = chances[:, list(known.values())]
        share = share / share.sum(-1, keepdim=True)
        return [sorted(zip(known, row, strict=True), key=lambda pair: -pair[1]) for row in share.tolist()]

    def transcribe_next(self, transcripts: Sequence[Transcript]) -> None:
        """Transcribe one more window of each recording."""
        windows = [each.windows.take(each.place) for each in transcripts]
        memory, chances = self.start(torch.stack([window for window, _ in windows]))
        if self.settings.lang_to_id:
            for each, languages in zip(transcripts, self.languages(chances), strict=True):
                each.language = each.language or languages[0][0]
        texts = self.texts(memory, chances, [each.language for each in transcripts])
        for each, (_, real), tokens in zip(transcripts, windows, texts, strict=True):
            begun = each.place * self.processor.hop_length / self.processor.sampling_rate
            parts, advance = split_sentences(tokens, self.first, real, self.model.spec.embedding.hop)
            for start, end, part in parts:
                each.segments.append(Segment(begun + start * self.step, begun + end * self.step, part))
            each.place += advance

    def texts(self, memory: Tensor, chances: Tensor, languages: list[str | None]) -> list[list[int]]:
        """Generate the tokens of each window, without the end token. Texts that look wrong are sampled at the next
        temperature; silent windows give an empty list."""
        options = dict(self.options)
        temperatures: Sequence[float] = options.pop("temperatures")
        tokens: list[list[int]] = [[] for _ in languages]
        remaining, log_probs = list(range(len(languages))), [0.0] * len(languages)
        for temperature in temperatures:
            sampling = {"do_sample": True, "temperature": temperature, "num_beams": 1} if temperature else {}
            settings: dict[str, Any] = (
                {"language": [languages[i] for i in remaining]} if self.settings.lang_to_id else {}
            )
            settings = {**options, **sampling, **settings, "return_dict": True, "output_scores": False, "seed": 0}
            out = generate(self.model, encoder_outputs=memory[remaining], **settings)
            again = []
            for row, i in enumerate(remaining):
                tokens[i], log_probs[i] = self.new_tokens(out, row)
                if self.looks_wrong(tokens[i], log_probs[i]):
                    again.append(i)
            remaining = again
            if not remaining:
                break
        if self.settings.no_timestamps_token_id is not None:
            silence = chances[:, self.settings.no_timestamps_token_id - 1].tolist()
            tokens = [
                [] if silence[i] > SILENCE_THRESHOLD and log_probs[i] < MIN_LOG_PROB else each
                for i, each in enumerate(tokens)
            ]
        return tokens

    def new_tokens(self, out: Any, row: int) -> tuple[list[int], float]:
        """Return the new tokens before the end token, and the mean log-probability including the end token."""
        beams = out.get("sequences_scores")
        new = out.log_probs.shape[1]
        tokens = out.sequences[row, -new:].tolist() if new else []
        end = next((i for i, token in enumerate(tokens) if token in self.settings.eos), len(tokens))
        if beams is not None:
            return tokens[:end], float(beams[row])
        counted = out.log_probs[row, : end + 1]
        return tokens[:end], float(counted.mean()) if len(counted) else 0.0

    def looks_wrong(self, tokens: list[int], log_prob: float) -> bool:
        raw = self.text(tokens).encode()
        return log_prob < MIN_LOG_PROB or (bool(raw) and len(raw) / len(zlib.compress(raw)) > MAX_COMPRESSION)

    def text(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode([t for t in tokens if t < self.first], skip_special_tokens=True)


def split_sentences(
    tokens: list[int], first: int, real: int, stride: int
) -> tuple[list[tuple[int, int, list[int]]], int]:
    """Split a window of `real` frames into sentences: (start timestamp, end timestamp, tokens). Also return how many
    frames later the next window begins: at the end of the last complete sentence. A timestamp is `stride` frames."""
    time = [token >= first for token in tokens]
    closed = time[-2:] == [False, True]  # the last timestamp ends the last sentence
    ends = [i + 1 for i in range(len(tokens) - 1) if time[i] and time[i + 1]]
    if not tokens:
        return [], real
    if not ends:
        times = [token - first for token in tokens if token > first]
        return [(0, times[-1] if times else real // stride, tokens)], real
    ends = [*ends, len(tokens)] if closed else [*ends[:-1], ends[-1] + 1]
    parts, begin = [], 0
    for i, end in enumerate(ends):
        part = tokens[begin:end]
        last = part[-1] if i + 1 < len(ends) or closed else part[-2]
        parts.append((part[0] - first, last - first, part))
        begin = end
    advance = real if closed else (tokens[begin - 2] - first) * stride
    return parts, advance if 0 < advance <= real else real
