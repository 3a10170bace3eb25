"""What experiments share: small writers and readers of bytes, their runs, and texts."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anyformer import families
from anyformer.data import Bytes, Data, Held, Loader, Plan, PythonDocs, Source, TextFiles, Vocabulary, Words
from anyformer.evaluate import mean_losses
from anyformer.lab.made_up_language import Language
from anyformer.lab.trials import Place
from anyformer.models import Model
from anyformer.objectives.causal import NextToken
from anyformer.objectives.objective import Objective
from anyformer.recipes.shared.encoder import SPECIAL
from anyformer.specs.codec import override
from anyformer.train.optim import AdamW, Cosine
from anyformer.train.run import Batch, Evaluate, Keep, Run
from anyformer.train.trainer import Trainer

SIZE = 258  # bytes, and the two special tokens of a writer
READER = Bytes(special=SPECIAL, begin="cls_token", end="sep_token")
READER_SIZE = 260
LANGUAGE = Language()
WORDS = Words(special={**SPECIAL, "unk_token": "[UNK]"}, begin="cls_token", end="sep_token")  # a word a token


def writer(
    width: int, depth: int, heads: int, length: int, changes: Mapping[str, Any] | None = None, scaled: bool = False
) -> Model:
    """A GPT-2 over bytes, without dropout; `changes` by address. `scaled`: its weights begin as large as the width asks
    for, not as that of GPT-2 does (0.02), which is too small for a narrow one to learn from soon."""
    config = {
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": SIZE,
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
    """An encoder over bytes, without dropout. Narrow ones learn sooner from larger first weights than BERT's 0.02; with
    those, twelve layers, each normed after its sum, learn nothing."""
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
    """Text files where there is a path; else by name "docs", the documentation of the Python that runs, "library", with
    its library, or "made-up", so many texts of a language. One in twenty is held out."""
    source: Source
    if path is not None:
        source = TextFiles(path=path, unit="paragraph")
    elif name == "made-up":
        source = place.texts(name, lambda: language.texts(number, 24, 0))
    else:
        source = PythonDocs(library=name == "library")
    return Data(train=Held(source=source), valid=Held(source=source, out=True))


def training(
    name: str,
    model: Model,
    data: Data,
    device: str,
    *,
    steps: int,
    batch: int,
    length: int,
    lr: float,
    seed: int = 0,
    warmup: int | None = None,
    objective: Objective | None = None,
    vocabulary: Vocabulary | None = None,
    every: int | None = None,
    batches: int = 8,
) -> Run:
    """A run from scratch whose only checkpoint is its last: one that was stopped begins anew, so that what is measured
    on the way is whole."""
    return Run(
        name=name,
        model=model,
        vocabulary=vocabulary or Bytes(),
        data=data,
        objective=objective or NextToken(),
        optimizer=AdamW(lr=lr, betas=(0.9, 0.98)),
        schedule=Cosine(warmup=max(steps // 20, 1) if warmup is None else warmup, floor=0.1),
        batch=Batch(examples=batch, length=length),
        steps=steps,
        precision="bf16" if device.startswith("cuda") else "fp32",
        record=device.startswith("cuda"),
        seed=seed,
        evaluate=Evaluate(every=every or steps, batches=batches, patience=None),
        keep=Keep(every=steps, last=1, best=False),
    )


def each_loss(logits: Tensor, ids: Tensor) -> Tensor:
    """(B, T, V), (B, T) -> (B, T - 1): how surprising every token but the first is, in nats."""
    return torch.nn.functional.cross_entropy(logits[:, :-1].float().transpose(1, 2), ids[:, 1:], reduction="none")


def checkpoints(steps: int, number: int) -> set[int]:
    """About so many steps, evenly along the logarithm, the last among them."""
    return {max(round(steps ** (i / number)), 1) for i in range(1, number + 1)}


def held_out(trainer: Trainer, rows: int, length: int) -> Tensor:
    """(rows, length) tokens that stand together in the texts that were held out, evenly over all of them; less where
    there are too few."""
    column = trainer.splits.valid.fields["input_ids"]
    total = int(column.ends[-1])
    length = min(length, total)
    starts = [round(i * (total - length) / max(rows - 1, 1)) for i in range(rows)]
    found = np.stack([column.read(start, start + length) for start in starts]).astype(np.int64)
    return torch.from_numpy(found).to(trainer.device)


def processor_seconds(run: Callable[[], Any], device: str, times: int = 3) -> float:
    """The median time that a processor spends on it, after a first run: on a CPU other processes do not count, though
    they slow it down somewhat; on a GPU it is the time until the device is done."""
    clock, found = time.perf_counter if device.startswith("cuda") else time.process_time, list[float]()
    for _ in range(times + 1):
        begin = clock()
        run()
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        found.append(clock() - begin)
    return statistics.median(found[1:])


def held_out_loss(trainer: Trainer, objective: Objective, examples: int, most: int = 16, term: str = "loss") -> float:
    """The mean of this term of an objective over held-out batches of so many examples, at most `most`."""
    length = trainer.run.batch.length
    assert length is not None
    plan = Plan(trainer.splits.valid, seed=1, examples=examples, length=length, once=True)
    with trainer.eval_mode(), Loader(plan, objective, pad=trainer.tokenizer.filler) as batches:
        return mean_losses(
            lambda batch, _: objective.losses(trainer.model, batch), objective, batches, trainer.device, most
        )[term]


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
