"""Several linear layers of one input as one product: one read of the input, one call, one thread team to wake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.kernels.linear import half_type, linear_gelu, linears


class Joined(nn.Module):
    """Linear layers side by side, (..., in) -> one (..., out) each. They stay where they are, with their addresses, and
    their weights become views of one tensor, so saving, loading and counting see no difference. For inference: while
    gradients are taken the layers are used one by one. Hooks on the single layers do not run."""

    parts: tuple[Any, ...]
    whole: Any

    def __init__(self, *parts: Any) -> None:
        super().__init__()
        self.__dict__["parts"] = parts  # not children: their addresses are elsewhere
        self.sizes = [part.out_features for part in parts]
        self.join()

    @torch.no_grad()
    def join(self) -> None:
        self.__dict__["whole"] = side_by_side(self.parts)

    def covers(self, *parts: nn.Module) -> bool:
        """Whether these are still the layers that were joined, and no gradients are wanted."""
        return not torch.is_grad_enabled() and parts == self.parts

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.whole(x).split(self.sizes, dim=-1)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Joined:
        super()._apply(fn, recurse)
        self.join()  # the layers were moved or cast before: they have memory of their own again
        return self


class JoinedInTraining(Joined):
    """The same for training: each call puts the weights side by side, which costs little beside the products, so the
    layers keep their own memory and get their own gradients. Without gradients they are used one by one."""

    def join(self) -> None:
        self.__dict__["whole"] = None

    def covers(self, *parts: nn.Module) -> bool:
        return torch.is_grad_enabled() and parts == self.parts

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        weights, biases = [part.weight for part in self.parts], [part.bias for part in self.parts]
        bias = None
        if any(b is not None for b in biases):
            bias = torch.cat([w.new_zeros(w.shape[0]) if b is None else b for w, b in zip(weights, biases)])
        weight, half = torch.cat(weights), half_type(x)
        if half is not None and bias is not None:
            return linears(x, weight, bias, self.sizes, half)
        return F.linear(x, weight, bias).split(self.sizes, dim=-1)


class LinearThenGELU(nn.Module):
    """gelu(layer(x)) for training on CUDA in half precision, where it takes one reading less in the backward pass."""

    layer: nn.Linear

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.__dict__["layer"] = layer  # not a child: its address is elsewhere

    def covers(self, layer: nn.Module, x: Tensor) -> bool:
        return layer is self.layer and half_type(x) is not None

    def forward(self, x: Tensor) -> Tensor:
        dtype = half_type(x)
        assert dtype is not None
        return linear_gelu(x, self.layer.weight, self.layer.bias, dtype)


class WithAddedWeights(nn.Linear):
    """A linear layer that adds something to its weights (an adapter)."""

    def effective(self) -> Tensor:
        """(out, in): the weights of the plain layer that does the same."""
        raise NotImplementedError


class Concatenable(nn.Module):
    """A layer in the place of nn.Linear that can be joined with others of its kind (quantised weights)."""

    exact: ClassVar[tuple[str, ...]]  # its buffers

    def dequantize(self) -> Tensor:
        """(out, in) fp32: what the layer multiplies by."""
        raise NotImplementedError

    def concat(self, *others: Any) -> nn.Module:
        """One layer that gives the outputs of this and the others, one after another."""
        raise NotImplementedError


def effective_weight(layer: Any) -> Tensor:
    """(out, in) the weights of a linear layer, with those that an adapter adds."""
    if isinstance(layer, Concatenable):
        return layer.dequantize()
    return layer.effective() if isinstance(layer, WithAddedWeights) else layer.weight


def side_by_side(parts: tuple[Any, ...]) -> nn.Module:
    first = parts[0]
    if isinstance(first, Concatenable):
        return first.concat(*parts[1:])
    whole = nn.Linear(first.in_features, sum(p.out_features for p in parts), bias=False, device="meta")
    whole.weight = _one_tensor([p.weight for p in parts])
    if any(p.bias is not None for p in parts):
        for p in parts:  # a layer without a bias beside one that has it (Whisper's k)
            if p.bias is None:
                zeros = p.weight.new_zeros(p.out_features)
                whole.bias = nn.Parameter(torch.cat([zeros if q.bias is None else q.bias for q in parts]), False)
                break
        else:
            whole.bias = _one_tensor([p.bias for p in parts])
    return whole.eval()


def _one_tensor(tensors: list[nn.Parameter]) -> nn.Parameter:
    whole = torch.cat(tuple(tensors))
    for tensor, view in zip(tensors, whole.split([t.shape[0] for t in tensors]), strict=True):
        tensor.data = view
    return nn.Parameter(whole, requires_grad=False)
