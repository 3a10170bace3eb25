"""BERT's pretraining [Devlin et al. 2019]: masked tokens and next sentences, a million steps of 256 texts.

Each paragraph of the text files in {data}/books and {data}/wikipedia is a document. Both folders are sampled in
proportion to their size. The first 90 % of the steps use texts of 128 tokens, the rest 512.
"""

from __future__ import annotations

from anyformer.checkpoint import spec
from anyformer.data import Data, Held, Mixture, Share, TextFiles, TrainedWordPiece
from anyformer.objectives.sentences import MaskedAndNext
from anyformer.train.optim import AdamW, Linear
from anyformer.train.run import Batch, Begin, Evaluate, Keep, Run

RECIPES = {
    "bert-base-pretraining": "BERT of 110M parameters from scratch: 900,000 steps at length 128, 100,000 at 512.",
    "bert-large-pretraining": "BERT of 340M parameters from scratch: 900,000 steps at length 128, 100,000 at 512.",
}
STEPS, SHORT, LENGTH = 1_000_000, 128, 512


def mixture(data: str, out: bool) -> Mixture:
    """Return books and Wikipedia without one paragraph in a thousand; with `out`, return only the held-out ones."""
    sources = {name: TextFiles(path=f"{data}/{name}", unit="paragraph") for name in ("books", "wikipedia")}
    held = {name: Held(source=source, one_in=1000, out=out) for name, source in sources.items()}
    return Mixture(shares=tuple(Share(name=name, source=source) for name, source in held.items()))


def run(data: str = "data", name: str = "bert-base-pretraining") -> Run:
    return Run(
        name=name,
        model=spec(name.removesuffix("-pretraining")),
        vocabulary=TrainedWordPiece(size=30522),
        data=Data(train=mixture(data, out=False), valid=mixture(data, out=True)),
        objective=MaskedAndNext(length=LENGTH),
        optimizer=AdamW(lr=1e-4, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.01),
        schedule=Linear(warmup=10_000),
        batch=Batch(examples=256, length=LENGTH, micro=32, begin=Begin(steps=STEPS * 9 // 10, length=SHORT)),
        steps=STEPS,
        precision="bf16",
        evaluate=Evaluate(every=10_000, batches=16, patience=None),
        keep=Keep(every=10_000),
    )
