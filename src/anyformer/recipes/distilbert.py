"""DistilBERT [Sanh et al. 2019]: distill BERT into half of its layers, on the text files of BERT's pretraining.

The student starts with every other layer of the teacher, and learns from three losses: the teacher's outputs at
temperature 2, masked tokens, and the cosine with the teacher's hidden states.
"""

from __future__ import annotations

from anyformer import families
from anyformer.data import Data, Stored
from anyformer.objectives.distill import Distill
from anyformer.objectives.masked import Masked
from anyformer.recipes.bert_pretraining import LENGTH, mixture
from anyformer.train.optim import AdamW, Linear
from anyformer.train.run import Batch, Evaluate, Keep, Run

TEACHER, LAYERS = "google-bert/bert-base-uncased", (0, 2, 4, 7, 9, 11)


def run(data: str = "data") -> Run:
    return Run(
        name="distilbert",
        model=families.find("distilbert").read({"architectures": ["DistilBertForMaskedLM"]}),
        vocabulary=Stored(path=TEACHER),
        data=Data(train=mixture(data, out=False), valid=mixture(data, out=True)),
        objective=Distill(of=Masked(), teacher=TEACHER, layers=LAYERS),
        optimizer=AdamW(lr=5e-4, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.0),
        schedule=Linear(warmup=1500),
        batch=Batch(examples=4000, length=LENGTH, micro=16),
        steps=30_000,
        precision="bf16",
        evaluate=Evaluate(every=1000, batches=16, patience=None),
        keep=Keep(every=1000),
    )
