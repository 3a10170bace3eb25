"""Data sheets of accelerators: dense FLOPs in half precision, memory, memory bandwidth and link bandwidth."""

from __future__ import annotations

import dataclasses
import re

from anyformer.specs.messages import nearest, quote


@dataclasses.dataclass(frozen=True)
class Accelerator:
    name: str
    flops: float  # per second, dense, in bf16 (or fp16 without bf16)
    memory: float  # bytes
    bandwidth: float  # bytes per second
    link: float  # bytes per second to the other devices of a machine, both directions together


T, G = 1e12, 1e9
ACCELERATORS = {
    each.name: each
    for each in (
        Accelerator("B200", 2250 * T, 180 * G, 7700 * G, 1800 * G),
        Accelerator("H200", 989 * T, 141 * G, 4800 * G, 900 * G),
        Accelerator("H100", 989 * T, 80 * G, 3350 * G, 900 * G),
        Accelerator("A100-80", 312 * T, 80 * G, 2039 * G, 600 * G),
        Accelerator("A100-40", 312 * T, 40 * G, 1555 * G, 600 * G),
        Accelerator("MI300X", 1307 * T, 192 * G, 5300 * G, 896 * G),
        Accelerator("L40S", 362 * T, 48 * G, 864 * G, 64 * G),
        Accelerator("L4", 121 * T, 24 * G, 300 * G, 64 * G),
        Accelerator("A10", 125 * T, 24 * G, 600 * G, 64 * G),
        Accelerator("4090", 165 * T, 24 * G, 1008 * G, 64 * G),
        Accelerator("V100", 125 * T, 32 * G, 900 * G, 300 * G),
        Accelerator("P100", 21.2 * T, 16 * G, 732 * G, 160 * G),
        Accelerator("T4", 65 * T, 16 * G, 300 * G, 32 * G),
        Accelerator("TPU-v5p", 459 * T, 95 * G, 2765 * G, 600 * G),
        Accelerator("TPU-v5e", 197 * T, 16 * G, 819 * G, 200 * G),
        Accelerator("TPU-v4", 275 * T, 32 * G, 1228 * G, 300 * G),
        Accelerator("TPU-v3", 123 * T, 32 * G, 900 * G, 328 * G),  # v2, v3: a chip of two cores [Jouppi et al. 2020]
        Accelerator("TPU-v2", 46 * T, 16 * G, 700 * G, 248 * G),
    )
}


def accelerator(name: str) -> Accelerator:
    """An accelerator by name, in any case."""
    for known, each in ACCELERATORS.items():
        if known.lower() == name.lower():
            return each
    raise ValueError(f"no accelerator {quote(name)}; {nearest(name, ACCELERATORS)} (others: --flops, --memory, --link)")


def published_flops(device: str) -> float | None:
    """FLOPs per second of a device, by its name in torch ("NVIDIA A100-SXM4-80GB"); None if unknown. Whole words match:
    an L40 is not an L4."""
    words = re.split(r"[^0-9A-Za-z]+", device)
    for name, each in ACCELERATORS.items():
        if name.partition("-")[0] in words:
            return each.flops
    return None
