"""Compare quantised linear layers with torchao's: milliseconds, bits per weight, and the error of the result.

    pip install --no-deps torchao
    python benchmarks/against_torchao.py [--device cuda] [--compile] [--rounds 15]

The two layers of a row are measured in turns; the ratio is torchao's median time over ours (above 1: ours is faster).
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torchao.quantization as torchao
from torch import Tensor, nn

from anyformer.cli.terminal import table
from anyformer.transforms.quantize import FORMATS

GROUP = 64
SIZES = ((2048, 2048), (2048, 8192), (8192, 2048))  # inputs and outputs, as in a model of 1B parameters
ROWS = (1, 32, 512)
KINDS: dict[str, tuple[str, bool, Callable[[], Any]]] = {  # name: our format, exact activations, torchao's config
    "int8 weights": ("int8", True, torchao.Int8WeightOnlyConfig),
    "int8 weights and activations": ("int8", False, torchao.Int8DynamicActivationInt8WeightConfig),
    "int4 weights": (
        "int4",
        True,
        lambda: torchao.IntxWeightOnlyConfig(torch.int4, torchao.PerGroup(GROUP)),
    ),
}


def bits(tensors: list[Tensor], weights: int) -> float:
    return 8 * sum(tensor.untyped_storage().nbytes() for tensor in tensors) / weights


def inner_tensors(weight: Any) -> list[Tensor]:
    """The plain tensors that torchao's weight is made of."""
    names, _ = weight.__tensor_flatten__()
    return [getattr(weight, name) for name in names]


def seconds(layer: Any, x: Tensor) -> float:
    start = time.perf_counter()
    layer(x)
    if x.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def compare(layers: Sequence[Any], x: Tensor, expected: Tensor, rounds: int) -> list[str]:
    """Return the cells of a row: median times, their ratio with its spread, and the relative errors."""
    errors = [float((layer(x) - expected).norm() / expected.norm()) for layer in layers]
    times = [[seconds(layer, x) for layer in layers] for _ in range(rounds + 2)][2:]
    ours, other = (1e3 * statistics.median(each) for each in zip(*times, strict=True))
    ratios = sorted(b / a for a, b in times)
    spread = f"{ratios[rounds // 10]:.2f}-{ratios[-1 - rounds // 10]:.2f}"
    return [f"{ours:.3f}", f"{other:.3f}", f"{other / ours:.2f}", spread, *(f"{error:.4f}" for error in errors)]


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compile", action="store_true", help="compile both layers, as torchao recommends")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    at: dict[str, Any] = {"dtype": torch.bfloat16 if options.device == "cuda" else torch.float32}
    at["device"] = options.device
    cells = []
    for name, (form, exact, config) in KINDS.items():
        for inputs, outputs in SIZES:
            torch.manual_seed(0)
            plain = nn.Linear(inputs, outputs, bias=False, **at)
            ours, theirs = FORMATS[form].from_linear(plain, exact, GROUP), nn.Sequential(copy.deepcopy(plain))
            torchao.quantize_(theirs, config())
            stored = [*ours.buffers()], inner_tensors(theirs[0].weight)
            sizes = [f"{bits(tensors, plain.weight.numel()):.2f}" for tensors in stored]
            layers = [torch.compile(each) if options.compile else each for each in (ours, theirs)]
            for rows in ROWS:
                x = torch.randn(rows, inputs, **at)
                figures = compare(layers, x, plain(x), options.rounds)
                cells.append([name, f"{inputs} x {outputs}", str(rows), *figures, *sizes])
                print(*cells[-1], sep="  ", flush=True)
    header = ["weights", "layer", "rows", "ours ms", "torchao ms", "ratio", "spread"]
    table([*header, "error", "torchao", "bits", "torchao"], cells, right=range(2, 11))


if __name__ == "__main__":
    main()
