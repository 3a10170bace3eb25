"""How cost grows on one CUDA GPU: time and memory by length, batch, depth and number of experts, next to `af.count`.

Measures the call that returns the first token for prompts of 1k to 128k tokens (attention and Mamba), decoding steps
with batch 1 to 256, and prompts of 4k tokens with 2 to 32 layers and with 2 to 64 experts; bf16, random weights. Writes
docs/results/growth.json and growth.svg, and also to the folder $OUT if it is set.

    python benchmarks/growth_gpu.py             # or make bench-gpu ARGS=--growth
    python benchmarks/growth_gpu.py --tiny      # test the script: small models on the CPU, writes nothing
    python benchmarks/growth_gpu.py --plot      # only draw docs/results/growth.json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from _turns import CUDA, allocated, empty_cache, exclusive, seconds
from history import PAGE, Row, round_off

import anyformer as af

RESULT = PAGE.with_name("growth.json")
LLAMA = {"width": 1024, "decoder.depth": 8, "decoder.layers.attention.op.num_heads": 16,
         "decoder.layers.attention.op.num_kv_heads": 4, "decoder.layers.attention.op.head_width": 64,
         "decoder.layers.feedforward.op.width": 4096}  # fmt: skip
MIXTRAL = {"width": 1024, "decoder.depth": 4, "decoder.layers.attention.op.num_heads": 16,
           "decoder.layers.attention.op.num_kv_heads": 4, "decoder.layers.attention.op.head_width": 64,
           "decoder.layers.feedforward.op.expert.width": 2048}  # fmt: skip
NEW = 64  # new tokens when decoding steps are timed
# series -> (model, changes, what grows, its values)
SERIES: dict[str, tuple[str, dict[str, Any], str, list[int]]] = {
    "attention": ("llama3.2-1b", LLAMA, "length", [1024, 4096, 16384, 65536, 131072]),
    "Mamba": ("mamba-130m", {"decoder.depth": 8}, "length", [1024, 4096, 16384, 65536, 131072]),
    "Llama, decoding": ("llama3.2-1b", LLAMA, "batch", [1, 4, 16, 64, 256]),
    "Llama, 4k tokens": ("llama3.2-1b", LLAMA, "depth", [2, 4, 8, 16, 32]),
    "Mixtral, 4k tokens": ("mixtral-8x7b", MIXTRAL, "experts", [2, 4, 8, 16, 32, 64]),
}
ADDRESS = {"depth": "decoder.depth", "experts": "decoder.layers.feedforward.op.num_experts"}


@torch.no_grad()
def point(name: str, changes: dict[str, Any], grows: str, value: int, options: Any) -> dict[str, Any]:
    """Measure milliseconds and bytes besides the weights for one size, and count FLOPs and bytes."""
    length = value if grows == "length" else 128 if grows == "batch" else 4096
    batch = value if grows == "batch" else 1
    if options.tiny:
        length, changes = 64, {**changes, "decoder.depth": 2}
    spec = af.override(af.spec(name), {**changes, **({ADDRESS[grows]: value} if grows in ADDRESS else {})})
    before = allocated()
    model = af.build(spec, seed=0, device=options.device, dtype=torch.bfloat16).eval()
    weights = allocated() - before
    ids = torch.randint(5, 1000, (batch, length), generator=torch.Generator().manual_seed(0)).to(options.device)
    new = NEW if grows == "batch" and not options.tiny else 4

    def read() -> Any:
        return af.generate(model, ids, max_new_tokens=1, eos_token_id=[])

    def write() -> Any:
        return af.generate(model, ids, max_new_tokens=new, eos_token_id=[])

    call = write if grows == "batch" else read
    call()
    if CUDA:
        torch.cuda.reset_peak_memory_stats()
    with exclusive(options.lock):
        times = [seconds(call) for _ in range(3)]
        prompt = statistics.median(seconds(read) for _ in range(3)) if grows == "batch" else 0.0
    counted = af.count(spec)
    if grows == "batch":
        traffic = counted.decode(length + new // 2, batch, torch.bfloat16)
        took = (statistics.median(times) - prompt) / (new - 1)
    else:
        traffic, took = counted.prefill(length, batch, torch.bfloat16), statistics.median(times)
    peak = torch.cuda.max_memory_allocated() - before - weights if CUDA else 0
    return {
        grows: value, "ms": round_off(1e3 * took), "bytes_beyond_weights": peak, "weights": weights,
        "counted_flops": traffic.flops, "counted_bytes": traffic.bytes,
        "counted_state": counted.state(batch, length, torch.bfloat16),
    }  # fmt: skip


def measure(options: Any) -> Iterator[Row]:
    """Measure all series. Yields no rows: nothing is compared with a peer."""
    found: dict[str, Any] = {}
    machine = torch.cuda.get_device_name() if CUDA else "cpu"
    for title, (name, changes, grows, values) in SERIES.items():
        points = []
        for value in values[:1] if options.tiny else values:
            if time.time() > options.until:
                break
            try:
                points.append(point(name, changes, grows, value, options))
            except torch.cuda.OutOfMemoryError:
                points.append({grows: value, "error": "out of memory"})
            empty_cache()
        found[title] = {"grows": grows, "points": points}
        result = {"machine": machine, "torch": torch.__version__, "series": found}
        folders = [Path(os.environ["OUT"])] if "OUT" in os.environ else []
        for folder in [*folders, *([] if options.tiny else [RESULT.parent])]:
            (folder / RESULT.name).write_text(json.dumps(result, indent=1) + "\n")
    if not options.tiny:
        plot(RESULT)
    yield from ()


def plot(file: Path) -> None:
    """Plot time and counted FLOPs (top), memory and counted bytes (bottom); counts are scaled to the last point."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        return
    matplotlib.rcParams["svg.hashsalt"] = "growth"
    series = json.loads(file.read_text())["series"]
    columns = list(dict.fromkeys(each["grows"] for each in series.values()))
    figure = Figure(figsize=(3.6 * len(columns), 6), layout="constrained")
    cells = figure.subplots(2, len(columns), squeeze=False)
    for number, (title, each) in enumerate(series.items()):
        grows, points = each["grows"], [one for one in each["points"] if "ms" in one]
        if not points:
            continue
        x, color = [one[grows] for one in points], f"C{number}"
        memory = [(one["bytes_beyond_weights"] + one["weights"]) / 1e9 for one in points]
        rows = (([one["ms"] for one in points], [one["counted_flops"] for one in points], "ms", "FLOPs"),
                (memory, [one["weights"] + one["counted_state"] for one in points], "GB", "bytes held"))  # fmt: skip
        for axes, (y, counted, unit, what) in zip(cells[:, columns.index(grows)], rows, strict=True):
            scale = y[-1] / counted[-1] if counted[-1] else 1.0
            axes.loglog(x, y, marker="o", color=color, label=f"{title}, measured")
            axes.loglog(x, [scale * c for c in counted], linestyle="--", color=color, label=f"counted {what}, scaled")
            axes.set(xlabel=grows, ylabel=unit)
            axes.grid(alpha=0.3)
            axes.legend(fontsize=6)
    figure.savefig(file.with_suffix(".svg"), metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--plot", action="store_true", help="only draw the plot")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    if options.plot:
        return plot(RESULT)
    options.device = "cpu" if options.tiny else options.device
    options.lock, options.until = None, time.time() + 60 * options.minutes
    for _ in measure(options):
        pass


if __name__ == "__main__":
    main()
