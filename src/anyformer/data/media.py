"""Folders of images and of sound, whose labels are the folders they lie in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from anyformer.check import at_least
from anyformer.data.source import Files, Row
from anyformer.inputs import sound
from anyformer.machine import need


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
        try:
            with sound.Recording.open(file) as recording:
                samples, rate = recording.read(), recording.rate
        except (sound.Unreadable, OSError) as error:
            raise _Unreadable(str(error)) from None
        if self.rate is not None and rate != self.rate:
            raise _Unreadable(f"{rate} samples a second, not {self.rate}")
        return {"audio": samples, "rate": rate}
