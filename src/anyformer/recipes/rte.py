"""Does one sentence follow from another (RTE, 2,490 pairs): a published MiniLM, trained further."""

from __future__ import annotations

from anyformer.recipes._glue import run_of
from anyformer.train.run import Pretrained, Run


def run(data: str = "data") -> Run:
    model = Pretrained(path=f"{data}/all-MiniLM-L6-v2", architecture="BertForSequenceClassification")
    return run_of("rte", f"{data}/glue_rte", model, 2490, lr=5e-5)
