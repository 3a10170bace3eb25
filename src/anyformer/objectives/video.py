"""Which sound and which texts belong to which video [Akbari et al. 2021]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from anyformer.models import ThreeTowerModule
from anyformer.models.base import TransformerModule
from anyformer.objectives.examples import texts_of
from anyformer.objectives.images import frames_of, normalize, resizer
from anyformer.objectives.match import caption
from anyformer.objectives.objective import Batch, Objective, Record, model_inputs, pad_rows, pad_texts
from anyformer.objectives.recordings import read_samples
from anyformer.parts.head.losses import Loss
from anyformer.specs.checks import at_least


class MatchVideo(Objective, called=("VATT", "MIL-NCE")):
    """Columns "video", its frames as pictures in their order, "audio" as `Sounds` has it, and "text", one text or those
    that are said nearby; `candidates` of them are drawn each time. `frames` of a video are seen, evenly spaced. Wrong
    answers are those of the same micro-batch on the same device."""

    image_size: tuple[int, int]  # height, width
    frames: int
    rate: int = 16000
    candidates: int = 1
    length: int = 16  # of a text
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)

    def check(self) -> None:
        at_least(self, 1, "frames", "rate", "candidates")
        at_least(self, 2, "length")
        if min(self.image_size) < 1 or len(self.mean) != len(self.std):
            raise ValueError("MatchVideo: a size of at least one pixel, and a mean and a std for each channel")

    @property
    def columns(self) -> tuple[str, ...]:
        return ("video", "audio", "text")

    @property
    def texts(self) -> tuple[str, ...]:
        return ("text",)

    def encode(self, example: Mapping[str, Any], tokenizer: Any) -> Record:
        frames, images = frames_of(example, "video"), resizer(self.image_size, len(self.mean))
        seen = np.linspace(0, len(frames) - 1, self.frames).round().astype(int)
        samples = read_samples(example, self.rate)
        if not len(samples):
            raise ValueError("column 'audio': the recording has no samples")
        texts = texts_of(example, "text")
        if not all(text.strip() for text in texts):
            raise ValueError("column 'text': a text, or several, none of them empty")
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
        """The texts that count this time, each once as long as there are enough."""
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
            raise ValueError("matching videos with sounds and texts needs three towers (VATT)")
        read, wanted = model.spec.video.embedding, (len(self.mean), self.frames, *self.image_size)
        if read.row(0, 0)["pixel_values"] != wanted:
            raise ValueError(f"videos of {wanted} (channels, frames, height, width); the model sees {read.row(0, 0)}")
        return model

    def weights(self, batch: Batch) -> dict[str, float]:
        return dict.fromkeys(("audio", "text"), float(len(batch["pixel_values"])))

    def losses(self, trained: ThreeTowerModule, batch: Batch) -> dict[str, Tensor]:
        terms: dict[str, Loss] = trained.head.losses(trained(**model_inputs(trained, batch)))
        return {name: loss.sum for name, loss in terms.items()}
