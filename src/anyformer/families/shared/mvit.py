"""Layers and tensor names that the MViTs for videos and for images share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

from anyformer.parts import (
    Block, ClassifyHead, Embedding, EncoderModel, GridPool, Kaiming, LayerNorm, MLP, Model, Normal, NormedShortcut,
    Pool, PooledAttention, Skip, Stack, Sublayer,
)  # fmt: skip
from anyformer.runtime.grid import Sides
from anyformer.specs.addresses import value_at
from anyformer.weights.rules import Rename, Rule, Split

By = Literal["convolution", "max", "mean"]
OUT = "encoder.layers.0.attention"


def pool(kernel: Sequence[int], stride: Sequence[int], by: By, norm: LayerNorm) -> GridPool | None:
    """Return the pooling of queries or keys, or None if kernel and stride are 1."""
    if math.prod(kernel) == 1 and math.prod(stride) == 1:
        return None
    return GridPool(kernel=tuple(kernel), stride=tuple(stride), by=by, norm=norm if by == "convolution" else None)


def block(attention: PooledAttention, mlp: MLP, norm: LayerNorm, dropout: float, drop_path: float) -> Block:
    """Return a layer. If an op widens the stream, the projection of the shortcut reads the normed input."""

    def step(op: PooledAttention | MLP) -> Sublayer:
        kind = Sublayer if op.out is None else NormedShortcut
        return kind(pre_norm=norm, op=op, skip=Skip() if op.reshapes else None, dropout=dropout, drop_path=drop_path)

    return Block(attention=step(attention), feedforward=step(mlp))


def model(width: int, embedding: Embedding, blocks: list[Block], norm: LayerNorm, labels: int, pool: Pool) -> Model:
    kinds: dict[str, Block] = {}
    names = {block: "" for block in blocks}
    for each in names:
        kind = "coarser" if any(math.prod(s.op.stride) > 1 for s in each.steps.values()) else "same"
        kind = "wider" if each.reshapes and kind == "same" else kind
        names[each] = f"{kind}_{sum(name.startswith(kind) for name in kinds)}"
        kinds[names[each]] = each
    return EncoderModel(
        width=width,
        embedding=embedding,
        encoder=Stack(layers=kinds, pattern=tuple(names[each] for each in blocks), depth=len(blocks), norm=norm),
        head=ClassifyHead(num_labels=labels, pool=pool),
        init={"embedding.patch.weight": Kaiming(gain=3**-0.5, normal=False), "*": Normal(std=0.02)},
    )


def per_block(read: Callable[[Any, Any], Any]) -> Callable[[Any], list[Any]]:
    """Return a path function that lists `read(attention, feedforward)` for each layer."""
    return lambda spec: [read(*ops) for ops in layers(spec)]


def layers(spec: Model) -> Iterator[tuple[Any, Any]]:
    encoder: Stack = value_at(spec, "encoder")
    for i in range(encoder.depth):
        steps = encoder.layer(i).steps
        yield steps["attention"].op, steps["feedforward"].op


def channels(spec: Model) -> list[int]:
    """Return the width before each layer and after the last."""
    return value_at(spec, "encoder").widths(spec.width)


def sides(pool: GridPool | None, name: str) -> Sides:
    return () if pool is None else getattr(pool, name)


def block_rules(theirs: str, ours: str, names: dict[str, str]) -> list[Rule]:
    """Rules of a block: names that both libraries use, and the modules `names` of one library."""
    modules = {"norm1": "attention.pre_norm", "norm2": "feedforward.pre_norm", **names}
    tables = {"rel_pos_t": "frames", "rel_pos_h": "rows", "rel_pos_w": "columns"}
    return [
        *[Split(f"{theirs}.attn.qkv.{p}", [f"{ours}.attention.op.{n}.{p}" for n in "qkv"]) for p in ("weight", "bias")],
        *[Rename(f"{theirs}.{a}.{{p}}", f"{ours}.{b}.{{p}}") for a, b in modules.items()],
        *[Rename(f"{theirs}.attn.{a}", f"{ours}.attention.op.position.{b}") for a, b in tables.items()],
    ]


POOLS = {"q": "queries", "k": "keys", "v": "values"}
