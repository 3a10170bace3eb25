"""What pixels cost: attention among all places of a grid, and inside windows of 7 x 7 (Swin).

One layer's attention of width 64 with 2 heads, one image, fp32, on grids from 14 x 14 to 112 x 112 (windows: 224 x
224). Two figures for each: how many products of a query with a key it takes, which `af.count` finds in a pass of the
model, and the processor's time. An exponent is the slope of a line through the logarithms over pixels, from 28 x 28 on:
1 is linear, 2 quadratic.

    python benchmarks/pixels.py [--repeats 5] [--threads 1] [--plot FILE.svg] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from pathlib import Path
from typing import Any

import torch

import anyformer as af
from anyformer import families
from anyformer.parts.attention.attention import Attention

WIDTH, HEADS, WINDOW, FROM = 64, 2, 7, 28
SIDES = {"all": (14, 28, 56, 84, 112), "windows": (14, 28, 56, 84, 112, 168, 224)}
OP = "encoder.stages.0.layers.attention.op"


def described(kind: str, side: int) -> Any:
    """A Swin of one layer and a patch a pixel; in the place of its windows stands plain attention."""
    config = {
        "image_size": side, "patch_size": 1, "num_channels": 1, "embed_dim": WIDTH, "depths": [1], "num_heads": [HEADS],
        "window_size": WINDOW, "architectures": ["SwinModel"],
    }  # fmt: skip
    spec = families.find("swin").read(config)
    return spec if kind == "windows" else af.override(spec, {OP: Attention(num_heads=HEADS)})


def products(spec: Any) -> int:
    """Of a query with a key: a pair is two products of vectors, one for its score and one for its value."""
    return sum(af.count(spec).work(1).pairs.values()) // (4 * WIDTH)


def seconds(spec: Any, side: int, repeats: int) -> float:
    """Of the attention of one layer, without the norm and the sum around it."""
    model = af.build(spec, seed=0).eval()
    address = f"{OP.replace('layers', 'layers.0')}"
    seen: dict[str, Any] = {}
    op = model.get_submodule(address)
    handle = op.register_forward_pre_hook(lambda module, args: seen.update(args=args))
    times = []
    with torch.no_grad():
        model(torch.randn(1, 1, side, side))
        handle.remove()
        for _ in range(repeats + 1):
            start = time.process_time()
            op(*seen["args"])
            times.append(time.process_time() - start)
    return statistics.median(times[1:])


def exponent(points: list[tuple[int, float]]) -> float:
    logs = [(math.log(x), math.log(y)) for x, y in points if x >= FROM**2]
    across, up = (statistics.fmean(values) for values in zip(*logs, strict=True))
    return sum((x - across) * (y - up) for x, y in logs) / sum((x - across) ** 2 for x, _ in logs)


def plot(found: dict[str, Any], file: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, both = pyplot.subplots(1, 2, figsize=(10, 4))
    for row in found.values():
        for axes, name in zip(both, ("products", "ms"), strict=True):
            slope = row[f"exponent_{name}"]
            axes.loglog(row["pixels"], row[name], marker="o", label=f"{row['about']}: exponent {slope:.2f}")
    for axes, label in zip(both, ("products of a query with a key", "ms, one thread"), strict=True):
        axes.set(xlabel="pixels", ylabel=label)
        axes.grid(alpha=0.3, which="both")
        axes.legend()
    figure.tight_layout()
    figure.savefig(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    about = {"all": "all places (ViT)", "windows": f"windows of {WINDOW} x {WINDOW} (Swin)"}
    found: dict[str, Any] = {}
    for kind, sides in SIDES.items():
        specs = [described(kind, side) for side in sides]
        pairs = [products(spec) for spec in specs]
        times = [1e3 * seconds(spec, side, options.repeats) for spec, side in zip(specs, sides, strict=True)]
        pixels = [side**2 for side in sides]
        found[kind] = {
            "about": about[kind], "pixels": pixels, "products": pairs, "ms": [round(each, 3) for each in times],
            "exponent_products": round(exponent(list(zip(pixels, pairs, strict=True))), 3),
            "exponent_ms": round(exponent(list(zip(pixels, times, strict=True))), 3),
        }  # fmt: skip
        slopes = [found[kind][f"exponent_{name}"] for name in ("products", "ms")]
        print(f"{about[kind]}: exponents {slopes[0]} (products), {slopes[1]} (time)")
        for side, pair, ms in zip(sides, pairs, times, strict=True):
            print(f"  {side:4} x {side:<4} {pair:>14,} products {ms:10.2f} ms")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    if options.plot:
        plot(found, options.plot)


if __name__ == "__main__":
    main()
