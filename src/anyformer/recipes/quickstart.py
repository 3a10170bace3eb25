"""Train a small GPT and its vocabulary on the documentation and library of the running Python: minutes on a CPU."""

from __future__ import annotations

import dataclasses

from anyformer.checkpoint import spec
from anyformer.data import Data, First, Held, PythonDocs, Source, TrainedBPE
from anyformer.objectives.causal import NextToken
from anyformer.specs.codec import override
from anyformer.train.optim import Cosine, Muon
from anyformer.train.run import Batch, Evaluate, Keep, Run


def run(data: str = "data") -> Run:
    return language_run(PythonDocs(), 100, vocabulary=1024, width=192, depth=6, heads=4, length=128, batch=8, lr=6e-3)


@dataclasses.dataclass(frozen=True)
class TourSize:
    name: str
    run: Run
    enough: int  # steps after which its loss is well below the bigram baseline


def sizes() -> tuple[TourSize, ...]:
    """Return the recipe in three sizes, smallest first; the smaller ones suit slow machines."""
    documentation = PythonDocs(library=False)
    part = First(source=PythonDocs(), count=250)
    small = language_run(documentation, 20, vocabulary=280, width=64, depth=1, heads=2, length=64, batch=16, lr=3e-2)
    middle = language_run(part, 25, vocabulary=512, width=96, depth=3, heads=3, length=128, batch=8, lr=1e-2)
    return TourSize("small", small, 0), TourSize("middle", middle, 500), TourSize("full", run(), 600)


def language_run(
    texts: Source,
    one_in: int,
    *,
    vocabulary: int,
    width: int,
    depth: int,
    heads: int,
    length: int,
    batch: int,
    lr: float,
) -> Run:
    small = {  # GPT-2's description, by address
        "width": width,
        "embedding.tokens.vocab_size": vocabulary,
        "embedding.position.length": length,
        "embedding.dropout": 0.0,
        "decoder.depth": depth,
        "decoder.layers.attention.op.num_heads": heads,
        "decoder.layers.attention.op.head_width": width // heads,
        "decoder.layers.attention.op.dropout": 0.0,
        "decoder.layers.attention.dropout": 0.0,
        "decoder.layers.feedforward.op.width": 4 * width,
        "decoder.layers.feedforward.dropout": 0.0,
        "head.vocab_size": vocabulary,
    }
    return Run(
        name="quickstart",
        model=override(spec("gpt2"), small),
        vocabulary=TrainedBPE(size=vocabulary),
        data=Data(train=Held(source=texts, one_in=one_in), valid=Held(source=texts, one_in=one_in, out=True)),
        objective=NextToken(),
        optimizer=Muon(lr=lr),
        schedule=Cosine(warmup=20, floor=0.05),
        batch=Batch(examples=batch, length=length),
        steps=700,
        evaluate=Evaluate(every=175, sample="The following functions"),
        keep=Keep(every=175, last=1),
    )
