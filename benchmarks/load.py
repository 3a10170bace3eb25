"""Compare import + load of GPT-2 (124M) with transformers, in new processes that alternate.

The checkpoint has random weights and is written once. The time starts at the first import in a new process and ends
with a model that can run. A ratio above 1 means that we are faster.

    python benchmarks/load.py [--repeats 7] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

OURS = """
import time; start = time.perf_counter()
import anyformer as af
model = af.load({folder!r})
print(time.perf_counter() - start, sum(p.numel() for p in model.parameters()))
"""
THEIRS = """
import time; start = time.perf_counter()
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained({folder!r})
print(time.perf_counter() - start, sum(p.numel() for p in model.parameters()))
"""
MAKE = """
import torch, transformers
torch.manual_seed(0)
transformers.GPT2LMHeadModel(transformers.GPT2Config()).save_pretrained({folder!r})
"""
QUIET = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}


def run(code: str, folder: Path) -> str:
    command = [sys.executable, "-c", code.format(folder=str(folder))]
    return subprocess.run(command, check=True, text=True, capture_output=True, env={**os.environ, **QUIET}).stdout


def seconds(code: str, folder: Path) -> float:
    time, parameters = run(code, folder).split()
    assert parameters == "124439808", parameters
    return float(time)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="anyformer-bench-") as name:
        folder = Path(name)
        run(MAKE, folder)
        seconds(OURS, folder), seconds(THEIRS, folder)  # warm up byte code and the page cache
        times = [(seconds(OURS, folder), seconds(THEIRS, folder)) for _ in range(options.repeats)]
    ratios = sorted(theirs / ours for ours, theirs in times)
    row = {
        "ours_s": statistics.median(ours for ours, _ in times),
        "theirs_s": statistics.median(theirs for _, theirs in times),
        "ratio": statistics.median(ratios),
        "ratio_min": ratios[0],
        "ratio_max": ratios[-1],
    }
    if options.json:
        print(json.dumps(row))
    else:
        print("import + load of GPT-2 124M in a fresh process")
        print(f"ours {row['ours_s']:.2f} s, transformers {row['theirs_s']:.2f} s, "
              f"ratio {row['ratio']:.2f} ({row['ratio_min']:.2f}-{row['ratio_max']:.2f})")  # fmt: skip


if __name__ == "__main__":
    main()
