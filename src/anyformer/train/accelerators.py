"""What the makers of accelerators print on their data sheets: dense products in half precision, memory, and how fast a
device reads its own memory and speaks to its neighbours."""

from __future__ import annotations

import dataclasses
import re

from anyformer.specs.messages import quote
from anyformer.specs.part import nearest


@dataclasses.dataclass(frozen=True)
class Accelerator:
    name: str
    flops: float  # a second, dense, in bf16 (fp16 where there is none)
    memory: float  # bytes
    bandwidth: float  # bytes a second
    link: float  # bytes a second to the other devices of a machine, both directions together


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
        Accelerator("T4", 65 * T, 16 * G, 300 * G, 32 * G),
        Accelerator("TPU-v5p", 459 * T, 95 * G, 2765 * G, 600 * G),
        Accelerator("TPU-v5e", 197 * T, 16 * G, 819 * G, 200 * G),
        Accelerator("TPU-v4", 275 * T, 32 * G, 1228 * G, 300 * G),
    )
}


def accelerator(name: str) -> Accelerator:
    """The one of this name, whatever its case."""
    for known, found in ACCELERATORS.items():
        if known.lower() == name.lower():
            return found
    raise ValueError(f"no accelerator {quote(name)}; {nearest(name, ACCELERATORS)} (others: --flops, --memory, --link)")


def published(device: str) -> float | None:
    """Products a second of a device, by what torch calls it ("NVIDIA A100-SXM4-80GB"); None where it is not known. An
    L40 is no L4, nor an A10G an A10: whole words count."""
    words = re.split(r"[^0-9A-Za-z]+", device)
    for name, found in ACCELERATORS.items():
        if name.partition("-")[0] in words:
            return found.flops
    return None
