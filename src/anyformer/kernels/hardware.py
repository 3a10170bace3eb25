"""Detects what this machine can do, and chooses the device. All code that depends on the hardware asks this module.

    ANYFORMER_WITHOUT=bf16,int8 anyformer ...        # as on a machine without bf16 and int8

hides abilities, for tests and for machines on which one of them is slow or wrong.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import shlex
import subprocess
import sys
import sysconfig
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyformer.specs.messages import nearest, quote

if TYPE_CHECKING:
    import torch

HIDING = "ANYFORMER_WITHOUT"  # environment variable: names of abilities, separated by commas


def has(ability: str) -> bool:
    """Whether this machine has an ability that is not hidden."""
    return ability not in hidden_abilities(os.environ.get(HIDING, "")) and ABILITIES[ability]()


@functools.cache
def hidden_abilities(names: str) -> frozenset[str]:
    hidden = frozenset(name.strip() for name in names.split(",") if name.strip())
    for name in sorted(hidden - ABILITIES.keys()):
        raise ValueError(f"{HIDING}: unknown ability {quote(name)}; {nearest(name, ABILITIES)}")
    return hidden


# -- abilities --------------------------------------------------------------------------------------------------------


def cpu_capabilities() -> dict[str, Any]:
    """Return torch's names of CPU features; empty if this torch does not report them."""
    import torch

    return getattr(torch.cpu, "get_capabilities", dict)()


@functools.cache
def bf16() -> bool:
    """Whether this CPU has bf16 instructions. Without them, torch's bf16 products are correct but 4 to 60 times slower
    than fp32."""
    import torch

    able = cpu_capabilities()
    x86 = torch.cpu._is_avx512_bf16_supported() or able.get("amx_bf16", torch.cpu._is_amx_tile_supported())
    try:
        used = torch.ops.mkldnn._is_mkldnn_bf16_supported()  # bf16 may be disabled in oneDNN
    except (AttributeError, RuntimeError):
        used = False
    return bool(used and (x86 or able.get("bf16", False)))


@functools.cache
def int8() -> bool:
    """Whether torch has 8-bit products for this CPU. This is tested, since listed engines may not support the CPU."""
    import torch

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # quantized tensors are deprecated
            one = torch.ones(1, 1, dtype=torch.int8)
            weight = torch._make_per_channel_quantized_tensor(one, torch.ones(1).double(), torch.zeros(1).long(), 0)
            packed = torch.ops.quantized.linear_prepack(weight, None)
        multiply = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32
        return multiply(torch.ones(1, 1), 1 / 127, 128, packed).item() == 1.0
    except (AttributeError, RuntimeError):
        return False


@functools.cache
def int4() -> bool:
    """Whether torch has fast products with 4-bit weights for this CPU: ARM with dot-product instructions."""
    import torch

    able = cpu_capabilities()
    if able.get("architecture") != "arm64" or not able.get("dot"):
        return False
    try:
        nines = torch.full((1, 16), 0x99, dtype=torch.uint8)  # each 4-bit 9 represents 1
        packed = torch.ops.aten._dyn_quant_pack_4bit_weight(nines, torch.ones(1, 1), None, 32, 32, 1)
        return round(torch.ops.aten._dyn_quant_matmul_4bit(torch.ones(1, 32), packed, 32, 32, 1).item(), 3) == 32
    except (AttributeError, RuntimeError):
        return False


def least_seconds(run: Callable[[], Any]) -> float:
    times = []
    for _ in range(4):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


@functools.cache
def onednn() -> bool:
    """Whether weights can be stored in oneDNN's layout (for bf16 weights, only with the ability bf16)."""
    import torch

    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(torch.ones(1, 1), 8)
        return torch.ops.mkldnn._linear_pointwise(torch.ones(2, 1), packed, None, "none", [], "").tolist() == [[1], [1]]
    except (AttributeError, RuntimeError):
        return False


@functools.cache
def packed_is_faster(rows: int = 8, size: int = 1536) -> bool:
    """Whether oneDNN's layout makes a product of few rows at least 10 % faster on this CPU; on x86 it takes half the
    time. Measured once, in a few hundredths of a second."""
    import torch

    if not has("onednn"):
        return False
    x, dense = torch.ones(rows, size), torch.ones(size, size)
    packed = torch.ops.mkldnn._reorder_linear_weight(dense, rows)
    with torch.no_grad():
        plain = least_seconds(lambda: torch.nn.functional.linear(x, dense))
        return least_seconds(lambda: torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")) < 0.9 * plain


@functools.cache
def compiler() -> bool:
    """Whether the C++ compiler that torch.compile would call is installed and finds Python's headers."""
    command = shlex.split(os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++"))
    command += ["-fsyntax-only", "-x", "c++", "-I", sysconfig.get_paths()["include"], "-"]
    try:
        program = b"#include <Python.h>\n#include <cmath>\n"
        return subprocess.run(command, input=program, capture_output=True, timeout=60).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False


def triton() -> bool:
    """Whether Triton is installed, with the compiler that it needs for its launchers."""
    return importlib.util.find_spec("triton") is not None and has("compiler")


ABILITIES: dict[str, Callable[[], bool]] = {
    "bf16": bf16,
    "int8": int8,
    "int4": int4,
    "onednn": onednn,
    "compiler": compiler,
    "triton": triton,
}

NO_COMPILER = "there is no C++ compiler here that finds Python's headers (install g++ and python3-dev, or set CXX)"


def free_memory() -> int:
    """Return the free bytes of main memory for this process; 0 if unknown (on systems other than Linux)."""
    try:
        table = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        free = 1024 * int(table["MemAvailable"].split()[0])
    except (OSError, ValueError, KeyError):
        return 0
    try:  # a container has its own limit
        limit, used = (Path(f"/sys/fs/cgroup/memory.{name}").read_text() for name in ("max", "current"))
        return max(0, min(free, int(limit) - int(used)))
    except (OSError, ValueError):  # none, or the word "max"
        return free


# -- devices ----------------------------------------------------------------------------------------------------------


def device(name: str | torch.device | None = "auto") -> torch.device:
    """Return the device of this name; "auto" (or None) is a GPU if there is one. Raise if the device does not exist."""
    import torch

    if name is None or name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    here = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    try:
        found = torch.device(name)
        if found.type == "cuda":  # no test tensor: each of several processes would use memory on the first GPU
            if f"cuda:{found.index or 0}" not in here:
                raise RuntimeError(f"torch sees {len(here) or 'no'} GPU{'s' if len(here) > 1 else ''}")
        elif found.type != "meta":
            torch.empty(1, device=found).to("cpu")
    except Exception as error:  # its class depends on device and build
        why = "unknown to torch" if "device string" in str(error) else str(error).split(". ")[0].rstrip(".")
        valid = ", ".join(("auto", "cpu", *here))
        raise ValueError(f"device {quote(str(name))} is not available: {why}; valid: {valid}") from None
    return found
