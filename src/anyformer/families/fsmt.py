"""fairseq's WMT19 translators [Ng et al. 2019]: the original Transformer with two vocabularies, and positions that are
counted from the padding token and do not count it."""

from __future__ import annotations

from typing import Any

from anyformer.families.base.family import Family
from anyformer.families.base.fields import ConfigField, Field, Ignored, again
from anyformer.families.shared import transformer
from anyformer.families.shared.transformer import TOKENS, check_padding, stack
from anyformer.models import EncoderDecoderModel, Model
from anyformer.parts.embedding.text import TextEmbedding, Tokens
from anyformer.parts.head.base import Head
from anyformer.parts.head.language import LMHead, VocabularyOutput
from anyformer.parts.init import Normal
from anyformer.parts.position.absolute import Sinusoidal
from anyformer.parts.position.numbering import WithoutToken
from anyformer.weights.rules import Rename, Rule

FIELDS: dict[str, ConfigField] = {
    **{name: field for name, field in transformer.FIELDS.items() if name != "is_causal"},
    "src_vocab_size": Field(42024, "embedding.tokens.vocab_size"),
    "tgt_vocab_size": Field(42024, "decoder_embedding.tokens.vocab_size"),
    "tie_word_embeddings": Field(False, lambda spec: bool(spec.ties)),
    **again(transformer.FIELDS, activation_function="relu", scale_embedding=True),
    "pad_token_id": Field(1, "padding_token"),
    "decoder_start_token_id": Ignored(2, "used by generation; labels that are moved begin with their own last token"),
    "bos_token_id": Ignored(0, "used by generation"),
    "eos_token_id": Ignored(2, "used by generation"),
    "langs": Ignored(["en", "de"], "how text is tokenised"),
    "decoder": Ignored(None, "a record of old configs that nothing reads"),
}


def describe(c: Any) -> Model:
    pad, source, target = c.pad_token_id, c.src_vocab_size, c.tgt_vocab_size
    if pad is None or pad < 0:
        raise ValueError(f"pad_token_id is {pad}; positions are counted from it")
    if c.tie_word_embeddings and source != target:
        raise ValueError(f"src_vocab_size {source} is not tgt_vocab_size {target}, and they share a table")
    check_padding(c, source, target)
    position = Sinusoidal(length=c.max_position_embeddings, offset=pad + 1, inclusive=True, stored=True)

    def embedding(vocab_size: int, unseen: int | None) -> TextEmbedding:
        return TextEmbedding(
            tokens=Tokens(vocab_size=vocab_size, padding_index=pad), position=position, unseen=unseen,
            numbering=WithoutToken(token=pad), scale=c.d_model**0.5 if c.scale_embedding else None, dropout=c.dropout,
        )  # fmt: skip

    tied = (TOKENS, "head.out.weight") if c.tie_word_embeddings else ()
    return EncoderDecoderModel(
        width=c.d_model,
        embedding=embedding(source, None),
        encoder=stack(c, "encoder"),
        decoder_embedding=embedding(target, pad),
        decoder=stack(c, "decoder"),
        padding_token=pad,
        wrap=True,
        reads_source=True,
        head=head(c),
        ties=tuple((name, f"decoder_{TOKENS}") for name in tied),
        init={"*": Normal(std=c.init_std)},
    )


def head(c: Any) -> Head:
    if c.architecture == "FSMTModel":
        return VocabularyOutput(vocab_size=c.tgt_vocab_size)
    return LMHead(vocab_size=c.tgt_vocab_size, shift=False)


def rules(spec: Model) -> list[Rule]:
    return [*transformer.rules(spec), Rename("~decoder.output_projection.weight", "head.out.weight")]


FAMILIES = (
    Family(
        name="fsmt",
        about="translation, fairseq's WMT19 models",
        fields=FIELDS,
        describe=describe,
        rules=rules,
        architectures=("FSMTForConditionalGeneration", "FSMTModel"),
        base=("FSMTModel",),
        prefix="model.",
        aliases={**transformer.ALIASES, "vocab_size": "tgt_vocab_size"},
    ),
)
