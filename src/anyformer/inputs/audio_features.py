"""Audio features: samples (`input_values`) or a log-mel spectrogram (`input_features`), as configured in the folder's
preprocessor_config.json. A spectrogram has a fixed length and a range of 80 dB below the loudest (Whisper), or the
length of the recording and channels normalized to mean 0 and variance 1 (Parakeet).

    processor = AudioProcessor.load("a/model/folder")
    inputs = processor(["a.flac", (samples, 44100)])       # files or arrays of any rate, resampled to the model's

B recordings, T samples, M channels of a spectrogram, F frames.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from anyformer.inputs.recordings import AudioRecording, Source
from anyformer.specs.messages import nearest, quote
from anyformer.weights.io import read_json, write_json

FILES = ("preprocessor_config.json", "processor_config.json")
KINDS = {"Wav2Vec2FeatureExtractor": "values", "WhisperFeatureExtractor": "mel", "ParakeetFeatureExtractor": "bank"}
USUAL = {"values": {}, "mel": {"feature_size": 80}, "bank": {"feature_size": 80, "n_fft": 512}}  # defaults per kind
SWITCHES = ("return_attention_mask", "do_normalize")
LEAST = 1e-10  # minimum of the power
QUIET, NARROW = 2**-24, 1e-5  # added to powers before the logarithm and to standard deviations (Parakeet)
LARGEST = 2**25  # numbers that are in memory at once per recording; Whisper has 600,000
HIGHEST_RATE = 500_000  # samples per second, enough for the calls of bats; speech needs 16,000
RANGE = 8.0  # dynamic range in powers of ten, below the loudest


@dataclasses.dataclass(frozen=True, kw_only=True)
class AudioProcessor:
    """Converts recordings to model inputs. Fields have the names of preprocessor_config.json."""

    kind: Literal["values", "mel", "bank"] = "values"
    sampling_rate: int = 16000
    feature_size: int = 1  # M
    padding_value: float = 0.0
    return_attention_mask: bool = False
    do_normalize: bool = True  # normalize samples to mean 0 and variance 1; no effect on a spectrogram
    n_fft: int = 400
    hop_length: int = 160
    win_length: int = 400  # length of the window within n_fft samples (bank)
    preemphasis: float = 0.97  # share of each sample that is subtracted from the next (bank)
    chunk_length: int = 30  # length of the spectrogram in seconds (mel)
    dither: float = 0.0

    def __post_init__(self) -> None:
        for name in ("sampling_rate", "feature_size", "n_fft", "hop_length", "win_length", "chunk_length"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= 10_000_000:
                raise ValueError(f"{name} is {quote(value)}; it must be a whole number above 0")
        if self.sampling_rate > HIGHEST_RATE:
            raise ValueError(f"sampling_rate is {self.sampling_rate:,}; it must be at most {HIGHEST_RATE:,}")
        for name in ("padding_value", "dither", "preemphasis"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) <= 1e9:
                raise ValueError(f"{name} is {quote(value)}; it must be a number")
        for name in SWITCHES:
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} is {quote(getattr(self, name))}; it must be true or false")
        if self.kind == "values" and self.feature_size != 1:
            raise ValueError(f"feature_size is {self.feature_size}; samples have one value each")
        if self.kind == "bank" and self.win_length > self.n_fft:
            raise ValueError(f"win_length is {self.win_length}, longer than n_fft {self.n_fft}")
        if self.kind != "values":
            bins, samples = self.n_fft // 2 + 1, self.chunk_length * self.sampling_rate
            if max(samples, self.chunk_frames * max(bins, self.feature_size), self.feature_size * bins) > LARGEST:
                names = ("chunk_length", "sampling_rate", "n_fft", "hop_length", "feature_size")
                sizes = ", ".join(f"{name} {getattr(self, name):,}" for name in names)
                raise ValueError(f"a spectrogram of {sizes} is too large")

    @classmethod
    def load(cls, folder: str | Path) -> AudioProcessor:
        for name in FILES:
            file = Path(folder) / name
            if file.is_file():
                config = read_json(file)
                config = config.get("feature_extractor", config) if name == FILES[1] else config
                try:
                    return cls.from_config(config)
                except ValueError as error:
                    raise ValueError(f"{file}: {error}") from None
        raise ValueError(f"{folder}: no {FILES[0]} with settings for audio")

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> AudioProcessor:
        """Create a processor from the contents of preprocessor_config.json; unknown fields are ignored."""
        if not isinstance(config, Mapping):
            raise ValueError(f"feature_extractor is {quote(config)}; expected an object")
        name = config.get("feature_extractor_type")
        if name is None:  # early files have no type
            name = "WhisperFeatureExtractor" if "n_fft" in config else "Wav2Vec2FeatureExtractor"
        if not isinstance(name, str) or name not in KINDS:
            raise ValueError(f"feature_extractor_type {quote(name)} is not supported; {nearest(str(name), KINDS)}")
        if (side := config.get("padding_side") or "right") != "right":
            raise ValueError(f"padding_side is {quote(side)}; recordings are padded at their end; valid: 'right'")
        known = {field.name for field in dataclasses.fields(cls)} - {"kind"}
        # as in transformers, a boolean that is null is False, and any other null field is ignored
        off: dict[str, Any] = {field: False for field in SWITCHES if field in config}
        given = {field: value for field, value in config.items() if field in known and value is not None}
        return cls(**{"kind": KINDS[name], **USUAL[KINDS[name]], **off, **given})

    def save(self, folder: str | Path) -> None:
        """Write a preprocessor_config.json for `load` and transformers."""
        name = next(name for name, kind in KINDS.items() if kind == self.kind)
        values = {field: value for field, value in dataclasses.asdict(self).items() if field != "kind"}
        write_json(Path(folder) / FILES[0], {"feature_extractor_type": name, **values})

    # -- whole recordings ---------------------------------------------------------------------------------------------

    def __call__(
        self,
        audio: Source | Sequence[Source],
        sampling_rate: int | None = None,
        *,
        padding: str | None = None,
        max_length: int | None = None,
        truncation: bool | None = None,
        return_attention_mask: bool | None = None,
    ) -> dict[str, Tensor]:
        """Return the inputs of recordings, padded to the longest or (padding="max_length") to `max_length` samples, and
        cut there if `truncation`. Log-mel spectrograms are by default padded and cut to chunk_length seconds."""
        several = audio if isinstance(audio, list) else [audio]
        if not several:
            raise ValueError("audio is empty: pass at least one recording")
        mel = self.kind == "mel"
        padding = padding or ("max_length" if mel else "longest")
        if padding not in ("longest", "max_length"):
            raise ValueError(f"padding={quote(padding)}; {nearest(padding, ('longest', 'max_length'))}")
        cut = mel if truncation is None else truncation
        if mel and max_length is None:
            max_length = self.chunk_length * self.sampling_rate
        if padding == "max_length" and max_length is None:
            raise ValueError("padding='max_length' needs max_length")
        rows = []
        for number, source in enumerate(several, 1):
            try:
                with AudioRecording.open(source, sampling_rate) as recording:
                    rows.append(recording.read(self.sampling_rate, max_length if cut else None))
                if not len(rows[-1]):
                    raise ValueError("the recording has no samples")
            except ValueError as error:
                raise error if len(several) == 1 else ValueError(f"recording {number}: {error}") from None
        longest = max(map(len, rows))
        length = max(longest, max_length) if padding == "max_length" and max_length is not None else longest
        masked = self.return_attention_mask if return_attention_mask is None else return_attention_mask
        return self.extract(rows, length, masked)

    def extract(self, rows: list[np.ndarray], length: int, masked: bool) -> dict[str, Tensor]:
        """Return the model inputs for samples at the model's rate, padded to `length`."""
        match self.kind:
            case "values":
                return self.values(rows, length, masked)
            case "mel":
                return self.spectrograms(rows, length, masked)
        return self.banks(rows, length)

    def values(self, rows: list[np.ndarray], length: int, masked: bool) -> dict[str, Tensor]:
        """Return samples (B, T). Without a mask the model also reads the padding, so it is normalized with the rest."""
        out, mask = self.pad(rows, length), np.zeros((len(rows), length), dtype=np.int32)
        for i, row in enumerate(rows):
            mask[i, : len(row)] = 1
        if self.do_normalize:
            for i, row in enumerate(rows):
                real = slice(0, len(row) if masked else length)
                out[i, real] = (out[i, real] - out[i, real].mean()) / np.sqrt(out[i, real].var() + 1e-7)
        inputs = {"input_values": torch.from_numpy(out)}
        return {**inputs, "attention_mask": torch.from_numpy(mask)} if masked else inputs

    def spectrograms(self, rows: list[np.ndarray], length: int, masked: bool) -> dict[str, Tensor]:
        """Return log-mel spectrograms (B, M, F)."""
        if length // self.hop_length < 1 or length <= self.n_fft // 2:
            raise ValueError(f"{length} samples are less than a frame of {self.n_fft}")
        half = self.n_fft // 2
        around = np.pad(self.pad(rows, length), ((0, 0), (half, half)), mode="reflect")
        power = self.powers(torch.from_numpy(around))[..., : length // self.hop_length]
        inputs = {"input_features": self.normalize(power, power.amax((1, 2), keepdim=True))}
        if masked:
            frames = torch.arange(length // self.hop_length) * self.hop_length
            inputs["attention_mask"] = (frames < torch.tensor([len(row) for row in rows])[:, None]).int()
        return inputs

    def banks(self, rows: list[np.ndarray], length: int) -> dict[str, Tensor]:
        """Return spectrograms (B, F, M) and a mask of real frames, which determine each channel's mean and variance."""
        counts = torch.tensor([len(row) // self.hop_length for row in rows])
        if int(counts.min()) < 2:
            few = min(map(len, rows))
            raise ValueError(f"{few} samples are less than two frames of {self.hop_length}")
        samples = torch.from_numpy(self.pad(rows, length))
        samples = torch.cat((samples[:, :1], samples[:, 1:] - self.preemphasis * samples[:, :-1]), dim=1)
        real = torch.arange(length) < torch.tensor([len(row) for row in rows])[:, None]
        window = torch.hann_window(self.win_length, periodic=False)
        waves = torch.stft(
            samples.masked_fill(~real, 0.0),
            self.n_fft,
            self.hop_length,
            self.win_length,
            window,
            pad_mode="constant",
            return_complex=True,
        )
        powers = (torch.matmul(self.filters, waves.abs().square()) + QUIET).log().transpose(1, 2)
        mask = torch.arange(powers.shape[1]) < counts[:, None]
        share, number = mask[..., None].float(), counts[:, None, None]
        mean = (powers * share).sum(1, keepdim=True) / number
        spread = (((powers - mean).square() * share).sum(1, keepdim=True) / (number - 1)).sqrt()
        return {"input_features": (powers - mean) / (spread + NARROW) * share, "attention_mask": mask}

    def pad(self, rows: list[np.ndarray], length: int) -> np.ndarray:
        """Pad rows on the right: (B, length)."""
        out = np.full((len(rows), length), self.padding_value, dtype=np.float32)
        for i, row in enumerate(rows):
            out[i, : len(row)] = row
        return out

    # -- frames -------------------------------------------------------------------------------------------------------

    def powers(self, samples: Tensor) -> Tensor:
        """Return log10 powers (..., M, F) of samples (..., T): one frame of n_fft every hop_length, no padding."""
        if self.dither:
            samples = samples + self.dither * torch.randn_like(samples)
        window = torch.hann_window(self.n_fft)
        waves = torch.stft(samples, self.n_fft, self.hop_length, window=window, center=False, return_complex=True)
        return torch.matmul(self.filters, waves.abs().square()).clamp(min=LEAST).log10()

    def normalize(self, powers: Tensor, loudest: Tensor) -> Tensor:
        return (torch.maximum(powers, loudest - RANGE) + 4.0) / 4.0

    @functools.cached_property
    def filters(self) -> Tensor:
        highest = self.sampling_rate / 2 if self.kind == "bank" else 8000.0
        filters = mel_filters(self.n_fft // 2 + 1, self.feature_size, self.sampling_rate, highest)
        return torch.from_numpy(filters).float()

    # -- recordings of any length -------------------------------------------------------------------------------------

    @property
    def chunk_frames(self) -> int:
        return self.chunk_length * self.sampling_rate // self.hop_length

    def stream(self, blocks: Iterable[np.ndarray]) -> Iterator[Tensor]:
        """Yield the powers (M, F) of the frames that each block of samples completes. Together they equal the powers of
        the whole recording. At most two blocks are in memory at once."""
        half, hop = self.n_fft // 2, self.hop_length
        buffer = tail = np.zeros(0, np.float32)
        total, yielded, begun = 0, 0, False
        for block in blocks:
            total += len(block)
            buffer, tail = np.concatenate((buffer, block)), np.concatenate((tail, block))[-half - 1 :]
            if not begun:
                if len(buffer) <= half:
                    continue
                buffer, begun = np.concatenate((buffer[half:0:-1], buffer)), True
            count = min((len(buffer) - self.n_fft) // hop + 1, total // hop - yielded)
            if count > 0:
                yielded += count
                yield self.powers(torch.from_numpy(buffer[: (count - 1) * hop + self.n_fft]))
                buffer = buffer[count * hop :]
        if not begun:
            raise ValueError(f"{total} samples are less than a frame of {self.n_fft}")
        remaining = total // hop - yielded
        if remaining > 0:
            end = np.concatenate((buffer, tail[-2::-1]))  # mirrored, as at the beginning
            yield self.powers(torch.from_numpy(end[: (remaining - 1) * hop + self.n_fft]))


def mel_filters(bins: int, channels: int, rate: int, highest: float = 8000.0) -> np.ndarray:
    """Return mel filters (channels, bins): triangles of equal area, evenly spaced on the mel scale up to `highest`. The
    scale is linear below 1 kHz and logarithmic above [Slaney 1998]."""
    ends = to_hertz(np.linspace(0.0, to_mel(highest), channels + 2))
    frequencies = np.linspace(0, rate // 2, bins)
    rising = (frequencies - ends[:-2, None]) / np.diff(ends)[:-1, None]
    falling = (ends[2:, None] - frequencies) / np.diff(ends)[1:, None]
    area = 2.0 / (ends[2:] - ends[:-2])
    return np.maximum(0, np.minimum(rising, falling)) * area[:, None]


STEP = np.log(6.4) / 27.0  # log frequency per mel above 1 kHz, which is mel 15


def to_mel(hertz: float) -> float:
    return 15.0 + np.log(hertz / 1000.0) / STEP if hertz >= 1000.0 else 3.0 * hertz / 200.0


def to_hertz(mel: np.ndarray) -> np.ndarray:
    return np.where(mel >= 15.0, 1000.0 * np.exp(STEP * (mel - 15.0)), 200.0 * mel / 3.0)
