"""Generate images of garments from captions (Fashion-MNIST): a GPT-2 on the codes of fashion-vae, minutes on a GPU."""

from __future__ import annotations

from anyformer import families
from anyformer.data import Captions, Data, Source, TrainedBPE
from anyformer.objectives.draw import NextImageToken
from anyformer.recipes.fashion_mnist import LABELS, pictures
from anyformer.recipes.fashion_vae import MEAN, STD
from anyformer.train.optim import AdamW, Cosine
from anyformer.train.run import Batch, Evaluate, Keep, Run

WORDS, CODES, LENGTH, NUM_CODES = 300, 512, 16, 49
FORMS = ("{}", "{a} {}", "a picture of {a} {}", "a grey photo of {a} {}", "draw {a} {}")
CONFIG = {
    "vocab_size": WORDS + CODES,
    "n_positions": LENGTH + NUM_CODES,
    "n_embd": 320,
    "n_layer": 8,
    "n_head": 5,
    "resid_pdrop": 0.1,
    "embd_pdrop": 0.1,
    "attn_pdrop": 0.1,
}


def captions(data: str, part: str) -> Source:
    return Captions(source=pictures(data, part), names=LABELS, forms=FORMS)


def run(data: str = "data") -> Run:
    return Run(
        name="fashion-dalle",
        model=families.find("gpt2").read(CONFIG),
        data=Data(train=captions(data, "train"), valid=captions(data, "t10k")),
        objective=NextImageToken(vae="./runs/fashion-vae", image_size=(28, 28), mean=MEAN, std=STD, length=LENGTH),
        vocabulary=TrainedBPE(size=WORDS),
        optimizer=AdamW(lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1),
        schedule=Cosine(warmup=200, floor=0.02),
        batch=Batch(examples=1024),
        steps=3000,
        precision="bf16",
        evaluate=Evaluate(every=500),
        keep=Keep(every=500),
    )
