"""Diffusion [Ho et al. 2020]: predict the noise in an image or in its latents [Rombach et al. 2022], with a label in
most cases [Ho and Salimans 2022]."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn

from anyformer.generation.diffusion import noisy_inputs
from anyformer.models import AutoencoderModel, AutoencoderModule, Model
from anyformer.models.base import TransformerModule
from anyformer.models.encoder_decoder import EncoderDecoderModule
from anyformer.objectives import latents
from anyformer.objectives.batches import Batch, Record, pad_texts, scalars
from anyformer.objectives.heads import forward_to_head, head_of
from anyformer.objectives.images import LabelledPictures
from anyformer.objectives.match import Captioned
from anyformer.objectives.objective import WithFrozenModel
from anyformer.parts.diffusion import NoiseModule, NoisyEmbedding
from anyformer.specs.field_types import Chance


class Diffuse(LabelledPictures, called=("diffusion", "classifier-free guidance")):
    """Columns "image" and "label": generate images of a label from noise. Each time an image is seen, noise of a random
    step of the model's schedule is added, and the label is dropped with probability `unlabelled`, as classifier-free
    guidance needs. With `vae`, the folder of an autoencoder, the model generates its latents instead of pixels."""

    second_model: ClassVar[bool] = True
    command: ClassVar[str] = "run draw RUN LABEL"

    unlabelled: Chance = 0.1  # probability of dropping the label
    vae: str | None = None
    shape: tuple[int, int, int] | None = None  # of the latents, set by `ready`; None: pixels

    def ready(self, tokenizer: Any) -> Self:
        if self.vae is None:
            return self
        return self.replace(shape=latent_shape(self.vae, latents.read_description(self, self.vae)))

    @property
    def noise_shape(self) -> tuple[int, int, int]:
        """Channels, rows and columns of the latents or the image."""
        assert self.vae is None or self.shape is not None, "call objective.ready(None) first"
        return self.shape or (len(self.mean), *self.image_size)

    def write_settings(self, folder: Path) -> Path:
        """Also save the autoencoder."""
        if self.vae is not None:
            latents.copy_autoencoder(self.vae, folder)
        return super().write_settings(folder)

    def vary(self, record: Record, random: np.random.Generator, *partners: Record) -> Record:
        record = super().vary(record, random, *partners)
        is_dropped = random.random() < self.unlabelled
        return {
            **record,
            **draw_noise(random, self.noise_shape),
            "label": np.asarray(len(self.labels), np.int64) if is_dropped else record["label"],
        }

    def collate(self, records: Sequence[Record], pad: int) -> Batch:
        labels = {"class_labels": scalars(records, "label")}
        return {**super().collate(records, pad), **collate_noise(records, self.noise_shape), **labels}

    def module(self, model: TransformerModule) -> nn.Module:
        head = head_of(model, NoiseModule, "diffusion")
        spec, embedding = model.spec, model.spec.embedding
        assert isinstance(embedding, NoisyEmbedding), "a NoiseHead needs a NoisyEmbedding"
        if (known := embedding.condition.num_labels) != len(self.labels):
            raise ValueError(f"the objective has {len(self.labels)} labels, but the model knows {known}")
        if spec.labels not in ((), self.labels):
            raise ValueError(f"labels are {', '.join(self.labels)}, but the model knows {', '.join(spec.labels)}")
        check_channels(head, embedding)
        if self.vae is not None:
            return self.with_autoencoder(model, latents.load_autoencoder(self.vae))
        self.check_embedding(embedding)
        return model

    def with_autoencoder(self, model: TransformerModule, vae: AutoencoderModule) -> WithFrozenModel:
        embedding = model.spec.embedding
        shape, output = latent_shape(self.vae, vae.spec), (embedding.channels, *embedding.image_size)
        latents.check_autoencoder(self, vae)
        if shape != output:
            raise ValueError(f"latents are {shape} (channels, rows, columns) in the autoencoder, {output} in the model")
        return WithFrozenModel(model, vae)

    def weights(self, batch: Batch) -> dict[str, float]:
        return {"loss": float(len(batch["moment"]))}

    def losses(self, trained: Any, batch: Batch) -> dict[str, Tensor]:
        """Return the mean squared error of the predicted noise, summed over images."""
        model, clean = trained, batch["pixel_values"]
        if isinstance(trained, WithFrozenModel):
            model, clean = trained.model, latents.codes(trained.frozen, clean).float()
        return noise_loss(model, clean, batch, {"class_labels": batch["class_labels"]})


class DiffuseText(Captioned):
    """Columns "image" and "text" (see `Captioned`): generate images of a text from noise, with a text encoder and a
    decoder of patches that are trained together. The text is replaced by an empty one with probability `untold`, as
    classifier-free guidance needs."""

    command: ClassVar[str] = "run draw RUN TEXT"

    untold: Chance = 0.1  # probability of dropping the text

    @property
    def noise_shape(self) -> tuple[int, int, int]:
        return len(self.mean), *self.image_size

    def vary(self, record: Record, random: np.random.Generator, *partners: Record) -> Record:
        record = super().vary(record, random, *partners)
        first = -1 if random.random() < self.untold else 0  # only the end token
        return {**record, **draw_noise(random, self.noise_shape), "input_ids": record["input_ids"][first:]}

    def collate(self, records: Sequence[Record], pad: int) -> Batch:
        return {
            **super().collate(records, pad),
            **pad_texts(records, pad),
            **collate_noise(records, self.noise_shape),
        }

    def module(self, model: TransformerModule) -> nn.Module:
        head = head_of(model, NoiseModule, "diffusion")
        embedding = getattr(model.spec, model.spec.target)
        if not isinstance(model, EncoderDecoderModule) or not isinstance(embedding, NoisyEmbedding):
            raise ValueError("DiffuseText needs an EncoderDecoderModel whose decoder_embedding is a NoisyEmbedding")
        check_channels(head, embedding)
        self.check_embedding(embedding)
        return model

    def weights(self, batch: Batch) -> dict[str, float]:
        return {"loss": float(len(batch["moment"]))}

    def losses(self, trained: TransformerModule, batch: Batch) -> dict[str, Tensor]:
        """Return the mean squared error of the predicted noise, summed over images."""
        text: Batch = {name: batch[name] for name in ("input_ids", "attention_mask") if name in batch}
        return noise_loss(trained, batch["pixel_values"], batch, text)


def draw_noise(random: np.random.Generator, shape: tuple[int, int, int]) -> Record:
    """Draw the noise of an image, and a moment from 0 to 1 that selects the noise step."""
    noise = random.standard_normal(math.prod(shape), np.float32)
    return {"noise": noise, "moment": np.asarray(random.random())}


def collate_noise(records: Sequence[Record], shape: tuple[int, int, int]) -> Batch:
    noise = torch.from_numpy(np.stack([record["noise"] for record in records])).unflatten(1, shape)
    return {"noise": noise, "moment": scalars(records, "moment")}


def check_channels(head: NoiseModule, embedding: NoisyEmbedding) -> None:
    if head.part.out_channels != embedding.channels:
        channels = f"head.out_channels is {head.part.out_channels}; set it to {embedding.channels}"
        raise ValueError(f"{channels}: the variance is not trained")


def noise_loss(model: TransformerModule, clean: Tensor, batch: Batch, condition: Batch) -> dict[str, Tensor]:
    """Add noise to clean images or latents; return the squared error of the model's prediction, summed over images."""
    head = head_of(model, NoiseModule, "diffusion")
    step = (batch["moment"] * head.part.schedule.steps).long()
    noisy = noisy_inputs(model, head.add_noise(clean, batch["noise"], step), step)
    states = forward_to_head(model, {**noisy, **condition})
    predicted = head.answer(states.x, states.ctx, states.inputs)["sample"].float()
    return {"loss": (predicted - batch["noise"]).square().mean((1, 2, 3)).sum()}


def latent_shape(vae: str | None, spec: Model) -> tuple[int, int, int]:
    """Return the channels, rows and columns of the latents of an image."""
    if not isinstance(spec, AutoencoderModel) or spec.numbers is None:
        raise ValueError(f"{vae}: not an autoencoder with continuous latents")
    return spec.numbers
