"""Rare classes: 30 intents with 150 to 3 training rows, and macro F1 with and without class weights.

    python benchmarks/intents.py [FOLDER]

The texts are generated: an action and a thing make the intent, each in several words, and most texts mention another
action or thing as well. The test file has ten rows of every intent. Each training is one command, as in
docs/howto/csv.md.
"""

from __future__ import annotations

import csv
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ACTIONS = {
    "order": ("order", "get", "request", "apply for"), "cancel": ("cancel", "stop", "close", "get rid of"),
    "change": ("change", "update", "edit", "correct"), "find": ("find", "look up", "see", "locate"),
    "report": ("report a problem with", "complain about", "dispute", "flag"),
    "explain": ("understand", "know the rules of", "ask about", "learn about"),
}  # fmt: skip
THINGS = {
    "card": ("card", "debit card", "plastic"), "transfer": ("transfer", "payment", "wire"),
    "fee": ("fee", "charge", "cost"), "loan": ("loan", "credit", "mortgage"),
    "account": ("account", "login", "profile"),
}  # fmt: skip
BEGIN = ("I want to", "can you help me", "please let me", "hi, I need to", "how do I", "is it possible to")
BETWEEN = ("my", "the", "a new", "this", "my old")
ASIDES = (", not my {thing}", " and I do not want to {action} anything", " because of the {thing}", " today",
          ", my {thing} is fine", "; I could not {action} it before")  # fmt: skip
LARGEST, SHRINK, TEST = 150, 0.87, 10  # rows of the most frequent intent, ratio to the next, rows of each for the test
FLAGS = {"without": [], "balanced": ["--class-weights", "balanced"], "oversampled": ["--oversample"]}


def text(action: str, thing: str, draw: random.Random) -> str:
    others = [name for name in THINGS if name != thing]
    aside = draw.choice(ASIDES).format(
        thing=draw.choice(THINGS[draw.choice(others)]), action=draw.choice(ACTIONS[draw.choice([*ACTIONS])])
    )
    words = draw.choice(BEGIN), draw.choice(ACTIONS[action]), draw.choice(BETWEEN), draw.choice(THINGS[thing])
    return " ".join(words) + aside


def write(folder: Path) -> None:
    """Write intents.csv with a long tail of intents, and test.csv with the same number of rows of each."""
    draw = random.Random(0)
    intents = [(action, thing) for action in ACTIONS for thing in THINGS]
    draw.shuffle(intents)
    counts = [round(LARGEST * SHRINK**i) for i in range(len(intents))]
    for name, each in (("intents", counts), ("test", [TEST] * len(intents))):
        rows = [(text(*intent, draw), "_".join(intent)) for intent, n in zip(intents, each) for _ in range(n)]
        draw.shuffle(rows)
        with (folder / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("text", "intent"), *rows])


def anyformer(folder: Path, *words: str) -> str:
    command = [sys.executable, "-m", "anyformer", *words]
    source = str(Path(__file__).resolve().parents[1] / "src")
    return subprocess.run(
        command, cwd=folder, env={**os.environ, "PYTHONPATH": source}, capture_output=True, text=True, check=True
    ).stdout


def macro_f1(folder: Path, kind: str, seed: int, steps: int) -> float:
    """Train with one kind of balance and return the macro F1 on the test file."""
    out = f"runs/{kind}-{seed}"
    settings = ["--set", f"seed={seed}", "--set", f"steps={steps}", "--device", "cpu", "--out", out]
    anyformer(
        folder, "train", "--csv", "intents.csv", "--label", "intent", "--test", "test.csv", *FLAGS[kind], *settings
    )
    return float(json.loads(anyformer(folder, "eval", out, "--json", "--device", "cpu"))["macro_f1"])


def measure(
    folder: Path, kinds: Sequence[str] = tuple(FLAGS), seeds: int = 3, steps: int = 400
) -> dict[str, list[float]]:
    """Return the macro F1 of each kind, one value per seed."""
    write(folder)
    return {kind: [macro_f1(folder, kind, seed, steps) for seed in range(seeds)] for kind in kinds}


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        found = measure(Path(sys.argv[1] if len(sys.argv) > 1 else temporary))
    for kind, values in found.items():
        each = ", ".join(f"{value:.3f}" for value in values)
        print(f"{kind:12} macro F1 {statistics.mean(values):.3f} ({each})")


if __name__ == "__main__":
    main()
