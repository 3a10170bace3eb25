"""Fused projections by address: q, k, v of an attention in one product, gate and up of a gated feed-forward in one.

    fuse(model)                                       # every attention and gated feed-forward of any family
    fuse(model, "decoder.layers.*.attention.op")      # some of them
    fuse(model, training=True)                        # while gradients are taken, instead of while they are not

Outputs stay equal, parameters keep their addresses, and saving, loading in place and `.to()` go on as before. `unfuse`
undoes it.
"""

from __future__ import annotations

import fnmatch
from typing import Any

from torch import nn

from anyformer.kernels.gelu import gelu_tanh
from anyformer.parts.attention.attention import AttentionModule
from anyformer.parts.feedforward.mlp import GatedMLPModule, MLPModule
from anyformer.parts.fused_linear import Concatenable, Joined, JoinedInTraining, LinearThenGELU
from anyformer.specs.messages import nearest, quote

# where the joined layer stands, and what it joins
SITES: dict[type, tuple[str, tuple[str, ...]]] = {
    AttentionModule: ("qkv", ("q", "k", "v")),
    GatedMLPModule: ("gate_up", ("gate", "up")),
}


def fuse(model: nn.Module, pattern: str = "*", *, training: bool = False) -> nn.Module:
    """Joins the projections of every module whose address matches `pattern`; the model is changed and returned."""
    kind = JoinedInTraining if training else Joined
    found = list(sites(model))
    chosen = [site for site in found if fnmatch.fnmatchcase(site[0], pattern)]
    if not chosen and pattern != "*":
        known = dict.fromkeys(address for address, *_ in found)
        raise ValueError(f"no attention or gated feed-forward matches {quote(pattern)}; {nearest(pattern, known)}")
    for _, module, name, parts in chosen:
        layers = [getattr(module, part) for part in parts]
        able = joinable(layers) and (type(layers[0]) is nn.Linear or not training)
        if able and type(getattr(module, name)) is not kind:
            setattr(module, name, kind(*layers))
    for address, module in list(model.named_modules()) if training else ():
        if isinstance(module, MLPModule) and module.activation is gelu_tanh and fnmatch.fnmatchcase(address, pattern):
            if type(module.up) is nn.Linear and module.up.bias is not None:
                module.up_gelu = LinearThenGELU(module.up)
    return model


def unfuse(model: nn.Module, pattern: str = "*") -> nn.Module:
    """The layers on their own again, with memory of their own."""
    for address, module, name, parts in sites(model):
        if getattr(module, name) is not None and fnmatch.fnmatchcase(address, pattern):
            setattr(module, name, None)
            for part in parts:
                layer = getattr(module, part)
                for tensor in (*layer.parameters(), *layer.buffers()):
                    tensor.data = tensor.data.clone()
    for address, module in model.named_modules():
        if isinstance(module, MLPModule) and fnmatch.fnmatchcase(address, pattern):
            module.up_gelu = None
    return model


def sites(model: nn.Module) -> Any:
    """(address, module, name of the joined layer, names of its parts) of all that could be joined."""
    for address, module in model.named_modules():
        for kind, (name, parts) in SITES.items():
            # cross-attention reads its keys and values once a text: nothing to gain
            if isinstance(module, kind) and not (isinstance(module, AttentionModule) and module.part.memory):
                yield address, module, name, parts


def joinable(layers: list[Any]) -> bool:
    """Layers of one kind and one input; anything else (an adapter, say) is left alone."""
    kinds = {type(layer) for layer in layers}
    return (
        len(kinds) == 1
        and (kinds == {nn.Linear} or isinstance(layers[0], Concatenable))
        and len({(layer.in_features, layer.weight.dtype, layer.weight.device) for layer in layers}) == 1
        and len({tuple(buffer.shape[1:] for buffer in layer.buffers()) for layer in layers}) == 1  # quantised alike
    )
