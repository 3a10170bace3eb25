"""A small GPT on the running Python's own documentation and library, with its own vocabulary: minutes on a CPU."""

from __future__ import annotations

from anyformer.names import spec
from anyformer.objectives.causal import NextToken
from anyformer.spec import override
from anyformer.train.data import Data, Held, PythonDocs, TrainedBPE
from anyformer.train.optim import Cosine, Muon
from anyformer.train.run import Batch, Evaluate, Keep, Run

SIZE, LENGTH = 1024, 128
SMALL = {  # GPT-2's description, by address
    "width": 192,
    "embedding.tokens.vocab_size": SIZE,
    "embedding.position.length": LENGTH,
    "embedding.dropout": 0.0,
    "decoder.depth": 6,
    "decoder.layers.attention.op.num_heads": 4,
    "decoder.layers.attention.op.head_width": 48,
    "decoder.layers.attention.op.dropout": 0.0,
    "decoder.layers.attention.dropout": 0.0,
    "decoder.layers.feedforward.op.width": 768,
    "decoder.layers.feedforward.dropout": 0.0,
    "head.vocab_size": SIZE,
}


def run(data: str = "data") -> Run:
    texts = PythonDocs()
    return Run(
        name="quickstart",
        model=override(spec("gpt2"), SMALL),
        vocabulary=TrainedBPE(size=SIZE),
        data=Data(train=Held(source=texts, one_in=100), valid=Held(source=texts, one_in=100, out=True)),
        objective=NextToken(),
        optimizer=Muon(lr=6e-3),
        schedule=Cosine(warmup=20, floor=0.05),
        batch=Batch(examples=8, length=LENGTH),
        steps=700,
        evaluate=Evaluate(every=175, sample="The following functions"),
        keep=Keep(every=175, last=1),
    )
