"""Folders of images or audio files with one subfolder per class; recordings stored in one file; joined recordings."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from anyformer.data.episodes import are_consecutive, read_arrays
from anyformer.data.source import Files, Row, Source
from anyformer.inputs import recordings
from anyformer.inputs.image import ENDINGS, eight_bits, open_picture
from anyformer.inputs.optional_library import import_optional
from anyformer.specs.field_types import Count, Natural
from anyformer.specs.messages import quote


class Folder(Files, abstract=True):
    """Files with one subfolder per class: "cats/1.png" has the label "cats". Files directly in `path` have no label."""

    def raw(self) -> Iterator[Row]:
        roots = [Path(path).expanduser() for path in ((self.path,) if isinstance(self.path, str) else self.path)]
        for file in self.files():
            label = {} if file.parent in roots else {"label": file.parent.name}
            if not label and "label" in self.required:
                yield Row(str(file), None, "not in a class folder")
                continue
            try:
                yield Row(str(file), {**self.read(file), **label, "path": str(file)})
            except _UnreadableFile as error:
                yield Row(str(file), None, str(error))

    def read(self, file: Path) -> dict[str, Any]:
        raise NotImplementedError


class _UnreadableFile(Exception):
    """Raised for a file that cannot be used; its row is skipped."""


class ImageFolder(Folder):
    """{"image": (H, W, C) bytes, "label": class}, upright. `size` (H, W) resizes them; `channels` 1 makes them grey."""

    size: tuple[int, int] | None = None
    channels: int = 3

    def check(self) -> None:
        if self.channels not in (1, 3):
            raise ValueError(f"ImageFolder.channels is {self.channels}; it must be 1 (grey) or 3 (colour)")

    def endings(self) -> tuple[str, ...]:
        return ENDINGS

    def read(self, file: Path) -> dict[str, Any]:
        Image = import_optional("PIL.Image", "data", "a folder of images")
        try:
            image = eight_bits(open_picture(file), self.channels)
        except ValueError as error:
            raise _UnreadableFile(str(error).removeprefix(f"{file}: ")) from None
        if self.size is not None:
            image = image.resize(self.size[::-1], Image.Resampling.BICUBIC)
        pixels = np.asarray(image)
        return {"image": pixels.reshape(*pixels.shape[:2], self.channels)}


class SoundFolder(Folder):
    """{"audio": (T,) between -1 and 1, "rate": samples per second, "label": class}, channels averaged. If `rate` is
    given, files with a different rate are skipped."""

    rate: Count | None = None

    def endings(self) -> tuple[str, ...]:
        return (".wav", ".flac", ".ogg", ".mp3")

    def read(self, file: Path) -> dict[str, Any]:
        try:
            with recordings.AudioRecording.open(file) as recording:
                samples, rate = recording.read(), recording.rate
        except (recordings.UnreadableAudio, OSError) as error:
            raise _UnreadableFile(str(error)) from None
        if self.rate is not None and rate != self.rate:
            raise _UnreadableFile(f"{rate} samples per second, not {self.rate}")
        return {"audio": samples, "rate": rate}


class Recordings(Files):
    """Read NumPy's .npz with concatenated recordings: "audio" (M,) samples, "offsets" (recordings + 1,), and "rate" in
    samples per second. `fields` names arrays with one value per recording; `texts` are the transcripts of "label" 0,
    1, ... Each recording is an example: {"audio": (T,), "rate": ..., "text": ..., and the fields}."""

    fields: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()

    def endings(self) -> tuple[str, ...]:
        return (".npz",)

    def raw(self) -> Iterator[Row]:
        needed = ("audio", "offsets", "rate", *self.fields, *(("label",) if self.texts else ()))
        for file in self.files():
            stored = self.read_recordings(file, needed)
            audio, offsets, rate = (stored.pop(name) for name in needed[:3])
            for i, (start, stop) in enumerate(itertools.pairwise(offsets.tolist())):
                text = {"text": self.texts[int(stored["label"][i])]} if self.texts else {}
                more = {name: values[i].item() for name, values in stored.items()}
                example = {**more, **text, "audio": audio[start:stop], "rate": int(rate)}
                yield Row(f"{file}: recording {i + 1}", example)

    def read_recordings(self, file: Path, needed: tuple[str, ...]) -> dict[str, np.ndarray]:
        """Return the arrays; ValueError if they do not match each other."""
        try:
            arrays = read_arrays(file, *needed)
            for name in needed:
                if name not in arrays:
                    raise ValueError(f"no array {quote(name)}; needed: {', '.join(dict.fromkeys(needed))}")
            audio, offsets, rate = (arrays[name] for name in needed[:3])
            if audio.ndim != 1 or offsets.dtype.kind not in "iu" or rate.ndim or rate.dtype.kind not in "iu":
                raise ValueError(
                    f"audio {audio.shape} must be one-dimensional, offsets {offsets.dtype} integers, and"
                    f" rate {rate.dtype} {rate.shape} one integer"
                )
            if not are_consecutive(offsets, len(audio)):
                raise ValueError(f"offsets must rise from 0 to {len(audio)}")
            for name in needed[3:]:
                if arrays[name].shape != (len(offsets) - 1,):
                    raise ValueError(f"{name} has shape {arrays[name].shape}; there are {len(offsets) - 1} recordings")
            if self.texts and not 0 <= arrays["label"].min() <= arrays["label"].max() < len(self.texts):
                raise ValueError(f"labels up to {arrays['label'].max()}, but only {len(self.texts)} texts")
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from None
        return arrays


class JoinedRecordings(Source):
    """`count` examples, each of `least` to `most` random recordings of `source` joined together, with their texts
    joined by spaces. All recordings of an example have the same value in the column `alike` (for example: speaker)."""

    source: Source
    count: Count
    least: Count = 2
    most: int = 2
    alike: str | None = None
    seed: Natural = 0

    def check(self) -> None:
        if self.most < self.least:
            raise ValueError(f"JoinedRecordings: most {self.most} must not be below least {self.least}")
        if self.columns:
            raise ValueError("JoinedRecordings: set columns on its source instead")

    def raw(self) -> Iterator[Row]:
        return self.rows(("audio",))

    def rows(self, wanted: tuple[str, ...]) -> Iterator[Row]:
        alike = () if self.alike is None else (self.alike,)
        examples = []
        for row in self.source.rows((*wanted, "rate", *alike)):
            if row.example is None:
                yield row
            else:
                examples.append(row.example)
        groups: dict[Any, list[Any]] = {}
        for example in examples:
            groups.setdefault(example[self.alike] if self.alike else None, []).append(example)
        for number in range(self.count if examples else 0):
            random = np.random.default_rng((self.seed, number))
            first = examples[random.integers(len(examples))]
            group = groups[first[self.alike] if self.alike else None]
            size = int(random.integers(self.least, self.most + 1))
            chosen = [first, *(group[i] for i in random.integers(len(group), size=size - 1))]
            if len(rates := {example["rate"] for example in chosen}) > 1:
                two = " and ".join(map(str, sorted(rates)[:2]))
                raise ValueError(f"JoinedRecordings: recordings of {two} samples per second cannot be joined")
            texts = {"text": " ".join(one["text"] for one in chosen)} if "text" in first else {}
            audio = np.concatenate([example["audio"] for example in chosen])
            yield Row(f"joined recording {number + 1}", {**texts, "audio": audio, "rate": first["rate"]})

    def digest(self) -> str:
        return self.source.digest()
