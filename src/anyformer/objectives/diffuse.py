"""Diffusion [Ho et al. 2020]: predict the noise in a picture or in its latents [Rombach et al. 2022], given a label
most of the time [Ho and Salimans 2022]."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn

from anyformer.models import AutoencoderModel, AutoencoderModule, Model
from anyformer.models.base import TransformerModule
from anyformer.objectives import latents
from anyformer.objectives.images import LabelledPictures
from anyformer.objectives.objective import (
    Batch,
    Record,
    WithFrozenModel,
    forward_to_head,
    head_of,
    require_head,
    scalars,
)
from anyformer.parts.diffusion import NoiseModule, NoisyEmbedding
from anyformer.specs.checks import chance


class Diffuse(LabelledPictures, called=("diffusion", "classifier-free guidance")):
    """Pictures drawn out of noise, asked for by their labels. Each time a picture is seen, noise of another step of
    the model's schedule is in it, and its label may be left out: guidance compares with what is drawn without one.
    With `vae`, the folder of an autoencoder, the numbers that it squeezes pictures into are drawn instead of pixels."""

    second_model: ClassVar[bool] = True
    command: ClassVar[str] = "run draw RUN LABEL"

    unlabelled: float = 0.1  # the chance that the label is left out
    vae: str | None = None
    shape: tuple[int, int, int] | None = None  # of the latents, set by `ready`; None for pixels

    def check(self) -> None:
        super().check()
        chance(self, "unlabelled")

    def ready(self, tokenizer: Any) -> Self:
        if self.vae is None:
            return self
        return self.replace(shape=latent_shape(self.vae, latents.read_description(self, self.vae)))

    @property
    def noise_shape(self) -> tuple[int, int, int]:
        """(channels, rows, columns) of what noise is put into."""
        assert self.vae is None or self.shape is not None, "objective.ready(None) first"
        return self.shape or (len(self.mean), *self.image_size)

    def write_settings(self, folder: Path) -> Path:
        """Also the autoencoder."""
        if self.vae is not None:
            latents.copy_autoencoder(self.vae, folder)
        return super().write_settings(folder)

    def vary(self, record: Record, random: np.random.Generator, *partners: Record) -> Record:
        record = super().vary(record, random, *partners)
        left_out = random.random() < self.unlabelled
        return {
            **record,
            "noise": random.standard_normal(math.prod(self.noise_shape), np.float32),
            "moment": np.asarray(random.random()),
            "label": np.asarray(len(self.labels), np.int64) if left_out else record["label"],
        }

    def collate(self, records: Sequence[Record], pad: int) -> Batch:
        batch = super().collate(records, pad)
        noise = torch.from_numpy(np.stack([record["noise"] for record in records])).unflatten(1, self.noise_shape)
        return {
            **batch,
            "noise": noise,
            "moment": scalars(records, "moment"),
            "class_labels": scalars(records, "label"),
        }

    def module(self, model: TransformerModule) -> nn.Module:
        head = head_of(model, NoiseModule, "diffusion")
        spec, embedding = model.spec, model.spec.embedding
        assert isinstance(embedding, NoisyEmbedding), "a NoiseHead needs it"
        if (known := embedding.condition.num_labels) != len(self.labels):
            raise ValueError(f"{len(self.labels)} labels, and the model knows {known}")
        if spec.labels not in ((), self.labels):
            raise ValueError(f"labels are {', '.join(self.labels)}, and the model knows {', '.join(spec.labels)}")
        if head.part.out_channels != embedding.channels:
            line = f"head.out_channels is {head.part.out_channels}: Diffuse does not train the variance"
            raise ValueError(f"{line}; set it to {embedding.channels}")
        if self.vae is not None:
            return self.with_autoencoder(model, latents.load_autoencoder(self.vae))
        self.fits(embedding)
        return model

    def with_autoencoder(self, model: TransformerModule, vae: AutoencoderModule) -> WithFrozenModel:
        embedding = model.spec.embedding
        squeezes, draws = latent_shape(self.vae, vae.spec), (embedding.channels, *embedding.image_size)
        latents.check_autoencoder(self, vae)
        if squeezes != draws:  # also where the autoencoder reads other sizes: these pictures are of one
            line = f"the autoencoder's latents are {squeezes} (channels, rows, columns)"
            raise ValueError(f"{line}; the model draws {draws}")
        return WithFrozenModel(model, vae)

    def weights(self, batch: Batch) -> dict[str, float]:
        return {"loss": float(len(batch["moment"]))}

    def losses(self, trained: Any, batch: Batch) -> dict[str, Tensor]:
        """The mean squared distance of each picture's noise from what the model takes for it."""
        model, picture = trained, batch["pixel_values"]
        if isinstance(trained, WithFrozenModel):
            model, picture = trained.model, latents.codes(trained.frozen, picture).float()
        head = head_of(model, NoiseModule, "diffusion")
        step = (batch["moment"] * head.part.schedule.steps).long()
        mixed = head.add_noise(picture, batch["noise"], step)
        states = forward_to_head(
            model, {"hidden_states": mixed, "timestep": step, "class_labels": batch["class_labels"]}
        )
        predicted = require_head(model).answer(states.x, states.ctx, states.inputs)["sample"].float()
        return {"loss": (predicted - batch["noise"]).square().mean((1, 2, 3)).sum()}


def latent_shape(vae: str | None, spec: Model) -> tuple[int, int, int]:
    """(channels, rows, columns) of the latents of a picture."""
    if not isinstance(spec, AutoencoderModel) or spec.numbers is None:
        raise ValueError(f"{vae}: not an autoencoder with continuous latents")
    return spec.numbers
