"""XLM [Lample and Conneau 2019]: a post-norm encoder for many languages, with a language vector per token. With
`causal`, tokens see only earlier ones. Padding is zeroed between layers."""

from __future__ import annotations

from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import Absent, Fixed, Ignored
from anyformer.families.base.template import Class, Config, Entry, choice, divides, read_only, require_integer, tied
from anyformer.families.shared.summary import pool_entries
from anyformer.parts import (
    Attention, Block, Causal, ClassifyHead, EncoderModel, FirstToken, Full, Initializer, LMHead, LanguageText,
    LayerNorm, Learned, LikelySpans, MLP, Model, MultipleChoiceHead, Normal, Pool, Sines, SpanHead, Stack, Sublayer,
    TagHead, TokenSegments, Tokens, XLMText, ZeroedPadding,
)  # fmt: skip
from anyformer.specs.addresses import edit, value_at

ATTENTION, INNER, LAYER = "encoder.layers.attention.op", "encoder.layers.feedforward.op", "encoder.layers.{i}"
POSITIONS, TABLES = "embedding.position.weight", "embedding.*"
NORM = LayerNorm(eps=1e-12)

TEMPLATE = EncoderModel(
    width=2048,
    embedding=XLMText(
        tokens=Tokens(vocab_size=30145, padding_index=2),
        position=Learned(length=512),
        segments=TokenSegments(),
        norm=NORM,
        dropout=0.1,
        hidden_token=2,
    ),
    encoder=Stack(
        depth=12,
        layers=Block(
            attention=Sublayer(op=Attention(num_heads=16, dropout=0.1), out_norm=NORM, dropout=0.1),
            feedforward=ZeroedPadding(op=MLP(width=8192, activation="gelu"), out_norm=NORM, dropout=0.1),
        ),
    ),
    init={TABLES: Normal(std=2048**-0.5), "*": Normal(std=0.02)},
)


def init_weights(c: Config) -> dict[str, Initializer]:
    tables = c.init_std if c.embed_init_std is None else c.embed_init_std
    sines = {POSITIONS: Sines()} if c.sinusoidal_embeddings else {}  # trainable
    return {**sines, TABLES: Normal(std=tables), "*": Normal(std=c.init_std)}


def add_languages(spec: Model, value: bool, c: Config) -> Model:
    if not value or c.n_langs < 2:
        return spec
    return edit(spec, {"embedding": value_at(spec, "embedding").as_kind(LanguageText, languages=c.n_langs)})


def languages(spec: Any) -> int:
    if not isinstance(spec.embedding, LanguageText):
        raise Absent
    return spec.embedding.languages


def languages_used(spec: Any) -> bool:
    return languages(spec) > 1


def check(c: Config) -> None:
    if c.architecture == "XLMForQuestionAnsweringSimple" and c.num_labels != 2:
        raise ValueError(f"num_labels must be 2 for question answering (start and end), got {c.num_labels}")
    if c.architecture not in ("XLMForSequenceClassification", "XLMForMultipleChoice"):
        return
    for name, required in SUMMARY.items():
        if (getattr(c, name) or None) != required:
            raise ValueError(f"{name} must be {required} with {c.architecture}, got {getattr(c, name)}")


TOKEN = "a token id, used by tokenizers and generation"
SUMMARY = {"summary_use_proj": True, "summary_proj_to_labels": True, "summary_activation": None}
POOL_FIELDS = pool_entries("head.pool")

CONFIG: dict[str, Any] = {
    "vocab_size": ("embedding.tokens.vocab_size", "head.vocab_size"),
    "emb_dim": "width",
    "n_layers": "encoder.depth",
    "n_heads": f"{ATTENTION}.num_heads",
    "dropout": ("embedding.dropout", "encoder.layers.*.dropout", "head[TagHead].dropout"),
    "attention_dropout": f"{ATTENTION}.dropout",
    "gelu_activation": choice(f"{INNER}.activation", {True: "gelu", False: "relu"}),
    "causal": choice(f"{ATTENTION}.mask", {False: Full(), True: Causal()}),
    "use_lang_emb": Entry(True, languages_used, build=add_languages),
    "n_langs": Entry(1, languages),
    "max_position_embeddings": "embedding.position.length",
    "sinusoidal_embeddings": Entry(False, lambda spec: POSITIONS in spec.init),
    "embed_init_std": Entry(2048**-0.5, lambda spec: spec.init[TABLES].std),
    "init_std": Entry(0.02, lambda spec: spec.init["*"].std),
    "layer_norm_eps": "**.eps",
    "pad_token_id": ("embedding.tokens.padding_index", "embedding.hidden_token"),
    "summary_type": POOL_FIELDS["summary_type"],
    "summary_first_dropout": "head.pool.input_dropout",
    **{name: read_only(default) for name, default in SUMMARY.items()},
    "start_n_top": "head.starts",
    "end_n_top": "head.ends",
    "tie_word_embeddings": tied(True, LMHead="head.out.weight"),
    "asm": Fixed(False, "adaptive softmax, which no published model has"),
    "is_encoder": Fixed(True, "the published class has no decoder"),
    **{name: Ignored(value, TOKEN) for name, value in (("bos_token_id", 0), ("eos_token_id", 1), ("unk_index", 3))},
    **{name: Ignored(value, TOKEN) for name, value in (("mask_index", 5), ("mask_token_id", 0))},
    "lang_id": Ignored(0, "the language that transformers generates"),
}

XLM = Family(
    name="xlm",
    about="text encoders for many languages, with language vectors",
    template=TEMPLATE,
    classes={
        "XLMWithLMHeadModel": Class(LMHead(vocab_size=30145, bias=True, shift=False), "pred_layer.proj"),
        "XLMModel": Class(prefix=""),
        "XLMForSequenceClassification": Class(
            ClassifyHead(num_labels=2, pool=Pool(take=FirstToken(), input_dropout=0.1)), "sequence_summary.summary"
        ),
        "XLMForMultipleChoice": Class(  # the score of a choice is computed from its label scores
            MultipleChoiceHead(pool=Pool(take=FirstToken(), input_dropout=0.1, dense=True, width=2)),
            "logits_proj",
            weights={"sequence_summary.summary": "head.pool.dense"},
        ),
        "XLMForTokenClassification": Class(TagHead(num_labels=2, dropout=0.1), "classifier"),
        "XLMForQuestionAnsweringSimple": Class(SpanHead(), "qa_outputs"),
        "XLMForQuestionAnswering": Class(
            LikelySpans(starts=5, ends=5, norm=NORM),
            weights={
                "qa_outputs.start_logits.dense": "head.begin",
                "qa_outputs.end_logits.{dense_0,LayerNorm,dense_1}": "head.{end_dense,end_norm,end}",
                "qa_outputs.answer_class.{dense_0,dense_1}": "head.{none_dense,none}",
            },
        ),
    },
    config=CONFIG,
    computed={
        f"{INNER}.width": lambda c: 4 * c.emb_dim,
        "head[MultipleChoiceHead].pool.width": lambda c: c.num_labels,
        "init": init_weights,
    },
    weights={
        "~embeddings": "embedding.tokens",
        "~position_embeddings": "embedding.position",
        "~lang_embeddings": "embedding.languages",
        "~layer_norm_emb": "embedding.norm",
        "~attentions.{i}.{q,k,v,out}_lin": f"{LAYER}.attention.op.{{q,k,v,o}}",
        "~layer_norm1.{i}": f"{LAYER}.attention.out_norm",
        "~ffns.{i}.{lin1,lin2}": f"{LAYER}.feedforward.op.{{up,down}}",
        "~layer_norm2.{i}": f"{LAYER}.feedforward.out_norm",
    },
    prefix="transformer.",
    checks=(divides("n_heads", "emb_dim"), require_integer("n_langs"), check),
    aliases={
        "n_words": "vocab_size",
        "hidden_size": "emb_dim",
        "num_attention_heads": "n_heads",
        "num_hidden_layers": "n_layers",
        "bos_index": "bos_token_id",
        "eos_index": "eos_token_id",
        "pad_index": "pad_token_id",
    },
    dropped=("~position_ids",),
    sizes={
        "xlm-mlm-en-2048": Size({}, 665e6),
        "xlm-mlm-100-1280": Size(
            {"vocab_size": 200000, "emb_dim": 1280, "n_layers": 16, "n_langs": 100, "use_lang_emb": False}, 570e6
        ),
        "xlm-clm-enfr-1024": Size(
            {"vocab_size": 64139, "emb_dim": 1024, "n_layers": 6, "n_heads": 8, "n_langs": 2, "causal": True},
            note="trained to predict the next token; its published config omits `causal`",
        ),
    },
)
