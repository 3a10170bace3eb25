"""wav2vec 2.0 [Baevski et al. 2020]: identify the code of a masked frame among the codes of other frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from anyformer.models.base import TransformerModule
from anyformer.objectives.batches import Batch, Record
from anyformer.objectives.heads import head_of, require_head
from anyformer.objectives.objective import HeadInputs
from anyformer.objectives.recordings import Sounds
from anyformer.parts.head.contrastive import ContrastModule
from anyformer.specs.field_types import Chance, Count, TwoOrMore

MIN_SPANS = 2  # as published


class Contrast(Sounds, called=("wav2vec 2.0", "contrastive", "InfoNCE")):
    """Column "audio" (see `Sounds`). Each time, about a fraction `hidden` of the frames is masked, in spans of `span`
    frames that may overlap. For each masked frame, `negatives` other masked frames of the same recording are drawn. A
    frame covers `reach` samples, and one starts every `hop` samples, as in the model's stem. Codes are sampled at a
    temperature that falls from `temperatures[0]` to `temperatures[1]` by the factor `cooling` per step."""

    hop: Count = 320
    reach: Count = 400
    hidden: Chance = 0.65
    span: TwoOrMore = 10
    negatives: Count = 100
    temperatures: tuple[float, float] = (2.0, 0.5)
    cooling: float = 0.999995

    def check(self) -> None:
        super().check()
        if self.form != "values":
            raise ValueError("Contrast.form must be 'values': codes are computed from samples")
        if not 0 < self.temperatures[1] <= self.temperatures[0] or not 0 < self.cooling <= 1:
            raise ValueError("Contrast: temperatures must be positive and must not rise, and cooling must be in (0, 1]")

    def frames(self, samples: int) -> int:
        return (samples - self.reach) // self.hop + 1

    def encode(self, example: Mapping[str, Any], tokenizer: Any) -> Record:
        record = super().encode(example, tokenizer)
        least = int(self.span * (1 + self.speed)) + 2
        if (frames := self.frames(len(record["samples"]))) < least:
            raise ValueError(f"the recording has {frames} frames; spans of {self.span} need at least {least}")
        return record

    def vary(self, record: Record, random: np.random.Generator, *partners: Record) -> Record:
        record = super().vary(record, random)
        frames = self.frames(len(record["samples"]))
        num_starts = frames - self.span + 1
        num_spans = min(max(int(self.hidden * frames / self.span + random.random()), MIN_SPANS), num_starts)
        starts = random.choice(num_starts, num_spans, replace=False)
        masked = np.unique(starts[:, None] + np.arange(self.span))  # (n,)
        drawn = random.integers(len(masked) - 1, size=(len(masked), self.negatives))
        drawn += drawn >= np.arange(len(masked))[:, None]  # any masked frame except itself
        return {**record, "hidden": masked.astype(np.int32), "others": masked[drawn].astype(np.int32).reshape(-1)}

    def collate(self, records: Sequence[Record], pad: int) -> Batch:
        batch = super().collate(records, pad)
        B, T, K = len(records), self.frames(batch["input_values"].shape[1]), self.negatives
        hidden = np.zeros((B, T), np.bool_)
        # indices into the flattened (B * T) frames; frames that are not masked keep their row's first, which is unused
        others = np.broadcast_to(T * np.arange(B)[:, None, None], (B, T, K)).copy()
        for i, record in enumerate(records):
            hidden[i, record["hidden"]] = True
            others[i, record["hidden"]] += record["others"].reshape(-1, K)
        indices = {"mask_time_indices": hidden, "sampled_negative_indices": others}
        return {**batch, **{name: torch.from_numpy(array) for name, array in indices.items()}}

    def module(self, model: TransformerModule) -> nn.Module:
        head = head_of(model, ContrastModule, "contrastive training")
        self.check_embedding(model.spec.embedding)
        stem = model.spec.embedding.stem
        for name, expected in (("hop", stem.hop), ("reach", stem.reach), ("negatives", head.part.negatives)):
            if getattr(self, name) != expected:
                raise ValueError(f"Contrast.{name} is {getattr(self, name)}, but the model's is {expected}")
        return model

    def before_step(self, trained: Any, step: int) -> None:
        first, last = self.temperatures
        trained.head.quantizer.temperature = max(first * self.cooling**step, last)

    def weights(self, batch: Batch) -> dict[str, float]:
        number = float(batch["mask_time_indices"].sum())
        return {"contrast": number, "diversity": number}

    def judge(self, model: TransformerModule, batch: Batch, states: HeadInputs) -> dict[str, Tensor]:
        terms = require_head(model).losses(states.x, states.ctx, states.inputs)
        return {name: term.sum for name, term in terms.items()}
