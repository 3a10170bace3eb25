"""Low-rank adapters by address [Hu et al. 2021]: linear layers are frozen, and a low-rank update of each is trained.

    apply(model, LoRA(rank=8))                 # queries and values of every attention; everything else is frozen
    train(...)
    af.save(model, "adapter", format="peft")   # some hundred kilobytes, see adapters.py; af.load("adapter") loads it
    merge(model)                               # add the adapters to the weights: a plain model again

y = W x + alpha / rank * B A x. A is random and B is 0 at first, so that outputs do not change. The layers keep their
addresses. In the other formats, `af.save` writes a model with adapters as a plain model with merged weights.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.models import TransformerModule
from anyformer.parts.forward_override import is_plain
from anyformer.parts.fused_linear import AddedWeights
from anyformer.parts.init import Kaiming, Value, initialise
from anyformer.specs.field_types import Chance, Count, Positive
from anyformer.specs.messages import nearest, quote
from anyformer.specs.part import Part
from anyformer.transforms.fuse import unfuse
from anyformer.transforms.pack import unpack

M = TypeVar("M", bound=TransformerModule)

NAMES = ("lora_a", "lora_b")
# A is uniform within 1 / sqrt(inputs), as in PEFT
STARTS = {"*.lora_a": Kaiming(gain=1 / math.sqrt(3), normal=False), "*.lora_b": Value(value=0.0)}


class LoRA(Part, called=("low-rank adaptation",)):
    """Low-rank adapters of linear layers [Hu et al. 2021]. All other parameters are frozen, except those in `also`."""

    rank: Count = 8
    alpha: Positive = 16.0  # the update is multiplied by alpha / rank
    dropout: Chance = 0.0  # of an adapter's input
    targets: tuple[str, ...] = ("*.q", "*.v")  # patterns of addresses of linear layers
    also: tuple[str, ...] = ()  # patterns of parameters that are trained without an adapter
    fresh: bool = True  # also train parameters that were not in the checkpoint (a new head)

    def check(self) -> None:
        if not self.targets:
            raise ValueError("LoRA.targets is empty; name linear layers, such as '*.q'")


class AdaptedForward(AddedWeights):
    """The forward of a linear layer with an adapter, whose parameters are lora_a (rank, in) and lora_b (out, rank)."""

    parameters: ClassVar[tuple[str, ...]] = NAMES

    def __init__(self, module: nn.Linear, scale: float, dropout: float) -> None:
        super().__init__(module)
        self.scale, self.dropout = scale, dropout

    def install(self) -> None:
        super().install()
        self.module.extra_repr = self.extra_repr

    def remove(self) -> None:
        del self.module.extra_repr
        super().remove()

    def extra_repr(self) -> str:
        rank, dropout = len(self.module.lora_a), f", dropout={self.dropout}" if self.dropout else ""
        return f"{type(self.module).extra_repr(self.module)}, LoRA of rank {rank}, scale {self.scale:g}{dropout}"

    def __call__(self, x: Tensor) -> Tensor:
        layer = self.module
        inner = F.dropout(x, self.dropout) if self.dropout and layer.training else x
        inner = F.linear(F.linear(inner, layer.lora_a), layer.lora_b)
        return F.linear(x, layer.weight, layer.bias) + inner * self.scale

    def change(self) -> Tensor:
        """Return the update (out, in) that the adapter adds to the weights, in fp32."""
        return self.module.lora_b.float() @ self.module.lora_a.float() * self.scale

    def effective(self) -> Tensor:
        return (self.module.weight.float() + self.change()).to(self.module.weight.dtype)


class Adapter(NamedTuple):
    """The adapter of one layer."""

    a: Tensor  # (rank, in)
    b: Tensor  # (out, rank)
    scale: float  # of the product b a


def apply(model: M, lora: LoRA, seed: int = 0) -> M:
    """Add adapters to the chosen layers and freeze everything else, except `also`. Undoes `fuse` and `pack`. Changes
    the model in place and returns it."""
    if adapted_layers(model):
        raise ValueError("this model has adapters already: merge them first")
    unfuse(unpack(model))
    linears: dict[str, Any] = {address: module for address, module in model.named_modules() if is_plain(module)}
    chosen = _select(linears, lora.targets, "linear layer")
    for address in chosen:
        if model.spec.shares(address):
            raise ValueError(f"LoRA: {address} shares its weights with another layer and cannot have an adapter")
    parameters = dict(model.named_parameters(remove_duplicate=False))
    if lora.fresh:  # by name, so that the saved LoRA lists them
        lora = lora.replace(also=(*lora.also, *sorted(name for name in model.fresh if name in parameters)))
    others = _select(parameters, lora.also, "parameter")
    adapters = {}
    for address in chosen:
        weight = linears[address].weight
        a, b = weight.new_empty(lora.rank, weight.shape[1]), weight.new_empty(weight.shape[0], lora.rank)
        adapters[address] = Adapter(a, b, lora.alpha / lora.rank)
    adopt(model, lora, adapters, others)
    if model.device.type != "meta":
        initialise(model, STARTS, seed, only={f"{address}.{name}" for address in chosen for name in NAMES})
    return model


def adopt(model: TransformerModule, lora: LoRA, adapters: Mapping[str, Adapter], others: list[str]) -> None:
    """Attach adapters to the layers at their addresses, and freeze everything except them and `others`."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    model.__dict__["_frozen"] = [name for name, parameter in parameters.items() if parameter.requires_grad]
    for parameter in parameters.values():
        parameter.requires_grad_(False)
    for name in others:
        parameters[name].requires_grad_(True)
    for address, (a, b, scale) in adapters.items():
        module: Any = model.get_submodule(address)
        _attach(module, a.to(module.weight), b.to(module.weight), scale, lora.dropout)
    model.__dict__["_lora"] = lora


def _attach(module: Any, a: Tensor, b: Tensor, scale: float, dropout: float) -> AdaptedForward:
    module.lora_a, module.lora_b = nn.Parameter(a), nn.Parameter(b)
    forward = AdaptedForward(module, scale, dropout)
    forward.install()
    return forward


def _select(known: dict[str, Any], patterns: tuple[str, ...], what: str) -> list[str]:
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(name, pattern) for name in known):
            raise ValueError(f"LoRA: no {what} matches {quote(pattern)}; {nearest(pattern, known)}")
    return [name for name in known if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]


def adapted_layers(model: nn.Module) -> dict[str, Any]:
    """Return the layers with an adapter, by address."""
    return {address: module for address, module in model.named_modules() if isinstance(module.forward, AdaptedForward)}


# -- merging -----------------------------------------------------------------------------------------------------------


@torch.no_grad()
def merge(model: M) -> M:
    """Add the adapters to the weights. The plain model can be fused, packed, quantized or fully trained."""
    layers = adapted_layers(model)
    if not layers:
        raise ValueError("this model has no adapters")
    for module in layers.values():
        forward: AdaptedForward = module.forward
        module.weight.copy_(forward.effective())
        kept = module.lora_a, module.lora_b, forward.scale, forward.dropout
        for name in NAMES:
            delattr(module, name)
        forward.remove()
        module.__dict__["_merged"] = kept  # for `unmerge`; not a parameter
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for name in model.__dict__.pop("_frozen"):
        parameters[name].requires_grad_(True)
    return model


@torch.no_grad()
def unmerge(model: M) -> M:
    """Undo `merge`. The weights are restored up to rounding."""
    unfuse(unpack(model))
    layers: dict[str, Any] = {a: m for a, m in model.named_modules() if "_merged" in m.__dict__}
    if not layers:
        raise ValueError("this model has no merged adapters")
    parameters = dict(model.named_parameters(remove_duplicate=False))
    model.__dict__["_frozen"] = [name for name, parameter in parameters.items() if parameter.requires_grad]
    also = model.__dict__["_lora"].also
    for name, parameter in parameters.items():
        parameter.requires_grad_(any(fnmatch.fnmatchcase(name, pattern) for pattern in also))
    for module in layers.values():
        a, b, scale, dropout = module.__dict__.pop("_merged")
        forward = _attach(module, a.to(module.weight.device), b.to(module.weight.device), scale, dropout)
        module.weight.copy_(module.weight.float() - forward.change())
    return model
