"""Swin V2 [Liu et al. 2022]: cosine attention, norms at the end of each branch, and a position bias computed by an MLP,
so that models can grow and window sizes can change after pretraining."""

from __future__ import annotations

from typing import Any

from anyformer.families.base.fields import Fixed
from anyformer.families.base.template import Config, choice, entry
from anyformer.families.shared.vision import pair
from anyformer.families.swin import LAYERS, MIXER, NORM, OURS, SWIN, THEIRS, WINDOWS, mixers, size
from anyformer.parts import ContinuousGridBias, LayerNorm, LearnedScale, Merge, Model, UnitNorm
from anyformer.specs.addresses import edit, value_at
from anyformer.weights.rules import Rename


def check_windows(c: Config) -> None:
    if len(c.pretrained_window_sizes) < len(c.depths):
        raise ValueError(f"pretrained_window_sizes {c.pretrained_window_sizes} is shorter than depths {c.depths}")


def build_windows(spec: Model, window: int, c: Config) -> Model:
    """Set the windows. If a stage's grid is smaller than a window, its window is the grid and is not shifted."""
    rows = pair(c.image_size)[0] // pair(c.patch_size)[0]
    changes: dict[str, Any] = {}
    for i in range(len(c.depths)):
        if (width := min(rows // 2**i, window)) < 1:
            raise ValueError(f"image_size {c.image_size} is too small: stage {i} has no patches")
        op = f"encoder.stages.{i}.layers.attention.op"
        changes |= {
            f"{op}.size": width,
            f"{op}.mixer.position.size": width,
            f"{op}.mixer.position.learned": c.pretrained_window_sizes[i],
            f"encoder.stages.{i}.layers.shifted.attention.op.shift": window // 2 if rows // 2**i > width else 0,
        }
    return edit(spec, changes)


def window_size(spec: Model) -> int:
    return max(stage.layer(0).steps["attention"].op.size for stage in value_at(spec, "encoder.stages"))


def pretrained_window_sizes(spec: Model) -> list[int]:
    positions: list[Any] = [mixer.position for mixer in mixers(spec)]
    return [position.learned for position in positions]


LARGER = {"image_size": 256, "window_size": 8}

SWINV2 = SWIN.but(
    "swinv2",
    about="Swin with cosine attention and a computed position bias",
    changes={
        f"{LAYERS}.*.pre_norm": None,
        f"{LAYERS}.*.post_norm": NORM,
        f"{LAYERS}.feedforward.drop_path": 0.1,
        f"{WINDOWS}.fixed": True,
        "encoder.stages.3.layers.shifted.attention.op.shift": 0,  # its grid is a single window
        f"{MIXER}.bias": "qvo",
        f"{MIXER}.qk_norm": UnitNorm(),
        f"{MIXER}.scale": 1.0,
        f"{MIXER}.scores": (LearnedScale(),),
        **{
            f"encoder.stages.{i}.layers.attention.op.mixer.position": ContinuousGridBias(num_heads=heads, size=7)
            for i, heads in enumerate((3, 6, 12, 24))
        },
        "encoder.down": (Merge(post_norm=LayerNorm()),) * 3,
    },
    classes={name.replace("Swin", "Swinv2"): each for name, each in SWIN.classes.items()},
    config={
        "window_size": entry(path=window_size, build=build_windows),
        "pretrained_window_sizes": entry(path=pretrained_window_sizes),
        "qkv_bias": choice(f"{MIXER}.bias", {True: "qvo", False: "o"}),
        "hidden_dropout_prob": ("embedding.dropout", f"{LAYERS}.feedforward.dropout"),
        "attention_probs_dropout_prob": (f"{MIXER}.dropout", f"{LAYERS}.attention.dropout"),
        "drop_path_rate": f"{LAYERS}.*.drop_path",
        "layer_norm_eps": ("encoder.norm.eps", f"{LAYERS}.*.post_norm.eps"),
        "use_absolute_embeddings": Fixed(False, "the published class fails: it has one position more than tokens"),
    },
    computed={},
    weights={
        f"{THEIRS}.layernorm_before": f"{OURS}.attention.post_norm",
        f"{THEIRS}.attention.self.relative_position_bias_table": None,
        f"{THEIRS}.attention.self.logit_scale": lambda theirs, spec: [
            Rename(theirs, f"{OURS}.attention.op.mixer.scores.0.weight")
        ],
        f"{THEIRS}.attention.self.continuous_position_bias_mlp.{{0,2}}": (
            f"{OURS}.attention.op.mixer.position.{{up,down}}"
        ),
        f"{THEIRS}.layernorm_after": f"{OURS}.feedforward.post_norm",
        "~encoder.layers.{s}.downsample.norm": "encoder.down.{s}.post_norm",
    },
    prefix="swinv2.",
    checks=(*SWIN.checks, check_windows),
    # tables in old files that every class computes
    dropped=(*SWIN.dropped, f"{THEIRS}.attention.self.relative_coords_table"),
    sizes={
        "swinv2-tiny": size(96, 6, 3, 28e6, **LARGER),
        "swinv2-small": size(96, 18, 3, 50e6, **LARGER),
        "swinv2-base": size(128, 18, 4, 88e6, **LARGER),
        "swinv2-large": size(192, 18, 6, 197e6, image_size=192, window_size=12),
    },
)
