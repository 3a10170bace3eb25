"""Helpers for tests of parts: modules with random parameters, contexts, comparisons."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from anyformer.runtime.context import Context
from anyformer.specs.part import Part, Site


def close(a: Tensor, b: Tensor, tolerance: float = 1e-6) -> None:
    """Assert equal shapes and values; the tolerance is relative to the largest value if that is above 1."""
    a, b = a.detach(), b.detach()
    assert a.shape == b.shape, f"{tuple(a.shape)} is not {tuple(b.shape)}"
    scale = max(1.0, float(b.abs().max())) if b.numel() else 1.0
    worst = float((a - b).abs().max()) if b.numel() else 0.0
    assert worst <= tolerance * scale, f"off by {worst:.2e} on values up to {scale:.2f}"


def made(part: Part, width: int, seed: int = 0, **site: Any) -> Any:
    """Build the module of a part and fill every parameter with random values."""
    return filled(part.build(Site(width=width, address="here", **site)), seed)


@torch.no_grad()
def filled(module: nn.Module, seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return module.eval()


def numbers(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Weights(list):
    """A listener that gathers attention weights."""

    def wants(self, address: str) -> bool:
        return address.endswith(".weights")

    def __call__(self, address: str, value: Tensor) -> Tensor:
        if self.wants(address):
            self.append(value)
        return value


def context(length: int, *, is_token: Tensor | None = None, **more: Any) -> Context:
    """The context of a forward pass over `length` tokens without a cache."""
    index = torch.arange(length)
    positions = index[None]
    if is_token is not None:
        positions = (positions - (is_token.cumsum(-1) == 0).sum(-1, keepdim=True)).clamp(min=0)
    return Context(index=index, positions=positions, is_token=is_token, **more)


def compiled_equals_eager(function: Any, *inputs: Any, tolerance: float = 1e-6) -> None:
    """Assert that `function` compiles to one graph without breaks and returns the same tensor, or list of tensors.
    Pass several cases as one list: each compilation takes a while."""
    torch._dynamo.reset()
    found, expected = torch.compile(function, fullgraph=True, backend="aot_eager")(*inputs), function(*inputs)
    for a, b in zip(found, expected, strict=True) if isinstance(expected, list) else [(found, expected)]:
        close(a, b, tolerance)


class Largest(TorchDispatchMode):
    """Record the number of elements of the largest tensor created."""

    size = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, Tensor) and tensor.untyped_storage().nbytes() > tensor.element_size():
                self.size = max(self.size, tensor.untyped_storage().nbytes() // tensor.element_size())
        return out


def nothing_grows_with_the_square_of_the_length(
    run: Callable[[int], Tensor], lengths: tuple[int, int, int] = (512, 1024, 2048)
) -> None:
    """Assert that FLOPs and the largest tensor of `run(length)` and its backward pass grow in proportion to the length,
    which doubles twice."""
    found = []
    for length in lengths:
        with Largest() as largest, FlopCounterMode(display=False) as counter:
            run(length).sum().backward()
        found.append((largest.size, counter.get_total_flops()))
    for before, after in pairwise(found):
        assert after[0] < 2.1 * before[0] and after[1] < 2.1 * before[1], found
    assert found[-1][0] < lengths[-1] ** 2 / 8


class filled_with_nan:
    """Make torch.empty return NaN, so that values that nobody writes are noticed."""

    def __enter__(self) -> None:
        torch.use_deterministic_algorithms(True)
        self.before = torch.utils.deterministic.fill_uninitialized_memory
        torch.utils.deterministic.fill_uninitialized_memory = True

    def __exit__(self, *error: Any) -> None:
        torch.utils.deterministic.fill_uninitialized_memory = self.before
        torch.use_deterministic_algorithms(False)
