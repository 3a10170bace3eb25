"""Which noise is in a picture [Ho et al. 2020], or in what an autoencoder makes of one [Rombach et al. 2022], of a
label that is told most of the time [Ho and Salimans 2022]."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn

from anyformer.models import AutoencoderModel
from anyformer.models.base import TransformerModule
from anyformer.objectives import latents
from anyformer.objectives.images import LabelledPictures
from anyformer.objectives.objective import Batch, Followed, Record, answering, head_of, read, scalars
from anyformer.parts.diffusion import NoiseModule
from anyformer.specs.checks import chance


class Diffuse(LabelledPictures):
    """Pictures drawn out of noise, asked for by their labels. Each time a picture is seen, noise of another step of
    the model's schedule is in it, and its label may be left out: guidance compares with what is drawn without one.
    With `vae`, the folder of an autoencoder, the numbers that it squeezes pictures into are drawn instead of pixels."""

    command: ClassVar[str] = "run draw RUN LABEL"

    unlabelled: float = 0.1  # the chance that the label is left out
    vae: str | None = None
    shape: tuple[int, int, int] | None = None  # of what is drawn where it is no pixels: filled in by `ready`

    def check(self) -> None:
        super().check()
        chance(self, "unlabelled")

    def ready(self, tokenizer: Any) -> Self:
        if self.vae is None:
            return self
        return self.replace(shape=numbers(self.vae, latents.described(self, self.vae)))

    @property
    def drawn(self) -> tuple[int, int, int]:
        """(channels, rows, columns) of what noise is put into."""
        assert self.vae is None or self.shape is not None, "objective.ready(None) first"
        return self.shape or (len(self.mean), *self.image_size)

    def write_settings(self, folder: Path) -> Path:
        """Also the autoencoder."""
        if self.vae is not None:
            latents.keep(self.vae, folder)
        return super().write_settings(folder)

    def vary(self, record: Record, random: np.random.Generator, *partners: Record) -> Record:
        record = super().vary(record, random, *partners)
        left_out = random.random() < self.unlabelled
        return {
            **record,
            "noise": random.standard_normal(math.prod(self.drawn), np.float32),
            "moment": np.asarray(random.random()),
            "label": np.asarray(len(self.labels), np.int64) if left_out else record["label"],
        }

    def collate(self, records: Sequence[Record], pad: int) -> Batch:
        batch = super().collate(records, pad)
        noise = torch.from_numpy(np.stack([record["noise"] for record in records])).unflatten(1, self.drawn)
        return {
            **batch,
            "noise": noise,
            "moment": scalars(records, "moment"),
            "class_labels": scalars(records, "label"),
        }

    def module(self, model: TransformerModule) -> nn.Module:
        head_of(model, NoiseModule, "diffusion")
        spec: Any = model.spec
        if spec.embedding.condition.num_labels != len(self.labels):
            known = spec.embedding.condition.num_labels
            raise ValueError(f"{len(self.labels)} labels, and the model knows {known}")
        if spec.labels not in ((), self.labels):
            raise ValueError(f"labels are {', '.join(self.labels)}, and the model knows {', '.join(spec.labels)}")
        if spec.head.out_channels != spec.embedding.channels:
            line = f"head.out_channels is {spec.head.out_channels}: nothing here teaches what a noise's variance is"
            raise ValueError(f"{line}; set it to {spec.embedding.channels}")
        if self.vae is not None:
            return self.beside(model, latents.opened(self.vae))
        self.fits(spec.embedding)
        return model

    def beside(self, model: TransformerModule, vae: Any) -> Followed:
        spec: Any = model.spec
        squeezes, draws = numbers(self.vae, vae.spec), (spec.embedding.channels, *spec.embedding.image_size)
        latents.matches(self, vae)
        if squeezes != draws:  # also where the autoencoder reads other sizes: these pictures are of one
            line = f"the autoencoder makes {squeezes} of a picture: channels, rows, columns"
            raise ValueError(f"{line}; the model draws {draws}")
        return Followed(model, vae)

    def weights(self, batch: Batch) -> dict[str, float]:
        return {"loss": float(len(batch["moment"]))}

    def losses(self, trained: Any, batch: Batch) -> dict[str, Tensor]:
        """The mean squared distance of each picture's noise from what the model takes for it."""
        model, picture = trained, batch["pixel_values"]
        if isinstance(trained, Followed):
            model, picture = trained.model, latents.codes(trained.other, picture).float()
        head = head_of(model, NoiseModule, "diffusion")
        step = (batch["moment"] * head.part.schedule.steps).long()
        mixed = head.add_noise(picture, batch["noise"], step)
        seen = read(model, {"hidden_states": mixed, "timestep": step, "class_labels": batch["class_labels"]})
        said = answering(model).answer(seen.x, seen.ctx, seen.inputs)["sample"].float()
        return {"loss": (said - batch["noise"]).square().mean((1, 2, 3)).sum()}


def numbers(vae: str | None, spec: Any) -> tuple[int, int, int]:
    """(channels, rows, columns) of what an autoencoder makes of a picture."""
    if not isinstance(spec, AutoencoderModel) or spec.numbers is None:
        raise ValueError(f"{vae}: no autoencoder that squeezes pictures into numbers, which noise could be put into")
    return spec.numbers
