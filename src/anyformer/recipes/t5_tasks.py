"""Six tasks in one run, all as text to text (translation, summaries, labels): fine-tune a published T5."""

from __future__ import annotations

from anyformer.data import Data, First, Mixture, Share, Source, TextToText
from anyformer.objectives.translate import Translate
from anyformer.recipes import recipe
from anyformer.train.optim import Adafactor, Constant
from anyformer.train.run import Batch, Evaluate, Keep, Pretrained, Run

# recipe with the task's data -> prompt, target and label words, as in T5
TASKS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "multi30k-en-de": ("translate English to German: {source}", "{target}", ()),
    "scitldr": ("summarize: {source}", "{target}", ()),
    "sst2": ("sst2 sentence: {text}", "{label}", ("negative", "positive")),
    "cola": ("cola sentence: {text}", "{label}", ("unacceptable", "acceptable")),
    "rte": ("rte sentence1: {text} sentence2: {pair}", "{label}", ("entailment", "not_entailment")),
    "mrpc": ("mrpc sentence1: {text} sentence2: {pair}", "{label}", ("not_equivalent", "equivalent")),
}
LIMIT = 2**14  # examples; larger tasks are sampled as if they had this size


def share(name: str, source: Source) -> Share:
    reads, writes, labels = TASKS[name]
    words = {str(i): label for i, label in enumerate(labels)}
    return Share(name=name, source=TextToText(source=source, reads=reads, writes=writes, words=words))


def run(data: str = "data") -> Run:
    data_of = {name: recipe(name, data).data for name in TASKS}
    valid = {name: First(source=each.valid, count=100) for name, each in data_of.items() if each.valid is not None}
    return Run(
        name="t5-tasks",
        model=Pretrained(path="google-t5/t5-small"),
        data=Data(
            train=Mixture(shares=tuple(share(name, each.train) for name, each in data_of.items()), limit=LIMIT),
            valid=Mixture(shares=tuple(share(name, each) for name, each in valid.items())),
        ),
        objective=Translate(smoothing=0.0, length=512, target_length=128),
        optimizer=Adafactor(lr=1e-3),
        schedule=Constant(),
        batch=Batch(examples=128, micro=16),
        steps=5000,
        evaluate=Evaluate(every=500, metrics=("perplexity",)),
        keep=Keep(every=500),
    )
