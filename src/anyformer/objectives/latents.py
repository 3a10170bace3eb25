"""Drawing in what an autoencoder makes of pictures: it is trained first, and goes along in the folder of what draws."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anyformer.models import AutoencoderModule, Model
from anyformer.objectives.images import Pictures
from anyformer.weights import hub


def read_description(objective: Pictures, vae: str) -> Model:
    """The description in the folder of an autoencoder, before any data is read."""
    from anyformer.checkpoint import read_spec

    try:
        return read_spec(hub.resolve(vae))
    except (OSError, ValueError) as error:
        raise ValueError(f"{type(objective).__name__}.vae: train an autoencoder first: {error}") from None


def load_autoencoder(vae: str) -> Any:
    from anyformer.checkpoint import load

    return load(vae)


def copy_autoencoder(vae: str, folder: Path) -> None:
    """Puts the autoencoder, without which nobody could see what is drawn, beside a model."""
    from anyformer.checkpoint import COMPANION, save

    save(load_autoencoder(vae), folder / COMPANION)


def check_autoencoder(objective: Pictures, vae: AutoencoderModule) -> None:
    """ValueError where an autoencoder reads other pictures."""
    objective.fits(vae.spec.embedding)
    if objective.image_size != vae.spec.embedding.image_size:
        sizes = f"image_size is {objective.image_size}, and the model's {vae.spec.embedding.image_size}"
        raise ValueError(f"{type(objective).__name__}.{sizes}")


@torch.no_grad()
def codes(vae: AutoencoderModule, pixels: Tensor) -> Tensor:
    """As `vae.codes`, in its own precision whatever the training's is."""
    with torch.autocast(pixels.device.type, enabled=False):
        return vae.codes(pixels.to(vae.dtype))
