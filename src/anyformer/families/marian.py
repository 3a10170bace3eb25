"""Marian [Junczys-Dowmunt et al. 2018], as in the OPUS-MT models [Tiedemann and Thottingal 2020]: the Transformer of
[Vaswani et al. 2017], whose sizes are included: post-norm, sinusoidal positions, one vocabulary for both languages."""

from __future__ import annotations

from typing import Any

from anyformer.families.bart import (
    BART,
    LOGITS_BIAS,
    OLD,
    ONLY_BART,
    ONLY_DECODER,
    equal_heads,
    root_scale,
    share_tables,
)
from anyformer.families.base.family import Size
from anyformer.families.base.fields import Absent, Ignored, Removed
from anyformer.families.base.template import Class, Config, Entry, expand
from anyformer.families.shared.transformer import check_padding, target
from anyformer.parts import (
    LMHead, Model, OffsetLMHead, OwnVocabularyHead, OwnVocabularyOffsetHead, Sinusoidal, SpareTableTokens,
    TextEmbedding, Tokens,
)  # fmt: skip
from anyformer.specs.addresses import value_at
from anyformer.weights.rules import Rule, Unwritten

CLASSIFY = "for classification heads, which Marian does not have"
EMBEDDING = TextEmbedding(
    tokens=Tokens(vocab_size=58101, padding_index=58100), position=Sinusoidal(length=1024, stored=True), dropout=0.1
)


def only_decoder(c: Config) -> bool:
    return c.architecture == "MarianForCausalLM"


def target_size(c: Config) -> int:
    """Return the decoder's vocabulary size. A shared table always has vocab_size rows."""
    shared = c.share_encoder_decoder_embeddings and c.tie_word_embeddings and not only_decoder(c)
    return (shared and c.vocab_size) or c.decoder_vocab_size or c.vocab_size


def scored_size(c: Config) -> int:
    """Return the output size: vocab_size with a shared table and, as published, in an untied decoder-only model."""
    source = not c.tie_word_embeddings if only_decoder(c) else c.share_encoder_decoder_embeddings
    return c.vocab_size if source else target_size(c)


def vocab_size(spec: Model) -> int:
    return value_at(spec, "embedding.tokens.vocab_size" if spec.pair else "head.vocab_size")


def has_spare_table(spec: Model) -> bool:
    return isinstance(value_at(spec, "embedding.tokens"), SpareTableTokens)


def choose_head(spec: Model, size: int | None, c: Config) -> Model:
    """Use a head with its own vocabulary if the output does not have the size of the decoder's table."""
    if spec.head is None or scored_size(c) == target_size(c):
        return spec
    offset = isinstance(spec.head, OffsetLMHead)
    return spec.replace(head=spec.head.as_kind(OwnVocabularyOffsetHead if offset else OwnVocabularyHead))


def is_tied(spec: Model) -> bool:
    """Whether the head shares a table. Not written if the model has neither a head nor an unused table."""
    if spec.head is None and not has_spare_table(spec):
        raise Absent
    return any(name == "head.out.weight" for name, _ in spec.ties)


def is_shared(spec: Model) -> bool:
    """Whether source and target share one table."""
    if not spec.pair:
        raise Absent
    return has_spare_table(spec) or any(name.startswith("decoder_embedding") for name, _ in spec.ties)


def positions(theirs: str, spec: Model) -> list[Rule]:
    """Rules of the position tables, which MarianMTModel does not save."""
    pairs = zip(expand(theirs), expand("{embedding,decoder_embedding}.position"), strict=True)
    return [Unwritten(f"{one}.weight", f"{other}.weight") for one, other in pairs]


def size(width: int, inner: int, heads: int, dropout: float, published: float) -> Size:
    config: dict[str, Any] = {
        "vocab_size": 37000,
        "d_model": width,
        "dropout": dropout,
        "activation_function": "relu",
        "scale_embedding": True,
        "pad_token_id": 36999,
        "decoder_start_token_id": 36999,
    }
    for side in ("encoder", "decoder"):
        config |= {f"{side}_layers": 6, f"{side}_ffn_dim": inner, f"{side}_attention_heads": heads}
    return Size(config, published, "37000 byte pairs, shared by source and target (English-German)")


MARIAN = BART.but(
    "marian",
    about="translation: the original Transformer",
    tokenizer="MarianTokenizer",
    changes={
        "embedding": EMBEDDING,
        "decoder_embedding": EMBEDDING,
        "start_token": 58100,
        "padding_token": 58100,
        "reads_source": False,
    },
    classes={
        "MarianMTModel": Class(
            OffsetLMHead(vocab_size=58101, shift=False),
            "lm_head",
            weights={"~{encoder,decoder}.embed_positions": positions, **LOGITS_BIAS},
        ),
        "MarianModel": Class(prefix=""),
        "MarianForCausalLM": Class(  # published: the caller shifts the labels
            LMHead(vocab_size=58101, shift=False),
            "lm_head",
            template=ONLY_DECODER.replace(embedding=EMBEDDING),
            weights={"~decoder.embed_{tokens,positions}": "embedding.{tokens,position}"},
        ),
    },
    config={
        **dict.fromkeys((*ONLY_BART, "bos_token_id")),
        "vocab_size": Entry(58101, vocab_size),
        "decoder_vocab_size": Entry(None, lambda spec: target(spec).tokens.vocab_size, build=choose_head),
        "share_encoder_decoder_embeddings": Entry(True, is_shared),
        "tie_word_embeddings": Entry(True, is_tied, build=share_tables),
        "scale_embedding": Entry(False, lambda spec: target(spec).scale is not None),
        "eos_token_id": Ignored(0, "used by generation"),
        "normalize_embedding": Removed(False, OLD),
        "static_position_embeddings": Removed(True, OLD),
        "extra_pos_embeddings": Ignored(None, "rows of a learned position table, which Marian does not have"),
        "classif_dropout": Ignored(0.0, CLASSIFY),
        "classifier_dropout": Ignored(0.0, CLASSIFY),
    },
    computed={
        "embedding.tokens.vocab_size": lambda c: target_size(c) if only_decoder(c) else c.vocab_size,
        "decoder_embedding.tokens.vocab_size": target_size,
        "head.vocab_size": scored_size,
        # the decoder also scales inputs_embeds, the encoder does not
        "embedding.tokens.scale": lambda c: None if only_decoder(c) else root_scale(c),
        "embedding.scale": lambda c: root_scale(c) if only_decoder(c) else None,
        "decoder_embedding.scale": root_scale,
    },
    weights={"~{encoder,decoder}.layernorm_embedding": None},
    checks=(equal_heads, lambda c: check_padding(c, c.vocab_size, target_size(c))),
    dropped=(),
    sizes={
        "transformer-base": size(512, 2048, 8, 0.1, 65e6),
        "transformer-big": size(1024, 4096, 16, 0.3, 213e6),
    },
)
