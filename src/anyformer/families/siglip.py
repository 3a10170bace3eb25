"""SigLIP [Zhai et al. 2023]: a CLIP whose loss judges every pair of a text and an image separately, by a sigmoid.

Each tower is also a family, as in transformers.
"""

from __future__ import annotations

from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.template import Config, Entry
from anyformer.families.clip_text_model import factor
from anyformer.families.shared.two_towers import DROPPED, read_tower, tower_classes, tower_configs, tower_rules
from anyformer.families.siglip_text_model import TEXT
from anyformer.families.siglip_vision_model import IMAGE
from anyformer.parts import (
    ClassifyHead, EncoderModel, MeanColumns, Normal, Pool, PooledVector, SigmoidSimilarityHead,
    TwoTowerModel, UnusedNeck,
)  # fmt: skip
from anyformer.specs.addresses import edit, value_at
from anyformer.weights.rules import Rename, Reshape, Rule


def describe(c: Config) -> Any:
    """Return a model of both towers, or one tower."""
    if c.architecture in TEXT.classes:
        return tower(c, "text_config", TEXT)
    image = tower(c, "vision_config", IMAGE)
    if c.architecture in IMAGE.classes:
        return image
    if c.architecture == "SiglipForImageClassification":
        unused = None if image.head is None else UnusedNeck(part=value_at(image, "head.pool.take"))
        head = ClassifyHead(num_labels=c.num_labels, pool=Pool(take=MeanColumns()), problem=c.problem_type)
        init = {**image.init, "head.out.weight": Normal(std=image.width**-0.5 * c.initializer_factor)}
        return edit(image, {"head": head, "encoder.neck": unused, "init": init})
    if image.head is None:
        raise ValueError(
            "vision_config.vision_use_head is false, but the vector of an image is the output of that head"
        )
    text, width = tower(c, "text_config", TEXT), image.width
    text = text.replace(head=PooledVector(pool=value_at(text, "head.pool"), width=width))
    image = image.replace(head=PooledVector(pool=value_at(image, "head.pool"), width=width, name="image_embeds"))
    return TwoTowerModel(width=width, text=text, image=image, head=SigmoidSimilarityHead(scale=0.0, bias=0.0))


def tower(c: Config, name: str, family: Family) -> EncoderModel:
    return read_tower(name, c[name] or {}, family, family.architectures[0])


def rules(spec: TwoTowerModel | EncoderModel) -> list[Rule]:
    head = (Reshape(f"logit_{name}", f"head.{name}", (1,)) for name in ("scale", "bias"))
    return tower_rules(spec, TEXT, IMAGE, head, [Rename("classifier.{p}", "head.out.{p}")])


SIGLIP = Family(
    name="siglip",
    about="a text and an image encoder whose vectors are compared pair by pair",
    template=describe,
    config={
        **tower_configs(TEXT, IMAGE),
        "initializer_factor": Entry(1.0, lambda spec: factor(spec, "head.out.weight")),
    },
    weights=rules,
    classes=tower_classes(TEXT, IMAGE, "SiglipModel", "SiglipForImageClassification"),
    dropped=DROPPED,
    pictures="Siglip",
    tokenizer="SiglipTokenizer",
    sizes={"siglip-base": Size({}, 203e6)},
)
