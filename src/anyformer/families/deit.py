"""DeiT [Touvron et al. 2021]: a ViT with a distillation token that is trained on a teacher's predictions."""

from __future__ import annotations

from anyformer.families.base.family import size_table
from anyformer.families.base.template import Class
from anyformer.families.shared.vision import tokens
from anyformer.families.vit import SHAPE, VIT
from anyformer.parts import DistilledHead

DEIT = VIT.but(
    "deit",
    about="image encoders with a distillation token",
    changes={"embedding.prefix.0.count": 2, "embedding.position.offset": 2},
    classes={
        "DeiTForImageClassificationWithTeacher": Class(
            DistilledHead(num_labels=2), "cls_classifier", weights={"distillation_classifier": "head.distilled"}
        ),
        **{name.replace("ViT", "DeiT"): each for name, each in VIT.classes.items()},
    },
    weights={"~embeddings": tokens("cls_token", "distillation_token")},
    prefix="deit.",
    pictures="DeiT",
    sizes=size_table(
        SHAPE,
        {
            "deit-tiny": (192, 12, 3, 768, 6e6),
            "deit-small": (384, 12, 6, 1536, 22e6),
            "deit-base": (768, 12, 12, 3072, 87e6),
        },
        num_labels=1000,
    ),
)
