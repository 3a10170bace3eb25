"""Find the answer to a question in a paragraph (a part of SQuAD 1.1)."""

from __future__ import annotations

from anyformer.data import Data, JSONLines, SQuAD
from anyformer.objectives.answer import Answer
from anyformer.recipes.shared.encoder import from_scratch
from anyformer.train.optim import AdamW, Linear
from anyformer.train.run import Batch, Evaluate, Keep, Pretrained, Run

RECIPES = {
    "squad": "Find the answer to a question in a paragraph (a part of SQuAD 1.1): fine-tune a published MiniLM.",
    "squad-scratch": "Find the answer to a question in a paragraph (a part of SQuAD 1.1): an encoder from scratch.",
}


def questions(data: str) -> Data:
    part = f"{data}/qa_squad11_part/squad11_train_part.jsonl.gz"
    return Data(
        train=JSONLines(path=part, columns={"answers": "answer"}),
        valid=SQuAD(path=f"{data}/qa_xquad/xquad.en.json.gz"),
        unfit="skip",  # one of the 4,285 answers ends before it begins
    )


def run(data: str = "data", name: str = "squad") -> Run:
    tuned = Run(
        name="squad",
        model=Pretrained(path=f"{data}/all-MiniLM-L6-v2", architecture="BertForQuestionAnswering"),
        data=questions(data),
        objective=Answer(length=256, stride=64),
        optimizer=AdamW(lr=1e-4, betas=(0.9, 0.999), weight_decay=0.01),
        schedule=Linear(warmup=100),
        batch=Batch(examples=16),
        steps=1500,
        evaluate=Evaluate(every=250, metrics=("exact_match", "f1"), best="f1"),
        keep=Keep(every=250),
    )
    return tuned if name == "squad" else from_scratch(tuned)
