"""Generation in the latents of an autoencoder, which is trained first and saved with the generating model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anyformer.models import AutoencoderModule, Model
from anyformer.objectives.images import Pictures
from anyformer.weights import hub


def read_description(objective: Pictures, vae: str) -> Model:
    """Read the description of an autoencoder from its folder, before any data is read."""
    from anyformer.checkpoint import read_spec

    try:
        return read_spec(hub.resolve(vae))
    except (OSError, ValueError) as error:
        raise ValueError(f"{type(objective).__name__}.vae: train an autoencoder first: {error}") from None


def load_autoencoder(vae: str) -> Any:
    from anyformer.checkpoint import load

    return load(vae)


def copy_autoencoder(vae: str, folder: Path) -> None:
    """Save the autoencoder in a model's folder: the model's latents cannot be decoded without it."""
    from anyformer.checkpoint import COMPANION, save

    save(load_autoencoder(vae), folder / COMPANION)


def check_autoencoder(objective: Pictures, vae: AutoencoderModule) -> None:
    """Raise ValueError if the autoencoder reads images of a different size or number of channels."""
    objective.check_embedding(vae.spec.embedding)
    if objective.image_size != vae.spec.embedding.image_size:
        sizes = f"image_size is {objective.image_size}, but the autoencoder's is {vae.spec.embedding.image_size}"
        raise ValueError(f"{type(objective).__name__}.{sizes}")


@torch.no_grad()
def codes(vae: AutoencoderModule, pixels: Tensor) -> Tensor:
    """Return `vae.codes(pixels)`, computed in the autoencoder's dtype even if training uses autocast."""
    with torch.autocast(pixels.device.type, enabled=False):
        return vae.codes(pixels.to(vae.dtype))
