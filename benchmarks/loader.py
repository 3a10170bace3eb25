"""Tokens per second of the data loader without a model: it reads shards in a background thread and returns packed rows
with document ids, as in a run. The goal is 20 million on 2 cores; GPT-2 124M on one H200 needs 0.6 million.

    python benchmarks/loader.py [--tokens 50e6] [--seconds 3] [--repeats 5] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from anyformer.data import DataSplit, Loader, Plan
from anyformer.data.shards import Writer
from anyformer.objectives.causal import NextToken

GOAL = 20e6


def write(folder: Path, tokens: int) -> DataSplit:
    """Write documents of random tokens: most have a few hundred tokens, some have many thousands."""
    random = np.random.default_rng(0)
    with Writer(folder) as writer:
        while tokens > 0:
            size = min(int(random.lognormal(6, 1.2)) + 1, tokens)
            writer.add({"input_ids": random.integers(0, 50257, size, dtype=np.int32)})
            tokens -= size
    return DataSplit(folder)


def rate(split: DataSplit, rows: int, length: int, seconds: float) -> float:
    """Tokens per second, measured after the first batch."""
    plan = Plan(split, examples=rows, length=length, packs=True)
    with Loader(plan, NextToken()) as loader:
        steps, tokens = iter(loader), 0
        next(steps)
        start = time.perf_counter()
        while (elapsed := time.perf_counter() - start) < seconds:
            ready = next(steps)
            assert ready.batches[0]["input_ids"].shape == ready.batches[0]["document_ids"].shape == (rows, length)
            tokens += ready.tokens
    return tokens / elapsed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=float, default=50e6, help="tokens on disk")
    parser.add_argument("--seconds", type=float, default=3.0, help="time per measurement")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="anyformer-bench-") as name:
        split = write(Path(name) / "train", int(options.tokens))
        results = []
        for rows, length in ((32, 1024), (8, 256), (256, 128)):
            rates = sorted(rate(split, rows, length, options.seconds) for _ in range(options.repeats))
            low, middle, high = rates[0], statistics.median(rates), rates[-1]
            results.append({"rows": rows, "length": length, "tokens_per_second": middle, "spread": [low, high]})
            if not options.json:
                spread = f"{low / 1e6:.1f} to {high / 1e6:.1f}"
                speed = f"{middle / 1e6:6.1f} million tokens/s ({spread}), {middle / GOAL:.1f} x the goal"
                print(f"{rows:4d} rows of {length:4d}: {speed}")
        if options.json:
            print(json.dumps(results))


if __name__ == "__main__":
    main()
