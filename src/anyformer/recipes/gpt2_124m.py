"""Train GPT-2 with 124 million parameters from scratch on the text files in text/, on one large GPU."""

from __future__ import annotations

from anyformer.checkpoint import spec
from anyformer.data import Data, Held, TextFiles, TrainedBPE
from anyformer.objectives.causal import NextToken
from anyformer.specs.codec import override
from anyformer.train.optim import AdamW, Cosine
from anyformer.train.run import Batch, Evaluate, Keep, Run

# dropout does not help if texts are seen only once or a few times
NO_DROPOUT = {
    "embedding.dropout": 0.0,
    "decoder.layers.attention.dropout": 0.0,
    "decoder.layers.attention.op.dropout": 0.0,
    "decoder.layers.feedforward.dropout": 0.0,
}


def run(data: str = "data") -> Run:
    texts = TextFiles(path=f"{data}/text")
    return Run(
        name="gpt2-124m",
        model=override(spec("gpt2"), NO_DROPOUT),
        vocabulary=TrainedBPE(size=50257),
        data=Data(train=Held(source=texts, one_in=100), valid=Held(source=texts, one_in=100, out=True)),
        objective=NextToken(apart=False),
        optimizer=AdamW(lr=6e-4),
        schedule=Cosine(warmup=700, floor=0.1),
        batch=Batch(examples=32, length=1024),
        steps=20_000,
        precision="bf16-stream",
        compile=True,
        evaluate=Evaluate(every=1000, batches=50, sample="The", patience=None),
        keep=Keep(every=1000),
    )
