"""The lectures' table of configurations: placement of norms, kind of norm, activation, positions. Every cell is the
description of a decoder.

>>> spec = cell("sandwich", "RMSNorm", "SwiGLU", "RoPE")
>>> spec.decoder.layers.steps["attention"].post_norm
RMSNorm()
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from typing import Any

from anyformer.models import DecoderModel
from anyformer.parts.activation import Activation
from anyformer.parts.attention.attention import Attention
from anyformer.parts.embedding.text import TextEmbedding, Tokens
from anyformer.parts.feedforward.mlp import MLP, GatedMLP
from anyformer.parts.head.language import LMHead
from anyformer.parts.init import Initializer, Normal
from anyformer.parts.init import deepnorm as deepnorm_start
from anyformer.parts.mask import Causal
from anyformer.parts.norm import LayerNorm, Norm, RMSNorm
from anyformer.parts.position.absolute import Sinusoidal
from anyformer.parts.position.bias import Alibi, BucketedBias
from anyformer.parts.position.rotary import Rope
from anyformer.parts.residual import ADD, Scaled, deepnorm
from anyformer.specs.messages import nearest
from anyformer.stacks.block import Block
from anyformer.stacks.stack import Stack
from anyformer.stacks.sublayer import Sublayer

# slots of a residual step that contain a norm; except for post-norm, there is one more norm before the head
PLACEMENTS = {"post": ("out_norm",), "pre": ("pre_norm",), "sandwich": ("pre_norm", "post_norm")}
NORMS: dict[str, Norm] = {"LayerNorm": LayerNorm(), "RMSNorm": RMSNorm(), "DeepNorm": LayerNorm()}
PLAIN: dict[str, Activation] = {
    "ReLU": "relu",
    "GeLU": "gelu_tanh",
    "Swish": "silu",
    "ELU": "elu",
    "SeLU": "selu",
    "Sigmoid": "sigmoid",
    "Softplus": "softplus",
}
GATED: dict[str, Activation] = {
    "GLU": "sigmoid",
    "GeGLU": "gelu_tanh",
    "ReGLU": "relu",
    "SwiGLU": "silu",
    "LiGLU": "identity",
}
ACTIVATIONS = (*PLAIN, *GATED)
POSITIONS = ("absolute", "relative", "RoPE", "ALiBi")
COLUMNS: dict[str, Collection[str]] = {
    "placement": PLACEMENTS,
    "norm": NORMS,
    "activation": ACTIVATIONS,
    "positions": POSITIONS,
}


def cells() -> Iterator[tuple[str, str, str, str]]:
    """Yield (placement, norm, activation, positions) of every cell."""
    yield from itertools.product(PLACEMENTS, NORMS, ACTIVATIONS, POSITIONS)


def cell(
    placement: str,
    norm: str,
    activation: str,
    positions: str,
    *,
    width: int = 64,
    heads: int = 4,
    depth: int = 2,
    vocabulary: int = 256,
    length: int = 128,
) -> DecoderModel:
    """Return the description of one cell. DeepNorm is LayerNorm with a scaled skip connection and a smaller
    initialization [Wang et al. 2022]. It was published as post-norm; here it can have any placement."""
    for (column, known), name in zip(COLUMNS.items(), (placement, norm, activation, positions), strict=True):
        if name not in known:
            raise ValueError(f"no {column} {name!r}; {nearest(name, known)}")
    alpha, beta = deepnorm(decoder=depth)["decoder"]
    deep, start = norm == "DeepNorm", {"*": Normal(std=0.02)}
    slots: dict[str, Any] = dict.fromkeys(PLACEMENTS[placement], NORMS[norm])
    slots["residual"] = Scaled(skip=alpha) if deep else ADD

    relative = {"relative": BucketedBias(num_heads=heads, both_ways=False), "ALiBi": Alibi(num_heads=heads)}
    mixer = Attention(num_heads=heads, mask=Causal(), position=Rope() if positions == "RoPE" else None)
    inner = 4 * width
    feed: MLP | GatedMLP = (
        MLP(width=inner, activation=PLAIN[activation])
        if activation in PLAIN
        else GatedMLP(width=inner * 2 // 3, activation=GATED[activation])
    )
    layers = Block(attention=Sublayer(op=mixer, **slots), feedforward=Sublayer(op=feed, **slots))
    before = Sinusoidal(length=length) if positions == "absolute" else None
    rules: dict[str, Initializer] = {**(deepnorm_start(decoder=beta) if deep else {}), **start}
    return DecoderModel(
        width=width,
        length=length,
        embedding=TextEmbedding(tokens=Tokens(vocab_size=vocabulary), position=before),
        decoder=Stack(
            layers=layers,
            depth=depth,
            position=relative.get(positions),
            norm=None if placement == "post" else NORMS[norm],
        ),
        head=LMHead(vocab_size=vocabulary),
        init=rules,
        ties=(("head.out.weight", "embedding.tokens.weight"),),
    )
