"""Compress images of garments into 7 x 7 codes (Fashion-MNIST): the autoencoder of fashion-dalle."""

from __future__ import annotations

from anyformer.data import Data
from anyformer.models import AutoencoderModel
from anyformer.objectives.draw import Reconstruct
from anyformer.parts.embedding.autoencoder import ConvEmbedding
from anyformer.parts.grid.dvae import ConvDecoder, RoundedCodes
from anyformer.parts.init import Normal
from anyformer.recipes.fashion_mnist import pictures
from anyformer.train.optim import AdamW, Cosine
from anyformer.train.run import Batch, Evaluate, Keep, Run

WIDTHS = (64, 128, 256)
MEAN, STD = (0.2860,), (0.3530,)


def run(data: str = "data") -> Run:
    return Run(
        name="fashion-vae",
        model=AutoencoderModel(
            width=256,
            embedding=ConvEmbedding(image_size=(28, 28), channels=1, widths=WIDTHS, kernel=5),
            latent=RoundedCodes(levels=(8, 8, 8)),
            image_decoder=ConvDecoder(channels=1, widths=WIDTHS[::-1]),
            init={"*": Normal(std=0.02)},
        ),
        data=Data(train=pictures(data, "train"), valid=pictures(data, "t10k")),
        objective=Reconstruct(image_size=(28, 28), mean=MEAN, std=STD, price=0.0),
        optimizer=AdamW(lr=1e-3, weight_decay=0.01),
        schedule=Cosine(warmup=100, floor=0.01),
        batch=Batch(examples=1024),
        steps=1500,
        precision="bf16",
        evaluate=Evaluate(every=500),
        keep=Keep(every=500),
    )
