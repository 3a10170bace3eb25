"""BART [Lewis et al. 2020]: the original Transformer trained to undo noise, with learned positions and a norm after the
embedding."""

from __future__ import annotations

from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import Absent, ConfigField, Field, Ignored, Removed
from anyformer.families.shared import transformer
from anyformer.families.shared.heads import end_head
from anyformer.families.shared.transformer import TOKENS, check_padding, stack
from anyformer.models import DecoderModel, EncoderDecoderModel, Model
from anyformer.parts.embedding.text import TextEmbedding, Tokens
from anyformer.parts.head.base import Head
from anyformer.parts.head.classify import ClassifyHead
from anyformer.parts.head.language import LMHead
from anyformer.parts.head.span import SpanHead
from anyformer.parts.init import Normal
from anyformer.parts.norm import LayerNorm
from anyformer.parts.position.absolute import Learned
from anyformer.weights.rules import Rename, Reshape, Rule

OLD = "a choice of old configs that the published class no longer has"


def is_tied(spec: Any) -> bool:
    return bool(spec.ties)


def classifier_dropout(spec: Any) -> float:
    if not isinstance(spec.head, ClassifyHead):
        raise Absent
    return spec.head.pool.dropout


FIELDS: dict[str, ConfigField] = {
    **transformer.FIELDS,
    "vocab_size": Field(50265, "embedding.tokens.vocab_size"),
    "scale_embedding": Field(False, lambda spec: spec.embedding.tokens.scale is not None),
    "tie_word_embeddings": Field(True, is_tied),
    "classifier_dropout": Field(0.0, classifier_dropout),
    "pad_token_id": Field(1, "embedding.tokens.padding_index"),
    "decoder_start_token_id": Field(2, "start_token"),
    "eos_token_id": Field(2, "head.pool.token"),
    "problem_type": Field(None, "head.problem"),
    "num_labels": Ignored(3, "read with id2label"),
    "bos_token_id": Ignored(0, "used by generation"),
    "is_decoder": Ignored(False, "follows from the class"),
    "force_bos_token_to_be_generated": Ignored(False, "used by generation"),
    "output_past": Ignored(True, "an old name of use_cache that nothing reads"),
    "classif_dropout": Ignored(0.0, "an old name of classifier_dropout that nothing reads"),
    **{
        name: Ignored(None, "how a smaller copy was trained")
        for name in ("replacing_rate", "student_encoder_layers", "student_decoder_layers", "save_step")
    },
    "normalize_before": Removed(False, OLD),
    "normalize_embedding": Removed(True, OLD),
    "add_final_layer_norm": Removed(False, OLD),
    "add_bias_logits": Removed(False, OLD),
    "static_position_embeddings": Removed(False, OLD),
    "extra_pos_embeddings": Removed(2, OLD),
}


def describe(c: Any) -> Model:
    check_padding(c, c.vocab_size)
    alone, tie = c.architecture == "BartForCausalLM", c.tie_word_embeddings
    tokens = Tokens(
        vocab_size=c.vocab_size, padding_index=c.pad_token_id, scale=c.d_model**0.5 if c.scale_embedding else None
    )
    embedding = TextEmbedding(
        tokens=tokens, position=Learned(length=c.max_position_embeddings, offset=2), norm=LayerNorm(),
        dropout=c.dropout,
    )  # fmt: skip
    shared: dict[str, Any] = {
        "width": c.d_model, "decoder": stack(c, "decoder"), "head": head(c), "init": {"*": Normal(std=c.init_std)},
    }  # fmt: skip
    if alone:
        return DecoderModel(embedding=embedding, ties=(("head.out.weight", TOKENS),) if tie else (), **shared)
    tied = [f"decoder_{TOKENS}", *(["head.out.weight"] if isinstance(shared["head"], LMHead) else [])]
    return EncoderDecoderModel(
        # untied, the shared table stays in the files and nothing reads it
        embedding=embedding.replace(tokens=tokens.replace(spare=not tie)),
        encoder=stack(c, "encoder"),
        decoder_embedding=embedding,
        start_token=c.decoder_start_token_id,
        padding_token=c.pad_token_id,
        state_offered="without labels",
        reads_source=True,
        ties=tuple((name, TOKENS) for name in tied) if tie else (),
        **shared,
    )


def head(c: Any) -> Head | None:
    match c.architecture:
        case "BartForConditionalGeneration":
            return LMHead(vocab_size=c.vocab_size, shift=False, offset=True)
        case "BartForCausalLM":
            return LMHead(vocab_size=c.vocab_size, shift=False)  # published: whoever calls it moves the labels
        case "BartForSequenceClassification":
            return end_head(c)
        case "BartForQuestionAnswering":
            return SpanHead()
    return None


def rules(spec: Model) -> list[Rule]:
    alone = not spec.pair
    outs = {"BartForSequenceClassification": "classification_head.out_proj", "BartForQuestionAnswering": "qa_outputs"}
    return [
        *transformer.rules(spec),
        Rename("~shared.weight", "embedding.tokens.spare"),
        Rename(f"~{'decoder' if alone else 'encoder'}.layernorm_embedding.{{p}}", "embedding.norm.{p}"),
        Rename("~decoder.layernorm_embedding.{p}", "decoder_embedding.norm.{p}"),
        Rename("classification_head.dense.{p}", "head.pool.dense.{p}"),
        Rename(f"{outs.get(spec.architecture, 'lm_head')}.{{p}}", "head.out.{p}"),
        Reshape("final_logits_bias", "head.offset", (1, -1)),
    ]


BASE = {f"{side}_{name}": value for side in ("encoder", "decoder")
        for name, value in (("layers", 6), ("ffn_dim", 3072), ("attention_heads", 12))}  # fmt: skip
# the same shape with the words of uncased BERT, trained to write a hidden fragment of the text [Song et al. 2019]
MASS = {"vocab_size": 30522, "max_position_embeddings": 512, "scale_embedding": True, "attention_dropout": 0.1,
        "activation_dropout": 0.1, "pad_token_id": 0, "bos_token_id": 101, "eos_token_id": 102,
        "decoder_start_token_id": 102}  # fmt: skip

FAMILIES = (
    Family(
        name="bart",
        about="summaries and other rewriting, from a denoising autoencoder",
        fields=FIELDS,
        describe=describe,
        rules=rules,
        architectures=(
            "BartForConditionalGeneration", "BartModel", "BartForSequenceClassification", "BartForQuestionAnswering",
            "BartForCausalLM",
        ),
        base=("BartModel",),
        prefix="model.",
        aliases=transformer.ALIASES,
        dropped=("~encoder.version", "~decoder.version"),
        sizes={
            "bart-base": Size({**BASE, "d_model": 768}, 139e6),
            "bart-large": Size({}, 406e6),
            "mass-base": Size({**BASE, **MASS, "d_model": 768}, 123e6, "objective MASS; uncased, for summaries"),
            "mass-middle": Size(
                {**MASS, "encoder_layers": 6, "decoder_layers": 6}, 208e6, "objective MASS; uncased, for summaries"
            ),
        },
    ),
)  # fmt: skip
