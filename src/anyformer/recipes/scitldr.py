"""Summarize abstracts in one sentence (SciTLDR): fine-tune a published BART."""

from __future__ import annotations

from anyformer.data import Data, JSONLines
from anyformer.objectives.translate import Translate
from anyformer.train.optim import AdamW, Linear
from anyformer.train.run import Batch, Evaluate, Keep, Pretrained, Run


def run(data: str = "data") -> Run:
    """Training uses one summary per abstract. The other splits have several; the score is that of the best match."""

    def abstracts(name: str) -> JSONLines:
        return JSONLines(path=f"{data}/summ_scitldr/{name}.jsonl.gz")

    return Run(
        name="scitldr",
        model=Pretrained(path="facebook/bart-base"),
        data=Data(train=abstracts("train"), valid=abstracts("dev"), test=abstracts("test")),
        objective=Translate(smoothing=0.1, length=512, target_length=64),
        optimizer=AdamW(lr=3e-5, betas=(0.9, 0.999), weight_decay=0.01),
        schedule=Linear(warmup=60),
        batch=Batch(examples=16, micro=8),
        steps=600,
        evaluate=Evaluate(every=120, metrics=("rouge1", "rouge2", "rougeL"), num_beams=4, best="rougeL"),
        keep=Keep(every=120),
    )
