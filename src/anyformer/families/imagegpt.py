"""ImageGPT [Chen et al. 2020]: GPT-2 over the colours of a picture, one token a pixel, with RMS norms."""

from __future__ import annotations

from typing import Any

from anyformer.families import gpt2
from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import ConfigField, Fixed, Ignored, again
from anyformer.models import DecoderModel, Model
from anyformer.parts.embedding.text import TextEmbedding, Tokens
from anyformer.parts.head.base import Head
from anyformer.parts.head.classify import ClassifyHead
from anyformer.parts.head.language import LMHead
from anyformer.parts.head.pool import Pool
from anyformer.parts.norm import RMSNorm
from anyformer.parts.position.absolute import Learned

DRAWS, TELLS = "ImageGPTForCausalImageModeling", "ImageGPTForImageClassification"

SHARED = (
    "n_positions", "n_inner", "resid_pdrop", "embd_pdrop", "attn_pdrop", "layer_norm_epsilon", "initializer_range",
    "scale_attn_weights", "scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn", "problem_type",
)  # fmt: skip
FIELDS: dict[str, ConfigField] = {
    **{name: gpt2.FIELDS[name] for name in SHARED},
    **again(gpt2.FIELDS, vocab_size=513, n_embd=512, n_layer=24, n_head=8, activation_function="quick_gelu"),
    **again(gpt2.FIELDS, tie_word_embeddings=False),
    "add_cross_attention": Fixed(False, "the published class fails where it remembers or pads with it"),
    "is_decoder": Ignored(False, "a pixel sees the ones before it either way"),
}


def head(c: Any) -> Head | None:
    if c.architecture == DRAWS and c.tie_word_embeddings:
        return LMHead(vocab_size=c.vocab_size)
    if c.architecture == DRAWS:  # the last token begins a picture, and is not among those that are drawn
        return LMHead(vocab_size=c.vocab_size - 1, foreign=True)
    if c.architecture == TELLS:
        return ClassifyHead(num_labels=c.num_labels, pool=Pool(take="all"), bias=False, problem=c.problem_type)
    return None


def describe(c: Any) -> Model:
    tied = c.architecture == DRAWS and c.tie_word_embeddings
    return DecoderModel(
        width=c.n_embd,
        embedding=TextEmbedding(
            tokens=Tokens(vocab_size=c.vocab_size), position=Learned(length=c.n_positions), token_segments=True,
            dropout=c.embd_pdrop,
        ),
        decoder=gpt2.stack(c, RMSNorm),
        head=head(c),
        ties=(("head.out.weight", "embedding.tokens.weight"),) if tied else (),
        init=gpt2.init(c),
    )  # fmt: skip


def size(n_layer: int, n_embd: int, n_head: int, published: float) -> Size:
    return Size({"n_layer": n_layer, "n_embd": n_embd, "n_head": n_head}, published)


FAMILIES = (
    Family(
        name="imagegpt",
        about="a decoder that draws pictures, colour by colour",
        fields=FIELDS,
        describe=describe,
        rules=gpt2.rules,
        architectures=(DRAWS, "ImageGPTModel", TELLS),
        base=("ImageGPTModel",),
        prefix="transformer.",
        aliases=gpt2.FAMILIES[0].aliases,
        dropped=gpt2.FAMILIES[0].dropped,
        pictures="ImageGPT",
        sizes={
            "imagegpt-small": size(24, 512, 8, 76e6),
            "imagegpt-medium": size(36, 1024, 8, 455e6),
            "imagegpt-large": size(48, 1536, 16, 1.36e9),
        },
    ),
)
