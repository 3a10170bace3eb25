"""Folders of images and of sound, whose labels are the folders they lie in."""

from __future__ import annotations

import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from anyformer.check import at_least
from anyformer.data.source import Files, Row, need


class Folder(Files):
    """Files in a folder for each class: "cats/1.png" has the label "cats", or none right below `path`."""

    def raw(self) -> Iterator[Row]:
        roots = [Path(path).expanduser() for path in ((self.path,) if isinstance(self.path, str) else self.path)]
        for file in self.files():
            label = {} if file.parent in roots else {"label": file.parent.name}
            try:
                yield Row(str(file), {**self.read(file), **label, "path": str(file)})
            except _Unreadable as error:
                yield Row(str(file), None, str(error))

    def read(self, file: Path) -> dict[str, Any]:
        raise NotImplementedError


class _Unreadable(Exception):
    """One file, as opposed to a mistake in the description."""


class ImageFolder(Folder):
    """{"image": (H, W, C) bytes, "label": name}; with `size` scaled to (H, W), with `channels` 1 as grey."""

    size: tuple[int, int] | None = None
    channels: int = 3

    def check(self) -> None:
        if self.channels not in (1, 3):
            raise ValueError(f"ImageFolder.channels is {self.channels}; 1 (grey) or 3 (colour)")

    def endings(self) -> tuple[str, ...]:
        return (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".ppm")

    def read(self, file: Path) -> dict[str, Any]:
        Image = need("PIL.Image", "data", "a folder of images")
        try:
            with Image.open(file) as image:
                image = image.convert("RGB" if self.channels == 3 else "L")
                if self.size is not None:
                    image = image.resize(self.size[::-1], Image.Resampling.BICUBIC)
                pixels = np.asarray(image)
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            raise _Unreadable(str(error)) from None
        return {"image": pixels.reshape(*pixels.shape[:2], self.channels)}


class SoundFolder(Folder):
    """{"audio": (T,) between -1 and 1, "rate": samples a second, "label": name}, channels mixed; `rate` is demanded
    of every file where given."""

    rate: int | None = None

    def check(self) -> None:
        at_least(self, 1, "rate")

    def endings(self) -> tuple[str, ...]:
        return (".wav", ".flac", ".ogg", ".mp3")

    def read(self, file: Path) -> dict[str, Any]:
        samples, rate = _wave(file) if file.suffix.lower() == ".wav" else _sound(file)
        if self.rate is not None and rate != self.rate:
            raise _Unreadable(f"{rate} samples a second, not {self.rate}")
        return {"audio": samples, "rate": rate}


def _wave(file: Path) -> tuple[np.ndarray, int]:
    """Plain 16-bit sound without any library; the rest by soundfile."""
    try:
        with wave.open(str(file), "rb") as stream:
            if stream.getsampwidth() == 2:
                numbers = np.frombuffer(stream.readframes(stream.getnframes()), "<i2")
                samples = numbers.reshape(-1, stream.getnchannels()).mean(1, dtype=np.float32) / 32768
                return samples, stream.getframerate()
    except (wave.Error, EOFError, OSError, ValueError) as error:
        if "unknown format" not in str(error):
            raise _Unreadable(str(error) or "ends too early") from None
    return _sound(file)


def _sound(file: Path) -> tuple[np.ndarray, int]:
    soundfile = need("soundfile", "data", "sound that is not 16-bit WAV")
    try:
        samples, rate = soundfile.read(file, dtype="float32", always_2d=True)
    except (soundfile.SoundFileError, OSError) as error:
        raise _Unreadable(str(error)) from None
    return samples.mean(1), rate
