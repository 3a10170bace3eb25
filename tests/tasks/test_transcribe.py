"""Transcription compared with transformers: CTC letters by frame, sentences by window, languages."""

from __future__ import annotations

import ctypes
import json
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import anyformer as af
from anyformer import cli
from anyformer.generation import ctc
from anyformer.inputs.audio_features import AudioProcessor
from anyformer.look.inputs import scene
from anyformer.tasks import long_audio
from anyformer.tasks.each.transcribe import transcriber_of
from anyformer.tasks.task import start_run
from vocabularies import gpt2

transformers, soundfile = pytest.importorskip("transformers"), pytest.importorskip("soundfile")
RATE = 16000


def tone(seconds: float, seed: int = 0) -> np.ndarray:
    t = np.arange(int(seconds * RATE)) / RATE
    pitch = np.random.default_rng(seed).uniform(200, 3000, 6)
    waves = sum(np.sin(2 * np.pi * f * t) * (np.sin((i + 1) * t) > 0) for i, f in enumerate(pitch)) / 8
    return (waves + np.random.default_rng(seed).normal(size=len(t)) * 0.02).astype(np.float32)


def spread(model: Any, seed: int = 0) -> Any:
    """Weights far from uniform, so that every part of a recording gives a different text."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and parameter.dim() > 1 and "pos_conv" not in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 1.5 / parameter[0].numel() ** 0.5)
    return model.eval()


# -- letters


LETTERS = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40, "conv_dim": [12, 16],
    "conv_stride": [40, 8], "conv_kernel": [60, 9], "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2,
    "vocab_size": 32, "feat_extract_norm": "layer",
}  # fmt: skip


@pytest.fixture(scope="module")
def spelling(tmp_path_factory) -> Path:
    return speller(tmp_path_factory.mktemp("letters"))


def speller(folder: Path, **changes: Any) -> Path:
    words = ["<pad>", "<s>", "</s>", "<unk>", "|", *"ETAONIHSRDLUMWCFGYPBVKXJQZ'"]
    (folder / "vocab.json").write_text(json.dumps({word: i for i, word in enumerate(words)}))
    torch.manual_seed(0)
    model = spread(transformers.Wav2Vec2ForCTC(transformers.Wav2Vec2Config(**{**LETTERS, **changes})))
    with torch.no_grad():
        model.lm_head.bias[:5] = torch.tensor([1.0, -99, -99, -99, 1.5])  # letters, and spaces between them
    model.save_pretrained(folder)
    transformers.Wav2Vec2CTCTokenizer(str(folder / "vocab.json")).save_pretrained(folder)
    transformers.Wav2Vec2FeatureExtractor(do_normalize=not changes).save_pretrained(folder)
    return folder


def test_letters_equal_published(spelling: Path, tmp_path) -> None:
    processor = transformers.Wav2Vec2Processor.from_pretrained(spelling)
    model = transformers.Wav2Vec2ForCTC.from_pretrained(spelling).eval()
    samples = [tone(1.3), tone(0.7, seed=1)]
    wanted = []
    for each in samples:
        inputs = processor(each, sampling_rate=RATE, return_tensors="pt")
        with torch.no_grad():
            wanted += processor.batch_decode(model(**inputs).logits.argmax(-1))
    assert len(set(wanted[0])) > 5 and " " in wanted[0].strip()
    assert af.tasks.transcribe(spelling, [{"audio": (each, RATE)} for each in samples]) == wanted
    soundfile.write(tmp_path / "b.wav", samples[0], RATE, subtype="FLOAT")
    soundfile.write(tmp_path / "a.flac", samples[1], RATE, subtype="PCM_24")
    assert af.tasks.transcribe(spelling, str(tmp_path / "b.wav")) == wanted[0]
    found = af.tasks.transcribe(spelling, str(tmp_path))
    assert found == [{"file": str(tmp_path / f"{name}"), "text": text}
                     for name, text in (("a.flac", found[0]["text"]), ("b.wav", wanted[0]))]  # fmt: skip


def test_texts_become_letters_as_published(spelling: Path) -> None:
    theirs = transformers.Wav2Vec2CTCTokenizer.from_pretrained(spelling)
    mine = af.tasks.open_model(spelling).tokenizer
    for text in ("HELLO WORLD", "A", "IT'S 5 O'CLOCK"):
        ids = theirs(text)["input_ids"]
        assert mine.encode(text) == ids
        assert mine.decode(ids, skip_special_tokens=True) == theirs.decode(
            ids, skip_special_tokens=True, group_tokens=False
        )
    for ids in ([4], [4, 4], [4, 4, 5, 4, 4, 6, 4], [0, 4]):  # spaces at the ends, or nothing else
        assert mine.decode(ids, skip_special_tokens=True) == theirs.decode(
            ids, skip_special_tokens=True, group_tokens=False
        )


def test_times_of_words_equal_published(spelling: Path) -> None:
    pipe = transformers.pipeline("automatic-speech-recognition", str(spelling))
    for seconds, seed in ((1.3, 0), (0.7, 1)):
        wanted = pipe(tone(seconds, seed), return_timestamps="word")["chunks"]
        audio = {"audio": (tone(seconds, seed), RATE)}
        found = af.tasks.transcribe(spelling, audio, timestamps=True)
        assert [each["text"] for each in found] == [each["text"] for each in wanted] and len(found) > 3
        times = [(each["start"], each["end"]) for each in found]
        assert times == [pytest.approx(each["timestamp"], abs=5e-3) for each in wanted]
        assert " ".join(each["text"] for each in found) == " ".join(af.tasks.transcribe(spelling, audio).split())


def test_each_word_holds_its_frames() -> None:
    """Blanks, repeats, single and double delimiters, pieces that begin a word, and tokens without text."""
    scores = torch.full((14, 6), -9.0)
    for frame, token in enumerate([0, 4, 1, 1, 0, 1, 4, 4, 0, 4, 2, 5, 0, 3]):
        scores[frame, token] = 0.0
    heard = ctc.path(scores, 0)
    assert heard == [(4, 1, 2), (1, 2, 4), (1, 5, 6), (4, 6, 8), (4, 9, 10), (2, 10, 11), (5, 11, 12), (3, 13, 14)]
    assert ctc.best_path(scores, 0) == ([each.token for each in heard], 0.0)
    letters, pieces = "-ABC ", ["-", "▁a", "b", "▁c", "▁"]

    def spelt(ids: list[int]) -> str:
        return "".join(letters[i] for i in ids if i < 5).strip()

    def joined(ids: list[int]) -> str:
        return "".join(pieces[i] for i in ids if i < 5).replace("▁", " ").strip()

    spans = [
        [(each[0].start, each[-1].end) for each in long_audio.group_words(heard, decode)] for decode in (spelt, joined)
    ]
    assert spans == [[(2, 6), (10, 14)], [(2, 4), (5, 6), (10, 11), (13, 14)]]
    assert long_audio.group_words(heard[:1], spelt) == []


def test_letters_by_beams(spelling: Path) -> None:
    model, samples = af.load(spelling), tone(0.9)
    ids = af.generate(model, **AudioProcessor.load(spelling)(samples, RATE), num_beams=4)
    wanted = af.tasks.open_model(spelling).tokenizer.decode(ids[0], skip_special_tokens=True)
    assert af.tasks.transcribe(spelling, {"audio": (samples, RATE)}, num_beams=4) == wanted


def test_windows_of_letters_are_the_whole(tmp_path, monkeypatch) -> None:
    """If a frame depends only on its neighbourhood, windows change nothing."""
    folder = speller(tmp_path, num_hidden_layers=0, num_conv_pos_embeddings=1)
    model, processor, samples = af.load(folder), AudioProcessor.load(folder), tone(7.43)
    with torch.no_grad():
        whole = model(**processor(samples, RATE)).logits[0].log_softmax(-1)
    for window, overlap in ((30, 5), (4, 1), (3, 1)):
        monkeypatch.setattr(long_audio, "WINDOW", window)
        monkeypatch.setattr(long_audio, "OVERLAP", overlap)
        with torch.no_grad():
            found = list(long_audio.frames(model, processor, (samples, RATE)))
        assert len(found) == 1 if window == 30 else len(found) > 2
        torch.testing.assert_close(torch.cat(found), whole, rtol=1e-5, atol=1e-5)


# -- sentences


START, SILENT = 400, 408  # the start token and the no-timestamps token
TOLD: dict[str, Any] = {
    "decoder_start_token_id": START, "max_length": 40, "lang_to_id": {"<|en|>": 401, "<|de|>": 402, "<|fr|>": 403},
    "task_to_id": {"translate": 404, "transcribe": 405}, "no_timestamps_token_id": SILENT, "is_multilingual": True,
    "suppress_tokens": [*range(400, 408)], "prev_sot_token_id": 406, "return_timestamps": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def writer(tmp_path_factory) -> Path:
    """A model with windows of one second."""
    return whisper(tmp_path_factory.mktemp("whisper"), 1)


def whisper(folder: Path, seconds: int) -> Path:
    end = json.loads((gpt2(folder, tokenizer_class="WhisperTokenizer") / "vocab.json").read_text())["<|endoftext|>"]
    config = transformers.WhisperConfig(
        vocab_size=460, num_mel_bins=16, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=40, decoder_ffn_dim=40, max_source_positions=50 * seconds,
        max_target_positions=64, pad_token_id=end, bos_token_id=end, eos_token_id=end, decoder_start_token_id=START,
    )  # fmt: skip
    torch.manual_seed(0)
    model = spread(transformers.WhisperForConditionalGeneration(config), seed=2)
    with torch.no_grad():
        model.proj_out.weight[SILENT + 1 :] *= 2.5  # many timestamps
        model.model.decoder.embed_positions.weight *= 2
    ids = {"eos_token_id": end, "pad_token_id": end, "bos_token_id": end}
    model.generation_config = transformers.GenerationConfig(**TOLD, **ids, begin_suppress_tokens=[end])
    model.save_pretrained(folder)
    transformers.WhisperFeatureExtractor(feature_size=16, chunk_length=seconds).save_pretrained(folder)
    return folder


def transcriber(folder: Path, **options: Any) -> long_audio.Transcriber:
    asked = start_run("transcribe", folder, "x", {})
    return transcriber_of(asked, False, True, options.get("num_beams"), 30, options.get("temperatures", (0.0,)))


@pytest.mark.parametrize("seconds", [0.8, 1.0, 3.71])
@pytest.mark.parametrize("language", ["de", None])
def test_windows_follow_times_as_published(writer: Path, seconds: float, language: str | None) -> None:
    theirs = transformers.WhisperForConditionalGeneration.from_pretrained(writer).eval()
    extract, samples = transformers.WhisperFeatureExtractor.from_pretrained(writer), tone(seconds, seed=3)
    long = {"truncation": False, "padding": "longest"} if seconds > 1 else {}
    features = extract(samples, sampling_rate=RATE, return_tensors="pt", **long)["input_features"]
    options = {"language": language} if language else {}
    expected = theirs.generate(
        features, return_timestamps=True, return_segments=True, task="transcribe", temperature=0.0, max_new_tokens=30,
        **options,
    )["segments"][0]  # fmt: skip
    mine = transcriber(writer)
    heard = mine.open((samples, RATE), language)
    while heard.has_more:
        mine.transcribe_next([heard])
    assert [each.tokens for each in heard.segments] == [each["tokens"].tolist() for each in expected]
    for found, wanted in zip(heard.segments, expected, strict=True):
        assert found.start == pytest.approx(float(wanted["start"]), abs=1e-6)
        assert found.end == pytest.approx(float(wanted["end"]), abs=1e-6)
    assert len(heard.segments) > 4 or seconds <= 1


def test_one_by_one_or_together(writer: Path, tmp_path) -> None:
    samples = [tone(1.6, seed=4), tone(0.6), tone(1.3, seed=5)]
    inputs = [{"audio": (each, RATE)} for each in samples]
    once: dict[str, Any] = {"temperatures": (0.0,), "max_new_tokens": 14}
    options = {"timestamps": True, **once}
    together = af.tasks.transcribe(writer, inputs, batch=2, **options)
    assert together == [af.tasks.transcribe(writer, each, **options) for each in inputs]
    whole = af.tasks.transcribe(writer, inputs[0], **once)
    assert isinstance(whole, str) and whole
    assert "".join(part["text"] for part in together[0]).replace(" ", "") == whole.replace(" ", "")
    soundfile.write(tmp_path / "a.wav", samples[0], RATE, subtype="FLOAT")
    found = af.tasks.transcribe(writer, str(tmp_path), **once)
    assert found == [{"file": str(tmp_path / "a.wav"), "text": whole}]
    spoken = af.tasks.transcribe(writer, inputs[0], language="french", **once)
    assert spoken != af.tasks.transcribe(writer, inputs[0], language="de", translate=True, **once)


def test_what_looks_wrong_is_tried_again(writer: Path, monkeypatch) -> None:
    """The next temperature is tried as long as a text is unlikely; silence gives no text."""
    tried: list[Any] = []
    real = long_audio.generate

    def watched(*given: Any, **options: Any) -> Any:
        tried.append((options.get("temperature", 0.0), len(options["encoder_outputs"])))
        return real(*given, **options)

    monkeypatch.setattr(long_audio, "generate", watched)
    monkeypatch.setattr(long_audio, "MAX_COMPRESSION", 1e9)
    monkeypatch.setattr(long_audio, "MIN_LOG_PROB", -1e9)
    audio = {"audio": (tone(0.7), RATE)}
    first = af.tasks.transcribe(writer, audio, max_new_tokens=8)
    assert {each for each, _ in tried} == {0.0} and first
    tried.clear()
    monkeypatch.setattr(long_audio, "MIN_LOG_PROB", 1e9)
    last = af.tasks.transcribe(writer, audio, temperatures=(0.0, 0.5, 2.0), max_new_tokens=8)
    assert [each for each, _ in tried][:6] == [0.0, 0.5, 2.0, 0.0, 0.5, 2.0] and last != first
    again = af.tasks.transcribe(writer, audio, temperatures=(0.0, 0.5, 2.0), max_new_tokens=8)
    assert again == last  # the draws are seeded
    monkeypatch.setattr(long_audio, "SILENCE_THRESHOLD", -1.0)
    assert af.tasks.transcribe(writer, audio, temperatures=(0.0,)) == ""


def test_the_language_as_published(writer: Path) -> None:
    theirs = transformers.WhisperForConditionalGeneration.from_pretrained(writer).eval()
    extract = transformers.WhisperFeatureExtractor.from_pretrained(writer)
    samples = [tone(0.9, seed=i) for i in range(5)]
    features = extract(samples, sampling_rate=RATE, return_tensors="pt")["input_features"]
    codes = {number: token[2:-2] for token, number in TOLD["lang_to_id"].items()}
    wanted = [codes[number] for number in theirs.detect_language(features).tolist()]
    with torch.no_grad():
        start = torch.full((5, 1), START)
        share = theirs(features, decoder_input_ids=start).logits[:, -1, 401:404].softmax(-1).amax(-1)
    inputs = [{"audio": (each, RATE)} for each in samples]
    found = af.tasks.detect_language(writer, inputs, batch=2)
    assert [each["language"] for each in found] == wanted
    assert [each["score"] for each in found] == pytest.approx(share.tolist(), abs=1e-5)
    assert found[0]["name"] in ("english", "german", "french")
    every = af.tasks.detect_language(writer, inputs[0], top_k=9)
    assert every[0]["language"] == wanted[0] and sum(each["score"] for each in every) == pytest.approx(1)


@pytest.mark.parametrize(("tokens", "wanted", "advance"), [
    ([100, 1, 2, 103], [(0, 3, [100, 1, 2, 103])], 50),
    ([100, 1, 103, 103, 2, 110], [(0, 3, [100, 1, 103]), (3, 10, [103, 2, 110])], 50),
    ([100, 1, 103, 103, 2], [(0, 3, [100, 1, 103, 103])], 6),
    ([1, 2], [(0, 25, [1, 2])], 50), ([], [], 50), ([100, 1, 100, 100, 2], [(0, 0, [100, 1, 100, 100])], 50),
    ([100, 1, 125, 125, 2], [(0, 25, [100, 1, 125, 125])], 50),
    ([100, 1, 130, 130, 2], [(0, 30, [100, 1, 130, 130])], 50),
    ([100, 1, 2], [(0, 25, [100, 1, 2])], 50), ([100, 1, 112, 2], [(0, 12, [100, 1, 112, 2])], 50),
])  # fmt: skip
def test_sentences_of_a_window(tokens: list[int], wanted: Any, advance: int) -> None:
    """If a timestamp is the start of the window or after its end, the next window follows: no window is read twice."""
    assert long_audio.split_sentences(tokens, 100, 50, 2) == (wanted, advance)


def test_the_shortest_sentence_moves_the_window() -> None:
    assert long_audio.split_sentences([100, 1, 101, 101, 2], 100, 50, 1) == ([(0, 1, [100, 1, 101, 101])], 1)


def test_silence_is_what_is_likely_silent_and_unsure(writer: Path, monkeypatch) -> None:
    """As published: a text is dropped if silence is above SILENCE_THRESHOLD and the text below MIN_LOG_PROB."""
    monkeypatch.setattr(long_audio, "SILENCE_THRESHOLD", 0.5)
    monkeypatch.setattr(long_audio, "generate", lambda *given, **options: None)
    # how likely silence is, and the mean log-probability of the text
    rows = [(0.75, -1.5), (0.75, -1.0), (0.5, -1.5), (0.25, -1.5), (0.25, -0.5), (0.75, -0.5)]
    monkeypatch.setattr(long_audio.Transcriber, "new_tokens", lambda self, out, row: ([5, 6], rows[row][1]))
    monkeypatch.setattr(long_audio.Transcriber, "looks_wrong", lambda *given: False)
    chances = torch.zeros(6, 460)
    chances[:, SILENT - 1] = torch.tensor([silence for silence, _ in rows])
    found = transcriber(writer).texts(torch.zeros(6, 1, 1), chances, ["<|en|>"] * 6)
    assert found == [[], *[[5, 6]] * 5]


def test_the_quietest_place_is_the_last_of_the_least_power() -> None:
    samples = np.random.default_rng(0).normal(size=60).astype(np.float32)
    for width in (1, 7, 8):
        powers = [float((samples[i : i + width] ** 2).sum()) for i in range(60 - width + 1)]
        assert long_audio.quietest(samples, width) == int(np.argmin(powers)) + width // 2
    samples[10:20] = samples[30:45] = 0
    assert long_audio.quietest(samples, 8) == 45 - 8 + 4


# -- under a spectrogram


@pytest.mark.parametrize("kind", ["letters", "sentences"])
def test_words_of_a_scene(kind: str, spelling: Path, writer: Path, tmp_path: Path, monkeypatch) -> None:
    """`anyformer look --picture spectrogram` draws the transcribed words at the times of their frames."""
    monkeypatch.setattr(long_audio, "MIN_LOG_PROB", -1e9)  # nothing is tried again
    monkeypatch.setattr(long_audio, "MAX_COMPRESSION", 1e9)
    folder, samples = spelling if kind == "letters" else writer, tone(1.64, seed=4)
    soundfile.write(tmp_path / "a.wav", samples, RATE, subtype="FLOAT")
    sound = scene(str(folder), str(tmp_path / "a.wav"), target=None if kind == "letters" else "a").sound()
    found = af.tasks.transcribe(folder, str(tmp_path / "a.wav"), timestamps=True)
    assert sound.words == [(each["start"], each["end"], each["text"]) for each in found if each["text"].strip()]
    assert len(sound.words) > 2 and sound.seconds == pytest.approx(1.64, abs=0.02)
    if kind == "letters":  # frames of 25 ms every 10 ms; here around frame 21
        heard = (samples - samples.mean()) / np.sqrt(samples.var() + 1e-7)
        waves = np.abs(np.fft.rfft(heard[21 * 160 - 200 : 21 * 160 + 200] * np.hanning(401)[:400]))[:120]
        assert np.allclose(sound.power[:, 21].numpy(), np.log(waves), atol=1e-2)
        assert sound.unit == "kHz" and sound.high == pytest.approx(4.8)
    else:
        features = transformers.WhisperFeatureExtractor.from_pretrained(writer)(
            samples, sampling_rate=RATE, padding="longest", truncation=False, return_tensors="np"
        )
        assert np.allclose(sound.power.numpy(), features["input_features"][0], atol=1e-4)
        assert (sound.unit, sound.high) == ("mel channel", 16)


# -- as it comes


@pytest.mark.parametrize("rate", [RATE, 8000])
def test_a_stream_of_chunks_is_the_recording(spelling: Path, writer: Path, rate: int) -> None:
    """A stream, as from a microphone: chunks of any length, each read once. If the stream is loudest at its beginning,
    its text equals the text of the file; otherwise the maximum is not known in advance."""
    samples = tone(2.3 * rate / RATE, seed=3) * np.linspace(1, 0.5, int(2.3 * rate), dtype=np.float32)

    def chunks(size: int) -> Iterator[np.ndarray]:
        yield np.zeros(0, np.float32)
        yield from (samples[i : i + size] for i in range(0, len(samples), size))

    once: dict[str, Any] = {"temperatures": (0.0,), "max_new_tokens": 14, "timestamps": True}
    for folder, options in ((spelling, {}), (writer, once)):
        whole = af.tasks.transcribe(folder, {"audio": (samples, rate)}, **options)
        for size in (317, 5000, 10**6):
            assert af.tasks.transcribe(folder, {"audio": (chunks(size), rate)}, **options) == whole
    exact = long_audio.AudioWindows(AudioProcessor.load(writer), (iter([tone(2)]), RATE), 100)
    assert long_audio.AudioWindows(AudioProcessor.load(writer), (tone(2), RATE), 100).total == 200, (
        "a file tells at once"
    )
    taken = [exact.take(start)[1] for start in (0, 100)]
    assert taken == [100, 100] and exact.total == 200, "a stream that ends with a window ends"


@pytest.mark.parametrize(("chunks", "match"), [
    ([], "less than a frame"), ([np.zeros(9, np.float32)], "less than a frame"),
    ([tone(0.4), tone(0.1) * np.nan], "the stream: sample 6,400 is not a finite"),
    ([np.zeros((9, 2))], "one channel"), (["words"], "one channel of numbers"),
], ids=str)  # fmt: skip
def test_what_is_no_stream_of_sound(spelling: Path, writer: Path, chunks: list, match: str) -> None:
    for folder in (spelling, writer):
        with pytest.raises(ValueError, match=match):
            af.tasks.transcribe(folder, {"audio": (iter(chunks), RATE)})


# -- hours


def talk(path: Path, minutes: float, rate: int, channels: int) -> Path:
    """A WAV file with one second of noise per minute; the silence is sparse on disk."""
    count, frame = int(minutes * 60 * rate), 2 * channels
    noise = (np.random.default_rng(0).normal(size=(rate, channels)) * 3000).astype("<i2").tobytes()
    head = b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 1, channels, rate, rate * frame, frame, 16) + b"data"
    with path.open("wb") as file:
        file.write(b"RIFF" + struct.pack("<I", 36 + count * frame) + head + struct.pack("<I", count * frame))
        for minute in range(int(minutes)):
            file.seek(44 + minute * 60 * rate * frame)
            file.write(noise)
        file.truncate(44 + count * frame)
    return path


def highest(run: Callable[[], Any]) -> float:
    """Return by how many MB the peak memory of this process grows."""

    def resident(field: str) -> int:
        line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
        return int(line.split()[1])

    ctypes.CDLL("libc.so.6").malloc_trim(0)  # so that freed memory is not reused without being counted
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    run()
    return (resident("VmHWM") - before) / 1000


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the highest memory is Linux's to tell")
@pytest.mark.parametrize(("kind", "minutes"), [("letters", 6), ("beams", 6), ("windows", 14), ("pieces", 14)])
def test_memory_does_not_grow_with_a_recording(kind: str, minutes: int, tmp_path) -> None:
    """The samples of 13 minutes are 50 MB, the scores of 5 for 16,000 tokens 96 MB, and twice that to join them."""
    config = {"d_model": 8, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 8, "num_mel_bins": 16,
              "vocab_size": 16000, "subsampling_channels": 2, "conv_kernel_size": 3}  # fmt: skip
    model = af.build(af.families.find("conformer").read(config)).eval()
    bank = AudioProcessor(kind="bank", feature_size=16, n_fft=512, hop_length=800)
    mel = AudioProcessor(kind="mel", feature_size=16)

    def hear(file: Path) -> None:
        match kind:
            case "letters" | "beams":
                long_audio.ctc_tokens(model, bank, file, 1 if kind == "letters" else 2)
            case "windows":
                windows, place = long_audio.AudioWindows(mel, file, mel.chunk_frames), 0
                while place < windows.total:
                    place += windows.take(place)[1]
            case "pieces":
                assert sum(map(len, long_audio.pieces(bank, file))) > 50 * RATE

    few, many = talk(tmp_path / "few.wav", 1, 8000, 2), talk(tmp_path / "many.wav", minutes, 8000, 2)
    hear(few)
    least = highest(lambda: hear(few))
    assert highest(lambda: hear(many)) < least + 40


# (getrusage of a child reports at least the memory of its parent)
MEASURED = (
    "import sys; from anyformer.cli import main; code = main(sys.argv[1:]); "
    "print(open('/proc/self/status').read().split('VmHWM:')[1].split()[0], file=sys.stderr); sys.exit(code)"
)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the highest memory is Linux's to tell")
@pytest.mark.parametrize("kind", ["whisper", "letters"])
def test_three_hours_in_bounded_memory(kind: str, tmp_path) -> None:
    """A file of 48 kHz and two channels, 2.1 GB, from the command line; its samples in fp32 are 4.1 GB. Prints the
    highest memory in MB: of a minute, and of three hours."""
    (tmp_path / "model").mkdir()
    folder = whisper(tmp_path / "model", 30) if kind == "whisper" else speller(tmp_path / "model")
    options = ["--max-new-tokens", "6", "--temperatures", "0"] if kind == "whisper" else []
    peaks = []
    for minutes in (1, 180):
        file = talk(tmp_path / f"{minutes}.wav", minutes, 48000, 2)
        command = [sys.executable, "-c", MEASURED, "run", "transcribe", str(folder), str(file), *options]
        begun = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        peaks.append(int(done.stderr.split()[-1]) // 1000)
        print(f"{kind}, {minutes} minutes: {peaks[-1]} MB, {time.perf_counter() - begun:.0f} s", file=sys.stderr)
        assert done.stdout.strip()
    assert peaks[1] - peaks[0] < 100


# -- mistakes


def bad_files(folder: Path) -> dict[str, str]:
    """Return {name: error}, or "" if there is an answer."""
    soundfile.write(folder / "whole.wav", tone(1), RATE, subtype="PCM_16")
    soundfile.write(folder / "whole.flac", tone(1), RATE)
    plain, packed = (folder / "whole.wav").read_bytes(), (folder / "whole.flac").read_bytes()
    raw = {
        "empty.wav": b"", "empty.flac": b"", "cut.wav": plain[:9000], "cut.flac": packed[: len(packed) // 2],
        "text.wav": b"Dear Sir,", "no rate.wav": plain[:24] + bytes(8) + plain[32:],
        "mad rate.wav": plain[:24] + b"\xff" * 4 + plain[28:],
    }  # fmt: skip
    for name, content in raw.items():
        (folder / name).write_bytes(content)
    nan = tone(0.5)
    nan[77] = np.nan
    kinds = {"nan.wav": nan, "silence.wav": np.zeros(RATE, np.float32), "blink.wav": tone(0.003)}
    for name, samples in kinds.items():
        soundfile.write(folder / name, samples, RATE, subtype="FLOAT")
    soundfile.write(folder / "fast.wav", tone(1), 192_000, subtype="PCM_24")
    soundfile.write(folder / "slow.wav", tone(0.2), 1000, subtype="PCM_16")
    return {
        "empty.wav": "is empty", "empty.flac": "is empty", "cut.wav": "ends after 4,478 of 16,000 samples",
        "cut.flac": "cut.flac: ", "text.wav": "text.wav: ", "no rate.wav": "no rate.wav: ",
        "mad rate.wav": "mad rate.wav: ", "nan.wav": "sample 77 is not a finite number", "silence.wav": "",
        "fast.wav": "", "slow.wav": "",
    }  # fmt: skip


def test_bad_files_are_one_line(spelling: Path, writer: Path, tmp_path, capsys) -> None:
    messages = bad_files(tmp_path)
    for folder, options in ((spelling, []), (writer, ["--temperatures", "0", "--max-new-tokens", "4"])):
        less = {"blink.wav": "48 samples are less than a frame"} if folder is spelling else {"blink.wav": ""}
        for name, match in {**messages, **less}.items():
            code = cli.main(["run", "transcribe", str(folder), str(tmp_path / name), *options])
            out, err = capsys.readouterr()
            if match:
                assert code == 2 and not out and err.count("\n") == 1 and match in err, (name, err)
            else:
                assert code == 0 and not err, (name, err)


def test_what_cannot_be_asked(writer: Path, spelling: Path, tmp_path) -> None:
    audio = {"audio": (tone(0.5), RATE)}
    for folder, given, options, message in (
        (writer, audio, {"language": "klingon"}, "no token for it"),
        (spelling, audio, {"timestamps": True, "num_beams": 3}, "timestamps: not available with num_beams"),
        (spelling, audio, {"translate": True}, "translate: this model transcribes letters"),
        (writer, str(tmp_path), {}, "no sound in this folder"), (writer, str(tmp_path / "a.wav"), {}, "no such file"),
        (spelling, {"audio": (tone(0.001), RATE)}, {}, "less than a frame"),
        (writer, {"audio": (np.zeros(0, np.float32), RATE)}, {}, "the recording is empty"),
        (writer, {"audio": (tone(0.5) * np.nan, RATE)}, {}, "sample 0 is not a finite"),
        (writer, {"audio": tone(0.5)}, {}, "samples need their rate"),
        (writer, {"text": "x"}, {}, "audio"),
    ):  # fmt: skip
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            af.tasks.transcribe(folder, given, **options)
    with pytest.raises(ValueError, match="needs a speech-to-text model"):
        af.tasks.detect_language(spelling, audio)
    with pytest.raises(ValueError, match="top_k"):
        af.tasks.detect_language(writer, audio, top_k=0)


def test_one_broken_recording_leaves_the_others(spelling: Path, writer: Path, tmp_path: Path) -> None:
    soundfile = pytest.importorskip("soundfile")
    for i in (0, 2):
        soundfile.write(tmp_path / f"{i}.wav", tone(0.4 + i / 10), RATE)
    (tmp_path / "1.wav").write_bytes(b"RIFF of nothing")
    for folder, options in ((spelling, {}), (writer, {"temperatures": (0.0,), "max_new_tokens": 4})):
        found = af.tasks.transcribe(folder, str(tmp_path), batch=2, **options)
        assert [one["file"] for one in found] == [str(tmp_path / f"{i}.wav") for i in range(3)]
        assert "1.wav" in found[1]["error"] and "text" not in found[1]
        assert [one["text"] for one in (found[0], found[2])] == [
            af.tasks.transcribe(folder, str(tmp_path / f"{i}.wav"), **options) for i in (0, 2)
        ]
    found = af.tasks.transcribe(writer, [str(tmp_path / "1.wav"), {"audio": (tone(0.5), RATE)}], **options)
    assert "error" in found[0] and isinstance(found[1], str)
