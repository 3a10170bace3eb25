"""Fine-tune a chat model on conversations: your own, or generated ones about Python's library (`anyformer fetch`).

Each line of dialogue/train.jsonl and valid.jsonl is one: {"messages": [{"role": ..., "content": ...}, ...]}.
"""

from __future__ import annotations

from anyformer.data import Data, JSONLines
from anyformer.objectives.dialogue import Dialogue
from anyformer.train.optim import AdamW, Cosine
from anyformer.train.run import Batch, Evaluate, Keep, Pretrained, Run

LENGTH = 2048


def run(data: str = "data") -> Run:
    def conversations(name: str) -> JSONLines:
        return JSONLines(path=f"{data}/dialogue/{name}.jsonl")

    return Run(
        name="dialogue",
        model=Pretrained(path="HuggingFaceTB/SmolLM2-135M-Instruct"),
        data=Data(train=conversations("train"), valid=conversations("valid")),
        objective=Dialogue(length=LENGTH),
        optimizer=AdamW(lr=2e-5, betas=(0.9, 0.999), weight_decay=0.0),
        schedule=Cosine(warmup=30),
        batch=Batch(examples=16, micro=4),
        steps=1000,
        evaluate=Evaluate(every=100, metrics=("perplexity",)),
        keep=Keep(every=100),
    )
