"""Several linear layers on the same input as one product: one read of the input and one kernel call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.kernels.linear import half_type, linear_gelu, linears
from anyformer.parts.forward_override import ForwardOverride


class Joined(nn.Module):
    """Linear layers that run as one product, (..., in) -> one (..., out) per layer. The layers keep their addresses,
    and their weights become views of one tensor, so saving, loading and counting do not change. For inference: if
    gradients are enabled, the layers run one by one. Hooks on the single layers do not run."""

    parts: tuple[Any, ...]
    whole: Any

    def __init__(self, *parts: Any) -> None:
        super().__init__()
        self.__dict__["parts"] = parts  # not children, because their addresses are elsewhere
        self.sizes = [part.out_features for part in parts]
        self.join()

    @torch.no_grad()
    def join(self) -> None:
        self.__dict__["whole"] = side_by_side(self.parts)

    def covers(self, *parts: nn.Module) -> bool:
        """Whether these are still the layers that were joined, and gradients are disabled."""
        return not torch.is_grad_enabled() and parts == self.parts

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.whole(x).split(self.sizes, dim=-1)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Joined:
        super()._apply(fn, recurse)
        self.join()  # the layers were moved or cast, so their weights are no longer views
        return self


class JoinedInTraining(Joined):
    """Like `Joined`, for training. Each call concatenates the weights, which is cheap compared to the product, so every
    layer keeps its own memory and gets its own gradient. If gradients are disabled, the layers run one by one."""

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
    """gelu(layer(x)) for training on CUDA in half precision; it saves one read in the backward pass."""

    layer: nn.Linear

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.__dict__["layer"] = layer  # not a child, because its address is elsewhere

    def covers(self, layer: nn.Module, x: Tensor) -> bool:
        return layer is self.layer and half_type(x) is not None

    def forward(self, x: Tensor) -> Tensor:
        dtype = half_type(x)
        assert dtype is not None
        return linear_gelu(x, self.layer.weight, self.layer.bias, dtype)


class AddedWeights(ForwardOverride):
    """The forward of an nn.Linear that adds a term to its weights (an adapter)."""

    parameters: ClassVar[tuple[str, ...]]  # names of parameters that it adds to the layer

    def effective(self) -> Tensor:
        """(out, in) weights of a plain linear layer with the same outputs."""
        raise NotImplementedError


def added_weights(layer: nn.Module) -> AddedWeights | None:
    """Return the term that a layer adds to its weights, or None."""
    return layer.forward if isinstance(layer.forward, AddedWeights) else None


class Concatenable(nn.Module):
    """A replacement of nn.Linear (quantised weights) that can be joined with other layers of the same class."""

    exact: ClassVar[tuple[str, ...]]  # names of its buffers
    weight: Tensor
    scale: Tensor
    offset: Tensor | None

    def dequantize(self) -> Tensor:
        """(out, in) weights of the layer in fp32."""
        raise NotImplementedError

    def concat(self, *others: Any) -> nn.Module:
        """Return one layer with the concatenated outputs of this layer and `others`."""
        raise NotImplementedError


def effective_weight(layer: Any) -> Tensor:
    """(out, in) weights of a linear layer, including the term of an adapter."""
    if isinstance(layer, Concatenable):
        return layer.dequantize()
    added = added_weights(layer)
    return layer.weight if added is None else added.effective()


def side_by_side(parts: tuple[Any, ...]) -> nn.Module:
    first = parts[0]
    if isinstance(first, Concatenable):
        return first.concat(*parts[1:])
    whole = nn.Linear(first.in_features, sum(p.out_features for p in parts), bias=False, device="meta")
    whole.weight = _one_tensor([p.weight for p in parts])
    if any(p.bias is not None for p in parts):
        for p in parts:  # only some of the layers have a bias (Whisper's k has none)
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
