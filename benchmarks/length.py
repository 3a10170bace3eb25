"""What length costs: time and memory of a forward pass, and time of one decoding step, from 1k to 64k tokens.

Two layers of width 256 with 4 heads of every mixer, one text, fp32. Memory is what a pass needs at its highest, beyond
the model: the process's own peak on CPU, the allocator's on CUDA. An exponent is the slope of a line through the
logarithms from 8k tokens on: 1 is linear, 2 quadratic. Encoders read texts whole and have no decoding step.

    python benchmarks/length.py [--models full mamba] [--lengths 1024 65536] [--device cuda] [--plot FILE] [--json FILE]
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import anyformer as af
from anyformer import families
from anyformer.mask import CAUSAL
from anyformer.parts.efficient import LinearAttention, SoftmaxFeatures

FROM = 8192  # what is shorter is dominated by what every token costs alone, and by calls
WINDOW = 512
COMMON = {"vocab_size": 500, "hidden_size": 256, "num_hidden_layers": 2}
ENCODER = {**COMMON, "num_attention_heads": 4, "intermediate_size": 512, "hidden_dropout_prob": 0.0}


def encoder(model_type: str, **config: Any) -> Callable[[int], Any]:
    return lambda length: families.find(model_type).read(
        {**ENCODER, "max_position_embeddings": length + 2, **config}  # the first two are RoBERTa's padding
    )


def nystromformer(length: int) -> Any:
    """Its landmarks are means of the segments of a text of exactly this length."""
    return encoder("nystromformer", architectures=["NystromformerModel"], segment_means_seq_len=length)(length)


def decoder(**changes: Any) -> Callable[[int], Any]:
    config = {"vocab_size": 500, "n_embd": 256, "n_layer": 2, "n_head": 4, "n_inner": 512}

    def make(length: int) -> Any:
        spec = families.find("gpt2").read({**config, "architectures": ["GPT2Model"], "n_positions": length})
        return af.override(spec, changes) if changes else spec

    return make


def recurrent(model_type: str, architecture: str, **config: Any) -> Callable[[int], Any]:
    return lambda length: families.find(model_type).read({**COMMON, "architectures": [architecture], **config})


OP = "decoder.layers.attention.op"
PERFORMER = LinearAttention(num_heads=4, features=SoftmaxFeatures(count=128), mask=CAUSAL)
# name: (the model for a length, whether it writes step by step)
MODELS: dict[str, tuple[Callable[[int], Any], bool]] = {
    "full": (decoder(), True),
    "longformer": (encoder("longformer", architectures=["LongformerModel"], attention_window=WINDOW), False),
    "big_bird": (encoder("big_bird", architectures=["BigBirdModel"]), False),
    "linformer": (encoder("linformer"), False),
    "nystromformer": (nystromformer, False),
    "performer": (decoder(**{OP: PERFORMER}), True),
    "mamba": (recurrent("mamba", "MambaModel"), True),
    "rwkv": (recurrent("rwkv", "RwkvModel", context_length=2**20), True),
}



LIBC = ctypes.CDLL("libc.so.6")
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4


def keep_memory() -> None:
    """What is freed is used again, as other allocators do. glibc gives large blocks back and gets fresh pages, and past
    16k tokens the time to clear those is what a pass would show."""
    LIBC.mallopt(M_MMAP_MAX, 0)
    LIBC.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


# -- measuring --------------------------------------------------------------------------------------------------------


def resident(field: str) -> int:
    """Bytes: VmRSS now, or VmHWM, the highest since it was reset."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def peak_of(run: Callable[[], Any], device: str) -> int:
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        return torch.cuda.max_memory_allocated() - before
    LIBC.malloc_trim(0)  # nothing freed before is used again unseen
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the highest starts again from here
    run()
    return max(resident("VmHWM") - before, 1)


def seconds_of(run: Callable[[], Any], device: str, least: int = 3, budget: float = 10.0) -> float:
    """The median of runs, one where it takes long."""
    times: list[float] = []
    while len(times) < least or (sum(times) < budget / 10 and len(times) < 200):
        wait(device)
        start = time.perf_counter()
        run()
        wait(device)
        times.append(time.perf_counter() - start)
        if sum(times) > budget:
            break
    return statistics.median(times)


@torch.no_grad()
def measure(name: str, length: int, device: str) -> dict[str, Any]:
    make, writes = MODELS[name]
    model = af.build(make(length), seed=0).to(device).eval()
    ids = torch.randint(5, 495, (1, length), generator=torch.Generator().manual_seed(0)).to(device)

    def read() -> Any:
        return model(input_ids=ids, use_cache=False) if writes else model(input_ids=ids)

    read()  # whatever is made once
    found = {"model": name, "length": length, "bytes": peak_of(read, device), "seconds": seconds_of(read, device)}
    if writes:
        state, token = model.new_state(1, capacity=length), ids[:, :1]

        def write() -> Any:
            assert isinstance(state.past, torch.Tensor)
            state.past.fill_(length - 1)  # as if all but the last token were read
            return model(input_ids=token, past_key_values=state)

        write()
        found |= {"step_seconds": seconds_of(write, device, least=30), "state_bytes": state.nbytes}
    return found


def exponent(rows: list[dict[str, Any]], field: str) -> float | None:
    """The slope of log(field) by log(length) from FROM on, by least squares."""
    points = [(math.log(r["length"]), math.log(r[field])) for r in rows if r["length"] >= FROM and field in r]
    return statistics.linear_regression(*zip(*points)).slope if len(points) > 1 else None


# -- showing ----------------------------------------------------------------------------------------------------------


def plot(found: dict[str, list[dict[str, Any]]], path: Path, title: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(15, 4.5))
    kinds = {"seconds": "forward, s", "bytes": "highest memory of a forward pass, bytes", "step_seconds": "one step, s"}
    for axis, (field, label) in zip(axes, kinds.items(), strict=True):
        for number, (name, rows) in enumerate(found.items()):
            points = [(r["length"], r[field]) for r in rows if field in r]
            if points:
                axis.loglog(*zip(*points), marker="o", markersize=3, label=name, base=2, color=f"C{number}")
        axis.set_yscale("log", base=10)
        axis.set_xlabel("tokens")
        axis.set_title(label)
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize=8)
    figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--lengths", nargs="*", type=int, default=[2**n for n in range(10, 17)])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    keep_memory()
    found: dict[str, list[dict[str, Any]]] = {}

    print("forward ms / MB / step ms at", *(f"{n // 1024}k" for n in options.lengths))
    for name in options.models:
        rows = found[name] = []
        for length in options.lengths:
            rows.append(measure(name, length, options.device))
        cells = []
        for r in rows:
            step = f"/{1e3 * r['step_seconds']:.2f}" if "step_seconds" in r else ""
            cells.append(f"{1e3 * r['seconds']:.0f}/{r['bytes'] / 1e6:.0f}{step}")
        print(f"{name:14s}", *cells, flush=True)
    print(f"\nexponents from {FROM} tokens on: time, memory, one step, state")
    for name, rows in found.items():
        slopes = [exponent(rows, field) for field in ("seconds", "bytes", "step_seconds", "state_bytes")]
        print(f"{name:14s}", *("   -" if s is None else f"{s:5.2f}" for s in slopes))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    if options.plot:
        where = torch.cuda.get_device_name() if options.device == "cuda" else f"CPU, {options.threads} threads"
        plot(found, options.plot, f"Two layers of width 256, one text, fp32, {where}")


if __name__ == "__main__":
    main()
