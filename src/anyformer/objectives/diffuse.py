"""Which noise is in a picture [Ho et al. 2020], of a label that is told most of the time [Ho and Salimans 2022]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from anyformer.check import chance
from anyformer.model.base import TransformerModule
from anyformer.objectives.objective import Batch, Record, answering, head_of, read, scalars
from anyformer.objectives.picture import LabelledPictures
from anyformer.parts.noise import NoiseModule


class Diffuse(LabelledPictures):
    """Pictures drawn out of noise, asked for by their labels. Each time a picture is seen, noise of another step of
    the model's schedule is in it, and its label may be left out: guidance compares with what is drawn without one."""

    unlabelled: float = 0.1  # the chance that the label is left out

    def check(self) -> None:
        super().check()
        chance(self, "unlabelled")

    def vary(self, record: Record, random: np.random.Generator, *partners: Record) -> Record:
        record = super().vary(record, random, *partners)
        left_out = random.random() < self.unlabelled
        return {
            **record, "noise": random.standard_normal(record["pixels"].size, np.float32),
            "moment": np.asarray(random.random()),
            "label": np.asarray(len(self.labels), np.int64) if left_out else record["label"],
        }  # fmt: skip

    def collate(self, records: Sequence[Record], pad: int) -> Batch:
        batch = super().collate(records, pad)
        noise = torch.from_numpy(np.stack([record["noise"] for record in records])).view_as(batch["pixel_values"])
        return {
            **batch, "noise": noise, "moment": scalars(records, "moment"), "class_labels": scalars(records, "label")
        }  # fmt: skip

    def module(self, model: TransformerModule) -> nn.Module:
        head_of(model, NoiseModule, "diffusion")
        spec: Any = model.spec
        self.fits(spec.embedding)
        if spec.embedding.condition.num_labels != len(self.labels):
            known = spec.embedding.condition.num_labels
            raise ValueError(f"{len(self.labels)} labels, and the model knows {known}")
        if spec.head.out_channels != spec.embedding.channels:
            line = f"head.out_channels is {spec.head.out_channels}: nothing here teaches what a noise's variance is"
            raise ValueError(f"{line}; set it to {spec.embedding.channels}")
        return model

    def weights(self, batch: Batch) -> dict[str, float]:
        return {"loss": float(len(batch["moment"]))}

    def losses(self, trained: Any, batch: Batch) -> dict[str, Tensor]:
        """The mean squared distance of each picture's noise from what the model takes for it."""
        head = head_of(trained, NoiseModule, "diffusion")
        step = (batch["moment"] * head.part.schedule.steps).long()
        mixed = head.mixed(batch["pixel_values"], batch["noise"], step)
        seen = read(trained, {"hidden_states": mixed, "timestep": step, "class_labels": batch["class_labels"]})
        said = answering(trained).answer(seen.x, seen.ctx, seen.inputs)["sample"].float()
        return {"loss": (said - batch["noise"]).square().mean((1, 2, 3)).sum()}
