"""Does a sentence answer a question (QNLI, 104,743 pairs in GLUE's files): a published MiniLM, trained further."""

from __future__ import annotations

from anyformer.recipes._glue import run_of
from anyformer.train.run import Pretrained, Run


def run(data: str = "data") -> Run:
    model = Pretrained(path=f"{data}/all-MiniLM-L6-v2", architecture="BertForSequenceClassification")
    return run_of("qnli", f"{data}/QNLI", model, 104_743, lr=5e-5)
