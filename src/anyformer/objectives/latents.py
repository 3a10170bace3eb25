"""Drawing in what an autoencoder makes of pictures: it is trained first, and goes along in the folder of what draws."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anyformer.models import AutoencoderModule
from anyformer.objectives.images import Pictures
from anyformer.weights import hub


def described(objective: Pictures, vae: str) -> Any:
    """The description in the folder of an autoencoder, before any data is read."""
    from anyformer.checkpoint import read_spec

    try:
        return read_spec(hub.resolve(vae))
    except (OSError, ValueError) as error:
        raise ValueError(f"{type(objective).__name__}.vae: an autoencoder is trained first, and {error}") from None


def opened(vae: str) -> Any:
    from anyformer.checkpoint import load

    return load(vae)


def keep(vae: str, folder: Path) -> None:
    """Puts the autoencoder, without which nobody could see what is drawn, beside a model."""
    from anyformer.checkpoint import COMPANION, save

    save(opened(vae), folder / COMPANION)


def matches(objective: Pictures, vae: AutoencoderModule) -> None:
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
