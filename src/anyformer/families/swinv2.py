"""Swin V2 [Liu et al. 2022]: cosines for products, norms at the end of each branch, and a bias that an MLP computes, so
that models grow and windows change their size after pretraining."""

from __future__ import annotations

from typing import Any

from anyformer.families import swin
from anyformer.families.base.family import Family
from anyformer.families.base.fields import ConfigField, Field, Fixed
from anyformer.families.shared.vision import pair
from anyformer.models import Model
from anyformer.parts.attention.attention import Attention, LearnedScale
from anyformer.parts.grid.merge import Merge
from anyformer.parts.grid.windows import ContinuousGridBias, Windows
from anyformer.parts.norm import LayerNorm, UnitNorm
from anyformer.stacks.block import Block
from anyformer.stacks.sublayer import Sublayer
from anyformer.weights.rules import Rename, Rule


def windows(spec: Any) -> int:
    """A stage whose grid is smaller has smaller ones."""
    return max(stage.layer(0).steps["attention"].op.size for stage in spec.encoder.stages)


def learned(spec: Any) -> tuple[int, ...]:
    positions: list[Any] = [mixer.position for mixer in swin.mixers(spec)]
    return tuple(position.learned for position in positions)


FIELDS: dict[str, ConfigField] = {
    **swin.FIELDS,
    "window_size": Field(7, windows),
    "pretrained_window_sizes": Field((0, 0, 0, 0), learned),
    "qkv_bias": Field(True, lambda spec: swin.mixers(spec)[0].bias == "qvo"),
    "use_absolute_embeddings": Fixed(False, "the published class has one position more than tokens and cannot run"),
}


def describe(c: Any) -> Model:
    swin.check(c)
    norm, before = LayerNorm(eps=c.layer_norm_eps), c.pretrained_window_sizes
    if len(before) < len(c.depths):
        raise ValueError(f"pretrained_window_sizes {before} is shorter than depths {c.depths}")
    rows = pair(c.image_size)[0] // pair(c.patch_size)[0]

    def block(i: int, shifted: bool) -> Block:
        size = min(rows // 2**i, c.window_size)
        if size < 1:
            raise ValueError(f"image_size {c.image_size} leaves no patches for stage {i}")
        mixer = Attention(
            num_heads=c.num_heads[i], bias="qvo" if c.qkv_bias else "o", dropout=c.attention_probs_dropout_prob,
            qk_norm=UnitNorm(), learned_scale=LearnedScale(),
            position=ContinuousGridBias(num_heads=c.num_heads[i], size=size, learned=before[i]),
        )  # fmt: skip
        shift = c.window_size // 2 if shifted and rows // 2**i > size else 0
        op = Windows(mixer=mixer, size=size, shift=shift, fixed=True)
        drops = (c.attention_probs_dropout_prob, c.hidden_dropout_prob)
        attention, feedforward = (
            Sublayer(op=each, post_norm=norm, dropout=dropout, drop_path=c.drop_path_rate)
            for each, dropout in zip((op, swin.mlp(c, i)), drops, strict=True)
        )
        return Block(attention=attention, feedforward=feedforward)

    return swin.model(c, block, Merge(post_norm=LayerNorm()))


def rules(spec: Any) -> list[Rule]:
    block, ours = "~encoder.layers.{s}.blocks.{i}", "encoder.stages.{s}.layers.{i}"
    attention, mixer = f"{block}.attention.self", f"{ours}.attention.op.mixer"
    return [
        Rename(f"{attention}.logit_scale", f"{mixer}.learned_scale.weight"),
        Rename(f"{attention}.continuous_position_bias_mlp.0.{{p}}", f"{mixer}.position.up.{{p}}"),
        Rename(f"{attention}.continuous_position_bias_mlp.2.{{p}}", f"{mixer}.position.down.{{p}}"),
        Rename(f"{block}.layernorm_before.{{p}}", f"{ours}.attention.post_norm.{{p}}"),
        Rename(f"{block}.layernorm_after.{{p}}", f"{ours}.feedforward.post_norm.{{p}}"),
        Rename("~encoder.layers.{s}.downsample.norm.{p}", "encoder.down.{s}.post_norm.{p}"),
        *swin.rules(spec),
    ]


LARGER = {"image_size": 256, "window_size": 8}

FAMILIES = (
    Family(
        name="swinv2",
        about="Swin with cosine attention and computed positions",
        fields=FIELDS,
        describe=describe,
        rules=rules,
        architectures=("Swinv2ForImageClassification", "Swinv2Model", "Swinv2ForMaskedImageModeling"),
        base=("Swinv2Model",),
        prefix="swinv2.",
        aliases={"num_attention_heads": "num_heads", "num_hidden_layers": "num_layers"},
        # tables that old files hold and every class computes
        dropped=tuple(
            f"~encoder.layers.{{s}}.blocks.{{i}}.attention.self.{name}"
            for name in ("relative_position_index", "relative_coords_table")
        ),
        sizes={
            "swinv2-tiny": swin.size(96, 6, 3, 28e6, **LARGER),
            "swinv2-small": swin.size(96, 18, 3, 50e6, **LARGER),
            "swinv2-base": swin.size(128, 18, 4, 88e6, **LARGER),
            "swinv2-large": swin.size(192, 18, 6, 197e6, image_size=192, window_size=12),
        },
    ),
)
