"""M2M-100 [Fan et al. 2020]: translation between any two of 100 languages; pre-norm, and sinusoidal positions that are
counted from the padding token and do not count it."""

from __future__ import annotations

from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import ConfigField, Field, Ignored, Removed, again
from anyformer.families.shared import transformer
from anyformer.families.shared.transformer import TOKENS, check_padding, stack
from anyformer.models import EncoderDecoderModel, Model
from anyformer.parts.embedding.text import TextEmbedding, Tokens
from anyformer.parts.head.language import LMHead
from anyformer.parts.init import Normal
from anyformer.parts.position.absolute import Sinusoidal
from anyformer.parts.position.numbering import ByPlace, WithoutToken
from anyformer.weights.rules import Rename, Rule

FIELDS: dict[str, ConfigField] = {
    **transformer.FIELDS,
    "vocab_size": Field(128112, "embedding.tokens.vocab_size"),
    **again(
        transformer.FIELDS,
        encoder_layerdrop=0.05, decoder_layerdrop=0.05, activation_function="relu", attention_dropout=0.1,
    ),
    "scale_embedding": Field(True, lambda spec: spec.embedding.tokens.scale is not None),
    "tie_word_embeddings": Field(True, lambda spec: bool(spec.ties)),
    "pad_token_id": Field(1, "padding_token"),
    "decoder_start_token_id": Field(2, "start_token"),
    "bos_token_id": Ignored(0, "used by generation"),
    "eos_token_id": Ignored(2, "used by generation"),
    "normalize_before": Removed(True, "the published class has no norms after the add"),
}


def describe(c: Any) -> Model:
    pad, tie = c.pad_token_id, c.tie_word_embeddings
    if pad is None:
        raise ValueError("pad_token_id is None; positions are counted from it")
    check_padding(c, c.vocab_size)
    tokens = Tokens(vocab_size=c.vocab_size, padding_index=pad, scale=c.d_model**0.5 if c.scale_embedding else None)
    embedding = TextEmbedding(
        tokens=tokens, dropout=c.dropout, numbering=ByPlace() if pad < 0 else WithoutToken(token=pad),
        position=Sinusoidal(length=c.max_position_embeddings, offset=pad + 1, inclusive=True),
    )  # fmt: skip
    writes = c.architecture == "M2M100ForConditionalGeneration"
    tied = [f"decoder_{TOKENS}", *(["head.out.weight"] if writes else [])]
    return EncoderDecoderModel(
        width=c.d_model,
        # untied, the shared table stays in the files and nothing reads it
        embedding=embedding.replace(tokens=tokens.replace(spare=not tie)),
        encoder=stack(c, "encoder", pre_norm=True),
        decoder_embedding=embedding,
        decoder=stack(c, "decoder", pre_norm=True),
        start_token=c.decoder_start_token_id,
        padding_token=pad,
        head=LMHead(vocab_size=c.vocab_size, shift=False) if writes else None,
        ties=tuple((name, TOKENS) for name in tied) if tie else (),
        init={"*": Normal(std=c.init_std)},
    )


def rules(spec: Model) -> list[Rule]:
    spare, out = Rename("~shared.weight", "embedding.tokens.spare"), Rename("lm_head.weight", "head.out.weight")
    return [*transformer.rules(spec), spare, out]


LARGE = {"encoder_layers": 24, "encoder_ffn_dim": 8192, "decoder_layers": 24, "decoder_ffn_dim": 8192}

FAMILIES = (
    Family(
        name="m2m_100",
        about="translation between 100 languages",
        fields=FIELDS,
        describe=describe,
        rules=rules,
        architectures=("M2M100ForConditionalGeneration", "M2M100Model"),
        base=("M2M100Model",),
        prefix="model.",
        aliases=transformer.ALIASES,
        dropped=tuple(f"~{side}.{name}" for side in ("encoder", "decoder")
                      for name in ("version", "embed_positions.weights", "embed_positions._float_tensor")),
        sizes={
            "m2m100-418m": Size({}, None, "called 418M; the released weights are 484M"),
            "m2m100-1.2b": Size(LARGE, 1.2e9),
        },
    ),
)  # fmt: skip
