"""DeiT [Touvron et al. 2021]: a ViT with a second token before the patches, which learns what a teacher says."""

from __future__ import annotations

from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.shared import vision
from anyformer.models import Model
from anyformer.parts.head.image import DistilledHead
from anyformer.weights.rules import Rename, Rule


def describe(c: Any) -> Model:
    taught = c.architecture == "DeiTForImageClassificationWithTeacher"
    return vision.describe(c, 2, DistilledHead(num_labels=c.num_labels) if taught else vision.head(c))


def rules(spec: Any) -> list[Rule]:
    out = "cls_classifier" if isinstance(spec.head, DistilledHead) else "classifier"
    return [
        *vision.rules(spec, "cls_token", "distillation_token"),
        Rename(f"{out}.{{p}}", "head.out.{p}"),
        Rename("distillation_classifier.{p}", "head.distilled.{p}"),
    ]


FAMILIES = (
    Family(
        name="deit",
        about="encoders of images with a token for a teacher",
        fields=vision.FIELDS,
        describe=describe,
        rules=rules,
        architectures=(
            "DeiTForImageClassificationWithTeacher", "DeiTForImageClassification", "DeiTModel",
            "DeiTForMaskedImageModeling",
        ),
        base=("DeiTModel",),
        prefix="deit.",
        dropped=("~pooler.dense.{p}",),
        absent=vision.ABSENT,
        pictures="DeiT",
        sizes={
            "deit-tiny": Size(vision.size(192, 12, 3), 6e6),
            "deit-small": Size(vision.size(384, 12, 6), 22e6),
            "deit-base": Size(vision.size(768, 12, 12), 87e6),
        },
    ),
)  # fmt: skip
