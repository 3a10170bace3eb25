"""ViT [Dosovitskiy et al. 2021]: an image is a text of patches, and its first token speaks for it."""

from __future__ import annotations

from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.shared import vision
from anyformer.models import Model
from anyformer.weights.rules import Rename, Rule


def describe(c: Any) -> Model:
    return vision.describe(c, 1, vision.head(c))


def rules(spec: Any) -> list[Rule]:
    return [*vision.rules(spec, "cls_token"), Rename("classifier.{p}", "head.out.{p}")]


FAMILIES = (
    Family(
        name="vit",
        about="encoders that read an image as a row of patches",
        fields=vision.FIELDS,
        describe=describe,
        rules=rules,
        architectures=("ViTForImageClassification", "ViTModel", "ViTForMaskedImageModeling"),
        base=("ViTModel",),
        prefix="vit.",
        dropped=("~pooler.dense.{p}",),
        absent=vision.ABSENT,
        sizes={
            "vit-b16": Size(vision.size(768, 12, 12), 86e6),
            "vit-b32": Size(vision.size(768, 12, 12, 32), 86e6),
            "vit-l16": Size(vision.size(1024, 24, 16), 307e6),
            "vit-l32": Size(vision.size(1024, 24, 16, 32), 307e6),
            "vit-h14": Size(vision.size(1280, 32, 16, 14), 632e6),
        },
    ),
)
