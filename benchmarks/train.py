"""Compare training steps with transformers: one process, the same weights, batch, optimiser and threads, fp32.

A GPT with 10 million parameters, 8 x 256 tokens per step, on the CPU. Theirs is a hand-written loop: forward with
labels, backward, clip, fused AdamW. Ours is the loop of `anyformer train`, including the data loader. Steps alternate;
each pair gives one ratio, theirs / ours: above 1, we are faster. The spread is the 10th to the 90th percentile.

    python benchmarks/train.py [--size pairs|bytes] [--repeats 20] [--threads 2] [--compile] [--cpu] [--json]

On a busy machine, use `--cpu`: it measures CPU time of one thread instead of wall time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

import torch
import transformers

import anyformer as af
from anyformer.data import Bytes, Data, PythonDocs
from anyformer.objectives.causal import NextToken
from anyformer.train.optim import AdamW
from anyformer.train.run import Batch, Evaluate, Keep, Run
from anyformer.train.start import setup

BATCH, LENGTH, LR = 8, 256, 3e-4
SIZES = {  # 10 million parameters each: a vocabulary of byte pairs, or nanoGPT's size with bytes
    "pairs": {"vocab_size": 8192, "n_embd": 320, "n_layer": 6, "n_head": 5},
    "bytes": {"vocab_size": 258, "n_embd": 384, "n_layer": 6, "n_head": 6},
}
COMMON = {"n_positions": LENGTH, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}


def sides(
    folder: Path, size: str, precision: str, compile: bool = False
) -> tuple[Callable[[], float], Callable[[], float], int]:
    """Return (our step, their step, number of parameters). Both start with the same weights and return the loss."""
    torch.manual_seed(0)
    theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(**COMMON, **SIZES[size])).train()
    theirs.save_pretrained(folder / "model")
    model = af.load(folder / "model")
    run = Run(
        name="bench", model=model.spec, vocabulary=Bytes(), data=Data(train=PythonDocs(library=False)),
        objective=NextToken(apart=False), optimizer=AdamW(lr=LR), batch=Batch(examples=BATCH, length=LENGTH),
        steps=10**6, precision=precision, compile=compile, evaluate=Evaluate(every=10**6), keep=Keep(every=10**6),
    )  # fmt: skip
    trainer = setup(run, folder / "run", device="cpu")
    trainer.model.load_state_dict(model.state_dict())
    trainer.core.train()
    batches = iter(trainer.feed(0).__enter__())
    matrices = [p for p in theirs.parameters() if p.dim() >= 2]
    vectors = [p for p in theirs.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=(0.9, 0.95), fused=True)
    seen: list[torch.Tensor] = []
    dtype = {"bf16": torch.bfloat16}.get(precision)

    def ours() -> float:
        ready = next(batches)
        seen.append(ready.batches[0]["input_ids"])
        launched = trainer.launch(ready)
        return float(launched.numbers[0])

    def published() -> float:
        ids = seen.pop(0)
        with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
            loss = theirs(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return ours, published, sum(p.numel() for p in trainer.model.parameters())


def clock(run: Callable[[], Any], cpu: bool) -> tuple[float, Any]:
    now = time.process_time if cpu else time.perf_counter
    start = now()
    result = run()
    return now() - start, result


def percentile(values: list[float], share: float) -> float:
    values = sorted(values)
    return values[min(int(share * len(values)), len(values) - 1)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--size", choices=SIZES, default="pairs")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--compile", action="store_true", help="compile our step, as --set compile=true does")
    parser.add_argument("--cpu", action="store_true", help="one thread, CPU time")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    torch.set_num_threads(1 if options.cpu else options.threads)
    with tempfile.TemporaryDirectory(prefix="anyformer-bench-") as folder:
        ours, theirs, size = sides(Path(folder), options.size, options.precision, options.compile)
        times, gap = [], 0.0
        for i in range(options.repeats + 2):  # the first two warm up
            (mine, a), (other, b) = clock(ours, options.cpu), clock(theirs, options.cpu)
            gap = max(gap, abs(a - b))
            times += [(mine, other)] if i > 1 else []
    tolerance = 2e-3 if options.precision == "fp32" else 5e-2
    assert gap < tolerance, f"the two sides do not train the same model: losses differ by {gap:.1e}"
    ratios = [other / mine for mine, other in times]
    row = {
        "parameters": size, "precision": options.precision, "ours_ms": 1e3 * statistics.median(t for t, _ in times),
        "theirs_ms": 1e3 * statistics.median(t for _, t in times), "ratio": statistics.median(ratios),
        "ratio_10": percentile(ratios, 0.1), "ratio_90": percentile(ratios, 0.9), "gap": gap,
    }  # fmt: skip
    row["tokens_per_s"] = BATCH * LENGTH / row["ours_ms"] * 1e3
    if options.json:
        print(json.dumps(row))
        return
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, {options.precision}, "
          f"{torch.get_num_threads()} threads{', CPU time' if options.cpu else ''}")  # fmt: skip
    print(f"GPT of {size:,}, {BATCH} x {LENGTH}: ours {row['ours_ms']:.0f} ms ({row['tokens_per_s']:,.0f} tokens/s), "
          f"theirs {row['theirs_ms']:.0f} ms, ratio {row['ratio']:.2f} ({row['ratio_10']:.2f}-{row['ratio_90']:.2f}), "
          f"losses within {gap:.0e}")  # fmt: skip


if __name__ == "__main__":
    main()
