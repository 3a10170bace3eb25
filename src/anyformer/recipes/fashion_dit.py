"""Generate images of garments from noise and a label (Fashion-MNIST): a small DiT from scratch, minutes on a GPU."""

from __future__ import annotations

from anyformer import families
from anyformer.data import Data
from anyformer.objectives.diffuse import Diffuse
from anyformer.recipes.fashion_mnist import LABELS, pictures
from anyformer.recipes.shared.encoder import label_fields
from anyformer.train.optim import AdamW, Cosine
from anyformer.train.run import Batch, Evaluate, Keep, Run

CONFIG = {
    "num_attention_heads": 6,
    "attention_head_dim": 64,
    "num_layers": 8,
    "in_channels": 1,
    "sample_size": 28,
    "patch_size": 2,
    "num_embeds_ada_norm": len(LABELS),
    "per_layer": False,
    "norm_eps": 1e-6,
    **label_fields(LABELS),
}


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
