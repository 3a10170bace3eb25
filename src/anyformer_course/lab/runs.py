"""Shared by experiments: small decoders and encoders over bytes, their training runs, texts and measurements."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anyformer import families
from anyformer.data import Bytes, Data, Held, PythonDocs, Source, TextFiles, Words
from anyformer.lab.scale import SIZE
from anyformer.lab.trials import Place
from anyformer.models import Model
from anyformer.recipes.shared.encoder import SPECIAL
from anyformer.specs.codec import override
from anyformer.train.trainer import Callback, StepResult, Trainer
from anyformer_course.lab.made_up_language import Language

READER = Bytes(special=SPECIAL, begin="cls_token", end="sep_token")
READER_SIZE = 260
LANGUAGE = Language()
WORDS = Words(special={**SPECIAL, "unk_token": "[UNK]"}, begin="cls_token", end="sep_token")  # one token per word


def writer(
    width: int,
    depth: int,
    heads: int,
    length: int,
    changes: Mapping[str, Any] | None = None,
    scaled: bool = False,
    vocab_size: int = SIZE,
) -> Model:
    """Return a GPT-2 (default: over bytes) without dropout, with `changes` by address. If `scaled`, the initial weights
    have a standard deviation of width**-0.5 instead of GPT-2's 0.02, which makes narrow models learn slowly."""
    config = {
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": vocab_size,
        "n_positions": length,
        "n_embd": width,
        "n_layer": depth,
        "n_head": heads,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "initializer_range": width**-0.5 if scaled else 0.02,
    }
    return override(families.find("gpt2").read(config), changes or {})


def reader(family: str, architecture: str, width: int, depth: int, heads: int, length: int, **more: Any) -> Model:
    """Return an encoder over bytes without dropout. Up to four layers, the initial weights are larger than BERT's 0.02,
    because narrow models then learn faster; with such weights twelve post-norm layers learn nothing."""
    config = {
        "architectures": [architecture],
        "vocab_size": READER_SIZE,
        "hidden_size": width,
        "num_hidden_layers": depth,
        "num_attention_heads": heads,
        "intermediate_size": 4 * width,
        "max_position_embeddings": length,
        "initializer_range": width**-0.5 if depth <= 4 else 0.02,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "pad_token_id": 0,
        **more,
    }
    return families.find(family).read(config)


def texts(place: Place, name: str, path: str | None = None, language: Language = LANGUAGE, number: int = 1000) -> Data:
    """Return text files if `path` is given; otherwise, by `name`: "docs" (documentation of the running Python),
    "library" (also its library) or "made-up" (`number` texts of `language`). One text in twenty is held out."""
    source: Source
    if path is not None:
        source = TextFiles(path=path, unit="paragraph")
    elif name == "made-up":
        source = place.texts(name, lambda: language.texts(number, 24, 0))
    else:
        source = PythonDocs(library=name == "library")
    return Data(train=Held(source=source), valid=Held(source=source, out=True))


def each_loss(logits: Tensor, ids: Tensor) -> Tensor:
    """Return the loss in nats of every token but the first: (B, T, V), (B, T) -> (B, T - 1)."""
    return torch.nn.functional.cross_entropy(logits[:, :-1].float().transpose(1, 2), ids[:, 1:], reduction="none")


def checkpoints(steps: int, number: int) -> set[int]:
    """Return about `number` steps, evenly spaced by logarithm, including the last."""
    return {max(round(steps ** (i / number)), 1) for i in range(1, number + 1)}


def held_out(trainer: Trainer, rows: int, length: int) -> Tensor:
    """Return (rows, length) consecutive tokens of the held-out texts, evenly spaced over all of them. If there are too
    few tokens, the rows are shorter."""
    column = trainer.splits.valid.fields["input_ids"]
    total = int(column.ends[-1])
    length = min(length, total)
    starts = [round(i * (total - length) / max(rows - 1, 1)) for i in range(rows)]
    ids = np.stack([column.read(start, start + length) for start in starts]).astype(np.int64)
    return torch.from_numpy(ids).to(trainer.device)


def processor_seconds(run: Callable[[], Any], device: str, times: int = 3) -> float:
    """Return the median time of `run`, after one run that is not timed. On a CPU this is processor time, which other
    processes affect only a little; on a GPU it is the time until the device has finished."""
    clock, seconds = time.perf_counter if device.startswith("cuda") else time.process_time, list[float]()
    for _ in range(times + 1):
        begin = clock()
        run()
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        seconds.append(clock() - begin)
    return statistics.median(seconds[1:])


class StepTimes(Callback):
    """Measures the median time of a training step."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_step(self, trainer: Trainer, result: StepResult) -> None:
        self.seconds.append(result.seconds)

    @property
    def per_second(self) -> float:
        return 1 / max(statistics.median(self.seconds), 1e-9)


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
