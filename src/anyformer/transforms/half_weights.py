"""Cast all weights to half precision in one operation per step.

Autocast casts every weight and bias of a linear layer when it is used, and its gradient back: hundreds of small kernel
launches. Here one operation casts all weights, and one all gradients. The rounding is the same, so results are equal.

    cast = HalfWeights(model)
    with torch.autocast("cuda", torch.bfloat16):
        with cast(torch.bfloat16):  # includes the backward pass, which may recompute layers
            model(...).loss.backward()
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from anyformer.parts.forward_override import is_plain
from anyformer.stacks.sublayer import SublayerModule
from anyformer.transforms.compile import outermost_blocks


class HalfWeights:
    """Casts the trained fp32 parameters of linear layers in the blocks of `model`, except those that layers share. The
    parameters themselves stay in fp32, and so do their gradients."""

    def __init__(self, model: nn.Module) -> None:
        uses = Counter(id(p) for module in model.modules() for p in module.parameters(recurse=False))
        self.places: list[tuple[dict[str, Any], str, nn.Parameter]] = []
        for block in outermost_blocks(model):
            if any(
                isinstance(module, SublayerModule) and module.fp32_stream for module in block.modules()
            ):  # reads their dtype
                continue
            for module in block.modules():
                for name, p in module.named_parameters(recurse=False) if is_plain(module) else ():
                    if p.requires_grad and p.dtype == torch.float32 and uses[id(p)] == 1:
                        self.places.append((module._parameters, name, p))

    @contextlib.contextmanager
    def __call__(self, dtype: torch.dtype) -> Iterator[None]:
        """Use weights in `dtype` inside the block."""
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
    copied = [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]
    if copied:
        torch._foreach_copy_(copied, tensors)
    return copied
