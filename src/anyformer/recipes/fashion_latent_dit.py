"""Generate images of garments in the latents of fashion-kl (Fashion-MNIST): a small DiT, minutes on a GPU."""

from __future__ import annotations

from anyformer import families
from anyformer.recipes import fashion_dit
from anyformer.recipes.fashion_kl import NUMBERS, SIDE
from anyformer.recipes.fashion_vae import MEAN, STD
from anyformer.specs.codec import override
from anyformer.train.run import Run

# the DiT of fashion-dit, on 49 latents instead of 196 patches
CONFIG = {**fashion_dit.CONFIG, "in_channels": NUMBERS, "sample_size": SIDE, "patch_size": 1}


def run(data: str = "data") -> Run:
    vae = {"objective.vae": "./runs/fashion-kl", "objective.mean": MEAN, "objective.std": STD}
    model = families.find("dit").read(CONFIG)
    return override(fashion_dit.run(data), {"name": "fashion-latent-dit", "model": model, **vae})
