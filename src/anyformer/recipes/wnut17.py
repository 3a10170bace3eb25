"""Tag new and rare names in short messages (WNUT-17)."""

from __future__ import annotations

from anyformer.data import Columns, Data
from anyformer.objectives.tag import Tag
from anyformer.recipes.shared.encoder import from_scratch
from anyformer.recipes.shared.sources import WNUT_LABELS
from anyformer.train.optim import AdamW, Linear
from anyformer.train.run import Batch, Evaluate, Keep, Pretrained, Run

RECIPES = {
    "wnut17": "Tag new and rare names in short messages (WNUT-17): fine-tune a published MiniLM.",
    "wnut17-scratch": "Tag new and rare names in short messages (WNUT-17): a small encoder from scratch.",
}


def sentences(data: str) -> Data:
    def words(name: str) -> Columns:
        return Columns(path=f"{data}/ner_wnut17/{name}.gz", fields={"words": 0, "tags": 1})

    return Data(
        train=words("wnut17train.conll"), valid=words("emerging.dev.conll"), test=words("emerging.test.annotated")
    )


def run(data: str = "data", name: str = "wnut17") -> Run:
    tuned = Run(
        name="wnut17",
        model=Pretrained(
            path=f"{data}/all-MiniLM-L6-v2", architecture="BertForTokenClassification", labels=WNUT_LABELS
        ),
        data=sentences(data),
        objective=Tag(labels=WNUT_LABELS),
        optimizer=AdamW(lr=1e-4, betas=(0.9, 0.999), weight_decay=0.01),
        schedule=Linear(warmup=100),
        batch=Batch(examples=16),
        steps=1000,
        evaluate=Evaluate(every=100, metrics=("f1",), best="f1"),
        keep=Keep(every=100),
    )
    return tuned if name == "wnut17" else from_scratch(tuned, steps=1500)
