"""A diffusion transformer that generates images from text: each layer has a cross-attention to the states of a text
encoder, between attention and feed-forward."""

from __future__ import annotations

from anyformer.families.base.family import Size
from anyformer.families.base.template import Class
from anyformer.families.dit import ATTENTION, DIT, EPS, FEEDFORWARD, HEAD, TEMPLATE, size
from anyformer.parts import Attention, Block, LayerNorm, Sublayer
from anyformer.specs.addresses import value_at

CROSS = Sublayer(pre_norm=LayerNorm(eps=EPS, affine=False), op=Attention(num_heads=16, memory=True, memory_width=768))
DIT_TEXT = DIT.but(
    "dit_text",
    about="diffusion Transformers that generate images from a text",
    changes={
        "encoder.layers": Block(
            attention=value_at(TEMPLATE, ATTENTION), cross_attention=CROSS, feedforward=value_at(TEMPLATE, FEEDFORWARD)
        ),
        "embedding.condition.num_labels": None,
    },
    classes={"": Class(HEAD)},
    config={"text_width": "encoder.layers.cross_attention.op.memory_width"},
    renamed={},
    library="transformers",
    sizes={"dit-text-s-2": Size({**size(384, 12, 6, 2), "text_width": 512}, None)},
)
