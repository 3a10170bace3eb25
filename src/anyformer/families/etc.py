"""ETC [Ainslie et al. 2020]: BERT for long texts; the first tokens are global and see everything, the others see a
local radius; positions are relative labels. transformers has no such class, so models are saved only in our own format;
config fields are named as BERT's. Global and long tokens share all weights except the label vectors; in the paper they
also have separate feed-forwards."""

from __future__ import annotations

from anyformer.families import bert
from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import Entry
from anyformer.families.base.template import Class, Weights
from anyformer.families.shared import bert_like
from anyformer.parts import Attention, Global, GlobalLocalVectors, Mask, Model, SegmentedText, Tokens, Window
from anyformer.specs.addresses import edit, value_at

OP = "encoder.layers.attention.op"


def mask(radius: int, first: int) -> Mask:
    """Return the mask: tokens see `radius` tokens on each side and the global tokens, which see everything."""
    return Window(size=radius + 1, ahead=True) | Global(first=first)


def radius(spec: Model) -> int:
    return int(value_at(spec, f"{OP}.mask").masks[0].size - 1)


def weights(spec: Model) -> Weights:
    raise ValueError("no etc checkpoints are published; load a folder saved by anyformer (with spec.json)")


SMALL = {
    "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512,
    "max_position_embeddings": 528, "num_global_tokens": 16, "type_vocab_size": 16, "local_radius": 16,
}  # fmt: skip
ETC = Family(
    name="etc",
    about="encoders for long and structured texts, with global tokens and local attention",
    tokenizer="",
    template=edit(
        bert.TEMPLATE,
        {
            "embedding": SegmentedText(
                tokens=Tokens(vocab_size=30522, padding_index=0), segments=230, norm=bert_like.NORM, dropout=0.1
            ),
            "length": 4326,
            OP: Attention(num_heads=12, dropout=0.1, mask=mask(84, 230), position=GlobalLocalVectors(first=230)),
        },
    ),
    classes={"": Class(bert.LM)},
    config={
        **bert_like.CONFIG,
        "max_position_embeddings": "length",
        "local_radius": Entry(84, radius),
        "num_global_tokens": f"{OP}.position.first",
        "relative_pos_max_distance": f"{OP}.position.reach",
    },
    computed={
        "head.unused_bias": lambda c: not c.tie_word_embeddings,
        f"{OP}.mask": lambda c: mask(c.local_radius, c.num_global_tokens),
    },
    weights=weights,
    checks=(bert_like.check,),
    sizes={
        "etc-base": Size({}, note="4096 tokens after 230 global tokens, radius 84"),
        "etc-tiny": Size(SMALL, note="our own size: 16 global tokens, radius 16"),
    },
)
