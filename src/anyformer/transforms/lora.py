"""Low-rank adapters by address [Hu et al. 2021]: a linear layer's weights stay, a small product is learnt beside them.

    apply(model, LoRA(rank=8))                 # queries and values of every attention; all else stands still
    train(...)
    af.save(model, "adapter", format="peft")   # some hundred kilobytes, see adapters.py; af.load("adapter") opens it
    merge(model)                               # a plain model again, with the adapters in its weights

y = W x + alpha / rank * B A x. A starts at random and B at 0, so that nothing changes at first. The layers keep their
addresses: `af.save` writes a model with live adapters as the plain model that it amounts to, in either format.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.models import TransformerModule
from anyformer.parts.fused_linear import WithAddedWeights
from anyformer.parts.init import Kaiming, Value, initialise
from anyformer.specs.checks import at_least, chance, positive
from anyformer.specs.messages import nearest, quote
from anyformer.specs.part import Part
from anyformer.transforms.fuse import unfuse
from anyformer.transforms.pack import unpack

NAMES = ("lora_a", "lora_b")
# uniform within 1 / sqrt(inputs), as published adapters start
STARTS = {"*.lora_a": Kaiming(gain=1 / math.sqrt(3), normal=False), "*.lora_b": Value(value=0.0)}


class LoRA(Part, called=("low-rank adaptation",)):
    """Which linear layers get an adapter, by patterns of addresses, and how large a one. `also` names parameters that
    are learnt as they are; those that no checkpoint had (a new head) are among them unless `fresh` is off."""

    rank: int = 8
    alpha: float = 16.0
    dropout: float = 0.0  # of what an adapter reads
    targets: tuple[str, ...] = ("*.q", "*.v")
    also: tuple[str, ...] = ()
    fresh: bool = True

    def check(self) -> None:
        at_least(self, 1, "rank")
        positive(self, "alpha")
        chance(self, "dropout")
        if not self.targets:
            raise ValueError("LoRA.targets is empty; an example is '*.q'")


class AdaptedLinear(WithAddedWeights):
    """A linear layer with an adapter: lora_a (rank, in), lora_b (out, rank)."""

    extras: ClassVar[tuple[str, ...]] = NAMES  # what a plain layer does not have
    lora_a: nn.Parameter
    lora_b: nn.Parameter
    scale: float
    dropout: float

    def forward(self, x: Tensor) -> Tensor:
        inner = F.dropout(x, self.dropout) if self.training and self.dropout else x
        inner = F.linear(F.linear(inner, self.lora_a), self.lora_b)
        return F.linear(x, self.weight, self.bias) + inner * self.scale

    def change(self) -> Tensor:
        """(out, in) fp32: what the adapter adds to the weights."""
        return self.lora_b.float() @ self.lora_a.float() * self.scale

    def effective(self) -> Tensor:
        return (self.weight.float() + self.change()).to(self.weight.dtype)


def effective_weight(linear: nn.Linear) -> Tensor:
    """(out, in): the weight of a linear layer with its adapter, if it has one."""
    return linear.effective() if isinstance(linear, AdaptedLinear) else linear.weight


class Adapter(NamedTuple):
    """One layer's: a (rank, in), b (out, rank), and what their product is multiplied by."""

    a: Tensor
    b: Tensor
    scale: float


def apply(model: TransformerModule, lora: LoRA, seed: int = 0) -> Any:
    """Adapters at the chosen layers, and only they (and `also`) are learnt from here on; the model is changed and
    returned. Fused or packed layers are plain again."""
    if adapted_layers(model):
        raise ValueError("this model has adapters already: merge them first")
    unfuse(unpack(model))
    linears = {address: module for address, module in model.named_modules() if type(module) is nn.Linear}
    chosen = _select(linears, lora.targets, "linear layer")
    for address in chosen:
        if model.spec.shares(address):
            raise ValueError(f"LoRA: {address} shares its weights with another layer, which an adapter cannot follow")
    parameters = dict(model.named_parameters(remove_duplicate=False))
    if lora.fresh:  # by name, so that what is saved says what was learnt
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
    """These adapters at their addresses; they and the parameters in `others` alone are learnt from here on."""
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


def _attach(module: Any, a: Tensor, b: Tensor, scale: float, dropout: float) -> None:
    module.__class__ = AdaptedLinear  # the same object at the same address
    module.lora_a, module.lora_b = nn.Parameter(a), nn.Parameter(b)
    module.scale, module.dropout = scale, dropout


def _select(known: dict[str, Any], patterns: tuple[str, ...], what: str) -> list[str]:
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(name, pattern) for name in known):
            raise ValueError(f"LoRA: no {what} matches {quote(pattern)}; {nearest(pattern, known)}")
    return [name for name in known if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]


def adapted_layers(model: nn.Module) -> dict[str, AdaptedLinear]:
    """address -> layer, of those with an adapter."""
    return {address: module for address, module in model.named_modules() if isinstance(module, AdaptedLinear)}


# -- into the weights and out of them ----------------------------------------------------------------------------------


@torch.no_grad()
def merge(model: TransformerModule) -> Any:
    """The adapters go into the weights: a plain model that can be fused, packed, quantised, trained on as a whole."""
    layers = adapted_layers(model)
    if not layers:
        raise ValueError("this model has no adapters")
    for module in layers.values():
        module.weight.copy_(module.effective())
        kept = module.lora_a, module.lora_b, module.scale, module.dropout
        for name in NAMES:
            delattr(module, name)
        module.__dict__["_merged"] = kept  # for `unmerge`; no parameter any more
        module.__class__ = nn.Linear  # type: ignore[assignment]
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for name in model.__dict__.pop("_frozen"):
        parameters[name].requires_grad_(True)
    return model


@torch.no_grad()
def unmerge(model: TransformerModule) -> Any:
    """What `merge` did, undone; the weights come back up to rounding."""
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
        _attach(module, a.to(module.weight.device), b.to(module.weight.device), scale, dropout)
        module.weight.copy_(module.weight.float() - module.change())
    return model
