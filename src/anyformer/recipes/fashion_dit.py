"""Draws garments out of noise, by their names (Fashion-MNIST): a small DiT from scratch, some minutes on a GPU."""

from __future__ import annotations

from pathlib import Path

from anyformer import families
from anyformer.data import IDX, Beside, Data, Source
from anyformer.objectives.diffuse import Diffuse
from anyformer.recipes import fashion_mnist
from anyformer.recipes.fashion_mnist import LABELS
from anyformer.train.optim import AdamW, Cosine
from anyformer.train.run import Batch, Evaluate, Keep, Run

CONFIG = {
    "num_attention_heads": 6, "attention_head_dim": 64, "num_layers": 8, "in_channels": 1, "sample_size": 28,
    "patch_size": 2, "num_embeds_ada_norm": len(LABELS), "per_layer": False, "norm_eps": 1e-6,
    "id2label": {str(i): label for i, label in enumerate(LABELS)},
    "label2id": {label: i for i, label in enumerate(LABELS)},
}  # fmt: skip


def pictures(data: str, part: str) -> Source:
    """All 60,000 + 10,000 where there are the files that Fashion-MNIST comes in, else a part of them."""
    start = f"{data}/fashion_mnist/{part}"
    if not Path(f"{start}-images-idx3-ubyte.gz").is_file():
        return fashion_mnist.pictures(data, "train" if part == "train" else "test")
    images = IDX(path=f"{start}-images-idx3-ubyte.gz", name="image")
    return Beside(sources=(images, IDX(path=f"{start}-labels-idx1-ubyte.gz", name="label")))


def run(data: str = "data") -> Run:
    return Run(
        name="fashion-dit",
        model=families.find("dit").read(CONFIG),
        data=Data(train=pictures(data, "train"), valid=pictures(data, "t10k")),
        objective=Diffuse(labels=LABELS, image_size=(28, 28), mean=(0.5,), std=(0.5,), flip=0.5),
        optimizer=AdamW(lr=5e-4, weight_decay=0.0, betas=(0.9, 0.99)),
        schedule=Cosine(warmup=200, floor=0.02),
        batch=Batch(examples=256),
        steps=8000,
        ema=0.999,
        precision="bf16",
        evaluate=Evaluate(every=1000, batches=8),
        keep=Keep(every=1000),
    )
