"""Compress images of garments into 7 x 7 latents of width 4 (Fashion-MNIST): the autoencoder of fashion-latent-dit."""

from __future__ import annotations

from anyformer.parts.grid.dvae import GaussianLatent
from anyformer.recipes import fashion_vae
from anyformer.specs.codec import override
from anyformer.train.run import Run

NUMBERS, SIDE = 4, 7


def run(data: str = "data") -> Run:
    latent = GaussianLatent(width=NUMBERS, scale=None)
    changes = {"name": "fashion-kl", "model.latent": latent, "objective.price": 1e-4, "objective.flip": 0.5}
    return override(fashion_vae.run(data), changes)
