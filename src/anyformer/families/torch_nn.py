"""Conversion of torch.nn.Transformer, its stacks and its layers to a model and back.

    model = torch_nn.load(torch.nn.Transformer(norm_first=True))
    out = model(inputs_embeds=source, decoder_inputs_embeds=target)  # (batch, tokens, width), regardless of batch_first
    module.load_state_dict(torch_nn.export(model))

This family is not in the catalogue, as torch.nn has no config files. A loaded model saves and trains like any other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from anyformer.parts import (
    Attention, Block, Causal, DecoderModel, EncoderDecoderModel, EncoderModel, Initializer, LayerNorm, MLP, Model,
    Stack, Sublayer, Uniform, Vectors, Xavier,
)  # fmt: skip
from anyformer.models.base import TransformerModule
from anyformer.models.construct import skeleton
from anyformer.parts.activation import ACTIVATIONS
from anyformer.parts.mask import FULL
from anyformer.specs.messages import quote
from anyformer.weights.filling import fill
from anyformer.weights.rules import Matched, Rename, Rule, Split, plan

MODULES = {"ReLU": "relu", "GELU": "gelu", "SiLU": "silu", "Tanh": "tanh", "ELU": "elu", "Mish": "mish"}


def describe(module: nn.Module, *, causal: bool = True) -> Model:
    """Return the description of a torch.nn.Transformer, TransformerEncoder, TransformerDecoder or one of their layers.
    In torch.nn the mask of each call makes a decoder causal; here `causal` does."""
    mask = Causal() if causal else FULL
    match module:
        case nn.Transformer():
            encoder, decoder = stack(module.encoder, FULL), stack(module.decoder, mask)
            model: Any = EncoderDecoderModel
            stacks = {"encoder": encoder, "decoder": decoder, "decoder_embedding": Vectors()}
        case nn.TransformerEncoder() | nn.TransformerEncoderLayer():
            model, stacks = EncoderModel, {"encoder": stack(module, FULL)}
        case nn.TransformerDecoder() | nn.TransformerDecoderLayer():
            model, stacks = DecoderModel, {"decoder": stack(module, mask)}
        case _:
            raise ValueError(f"expected a torch.nn.Transformer, or a stack or layer of it, got {type(module).__name__}")
    width = next(m.embed_dim for m in module.modules() if isinstance(m, nn.MultiheadAttention))
    name = type(module).__name__
    return model(width=width, embedding=Vectors(), **stacks, init=init(module, width), architecture=name)


def stack(module: Any, mask: Any) -> Stack:
    whole = isinstance(module, (nn.TransformerEncoder, nn.TransformerDecoder))
    layers = list(module.layers) if whole else [module]
    blocks = [block(layer, mask) for layer in layers]
    if not blocks or any(other != blocks[0] for other in blocks):
        raise ValueError("all layers of the module must have the same structure")
    norm = module.norm if whole else None
    return Stack(layers=blocks[0], depth=len(blocks), norm=None if norm is None else layer_norm(norm))


def block(layer: Any, mask: Any) -> Block:
    crosses = isinstance(layer, nn.TransformerDecoderLayer)
    names = ["attention", "cross", "feedforward"] if crosses else ["attention", "feedforward"]
    ops: dict[str, Any] = {
        "attention": attention(layer.self_attn, mask=mask),
        "cross": attention(layer.multihead_attn, memory=True) if "cross" in names else None,
        "feedforward": MLP(
            width=layer.linear1.out_features,
            activation=activation(layer.activation),
            bias=layer.linear1.bias is not None,
            dropout=layer.dropout.p,
        ),
    }
    steps = {}
    for n, name in enumerate(names, 1):
        norm, dropout = layer_norm(layer.get_submodule(f"norm{n}")), layer.get_submodule(f"dropout{n}").p
        before, after = (norm, None) if layer.norm_first else (None, norm)
        steps[name] = Sublayer(op=ops[name], pre_norm=before, out_norm=after, dropout=dropout)
    return Block(**steps)


def attention(module: nn.MultiheadAttention, **kind: Any) -> Attention:
    if not module._qkv_same_embed_dim or module.bias_k is not None or module.add_zero_attn:
        raise ValueError("MultiheadAttention with kdim, vdim, add_bias_kv or add_zero_attn is not supported")
    bias = "" if module.in_proj_bias is None else "qkvo"
    return Attention(num_heads=module.num_heads, bias=bias, dropout=module.dropout, **kind)


def activation(function: Callable[[Tensor], Tensor]) -> Any:
    for name, known in ACTIVATIONS.items():
        if known is function:
            return name
    kind = "relu" if function is torch.relu else MODULES.get(type(function).__name__)
    if kind is None:
        raise ValueError(f"activation {quote(function)} is not supported; valid: {', '.join(MODULES)}")
    return "gelu_tanh" if isinstance(function, nn.GELU) and function.approximate == "tanh" else kind


def layer_norm(norm: Any) -> LayerNorm:
    if not isinstance(norm, nn.LayerNorm) or norm.weight is None:
        raise ValueError(f"expected a LayerNorm with weights, got {quote(norm)}")
    return LayerNorm(eps=norm.eps, bias=norm.bias is not None)


def init(module: nn.Module, width: int) -> dict[str, Initializer]:
    """Return torch's initialisers. nn.Transformer uses Xavier for every matrix; separate stacks and layers keep
    nn.Linear's default. In both, q, k and v are one matrix (3 D, D) and feed-forward biases are not zero."""
    layers = (m for m in module.modules() if isinstance(m, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer))
    inner = next(layers).linear1.out_features
    of_width, of_inner = (Uniform(low=-(n**-0.5), high=n**-0.5) for n in (width, inner))
    rules: dict[str, Initializer] = {
        "*.op.[qkv].weight": Xavier(gain=2**-0.5),
        "*.up.bias": of_width,
        "*.down.bias": of_inner,
    }
    if isinstance(module, nn.Transformer):
        return {**rules, "*": Xavier()}
    return {**rules, "*.down.weight": of_inner, "*": of_width}


def rules(spec: Model) -> list[Rule]:
    result: list[Rule] = []
    for side in (name for name in ("encoder", "decoder") if hasattr(spec, name)):
        theirs = f"{side}." if spec.architecture == "Transformer" else ""
        layer, mine = f"{theirs}layers.{{i}}.", f"{side}.layers.{{i}}"
        if spec.architecture.endswith("Layer"):
            layer, mine = "", f"{side}.layers.0"
        steps = getattr(spec, side).layers.steps
        for n, (name, step) in enumerate(steps.items(), 1):
            slot = "pre_norm" if step.pre_norm else "out_norm"
            result.append(Rename(f"{layer}norm{n}.{{p}}", f"{mine}.{name}.{slot}.{{p}}"))
        for name, source in (("attention", "self_attn"), ("cross", "multihead_attn")):
            for p in ("weight", "bias"):
                result.append(Split(f"{layer}{source}.in_proj_{p}", [f"{mine}.{name}.op.{q}.{p}" for q in "qkv"]))
            result.append(Rename(f"{layer}{source}.out_proj.{{p}}", f"{mine}.{name}.op.o.{{p}}"))
        for source, name in (("linear1", "up"), ("linear2", "down")):
            result.append(Rename(f"{layer}{source}.{{p}}", f"{mine}.feedforward.op.{name}.{{p}}"))
        result.append(Rename(f"{theirs}norm.{{p}}", f"{side}.norm.{{p}}"))
    return result


def load(module: nn.Module, *, causal: bool = True) -> Any:
    """Return a model with a copy of the module's weights, in eval mode."""
    model = skeleton(describe(module, causal=causal))

    def match(spec: Model, stored: list[str], targets: list[str]) -> Matched:
        steps, orphans = plan(rules(spec), targets)
        assert not orphans, f"no rule for {orphans}"
        return Matched({name: name for name in stored}, steps, [])

    fill(model, ModuleWeights(module), match, next(module.parameters()).dtype, strict=True)
    return model.eval()


class ModuleWeights:
    """A module's state_dict with the interface of a checkpoint."""

    def __init__(self, module: nn.Module) -> None:
        self.state, self.folder = module.state_dict(), type(module).__name__
        self.names = list(self.state)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.state[name].shape)

    def read(self, name: str) -> Tensor:
        return self.state[name].detach().clone()


def export(model: TransformerModule) -> dict[str, Tensor]:
    """Return a state_dict for the kind of torch.nn module that the model was loaded from."""
    ours = model.state_dict()
    steps, orphans = plan(rules(model.spec), ours)
    if orphans:
        raise ValueError(f"torch.nn.{model.spec.architecture or 'Transformer'} cannot contain {', '.join(orphans)}")
    return {
        name: tensor
        for step in steps
        for name, tensor in zip(step.sources, step.rule.save([ours[target] for target in step.targets]), strict=True)
    }
