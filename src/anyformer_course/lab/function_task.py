"""A task for encoder-decoders that needs no download: read the name and the body of a Python function, write the names
of its parameters. Test functions are from held-out texts. An answer is correct if all of its tokens are correct."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from filelock import FileLock

from anyformer.data import Data, Held, JSONLines, Source, Stored, TrainedBPE, texts_of
from anyformer.kernels.loss import IGNORED
from anyformer.lab.trials import Place, write
from anyformer.train.trainer import Trainer

ANSWER = 12  # tokens of a function's parameters; the rest is cut off
SENTINELS = 32
SPECIAL = {"pad_token": "<pad>", "eos_token": "</s>", "mask_token": "<mask>"}
# indentation, name, parameters (without brackets), body
FUNCTION = re.compile(r"^([ \t]*)def (\w+)\(([^()\[\]]+)\).*:[ \t]*\n((?:(?:\1[ \t]+.*|[ \t]*)\n)+)", re.M)


def functions(source: Source, train: int, valid: int, place: Place) -> Data:
    """Return at most `train` and `valid` examples {"source": a function without parameters, "target": these}."""

    def make(folder: Path) -> None:
        seen = set[tuple[str, str]]()
        for name, out, most in (("train", False, train), ("valid", True, valid)):
            every = texts_of(Held(source=source, out=out), ("text",))
            pairs = sorted({pair for text in every for pair in without_parameters(text)} - seen)  # no duplicates
            seen |= set(pairs)
            chosen = np.random.default_rng(0).permutation(len(pairs))[:most]
            lines = (json.dumps(dict(zip(("source", "target"), pairs[i]))) for i in chosen)
            write(folder / f"{name}.jsonl", "".join(f"{line}\n" for line in lines))

    folder = Path(place.data("functions", make)) / "functions"
    return Data(train=JSONLines(path=str(folder / "train.jsonl")), valid=JSONLines(path=str(folder / "valid.jsonl")))


def without_parameters(text: str) -> Iterator[tuple[str, str]]:
    """Yield (name and body, names of the parameters) of the functions in a text, without nested functions."""
    for _, name, parameters, body in FUNCTION.findall(f"{text}\n"):
        names = [re.split("[:=]", each)[0].strip() for each in parameters.split(",")]
        yield f"{name}\n{body.rstrip()}", ", ".join(filter(None, names))


def share_right(trainer: Trainer) -> float:
    """Return the share of validation examples with only correct tokens, which greedy decoding generates exactly."""
    assert trainer.valid is not None
    right: list[bool] = []
    with trainer.eval_mode(), trainer.autocast(), trainer.valid() as batches:
        for batch in (trainer.to_device(batch) for ready in batches for batch in ready.batches):
            labels = batch["labels"]
            predictions = trainer.model(**batch).logits.argmax(-1)
            right += ((predictions == labels) | (labels == IGNORED)).all(1).tolist()
    return float(np.mean(right))


def vocabulary(data: Data, tokens: int, place: Place) -> Stored:
    """Return the vocabulary of all trials, which the first trial trains."""
    folder = place.shared / "vocabulary"
    place.shared.mkdir(parents=True, exist_ok=True)
    with FileLock(place.shared / ".vocabulary.lock"):
        if not (folder / "tokenizer_config.json").is_file():  # the last file to be written
            described = TrainedBPE(size=tokens, special=SPECIAL, sentinels=SENTINELS)
            described.make(texts_of(data.train, ("text",)), folder)
    return Stored(path=str(folder))
