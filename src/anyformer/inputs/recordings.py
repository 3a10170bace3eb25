"""Audio recordings from files, arrays or tensors: one channel of samples between -1 and 1, at any rate, in blocks.

    with AudioRecording.open("talk.flac") as recording:
        for block in recording.blocks(16000):      # resampled, at most BLOCK seconds each
            ...

soundfile reads files and soxr resamples (the extra `audio`). A 16-bit WAV file does not need soundfile.
"""

from __future__ import annotations

import contextlib
import dataclasses
import wave
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from anyformer.inputs.optional_library import import_optional
from anyformer.specs.messages import quote

BLOCK = 30  # seconds of a file that are in memory at once
HIGHEST = 10_000_000  # maximal samples per second in a header
MAX_UPSAMPLING = 64  # at 1 sample per second, a small file would become gigabytes of samples
LOUDEST = 1e12  # far above 32-bit integers given as floats; the square of 1e19 is infinite in fp32
ENDINGS = (".wav", ".flac", ".ogg", ".mp3", ".aiff", ".aif", ".au", ".caf")

Source = str | Path | np.ndarray | Any  # a file, samples, (samples, rate), or (an iterator of chunks of them, rate)


class UnreadableAudio(ValueError):
    """A file without readable audio."""


@dataclasses.dataclass
class AudioRecording:
    """An open recording."""

    rate: int  # samples per second
    pull: Callable[[int], np.ndarray]  # pull(n) returns the next n or fewer samples (n, channels), none at the end
    name: str = ""
    close: Callable[[], object] = lambda: None
    length: int | None = None  # number of samples, if the header has it

    @classmethod
    def open(cls, source: Source, rate: int | None = None) -> AudioRecording:
        """Open a file, samples (T,) at `rate`, or a tuple (samples, rate). An iterator of chunks of samples is a
        stream, as from a microphone, and can be read only once."""
        if isinstance(source, str | Path):
            file = Path(source)
            if not file.is_file():
                raise FileNotFoundError(f"{file}: no such file")
            if file.stat().st_size == 0:
                raise UnreadableAudio(f"{file}: is empty")
            return _wave(file) or _sound(file)
        if isinstance(source, tuple) and len(source) == 2 and isinstance(source[1], int):
            source, rate = source
        if rate is None:
            raise ValueError("samples need their rate: pass (samples, rate), or sampling_rate")
        if not isinstance(rate, int) or not 0 < rate <= HIGHEST:
            raise ValueError(f"sampling_rate is {quote(rate)}; it must be a whole number from 1 to {HIGHEST:,}")
        return _stream(source, rate) if isinstance(source, Iterator) else _array(source, rate)

    def __enter__(self) -> AudioRecording:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def blocks(self, rate: int | None = None) -> Iterator[np.ndarray]:
        """Yield blocks of samples (n,) in fp32 at `rate`, channels mixed, of at most about BLOCK seconds."""
        rate = rate or self.rate
        if rate > MAX_UPSAMPLING * self.rate:
            least = -(-rate // MAX_UPSAMPLING)
            raise UnreadableAudio(
                f"{self.name}: a sampling rate of {self.rate:,} is too low for a model that reads {rate:,} samples per"
                f" second; at least {least:,} is needed"
            )
        change = None
        if rate != self.rate:
            soxr = import_optional(
                "soxr", "audio", f"resampling from {self.rate} samples per second to the model's {rate}"
            )
            change = soxr.ResampleStream(self.rate, rate, 1, dtype="float32")
        done = 0
        while len(block := self.pull(BLOCK * self.rate)):
            mono = np.ascontiguousarray(block.mean(1, dtype=np.float32))
            if not np.abs(mono).max() <= LOUDEST:  # NaN is refused too
                bad = int(np.flatnonzero(~(np.abs(mono) <= LOUDEST))[0])
                problem = f"{mono[bad]:.3g}, too large" if np.isfinite(mono[bad]) else "not a finite number"
                raise UnreadableAudio(f"{self.name}: sample {done + bad:,} is {problem}; they must be between -1 and 1")
            done += len(mono)
            yield mono if change is None else change.resample_chunk(mono)
        if self.length is not None and done < self.length:
            raise UnreadableAudio(f"{self.name}: ends after {done:,} of {self.length:,} samples")
        if change is not None and len(last := change.resample_chunk(np.zeros(0, np.float32), last=True)):
            yield last

    def read(self, rate: int | None = None, most: int | None = None) -> np.ndarray:
        """Return all samples (T,), or the first `most`."""
        blocks, total = [np.zeros(0, np.float32)], 0
        for block in self.blocks(rate):
            blocks.append(block)
            total += len(block)
            if most is not None and total >= most:
                break
        return np.concatenate(blocks)[:most]


def streams(source: Source) -> bool:
    """Whether the source is a stream, which can be read only once."""
    return isinstance(source[0] if isinstance(source, tuple) and source else source, Iterator)


def _stream(chunks: Iterator[Any], rate: int) -> AudioRecording:
    def pull(n: int) -> np.ndarray:
        samples = next((chunk for chunk in map(_samples, chunks) if len(chunk)), np.zeros(0, np.float32))
        return samples[:, None].astype(np.float32)

    return AudioRecording(rate, pull, "the stream")


def _array(samples: Any, rate: int) -> AudioRecording:
    numbers, position = _samples(samples), 0

    def pull(n: int) -> np.ndarray:
        nonlocal position
        block = numbers[position : position + n, None].astype(np.float32)
        position += len(block)
        return block

    return AudioRecording(rate, pull, "the samples")


def _samples(samples: Any) -> np.ndarray:
    try:
        numbers = np.asarray(samples)
    except (TypeError, ValueError) as error:
        raise ValueError(f"samples must be an array of numbers, got {type(samples).__name__}: {error}") from None
    if numbers.ndim != 1 or numbers.dtype.kind not in "fiu":
        raise ValueError(f"samples must be one channel of numbers (T,), got {numbers.dtype} {quote(numbers.shape)}")
    if numbers.dtype.kind != "f":
        if numbers.dtype.kind == "u" or numbers.dtype.itemsize > 4:
            raise ValueError(f"samples must be fp32 between -1 and 1, int16 or int32, got {numbers.dtype}")
        numbers = numbers / np.float32(-float(np.iinfo(numbers.dtype).min))
    return numbers


def _wave(file: Path) -> AudioRecording | None:
    """Open a 16-bit WAV file with the standard library; None for other files."""
    if file.suffix.lower() != ".wav":
        return None
    stream = None
    try:
        stream = wave.open(str(file), "rb")  # noqa: SIM115
        channels, rate, length = stream.getnchannels(), stream.getframerate(), stream.getnframes()
    except (wave.Error, EOFError, OSError, ValueError) as error:
        if "unknown format" in str(error):
            return None
        raise UnreadableAudio(f"{file}: {_reason(error)}") from None
    if not 0 < rate <= HIGHEST:
        stream.close()
        raise UnreadableAudio(f"{file}: {_wrong_rate(rate)}")
    if stream.getsampwidth() != 2 or channels < 1:
        stream.close()
        return None

    def pull(n: int) -> np.ndarray:
        raw = stream.readframes(n)
        numbers = np.frombuffer(raw[: len(raw) // (2 * channels) * (2 * channels)], "<i2")
        return numbers.reshape(-1, channels) / np.float32(32768)

    # the header of a file that was written to a pipe has the maximal length
    return AudioRecording(rate, pull, str(file), stream.close, None if length * channels * 2 > 2**32 - 256 else length)


def _sound(file: Path) -> AudioRecording:
    soundfile = import_optional("soundfile", "audio", "sound that is not 16-bit WAV")
    try:
        stream = soundfile.SoundFile(file)
    except (soundfile.SoundFileError, OSError, TypeError) as error:
        raise UnreadableAudio(f"{file}: {_reason(error)}") from None
    if not 0 < stream.samplerate <= HIGHEST:
        with contextlib.suppress(soundfile.SoundFileError):
            stream.close()
        raise UnreadableAudio(f"{file}: {_wrong_rate(stream.samplerate)}")

    def pull(n: int) -> np.ndarray:
        try:
            return stream.read(n, dtype="float32", always_2d=True)
        except (soundfile.SoundFileError, OSError) as error:
            raise UnreadableAudio(f"{file}: {_reason(error)}") from None

    length = stream.frames if 0 < stream.frames < 2**62 else None
    return AudioRecording(stream.samplerate, pull, str(file), stream.close, length)


def _reason(error: BaseException) -> str:
    """Return why a file cannot be read. A file that ends inside its header raises an EOFError without a message."""
    reason = str(error).rpartition(": ")[2].strip().rstrip(".")
    if "does not exist" in reason:  # libsndfile's message for an MP3 without a frame
        reason = "contains no readable sound"
    return reason or "ends too early"


def _wrong_rate(rate: int) -> str:
    return f"its header has {rate:,} samples per second; valid: 1 to {HIGHEST:,}"
