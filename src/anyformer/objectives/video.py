"""Match videos with their sounds and texts [Akbari et al. 2021]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from anyformer.models import ThreeTowerModule
from anyformer.models.base import TransformerModule
from anyformer.objectives.batches import Batch, Record, pad_rows, pad_texts
from anyformer.objectives.examples import texts_of
from anyformer.objectives.heads import model_inputs
from anyformer.objectives.images import frames_of, normalize, resizer
from anyformer.objectives.match import caption
from anyformer.objectives.objective import Objective
from anyformer.objectives.recordings import read_samples
from anyformer.parts.head.losses import Loss
from anyformer.specs.field_types import Count, TwoOrMore


class MatchVideo(Objective, called=("VATT", "MIL-NCE")):
    """Columns "video" (a list of images), "audio" (see `Sounds`) and "text", a text or a list of texts that are spoken
    near the clip, from which `candidates` are drawn each time. `frames` evenly spaced frames of a video are used. The
    negatives are the other examples of the same micro-batch on the same device."""

    columns: ClassVar[tuple[str, ...]] = ("video", "audio", "text")
    texts: ClassVar[tuple[str, ...]] = ("text",)

    image_size: tuple[int, int]  # height, width
    frames: Count
    rate: Count = 16000
    candidates: Count = 1
    length: TwoOrMore = 16  # tokens per text
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)

    def check(self) -> None:
        if min(self.image_size) < 1 or len(self.mean) != len(self.std):
            raise ValueError("MatchVideo needs a positive image_size, and one mean and std per channel")

    def encode(self, example: Mapping[str, Any], tokenizer: Any) -> Record:
        frames, images = frames_of(example, "video"), resizer(self.image_size, len(self.mean))
        seen = np.linspace(0, len(frames) - 1, self.frames).round().astype(int)
        samples = read_samples(example, self.rate)
        if not len(samples):
            raise ValueError("column 'audio': the recording has no samples")
        texts = texts_of(example, "text")
        if not all(text.strip() for text in texts):
            raise ValueError("column 'text' must be a text or a list of texts, none of them empty")
        ids = [caption(text, tokenizer, self.length) for text in texts]
        return {
            "pixels": np.stack([images.resize(frames[i]) for i in seen], axis=1).reshape(-1),  # (C, F, H, W)
            "samples": samples.astype(np.float32),
            "input_ids": np.concatenate(ids),
            "lengths": np.asarray([len(each) for each in ids], np.int64),
        }

    def size(self, record: Record) -> int:
        return 1

    def vary(self, record: Record, random: np.random.Generator, *partners: Record) -> Record:
        """Draw the texts of this time, without repetition if there are enough."""
        number, wanted = len(record["lengths"]), self.candidates
        drawn = random.permutation(number)[:wanted] if number >= wanted else random.integers(number, size=wanted)
        return {**record, "drawn": drawn.astype(np.int64)}

    def collate(self, records: Sequence[Record], pad: int) -> Batch:
        B, C = len(records), len(self.mean)
        pixels = torch.from_numpy(np.stack([record["pixels"] for record in records])).view(B, C, -1, *self.image_size)
        rows = [record["samples"] for record in records]
        mask = pad_rows([np.ones(len(row), np.int64) for row in rows], 0)
        texts = []
        for record in records:
            each = np.split(record["input_ids"], record["lengths"].cumsum()[:-1])
            drawn = record.get("drawn", np.arange(self.candidates) % len(each))
            texts += [{"input_ids": each[i]} for i in drawn]
        sound = {"input_values": pad_rows(rows, 0.0), "audio_attention_mask": mask}
        return {"pixel_values": normalize(pixels, self.mean, self.std), **sound, **pad_texts(texts, pad)}

    def module(self, model: TransformerModule) -> nn.Module:
        if not isinstance(model, ThreeTowerModule):
            raise ValueError("MatchVideo needs a model with three towers (VATT)")
        embedding, shape = model.spec.video.embedding, (len(self.mean), self.frames, *self.image_size)
        if embedding.row(0, 0)["pixel_values"] != shape:
            raise ValueError(
                f"videos of {shape} (channels, frames, height, width); the model reads {embedding.row(0, 0)}"
            )
        return model

    def weights(self, batch: Batch) -> dict[str, float]:
        return dict.fromkeys(("audio", "text"), float(len(batch["pixel_values"])))

    def losses(self, trained: ThreeTowerModule, batch: Batch) -> dict[str, Tensor]:
        terms: dict[str, Loss] = trained.head.losses(trained(**model_inputs(trained, batch)))
        return {name: loss.sum for name, loss in terms.items()}
