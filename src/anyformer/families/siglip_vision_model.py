"""SigLIP's image encoder [Zhai et al. 2023]: a learned probe attends to the patches; there is no class token.
`siglip.py` compares its vectors with the vectors of texts."""

from __future__ import annotations


from anyformer.families.base.fields import Absent
from anyformer.families.base.template import Class, Config, Entry, activation
from anyformer.families.clip_vision_model import IMAGE as CLIP_IMAGE
from anyformer.families.siglip_text_model import INIT, NORM, TEMPLATE
from anyformer.parts import (
    AttentionPool, ClassifyHead, EncoderModel, Initializer, Learned, MLP, Normal, PatchEmbedding, Pool, PooledOutput,
    Xavier,
)  # fmt: skip
from anyformer.specs.addresses import value_at
from anyformer.weights.rules import Rename, Reshape, Rule, Split

LAYERS, POOL = "encoder.layers", "head.pool.take"
POOLING = AttentionPool(num_heads=12, norm=NORM, feedforward=MLP(width=3072, activation="gelu_tanh"))


def image_init(width: int) -> dict[str, Initializer]:
    projections = {"*.attention.[qkv].weight": Xavier(gain=0.5**0.5)}  # stored as one matrix
    return {"embedding.position.weight": Normal(std=width**-0.5), **projections, **INIT}


def has_pooling(spec: EncoderModel) -> bool:
    """Written only if False. A published class reads the field, but has no default for it."""
    if value_at(spec, "encoder.neck" if isinstance(spec.head, ClassifyHead) else "head") is not None:
        raise Absent
    return False


def build_pooling(spec: EncoderModel, has_head: bool, c: Config) -> EncoderModel:
    return spec if has_head else spec.replace(head=None)


def pooling_rules(theirs: str, spec: EncoderModel) -> list[Rule]:
    ours = "encoder.neck.part" if isinstance(spec.head, ClassifyHead) else POOL
    names = {"attention.out_proj": "attention.o", "layernorm": "norm", "mlp.fc1": "feedforward.up"}
    return [
        Reshape(f"{theirs}.probe", f"{ours}.probe", (1, 1, -1)),
        *(
            Split(f"{theirs}.attention.in_proj_{p}", [f"{ours}.attention.{name}.{p}" for name in "qkv"])
            for p in ("weight", "bias")
        ),
        *(
            Rename(f"{theirs}.{a}.{{p}}", f"{ours}.{b}.{{p}}")
            for a, b in {**names, "mlp.fc2": "feedforward.down"}.items()
        ),
    ]


IMAGE = CLIP_IMAGE.but(
    "siglip_vision_model",
    about="SigLIP's image encoder",
    template=TEMPLATE.replace(
        embedding=PatchEmbedding(image_size=(224, 224), patch_size=(16, 16), pad=False, position=Learned(length=196)),
        init=image_init(768),
    ),
    classes={"SiglipVisionModel": Class(PooledOutput(pool=Pool(take=POOLING)), prefix="")},
    config={
        "intermediate_size": (f"{LAYERS}.feedforward.op.width", f"{POOL}.feedforward.width"),
        "num_attention_heads": (f"{LAYERS}.attention.op.num_heads", f"{POOL}.num_heads"),
        "hidden_act": activation(f"{LAYERS}.feedforward.op.activation", f"{POOL}.feedforward.activation"),
        "layer_norm_eps": (f"{LAYERS}.*.pre_norm.eps", "encoder.norm.eps", f"{POOL}.norm.eps"),
        "vision_use_head": Entry(True, has_pooling, build=build_pooling),
        **dict.fromkeys(("projection_dim", "initializer_factor", "initializer_range", "dropout")),
    },
    computed={
        "embedding.position.length": lambda c: (c.image_size // c.patch_size) ** 2,
        "init": lambda c: image_init(c.hidden_size),
    },
    weights={
        "~head": pooling_rules,
        "~post_layernorm": "encoder.norm",
        **dict.fromkeys(("~embeddings.class_embedding", "~pre_layrnorm", "visual_projection")),
    },
)
