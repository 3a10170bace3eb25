"""A small run on a few texts, for tests that start, kill and resume real trainings.

As a program it reads commands, one per line: "train TEXTS FOLDER PRECISION STEPS [LAST]", "save FOLDER FIRST LIMIT" or
"parallel FOLDER NUM" (processes.py). It forks a child for each: torch is imported once, and each child can be killed.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import anyformer as af
from anyformer import families
from anyformer.data import Bytes, Data, TextFiles
from anyformer.objectives.causal import NextToken
from anyformer.train.optim import AdamW, Cosine
from anyformer.train.progress import Metrics
from anyformer.train.resume import Checkpoints
from anyformer.train.run import Batch, Evaluate, Keep, Run
from anyformer.train.start import setup

VOCABULARY, LENGTH = 258, 32


def model(**changes: Any) -> Any:
    config = {"n_layer": 2, "n_embd": 24, "n_head": 3, "vocab_size": VOCABULARY, "n_positions": LENGTH,
              "resid_pdrop": 0.1, "attn_pdrop": 0.1, "architectures": ["GPT2LMHeadModel"], **changes}  # fmt: skip
    return families.find("gpt2").read(config)


def write_texts(folder: Path, seed: int = 0, lines: int = 21) -> Path:
    """Random words, about two thousand bytes."""
    draw = np.random.default_rng(seed)
    texts = [draw.integers(1, 8, (draw.integers(5, 25), 2)) for _ in range(lines)]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "text.txt").write_text("\n".join(" ".join("abcdefgh"[i] * n for i, n in text) for text in texts))
    return folder / "text.txt"


def run_of(texts: Path, **changes: Any) -> Run:
    base: dict[str, Any] = {
        "name": "small", "model": model(), "vocabulary": Bytes(), "objective": NextToken(),
        "data": Data(train=TextFiles(path=str(texts), unit="line", stop=0.9),
                     valid=TextFiles(path=str(texts), unit="line", start=0.9)),
        "optimizer": AdamW(lr=1e-2), "schedule": Cosine(warmup=3), "batch": Batch(examples=6, micro=4), "steps": 24,
        "evaluate": Evaluate(every=8), "keep": Keep(every=3, last=2),
    }  # fmt: skip
    return Run(**{**base, **changes})


def train(texts: Path, folder: Path, precision: str, steps: int, last: int | None = None) -> None:
    """Train, and write a digest of the tokens of each step. After `last` steps, wait to be killed, so that a busy
    machine cannot end the run before the test kills it."""
    run, begun = run_of(texts, precision=precision, steps=steps), (folder / "run.json").is_file()
    trainer = setup(run, folder, resume=begun, callbacks=[Metrics()])
    inner = trainer.launch

    def launch(ready: Any) -> Any:
        while ready.step == last:
            signal.pause()
        seen = hashlib.sha256(b"".join(batch["input_ids"].numpy().tobytes() for batch in ready.batches)).hexdigest()
        with (folder / "order.jsonl").open("a") as file:
            file.write(json.dumps([ready.step, seen]) + "\n")
        return inner(ready)

    trainer.launch = launch  # type: ignore[method-assign]
    trainer.fit()


def save(folder: Path, first: int, limit: int) -> None:
    """One checkpoint after another without end, each with its step in every number; with `limit`, no file after the
    first of them can be longer, as on a full disk."""
    built = af.build(model(n_embd=120), seed=0)
    kept = Checkpoints(folder, last=2)
    for step in range(first, first + 100_000):
        with torch.no_grad():
            for p in built.parameters():
                p.fill_(step)
        kept.save(step, built, {"value": step}, optimizer={"a": torch.full((50_000,), float(step))})
        if limit:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))


def main() -> None:
    torch.set_num_threads(1)
    importlib.import_module("torch._dynamo")  # otherwise the optimizers would import it in each fork
    print("ready", flush=True)
    for line in sys.stdin:
        kind, *words = line.split()
        child = os.fork()
        if child == 0:
            try:
                if kind == "train":
                    train(Path(words[0]), Path(words[1]), words[2], *map(int, words[3:]))
                elif kind == "parallel":
                    os._exit(importlib.import_module("processes").fork(Path(words[0]), int(words[1])))
                else:
                    save(Path(words[0]), int(words[1]), int(words[2]))
            except BaseException as error:
                print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
                os._exit(1)
            os._exit(0)
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


class Nursery:
    """Starts that program from a test, and lets it run one child at a time."""

    child = 0  # process id of the child that runs

    def __init__(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        assert self.read() == "ready"

    def read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def start(self, *words: object) -> int:
        """Start a child that runs this command, and return its process id."""
        assert self.process.stdin is not None
        self.end()
        print(*words, file=self.process.stdin, flush=True)
        self.child = int(self.read())
        return self.child

    def wait(self) -> int:
        """Return the exit code of the child; -9 if it was killed."""
        code, self.child = int(self.read()), 0
        return code

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds; fail if the child ends before. Only the test has a time limit: on a busy
        machine the child may wait long for a processor."""
        while not condition():
            os.kill(self.child, 0)  # ProcessLookupError: the child has ended; its error is on stderr
            time.sleep(0.01)

    def end(self) -> None:
        """Kill a child that a failed test did not wait for."""
        if self.child:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.child, signal.SIGKILL)
            self.wait()

    def close(self) -> None:
        assert self.process.stdin is not None
        self.end()
        self.process.stdin.close()
        self.process.wait()


if __name__ == "__main__":
    main()
