"""Weights cast to half precision once a step, all at once.

Autocast casts every weight and bias of a linear layer where it is used, and its gradient back: hundreds of small
launches. Here one operation casts those of all layers, and one their gradients. The same numbers are rounded in the
same way, so results stay equal.

    cast = HalfWeights(model)
    with torch.autocast("cuda", torch.bfloat16):
        with cast(torch.bfloat16):  # around the backward pass too: it may run layers again
            model(...).loss.backward()
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from anyformer.transforms.compile import outermost_blocks


class HalfWeights:
    """Those of the linear layers in the blocks of `model` that are trained and used by one layer alone. Parameters stay
    where they are, and get their gradients, in their own precision."""

    def __init__(self, model: nn.Module) -> None:
        uses = Counter(id(p) for module in model.modules() for p in module.parameters(recurse=False))
        self.places: list[tuple[dict[str, Any], str, nn.Parameter]] = []
        for block in outermost_blocks(model):
            if any(getattr(module, "wide", False) for module in block.modules()):  # an fp32 stream asks for their type
                continue
            for module in block.modules():
                for name, p in module.named_parameters(recurse=False) if type(module) is nn.Linear else ():
                    if p.requires_grad and p.dtype == torch.float32 and uses[id(p)] == 1:
                        self.places.append((module._parameters, name, p))

    @contextlib.contextmanager
    def __call__(self, dtype: torch.dtype) -> Iterator[None]:
        """Meanwhile the layers use weights in `dtype`."""
        halves = CastTogether.apply(dtype, *(p for *_, p in self.places))
        for (parameters, name, _), half in zip(self.places, halves, strict=True):
            parameters[name] = half
        try:
            yield
        finally:
            for parameters, name, p in self.places:
                parameters[name] = p


class CastTogether(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        return tuple(copies(tensors, dtype))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        cast = iter(copies([g for g in gradients if g is not None], torch.float32))
        return None, *(None if g is None else next(cast) for g in gradients)


def copies(tensors: Any, dtype: torch.dtype) -> list[Tensor]:
    found = [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]
    if found:
        torch._foreach_copy_(found, tensors)
    return found
