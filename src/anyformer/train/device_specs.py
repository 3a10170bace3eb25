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


# Each comment names the page that confirms the figures; most pages repeat a data sheet; "-": no page was found. If a
# page gives FLOPs with sparsity, half of them is used.
# FLOPs of H100, A100, 4090: gist.github.com/mikasenghaas/d63ded03f1f0417b1677627119bacc0d; H200 has the H100's.
T, G = 1e12, 1e9
ACCELERATORS = {
    each.name: each
    for each in (
        Accelerator("B200", 2250 * T, 180 * G, 7700 * G, 1800 * G),  # NVIDIA's HGX table; others print 8000 G
        Accelerator("H200", 989 * T, 141 * G, 4800 * G, 900 * G),  # acecloud.ai/blog/nvidia-b200-vs-h200-h100-a100
        Accelerator("H100", 989 * T, 80 * G, 3350 * G, 900 * G),  # the same
        Accelerator("A100-80", 312 * T, 80 * G, 2039 * G, 600 * G),  # the same
        Accelerator("A100-40", 312 * T, 40 * G, 1555 * G, 600 * G),  # sysrqmts.com; link: gist.github.com/askainet
        Accelerator("MI300X", 1307 * T, 192 * G, 5300 * G, 896 * G),  # jaredwatkins.com; link: gpu.blog
        Accelerator("L40S", 362 * T, 48 * G, 864 * G, 64 * G),  # mullet.se
        Accelerator("L4", 121 * T, 24 * G, 300 * G, 64 * G),  # nvidia.com/en-us/data-center/l4; link -
        Accelerator("A10", 125 * T, 24 * G, 600 * G, 64 * G),  # NVIDIA's data sheet; sysrqmts.com; link -
        Accelerator("4090", 165 * T, 24 * G, 1008 * G, 64 * G),  # waredb.com; link -
        Accelerator("V100", 125 * T, 32 * G, 900 * G, 300 * G),  # NVIDIA's Volta white paper, 6 links of 2 x 25 G
        Accelerator("P100", 21.2 * T, 16 * G, 732 * G, 160 * G),  # tech4gamers.com and others, which also print 720 G
        Accelerator("T4", 65 * T, 16 * G, 300 * G, 32 * G),  # NVIDIA's page; others print 320 G; link -
        # docs.cloud.google.com/tpu: links of v5 count both directions; older pages count one
        Accelerator("TPU-v5p", 459 * T, 95 * G, 2765 * G, 1200 * G),
        Accelerator("TPU-v5e", 197 * T, 16 * G, 819 * G, 400 * G),
        Accelerator("TPU-v4", 275 * T, 32 * G, 1200 * G, 600 * G),  # 6 links of 2 x 50 G [Jouppi et al. 2023]
        Accelerator("TPU-v3", 123 * T, 32 * G, 900 * G, 560 * G),  # a chip of two cores, 4 links of 2 x 70 G [same]
        Accelerator("TPU-v2", 46 * T, 16 * G, 700 * G, 496 * G),  # 4 links of 2 x 62 G [Jouppi et al. 2020]; others -
    )
}


def accelerator(name: str) -> Accelerator:
    """Return an accelerator by name, ignoring case."""
    for known, each in ACCELERATORS.items():
        if known.lower() == name.lower():
            return each
    raise ValueError(f"no accelerator {quote(name)}; {nearest(name, ACCELERATORS)} (or: --flops, --memory, --link)")


def published_flops(device: str) -> float | None:
    """Return the FLOPs per second of a device by its name in torch ("NVIDIA A100-SXM4-80GB"); None if unknown. Only
    whole words match: an L40 is not an L4."""
    words = re.split(r"[^0-9A-Za-z]+", device)
    for name, each in ACCELERATORS.items():
        if name.partition("-")[0] in words:
            return each.flops
    return None
