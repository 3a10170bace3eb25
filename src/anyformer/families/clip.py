"""CLIP [Radford et al. 2021]: a text and an image that belong together have vectors that point the same way.

Each tower is a family of its own too, as published: files of one alone are common.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import GENERATION, Absent, ConfigField, Field, Ignored, activation_at
from anyformer.families.shared.vision import shows_end
from anyformer.models import EncoderModel, Model, TwoTowerModel
from anyformer.parts.activation import activation_named
from anyformer.parts.attention.attention import Attention
from anyformer.parts.embedding.patches import PatchEmbedding
from anyformer.parts.embedding.text import TextEmbedding, Tokens
from anyformer.parts.feedforward.mlp import MLP
from anyformer.parts.head.base import Head
from anyformer.parts.head.classify import ClassifyHead, PooledOutput
from anyformer.parts.head.pool import Pool
from anyformer.parts.head.similarity import ProjectionHead, SimilarityHead
from anyformer.parts.init import Initializer, Normal
from anyformer.parts.norm import LayerNorm
from anyformer.parts.position.absolute import Learned
from anyformer.runtime.mask import FULL, Causal
from anyformer.specs.messages import quote
from anyformer.stacks.block import Block
from anyformer.stacks.stack import Stack
from anyformer.stacks.sublayer import Sublayer
from anyformer.weights.rules import Rename, Reshape, Rule

OP = "encoder.layers.attention.op"
MLP_OP = "encoder.layers.feedforward.op"
OUT = "encoder.layers.*.op.o.weight"  # what starts by the factor alone


def stack(c: Any, mask: Any, norm: LayerNorm | None) -> Stack:
    before = LayerNorm(eps=c.layer_norm_eps)
    if c.num_attention_heads < 1 or c.hidden_size < 1 or c.hidden_size % c.num_attention_heads:
        raise ValueError(f"hidden_size {c.hidden_size} is no multiple of {c.num_attention_heads} attention heads")
    attention = Attention(num_heads=c.num_attention_heads, mask=mask, dropout=c.attention_dropout)
    mlp = MLP(width=c.intermediate_size, activation=activation_named(c.hidden_act))
    block = Block(attention=Sublayer(pre_norm=before, op=attention), feedforward=Sublayer(pre_norm=before, op=mlp))
    shows: Any = "inputs" if c.tie_last_hidden_states else "stream"
    return Stack(layers=block, depth=c.num_hidden_layers, norm=norm, shows=shows)


def init(c: Any, **others: Initializer) -> dict[str, Initializer]:
    """Narrower where many layers add up, as published."""
    width, factor = c.hidden_size**-0.5, c.initializer_factor
    deep = Normal(std=width * max(2 * c.num_hidden_layers, 1) ** -0.5 * factor)
    return {
        **{f"encoder.layers.*.op.{name}.weight": deep for name in ("q", "k", "v", "down")},
        OUT: Normal(std=width * factor),
        "encoder.layers.*.op.up.weight": Normal(std=(2 * c.hidden_size) ** -0.5 * factor),
        "head.*": Normal(std=width * factor),
        **others,
    }


def factor(spec: Any) -> float:
    return short(spec.init[OUT].std * spec.width**0.5)


def short(value: float) -> float:
    """Without the noise of a product and a quotient."""
    return float(f"{value:.12g}")


# -- texts ------------------------------------------------------------------------------------------------------------


def text(c: Any) -> Model:
    """Each token sees those before it, and the one at the end speaks for the text."""
    pool = Pool(take="highest") if c.eos_token_id == 2 else Pool(take="mark", token=c.eos_token_id)
    projected = c.architecture == "CLIPTextModelWithProjection"
    return EncoderModel(
        width=c.hidden_size,
        embedding=TextEmbedding(
            tokens=Tokens(vocab_size=c.vocab_size),
            position=Learned(length=c.max_position_embeddings),
        ),
        encoder=stack(c, Causal(), LayerNorm(eps=c.layer_norm_eps)),
        head=ProjectionHead(pool=pool, width=c.projection_dim) if projected else PooledOutput(pool=pool),
        init=init(c, **{"*": Normal(std=0.02 * c.initializer_factor)}),
    )


def end_of_text(spec: Any) -> int:
    return 2 if spec.head.pool.take == "highest" else spec.head.pool.token


FIELDS: dict[str, ConfigField] = {
    "hidden_size": Field(512, "width"),
    "intermediate_size": Field(2048, f"{MLP_OP}.width"),
    "projection_dim": Field(512, "head.width"),
    "num_hidden_layers": Field(12, "encoder.depth"),
    "num_attention_heads": Field(8, f"{OP}.num_heads"),
    "hidden_act": Field("quick_gelu", activation_at(f"{MLP_OP}.activation")),
    "layer_norm_eps": Field(1e-5, f"{OP.removesuffix('.op')}.pre_norm.eps"),
    "attention_dropout": Field(0.0, f"{OP}.dropout"),
    "initializer_factor": Field(1.0, factor),
    "tie_last_hidden_states": Field(None, shows_end),
    "dropout": Ignored(0.0, "a field of old files that nothing reads"),
}
TEXT_FIELDS: dict[str, ConfigField] = {
    **FIELDS,
    "vocab_size": Field(49408, "embedding.tokens.vocab_size"),
    "max_position_embeddings": Field(77, "embedding.position.length"),
    "initializer_range": Ignored(0.02, "nothing of a text tower starts by it"),
    "eos_token_id": Field(49407, end_of_text),
    "bos_token_id": Ignored(49406, "a token id, used by tokenizers"),
    "pad_token_id": Ignored(1, "a token id, used by tokenizers"),
}


# -- images -----------------------------------------------------------------------------------------------------------


def image(c: Any) -> Model:
    """A first token, that belongs to no patch, speaks for the image."""
    norm, size, patch = LayerNorm(eps=c.layer_norm_eps), c.image_size, c.patch_size
    embedding = PatchEmbedding(
        image_size=(size, size),
        patch_size=(patch, patch),
        channels=c.num_channels,
        prefix=1,
        bias=False,
        pad=False,
        out_norm=norm,
    )
    starts = Normal(std=c.initializer_range * c.initializer_factor)
    first = Normal(std=c.hidden_size**-0.5 * c.initializer_factor)
    return EncoderModel(
        width=c.hidden_size,
        embedding=embedding.replace(position=Learned(length=math.prod(embedding.grid), offset=1)),
        encoder=stack(c, FULL, None),
        head=image_head(c, Pool(take="first", norm=norm)),
        init=init(c, **{"embedding.prefix": first, "*": starts}),
    )


def image_start(spec: Any) -> float:
    if not factor(spec):  # nothing says
        raise Absent
    return short(spec.init["*"].std / factor(spec))


def image_head(c: Any, pool: Pool) -> Head:
    if c.architecture == "CLIPVisionModelWithProjection":
        return ProjectionHead(pool=pool, width=c.projection_dim, name="image_embeds")
    return PooledOutput(pool=pool)


IMAGE_FIELDS: dict[str, ConfigField] = {
    **FIELDS,
    "hidden_size": Field(768, "width"),
    "intermediate_size": Field(3072, f"{MLP_OP}.width"),
    "num_attention_heads": Field(12, f"{OP}.num_heads"),
    "num_channels": Field(3, "embedding.channels"),
    "image_size": Field(224, lambda spec: spec.embedding.image_size[0]),
    "patch_size": Field(32, lambda spec: spec.embedding.patch_size[0]),
    "initializer_range": Field(0.02, image_start),
}


# -- both -------------------------------------------------------------------------------------------------------------


def describe(c: Any) -> Model:
    name = c.architecture
    if name.startswith("CLIPText"):
        return inside(c, "text_config", TEXT, name)
    if name.startswith("CLIPVision"):
        return inside(c, "vision_config", IMAGE, name)
    if name == "CLIPForImageClassification":
        spec: Any = inside(c, "vision_config", IMAGE, "CLIPVisionModel")
        pool = spec.head.pool.replace(take="rest", unused_norm=True)
        return spec.replace(head=ClassifyHead(num_labels=c.num_labels, pool=pool, problem=c.problem_type))
    # their own projection_dim is not read here
    text: Any = inside(c, "text_config", TEXT, "CLIPTextModelWithProjection", projection_dim=c.projection_dim)
    image: Any = inside(c, "vision_config", IMAGE, "CLIPVisionModelWithProjection", projection_dim=c.projection_dim)
    text, image = (
        spec.replace(init={**spec.init, "head.*": start})
        for spec, start in ((each, Normal(std=each.width**-0.5 * c.initializer_factor)) for each in (text, image))
    )
    head = SimilarityHead(scale=c.logit_scale_init_value)
    return TwoTowerModel(width=c.projection_dim, text=text, image=image, head=head)


def inside(c: Any, name: str, family: Family, architecture: str, **known: Any) -> Model:
    """The tower of a config inside a config; where an old file has two of them, "text_config_dict" counts. What is
    `known` is not asked there."""
    old = getattr(c, f"{name}_dict")
    config = (getattr(c, name) or {}) if old is None else old
    if not isinstance(config, Mapping):
        raise ValueError(f"{name}={quote(config)} is not an object")
    return family.part({**config, **known}, architecture)


def config_of(name: str, family: Family) -> Field:
    """A field that holds the config of a tower."""

    def read(spec: Any) -> dict[str, Any]:
        if isinstance(spec, TwoTowerModel):
            return family.recover(getattr(spec, name))
        if (name == "text") != ("input_ids" in spec.embedding.inputs):
            raise Absent
        return family.recover(spec)

    return Field({}, read, frozenset((*family.known, *GENERATION)))


# -- weights ----------------------------------------------------------------------------------------------------------


def tower_rules(spec: Any, theirs: str, ours: str = "") -> list[Rule]:
    """Of a tower whose published names begin with `theirs` and our addresses with `ours`."""
    layer, own = f"{theirs}encoder.layers.{{i}}", f"{ours}encoder.layers.{{i}}"
    modules = {
        f"{theirs}embeddings.token_embedding": f"{ours}embedding.tokens",
        f"{theirs}embeddings.patch_embedding": f"{ours}embedding.patch",
        f"{theirs}embeddings.position_embedding": f"{ours}embedding.position",
        f"{theirs}pre_layrnorm": f"{ours}embedding.out_norm",
        f"{layer}.layer_norm1": f"{own}.attention.pre_norm",
        **{f"{layer}.self_attn.{n}_proj": f"{own}.attention.op.{n[0]}" for n in ("q", "k", "v", "out")},
        f"{layer}.layer_norm2": f"{own}.feedforward.pre_norm",
        f"{layer}.mlp.fc1": f"{own}.feedforward.op.up",
        f"{layer}.mlp.fc2": f"{own}.feedforward.op.down",
        f"{theirs}final_layer_norm": f"{ours}encoder.norm",
        f"{theirs}post_layernorm": f"{ours}head.pool.norm",
    }
    projection = "text_projection" if "input_ids" in spec.embedding.inputs else "visual_projection"
    return [
        Reshape(f"{theirs}embeddings.class_embedding", f"{ours}embedding.prefix", (spec.width,)),
        *[Rename(f"{name}.{{p}}", f"{address}.{{p}}") for name, address in modules.items()],
        Rename(f"{projection}.{{p}}", f"{ours}head.project.{{p}}"),
        Rename("classifier.{p}", f"{ours}head.out.{{p}}"),
    ]


def rules(spec: Any) -> list[Rule]:
    if not isinstance(spec, TwoTowerModel):
        return tower_rules(spec, "~")
    text, image = tower_rules(spec.text, "text_model.", "text."), tower_rules(spec.image, "vision_model.", "image.")
    return [Rename("logit_scale", "head.scale"), *text, *image]


DROPPED = ("~embeddings.position_ids",)
TEXT = Family(
    name="clip_text_model",
    about="CLIP's reader of texts alone",
    fields=TEXT_FIELDS,
    describe=text,
    rules=rules,
    architectures=("CLIPTextModel", "CLIPTextModelWithProjection"),
    base=("CLIPTextModel",),
    prefix="text_model.",
    dropped=DROPPED,
)
IMAGE = Family(
    name="clip_vision_model",
    about="CLIP's reader of images alone",
    fields=IMAGE_FIELDS,
    describe=image,
    rules=rules,
    architectures=("CLIPVisionModel", "CLIPVisionModelWithProjection"),
    base=("CLIPVisionModel",),
    prefix="vision_model.",
    dropped=DROPPED,
)


def both(spec: Any) -> int:
    if not isinstance(spec, TwoTowerModel):
        raise Absent
    return spec.width


def size(width: int, image: dict[str, int], text: dict[str, int]) -> dict[str, Any]:
    return {"projection_dim": width, "text_config": text, "vision_config": image}


LARGE = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16}
LARGE_TEXT = {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12}
FAMILIES = (
    Family(
        name="clip",
        about="a text tower and an image tower whose vectors are compared",
        fields={
            "text_config": config_of("text", TEXT),
            "vision_config": config_of("image", IMAGE),
            "text_config_dict": Field(None),
            "vision_config_dict": Field(None),
            "projection_dim": Field(512, both),
            "logit_scale_init_value": Field(2.6592, "head.scale"),
            "initializer_factor": Field(1.0, lambda spec: short(spec.text.init["head.*"].std * spec.text.width**0.5)),
            "problem_type": Field(None, "head.problem"),
            "tie_last_hidden_states": Ignored(None, "the towers' own count"),
        },
        describe=describe,
        rules=rules,
        architectures=("CLIPModel", "CLIPForImageClassification", *TEXT.architectures, *IMAGE.architectures),
        base=("CLIPModel",),
        prefixes={
            **dict.fromkeys(TEXT.architectures, "text_model."),
            **dict.fromkeys((*IMAGE.architectures, "CLIPForImageClassification"), "vision_model."),
        },
        dropped=("text_model.embeddings.position_ids", "vision_model.embeddings.position_ids", *DROPPED),
        pictures="CLIP",
        sizes={
            "clip-b32": Size(size(512, {}, {}), 151e6),
            "clip-b16": Size(size(512, {"patch_size": 16}, {}), 150e6),
            "clip-l14": Size(size(768, {**LARGE, "patch_size": 14}, LARGE_TEXT), 428e6),
            "clip-l14-336": Size(size(768, {**LARGE, "patch_size": 14, "image_size": 336}, LARGE_TEXT), 428e6),
        },
    ),
    TEXT,
    IMAGE,
)
