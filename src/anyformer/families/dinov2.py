"""DINOv2 [Oquab et al. 2023]: a ViT trained without labels, with LayerScale and positions that fit every image size."""

from __future__ import annotations

from anyformer.families.base.family import Size
from anyformer.families.base.fields import Ignored
from anyformer.families.base.template import Class, Config, Entry, activation, entry, parameter, rules_of, split
from anyformer.families.shared.backbone import FIELDS, backbone_class
from anyformer.families.shared.vision import BACKBONE
from anyformer.families.vit import INNER, LAYER, VIT, WEIGHTS
from anyformer.parts import (
    Attention, Block, ClassAndPatchesHead, GatedMLP, LayerNorm, LayerScale, MLP, Model, Pool, PooledOutput,
    ResizedLearned,
)  # fmt: skip
from anyformer.specs.addresses import edit, value_at
from anyformer.stacks.constant_drop import ConstantDropSublayer as Sublayer
from anyformer.weights.rules import Rule

THEIRS, STEPS, OP = "~encoder.layer.{i}", f"{LAYER}.{{attention,feedforward}}", f"{LAYER}.feedforward.op"
NORM, SCALE, FIRST = LayerNorm(eps=1e-6), LayerScale(start=1.0), Pool()
LAYERS = Block(
    attention=Sublayer(pre_norm=NORM, op=Attention(num_heads=12, bias="qkvo"), residual=SCALE),
    feedforward=Sublayer(pre_norm=NORM, op=MLP(width=3072, activation="gelu"), residual=SCALE),
)


def inner_width(width: int, ratio: float, gated: bool) -> int:
    """With a gate: two thirds, rounded up to a multiple of 8."""
    return (int(int(width * ratio) * 2 / 3) + 7) // 8 * 8 if gated else int(width * ratio)


def build_feedforward(spec: Model, gated: bool, c: Config) -> Model:
    width = inner_width(c.hidden_size, c.mlp_ratio, gated)
    return edit(spec, {INNER: GatedMLP(width=width, bias=True)} if gated else {f"{INNER}.width": width})


def is_gated(spec: Model) -> bool:
    return isinstance(value_at(spec, INNER), GatedMLP)


def mlp_ratio(spec: Model) -> float:
    """Return an integer, as published, if one gives this inner width."""
    width, gated = value_at(spec, INNER).width, is_gated(spec)
    ratio = width / spec.width * (1.5 if gated else 1)
    return next((n for n in (round(ratio), int(ratio)) if inner_width(spec.width, n, gated) == width), ratio)


def feedforward(theirs: str, spec: Model) -> list[Rule]:
    gated = {f"{theirs}.weights_in": split(f"{OP}.{{gate,up}}"), f"{theirs}.weights_out": f"{OP}.down"}
    return [*rules_of(gated if is_gated(spec) else {f"{theirs}.{{fc1,fc2}}": f"{OP}.{{up,down}}"}, spec)]


def size(width: int, depth: int, published: float, gated: bool = False) -> Size:
    sizes = {"hidden_size": width, "num_hidden_layers": depth, "num_attention_heads": width // 64}
    return Size({**sizes, "use_swiglu_ffn": gated, "image_size": 518, "patch_size": 14}, published)


VIT_ONLY = ("layernorm_before", "layernorm_after", "intermediate.dense", "{i}.output.dense", "pooler.dense")
DINOV2 = VIT.but(
    "dinov2",
    about="image encoders trained without labels",
    changes={"embedding.patch_size": (14, 14), "embedding.mask_token": True, "encoder.layers": LAYERS,
             "embedding.position": ResizedLearned(length=256, offset=1), "encoder.norm": NORM},
    classes={
        "Dinov2Model": Class(PooledOutput(pool=FIRST), prefix=""),
        "Dinov2Backbone": backbone_class(NORM, width=768, depth=12),
        "Dinov2ForImageClassification": Class(ClassAndPatchesHead(num_labels=2, pool=FIRST), "classifier"),
    },
    config={
        "mlp_ratio": entry(path=mlp_ratio),
        "hidden_act": activation(f"{INNER}[MLP].activation"),
        "use_swiglu_ffn": Entry(False, is_gated, build=build_feedforward),
        "hidden_dropout_prob": "embedding.dropout", "use_mask_token": "embedding.mask_token",
        "drop_path_rate": "encoder.layers.*.drop_path",
        "layerscale_value": "encoder.layers.*.residual.start",
        "tie_last_hidden_states": Ignored(None, "hidden states are the encoder's, before the norm"),
        **BACKBONE, **FIELDS,
        **dict.fromkeys(("intermediate_size", "encoder_stride", "pooler_output_size", "pooler_act", "has_pooler")),
    },
    weights={
        "~embeddings.mask_token": parameter("embedding.mask_token", (1, -1)),
        f"{THEIRS}.{{norm1,norm2}}": f"{STEPS}.pre_norm",
        f"{THEIRS}.{{layer_scale1,layer_scale2}}.lambda1": parameter(f"{STEPS}.residual.weight"),
        f"{THEIRS}.mlp": feedforward,
        **dict.fromkeys(name for name in WEIGHTS if name.endswith(VIT_ONLY)),
    },
    prefix="dinov2.", dropped=(), absent={}, pictures="Bit",
    sizes={"dinov2-small": size(384, 12, 22.1e6), "dinov2-base": size(768, 12, 86.6e6),
           "dinov2-large": size(1024, 24, 304e6), "dinov2-giant": size(1536, 40, 1.14e9, gated=True)},
)  # fmt: skip
