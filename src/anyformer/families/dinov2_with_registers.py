"""DINOv2 with registers [Darcet et al. 2024]: tokens without a position, in which the model can store what it computes
about the whole image."""

from __future__ import annotations

from anyformer.families.base.family import Size
from anyformer.families.base.template import parameter
from anyformer.families.dinov2 import DINOV2
from anyformer.parts import Normal, PrefixTokens, Value

ZERO = Value(value=0.0)
REGISTERS = DINOV2.but(
    "dinov2_with_registers",
    about="DINOv2 with register tokens",
    changes={
        "embedding.patch_size": (16, 16),
        "embedding.position.length": 196,
        "embedding.position.antialias": True,
        "embedding.prefix": (PrefixTokens(), PrefixTokens(count=4, position=False)),
        "init": {"embedding.mask_token": ZERO, "embedding.prefix.1.*": ZERO, "*": Normal(std=0.02)},
    },
    classes={name.replace("Dinov2", "Dinov2WithRegisters"): each for name, each in DINOV2.classes.items()},
    config={"num_register_tokens": "embedding.prefix.1.count", "use_mask_token": None},
    weights={"~embeddings.register_tokens": parameter("embedding.prefix.1.weight")},
    prefix="dinov2_with_registers.",
    sizes={
        name.replace("dinov2", "dinov2-with-registers"): Size(each.config, each.published)
        for name, each in DINOV2.sizes.items()
    },
)
