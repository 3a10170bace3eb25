"""MERLOT Reserve [Zellers et al. 2022]: identify the masked texts and sounds of video clips among others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from anyformer.inputs.truncation import count_truncated
from anyformer.models import HiddenSpansModelModule
from anyformer.models.base import TransformerModule
from anyformer.objectives.batches import Batch, Record, pad_texts
from anyformer.objectives.examples import encode_pair, texts_of
from anyformer.objectives.heads import model_inputs
from anyformer.objectives.images import frames_of, normalize, resizer
from anyformer.objectives.objective import Objective
from anyformer.objectives.recordings import read_samples
from anyformer.parts.head.losses import Loss
from anyformer.specs.field_types import Chance, Count

TEXT, SOUND, HIDDEN_TEXT, HIDDEN_SOUND = range(4)  # what follows the frame of a segment


class HiddenSpans(Objective, called=("MERLOT Reserve",)):
    """Columns "frames", "texts" (one per frame) and "audio", which is split into one segment of `samples` samples per
    frame. The sequence contains each frame, followed by its text or its sound, chosen at random. In a fraction `hidden`
    of the segments (at least one), that text or sound is masked, and the model has to identify it among the masked
    texts or sounds of the micro-batch. `places`, `patches` and `segments` must have the model's values."""

    columns: ClassVar[tuple[str, ...]] = ("frames", "audio", "texts")
    texts: ClassVar[tuple[str, ...]] = ("texts",)

    image_size: tuple[int, int]  # height, width
    samples: Count  # per segment
    patches: Count  # vectors per frame
    segments: Count  # vectors per sound
    places: tuple[int, int, int, int] = (4, 5, 6, 7)  # token ids of a frame, a sound, a masked text, a masked sound
    rate: Count = 16000
    hidden: Chance = 0.25
    length: Count = 16  # tokens per text
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)

    def check(self) -> None:
        if min(self.image_size) < 1 or len(self.mean) != len(self.std) or len({*self.places}) < 4:
            raise ValueError("HiddenSpans needs an image_size, one mean and std per channel, and four different places")

    def encode(self, example: Mapping[str, Any], tokenizer: Any) -> Record:
        frames, texts = frames_of(example, "frames"), texts_of(example, "texts")
        if len(frames) != len(texts):
            raise ValueError(f"{len(frames)} frames and {len(texts)} texts: a clip needs one text per frame")
        if not all(text.strip() for text in texts):
            raise ValueError("column 'texts' contains an empty text")
        sound = read_samples(example, self.rate)
        if len(sound) < len(texts) * self.samples:
            raise ValueError(f"the audio has {len(sound)} samples, fewer than {len(texts)} segments of {self.samples}")
        images = resizer(self.image_size, len(self.mean))
        token_ids = [encode_pair(tokenizer, text)["input_ids"] for text in texts]
        count_truncated(sum(max(len(each) - self.length, 0) for each in token_ids))
        ids = [each[: self.length] for each in token_ids]
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
        kinds = random.integers(2, size=number)  # TEXT or SOUND
        hidden = random.permutation(number) < max(1, int(self.hidden * number + random.random()))
        return {**record, "kinds": (kinds + 2 * hidden).astype(np.int64)}

    def collate(self, records: Sequence[Record], pad: int) -> Batch:
        frame, sound, text_mask, sound_mask = self.places
        rows: list[Record] = []
        audio: list[np.ndarray] = []
        spans: dict[int, list[Any]] = {HIDDEN_TEXT: [], HIDDEN_SOUND: []}
        for record in records:
            texts = np.split(record["input_ids"], record["lengths"].cumsum()[:-1])
            sounds, row = np.split(record["samples"], len(texts)), []
            for text, samples, content in zip(texts, sounds, record["kinds"].tolist(), strict=True):
                row += [frame] * self.patches
                if content == TEXT:
                    row += text.tolist()
                elif content == SOUND:
                    row += [sound] * self.segments
                    audio.append(samples)
                else:
                    row.append(text_mask if content == HIDDEN_TEXT else sound_mask)
                    spans[content].append(text if content == HIDDEN_TEXT else samples)
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
        """Return all frames (N, C, H, W), normalized."""
        pixels = torch.from_numpy(np.concatenate([record["pixels"] for record in records]))
        return normalize(pixels.view(-1, len(self.mean), *self.image_size), self.mean, self.std)

    def module(self, model: TransformerModule) -> nn.Module:
        if not isinstance(model, HiddenSpansModelModule):
            raise ValueError("hidden spans need an encoder with towers and span encoders (MERLOT Reserve)")
        spec = model.spec
        theirs = (spec.image.token, spec.audio.token, spec.head.text, spec.head.audio)
        sizes = (spec.image.model.embedding.vectors(0), spec.audio.model.embedding.frames(self.samples))
        for name, ours, expected in (
            ("places", self.places, theirs),
            ("patches", self.patches, sizes[0]),
            ("segments", self.segments, sizes[1]),
        ):
            if ours != expected:
                raise ValueError(f"HiddenSpans.{name} is {ours}, but the model's is {expected}")
        return model

    def weights(self, batch: Batch) -> dict[str, float]:
        spans_by_term = {"text": batch.get("hidden_ids"), "audio": batch.get("hidden_values")}
        return {name: 0.0 if spans is None else float(len(spans)) for name, spans in spans_by_term.items()}

    def losses(self, trained: HiddenSpansModelModule, batch: Batch) -> dict[str, Tensor]:
        out = trained(**model_inputs(trained, batch))
        terms: dict[str, Loss] = trained.head.losses(out)
        zero = out["last_hidden_state"].sum() * 0
        return {name: terms[name].sum if name in terms else zero for name in ("text", "audio")}
