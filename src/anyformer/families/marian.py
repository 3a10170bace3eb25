"""Marian [Junczys-Dowmunt et al. 2018], as in the OPUS-MT models [Tiedemann and Thottingal 2020]: the Transformer of
[Vaswani et al. 2017], whose sizes are here, with post-norm, sinusoidal positions and one table for both languages."""

from __future__ import annotations

from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import Absent, ConfigField, Field, Ignored, Removed
from anyformer.families.shared import transformer
from anyformer.families.shared.transformer import TOKENS, check_padding, stack, target
from anyformer.models import DecoderModel, EncoderDecoderModel, Model
from anyformer.parts.embedding.text import TextEmbedding, Tokens
from anyformer.parts.head.language import LMHead
from anyformer.parts.init import Normal
from anyformer.parts.position.absolute import Sinusoidal
from anyformer.weights.rules import Rename, Reshape, Rule


def is_tied(spec: Any) -> bool:
    """Whether the head shares a table; where there is neither head nor spare table, the field says nothing."""
    if spec.head is None and not spec.embedding.tokens.spare:
        raise Absent
    return any(name == "head.out.weight" for name, _ in spec.ties)


def is_shared(spec: Any) -> bool:
    """Whether source and target have one vocabulary."""
    if not spec.pair:
        raise Absent
    return spec.embedding.tokens.spare or any(name.startswith("decoder_embedding") for name, _ in spec.ties)


def vocab_size(spec: Any) -> int:
    return spec.embedding.tokens.vocab_size if spec.pair else spec.head.vocab_size


OLD = "a choice of old configs that the published class no longer has"
CLASSIFY = "of classification heads, which Marian has not"

FIELDS: dict[str, ConfigField] = {
    **transformer.FIELDS,
    "vocab_size": Field(58101, vocab_size),
    "decoder_vocab_size": Field(None, lambda spec: target(spec).tokens.vocab_size),
    "share_encoder_decoder_embeddings": Field(True, is_shared),
    "tie_word_embeddings": Field(True, is_tied),
    "pad_token_id": Field(58100, "embedding.tokens.padding_index"),
    "decoder_start_token_id": Field(58100, "start_token"),
    "eos_token_id": Ignored(0, "used by generation"),
    "is_decoder": Ignored(False, "follows from the class"),
    "normalize_before": Removed(False, OLD),
    "normalize_embedding": Removed(False, OLD),
    "add_final_layer_norm": Removed(False, OLD),
    "add_bias_logits": Removed(False, OLD),
    "static_position_embeddings": Removed(True, OLD),
    "extra_pos_embeddings": Ignored(None, "rows of a position table that sinusoids do not need"),
    "classif_dropout": Ignored(0.0, CLASSIFY),
    "classifier_dropout": Ignored(0.0, CLASSIFY),
}


def describe(c: Any) -> Model:
    alone, share, tie = c.architecture == "MarianForCausalLM", c.share_encoder_decoder_embeddings, c.tie_word_embeddings
    # a shared table has the source's tokens, whatever decoder_vocab_size says
    target_size = (share and tie and not alone and c.vocab_size) or c.decoder_vocab_size or c.vocab_size
    check_padding(c, c.vocab_size, target_size)
    scale = c.d_model**0.5 if c.scale_embedding else None
    position = Sinusoidal(length=c.max_position_embeddings, stored=True)
    # the decoder scales vectors that are given to it (inputs_embeds) as well, the encoder does not
    target_embedding = TextEmbedding(
        tokens=Tokens(vocab_size=target_size, padding_index=c.pad_token_id), scale=scale, position=position,
        dropout=c.dropout,
    )  # fmt: skip

    def scores(size: int) -> LMHead:
        return LMHead(vocab_size=size, shift=False, foreign=size != target_size)

    if alone:
        return DecoderModel(
            width=c.d_model,
            embedding=target_embedding,
            decoder=stack(c, "decoder"),
            # published: whoever calls it moves the labels, and untied it scores the source's vocabulary
            head=scores(target_size if tie else c.vocab_size),
            ties=(("head.out.weight", TOKENS),) if tie else (),
            init={"*": Normal(std=c.init_std)},
        )
    # untied, the shared table stays in the files and nothing reads it
    tokens = Tokens(vocab_size=c.vocab_size, padding_index=c.pad_token_id, scale=scale, spare=share and not tie)
    writes = c.architecture == "MarianMTModel"
    ties = [(f"decoder_{TOKENS}", TOKENS)] if share and tie else []
    if writes and tie:
        ties.append(("head.out.weight", TOKENS if share else f"decoder_{TOKENS}"))
    return EncoderDecoderModel(
        width=c.d_model,
        embedding=TextEmbedding(tokens=tokens, position=position, dropout=c.dropout),
        encoder=stack(c, "encoder"),
        decoder_embedding=target_embedding,
        decoder=stack(c, "decoder"),
        start_token=c.decoder_start_token_id,
        padding_token=c.pad_token_id,
        state_offered="without labels",
        head=scores(c.vocab_size if share else target_size).replace(offset=True) if writes else None,
        ties=tuple(ties),
        init={"*": Normal(std=c.init_std)},
    )


def rules(spec: Model) -> list[Rule]:
    return [
        *transformer.rules(spec),
        Rename("~shared.weight", "embedding.tokens.spare"),
        Rename("lm_head.weight", "head.out.weight"),
        Reshape("final_logits_bias", "head.offset", (1, -1)),
    ]


def size(width: int, inner: int, heads: int, dropout: float, published: float) -> Size:
    config: dict[str, Any] = {
        "vocab_size": 37000, "d_model": width, "dropout": dropout, "activation_function": "relu",
        "scale_embedding": True, "pad_token_id": 36999, "decoder_start_token_id": 36999,
    }  # fmt: skip
    for side in ("encoder", "decoder"):
        config |= {f"{side}_layers": 6, f"{side}_ffn_dim": inner, f"{side}_attention_heads": heads}
    return Size(config, published, "37000 byte pairs shared by source and target (English-German)")


FAMILIES = (
    Family(
        name="marian",
        about="translation, the original Transformer",
        fields=FIELDS,
        describe=describe,
        rules=rules,
        architectures=("MarianMTModel", "MarianModel", "MarianForCausalLM"),
        base=("MarianModel",),
        prefix="model.",
        aliases=transformer.ALIASES,
        sizes={
            "transformer-base": size(512, 2048, 8, 0.1, 65e6),
            "transformer-big": size(1024, 4096, 16, 0.3, 213e6),
        },
    ),
)
