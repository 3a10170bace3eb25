"""CLIP [Radford et al. 2021]: a text encoder and an image encoder, trained so that matching pairs have similar vectors.

Each tower is also a family, as in transformers: files of one tower are common.
"""

from __future__ import annotations

from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import Absent
from anyformer.families.base.template import Config, Entry
from anyformer.families.clip_text_model import TEXT, factor
from anyformer.families.clip_vision_model import IMAGE
from anyformer.families.shared.two_towers import DROPPED, read_tower, tower_classes, tower_configs, tower_rules
from anyformer.parts import (
    ClassifyHead, EncoderModel, MeanColumns, Model, Normal, Pool, SimilarityHead, TwoTowerModel, Unused,
)  # fmt: skip
from anyformer.specs.addresses import value_at
from anyformer.weights.rules import Rename, Rule


def describe(c: Config) -> Model:
    """Return a model of both towers, or one tower."""
    if c.architecture in TEXT.classes:
        return tower(c, "text", TEXT, c.architecture)
    if c.architecture in IMAGE.classes:
        return tower(c, "vision", IMAGE, c.architecture)
    if c.architecture == "CLIPForImageClassification":
        spec = tower(c, "vision", IMAGE, "CLIPVisionModel")
        pool = Pool(take=MeanColumns(skip=1), norm=Unused(part=value_at(spec, "head.pool.norm")))
        return spec.replace(head=ClassifyHead(num_labels=c.num_labels, pool=pool, problem=c.problem_type))
    # the projection_dim of the towers' configs is not read
    text = tower(c, "text", TEXT, "CLIPTextModelWithProjection", projection_dim=c.projection_dim)
    image = tower(c, "vision", IMAGE, "CLIPVisionModelWithProjection", projection_dim=c.projection_dim)
    text, image = (
        each.replace(init={**each.init, "head.*": Normal(std=each.width**-0.5 * c.initializer_factor)})
        for each in (text, image)
    )
    return TwoTowerModel(
        width=c.projection_dim, text=text, image=image, head=SimilarityHead(scale=c.logit_scale_init_value)
    )


def tower(c: Config, name: str, family: Family, architecture: str, **known: Any) -> EncoderModel:
    """Return a tower. If an old file has two configs of it, "text_config_dict" wins."""
    old = c[f"{name}_config_dict"]
    config = (c[f"{name}_config"] or {}) if old is None else old
    return read_tower(f"{name}_config", config, family, architecture, **known)


def projection_dim(spec: Model) -> int:
    if not isinstance(spec, TwoTowerModel):
        raise Absent
    return spec.width


def rules(spec: TwoTowerModel | EncoderModel) -> list[Rule]:
    alone = {"classifier": "head.out", "~post_layernorm": "head.pool.norm.part"}
    renamed = (Rename(f"{a}.{{p}}", f"{b}.{{p}}") for a, b in alone.items())
    return tower_rules(spec, TEXT, IMAGE, [Rename("logit_scale", "head.scale")], renamed)


def size(width: int, image: dict[str, int], text: dict[str, int]) -> dict[str, Any]:
    return {"projection_dim": width, "text_config": text, "vision_config": image}


LARGE = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16}
LARGE_TEXT = {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12}
CLIP = Family(
    name="clip",
    about="a text and an image encoder whose vectors are compared",
    tokenizer="CLIPTokenizer",
    template=describe,
    config={
        **tower_configs(TEXT, IMAGE),
        "text_config_dict": Entry(None),
        "vision_config_dict": Entry(None),
        "projection_dim": Entry(512, projection_dim),
        "logit_scale_init_value": Entry(2.6592, "head.scale"),
        "initializer_factor": Entry(1.0, lambda spec: factor(spec.text, "head.*")),
    },
    weights=rules,
    classes=tower_classes(TEXT, IMAGE, "CLIPModel", "CLIPForImageClassification"),
    dropped=DROPPED,
    pictures="CLIP",
    sizes={
        "clip-b32": Size(size(512, {}, {}), 151e6),
        "clip-b16": Size(size(512, {"patch_size": 16}, {}), 150e6),
        "clip-l14": Size(size(768, {**LARGE, "patch_size": 14}, LARGE_TEXT), 428e6),
        "clip-l14-336": Size(size(768, {**LARGE, "patch_size": 14, "image_size": 336}, LARGE_TEXT), 428e6),
    },
)
