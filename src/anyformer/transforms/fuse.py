"""Fused projections by address: q, k, v of attention in one product, gate and up of a gated feed-forward in one.

    fuse(model)                                       # every attention and gated feed-forward of any family
    fuse(model, "decoder.layers.*.attention.op")      # some of them
    fuse(model, training=True)                        # for calls with gradients, instead of calls without

Outputs and the addresses of parameters do not change; saving, loading in place and `.to()` still work. `unfuse` undoes
it.
"""

from __future__ import annotations

import fnmatch
from typing import Any, TypeVar

from torch import nn

from anyformer.kernels.gelu import gelu_tanh
from anyformer.parts.attention.attention import AttentionModule
from anyformer.parts.feedforward.mlp import GatedMLPModule, MLPModule
from anyformer.parts.forward_override import is_plain
from anyformer.parts.fused_linear import Concatenable, Joined, JoinedInTraining, LinearThenGELU
from anyformer.specs.messages import nearest, quote

M = TypeVar("M", bound=nn.Module)

# module -> attribute of the fused layer, attributes of the layers that it fuses
SITES: dict[type, tuple[str, tuple[str, ...]]] = {
    AttentionModule: ("qkv", ("q", "k", "v")),
    GatedMLPModule: ("gate_up", ("gate", "up")),
}


def fuse(model: M, pattern: str = "*", *, training: bool = False) -> M:
    """Fuse the projections of every module whose address matches `pattern`. Changes the model and returns it."""
    kind = JoinedInTraining if training else Joined
    candidates = list(sites(model))
    chosen = [site for site in candidates if fnmatch.fnmatchcase(site[0], pattern)]
    if not chosen and pattern != "*":
        known = dict.fromkeys(address for address, *_ in candidates)
        raise ValueError(f"no attention or gated feed-forward matches {quote(pattern)}; {nearest(pattern, known)}")
    for _, module, name, parts in chosen:
        layers = [getattr(module, part) for part in parts]
        able = joinable(layers) and (is_plain(layers[0]) or not training)
        if able and type(getattr(module, name)) is not kind:
            setattr(module, name, kind(*layers))
    for address, module in list(model.named_modules()) if training else ():
        if isinstance(module, MLPModule) and module.activation is gelu_tanh and fnmatch.fnmatchcase(address, pattern):
            if is_plain(module.up) and module.up.bias is not None:
                module.up_gelu = LinearThenGELU(module.up)
    return model


def unfuse(model: M, pattern: str = "*") -> M:
    """Undo `fuse`: the layers are separate again, and each has its own memory."""
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
    """Yield (address, module, attribute of the fused layer, attributes of its parts) of all modules in SITES."""
    for address, module in model.named_modules():
        for kind, (name, parts) in SITES.items():
            # cross-attention computes its keys and values only once per text: nothing to gain
            if isinstance(module, kind) and not (isinstance(module, AttentionModule) and module.part.memory):
                yield address, module, name, parts


def joinable(layers: list[Any]) -> bool:
    """Whether the layers have the same type, input width, dtype and device. Layers with adapters are not fused."""
    quantized = isinstance(layers[0], Concatenable) and len({type(layer) for layer in layers}) == 1
    return (
        (quantized or all(map(is_plain, layers)))
        and len({(layer.in_features, layer.weight.dtype, layer.weight.device) for layer in layers}) == 1
        and len({tuple(buffer.shape[1:] for buffer in layer.buffers()) for layer in layers}) == 1  # same quantization
    )
