"""Compare the recurrences of Mamba, Mamba-2 and RWKV over a long text computed in windows and token by token.

The two alternate in one process with one thread and are measured in CPU time, so that a busy machine does not matter.
A ratio above 1 means that windows are faster. With more channels, the loop over tokens spends less time in Python.

    python benchmarks/scan.py [--length 2048] [--repeats 5] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.kernels.scan import scan, scan_by_steps
from anyformer.kernels.ssd import ssd, ssd_by_steps
from anyformer.kernels.wkv import wkv, wkv_by_steps

Form = Callable[..., Tensor]


def selective(T: int, channels: int) -> tuple[Form, Form, list[Tensor]]:
    A = -torch.arange(1.0, 17)[:, None].expand(16, channels).contiguous()
    inputs = [torch.randn(1, T, channels), F.softplus(torch.randn(1, T, channels) - 2), A]
    inputs += [torch.randn(1, T, 16), torch.randn(1, T, 16)]
    return lambda *t: scan(*t)[0], lambda *t: scan_by_steps(*t)[0], inputs


def dual(T: int, channels: int) -> tuple[Form, Form, list[Tensor]]:
    H = channels // 64
    inputs = [torch.randn(1, T, H, 64), F.softplus(torch.randn(1, T, H) - 2), -torch.arange(1.0, H + 1)]
    inputs += [torch.randn(1, T, 1, 128), torch.randn(1, T, 1, 128)]
    return lambda *t: ssd(*t)[0], lambda *t: ssd_by_steps(*t)[0], inputs


def weighted(T: int, channels: int) -> tuple[Form, Form, list[Tensor]]:
    inputs = [-torch.exp(torch.randn(channels)), torch.randn(channels)]
    return wkv, wkv_by_steps, inputs + [torch.randn(1, T, channels) for _ in "kv"]


def seconds(form: Form, inputs: list[Tensor], train: bool) -> float:
    start = time.process_time()
    with torch.set_grad_enabled(train):
        y = form(*inputs)
        if train:
            torch.autograd.grad(y.sum(), inputs)
    return time.process_time() - start


def compare(kind: str, T: int, channels: int, train: bool, repeats: int) -> dict[str, object]:
    torch.manual_seed(0)
    windows, steps, inputs = {"mamba": selective, "mamba2": dual, "rwkv": weighted}[kind](T, channels)
    inputs = [t.requires_grad_(train) for t in inputs]
    seconds(windows, inputs, train), seconds(steps, inputs, train)
    times = [(seconds(windows, inputs, train), seconds(steps, inputs, train)) for _ in range(repeats)]
    ratios = sorted(loop / ours for ours, loop in times)
    ours, loop = (statistics.median(t) * 1e3 for t in zip(*times, strict=True))
    return {
        "kind": kind, "channels": channels, "what": "forward + backward" if train else "forward", "windows_ms": ours,
        "steps_ms": loop, "ratio": statistics.median(ratios), "ratio_min": ratios[0], "ratio_max": ratios[-1],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for kind, channels in (("mamba", 64), ("mamba", 256), ("mamba2", 256), ("rwkv", 64), ("rwkv", 256), ("rwkv", 768)):
        for train in (False, True):
            row = compare(kind, options.length, channels, train, options.repeats)
            if options.json:
                print(json.dumps(row))
            else:
                print("{kind:6} {channels:4} channels {what:18}: {windows_ms:6.1f} ms, by tokens {steps_ms:7.1f} ms, "
                      "ratio {ratio:.1f} ({ratio_min:.1f}-{ratio_max:.1f})".format(**row))  # fmt: skip


if __name__ == "__main__":
    main()
