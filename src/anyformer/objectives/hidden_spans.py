"""Frames, sounds and texts of clips in one sequence; hidden spans are identified among others [Zellers et al. 2022]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from anyformer.inputs.truncation import count_truncated
from anyformer.models import HiddenSpansModelModule
from anyformer.models.base import TransformerModule
from anyformer.objectives.examples import encode_pair, texts_of
from anyformer.objectives.images import frames_of, normalize, resizer
from anyformer.objectives.objective import Batch, Objective, Record, model_inputs, pad_texts
from anyformer.objectives.recordings import read_samples
from anyformer.parts.head.losses import Loss
from anyformer.specs.checks import at_least, chance

TEXT, SOUND, HIDDEN_TEXT, HIDDEN_SOUND = range(4)  # what is read of a segment, after its frame


class HiddenSpans(Objective, called=("MERLOT Reserve",)):
    """Columns "frames", "texts", as many of each, and "audio", which is cut into as many segments of `samples`. Of each
    segment the frame is seen, and its text is read or its sound heard, at random; but in about `hidden` of them,
    one or more, that is hidden and asked for among the spans of its kind in the same micro-batch. The ids of the four
    places, and how many vectors a frame and a sound make, are the model's."""

    image_size: tuple[int, int]  # height, width
    samples: int
    patches: int  # vectors of a frame
    segments: int  # vectors of a sound
    places: tuple[int, int, int, int] = (4, 5, 6, 7)  # frame, sound, hidden text, hidden sound
    rate: int = 16000
    hidden: float = 0.25
    length: int = 16  # of a text
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)

    def check(self) -> None:
        at_least(self, 1, "samples", "patches", "segments", "rate", "length")
        chance(self, "hidden")
        if min(self.image_size) < 1 or len(self.mean) != len(self.std) or len({*self.places}) < 4:
            raise ValueError("HiddenSpans: a size, a mean and a std for each channel, and four places, none twice")

    @property
    def columns(self) -> tuple[str, ...]:
        return ("frames", "audio", "texts")

    @property
    def texts(self) -> tuple[str, ...]:
        return ("texts",)

    def encode(self, example: Mapping[str, Any], tokenizer: Any) -> Record:
        frames, texts = frames_of(example, "frames"), texts_of(example, "texts")
        if len(frames) != len(texts):
            raise ValueError(f"{len(frames)} frames and {len(texts)} texts: a clip needs equally many")
        if not all(text.strip() for text in texts):
            raise ValueError("column 'texts': none of them is empty")
        sound = read_samples(example, self.rate)
        if len(sound) < len(texts) * self.samples:
            raise ValueError(f"{len(sound)} samples of sound, less than {len(texts)} segments of {self.samples}")
        images = resizer(self.image_size, len(self.mean))
        whole = [encode_pair(tokenizer, text)["input_ids"] for text in texts]
        count_truncated(sum(max(len(each) - self.length, 0) for each in whole))
        ids = [each[: self.length] for each in whole]
        starts = np.linspace(0, len(sound) - self.samples, len(texts)).astype(int)
        return {
            "pixels": np.stack([images.resize(frame) for frame in frames]).reshape(-1),
            "samples": np.concatenate([sound[start : start + self.samples] for start in starts]).astype(np.float32),
            "input_ids": np.concatenate(ids),
            "lengths": np.asarray([len(each) for each in ids], np.int64),
        }

    def size(self, record: Record) -> int:
        return len(record["input_ids"]) + len(record["lengths"]) * (self.patches + self.segments)

    def vary(self, record: Record, random: np.random.Generator, *partners: Record) -> Record:
        number = len(record["lengths"])
        kinds = random.integers(2, size=number)  # of each, its text or its sound
        hidden = random.permutation(number) < max(1, int(self.hidden * number + random.random()))
        return {**record, "kinds": (kinds + 2 * hidden).astype(np.int64)}

    def collate(self, records: Sequence[Record], pad: int) -> Batch:
        frame, sound, text_place, sound_place = self.places
        rows: list[Record] = []
        audio: list[np.ndarray] = []
        spans: dict[int, list[Any]] = {HIDDEN_TEXT: [], HIDDEN_SOUND: []}
        for record in records:
            texts = np.split(record["input_ids"], record["lengths"].cumsum()[:-1])
            sounds, row = np.split(record["samples"], len(texts)), []
            for text, samples, kind in zip(texts, sounds, record["kinds"].tolist(), strict=True):
                row += [frame] * self.patches
                if kind == TEXT:
                    row += text.tolist()
                elif kind == SOUND:
                    row += [sound] * self.segments
                    audio.append(samples)
                else:
                    row.append(text_place if kind == HIDDEN_TEXT else sound_place)
                    spans[kind].append(text if kind == HIDDEN_TEXT else samples)
            rows.append({"input_ids": np.asarray(row, np.int32)})
        batch = {**pad_texts(rows, pad), "pixel_values": self.frame_pixels(records)}
        if audio:
            batch["input_values"] = torch.from_numpy(np.stack(audio))
        if spans[HIDDEN_TEXT]:
            hidden = pad_texts([{"input_ids": text} for text in spans[HIDDEN_TEXT]], pad)
            names = {"input_ids": "hidden_ids", "attention_mask": "hidden_mask"}
            batch |= {names[name]: value for name, value in hidden.items()}
        if spans[HIDDEN_SOUND]:
            batch["hidden_values"] = torch.from_numpy(np.stack(spans[HIDDEN_SOUND]))
        return batch

    def frame_pixels(self, records: Sequence[Record]) -> Tensor:
        """(all frames, C, H, W)"""
        pixels = torch.from_numpy(np.concatenate([record["pixels"] for record in records]))
        return normalize(pixels.view(-1, len(self.mean), *self.image_size), self.mean, self.std)

    def module(self, model: TransformerModule) -> nn.Module:
        if not isinstance(model, HiddenSpansModelModule):
            raise ValueError("hidden spans need an encoder with towers and span encoders (MERLOT Reserve)")
        spec = model.spec
        theirs = (spec.image.token, spec.audio.token, spec.head.text, spec.head.audio)
        sizes = (spec.image.model.embedding.vectors(0), spec.audio.model.embedding.frames(self.samples))
        for name, mine, there in (
            ("places", self.places, theirs),
            ("patches", self.patches, sizes[0]),
            ("segments", self.segments, sizes[1]),
        ):
            if mine != there:
                raise ValueError(f"HiddenSpans.{name} is {mine}, and the model's is {there}")
        return model

    def weights(self, batch: Batch) -> dict[str, float]:
        given = {"text": batch.get("hidden_ids"), "audio": batch.get("hidden_values")}
        return {name: 0.0 if spans is None else float(len(spans)) for name, spans in given.items()}

    def losses(self, trained: HiddenSpansModelModule, batch: Batch) -> dict[str, Tensor]:
        out = trained(**model_inputs(trained, batch))
        terms: dict[str, Loss] = trained.head.losses(out)
        nothing = out["last_hidden_state"].sum() * 0
        return {name: terms[name].sum if name in terms else nothing for name in ("text", "audio")}
