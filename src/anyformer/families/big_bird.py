"""BigBird [Zaheer et al. 2020]: BERT for long texts; blocks of tokens look at their neighbours, at both ends of the
text and at random blocks. Short texts, and decoders, look at all pairs of tokens."""

from __future__ import annotations

from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import Absent, ConfigField, Field, Fixed, Ignored, again
from anyformer.families.bert import LARGE
from anyformer.families.shared import encoder
from anyformer.families.shared.heads import encoder_head, seen
from anyformer.models import Model
from anyformer.parts.activation import activation_named
from anyformer.parts.attention.attention import Attention
from anyformer.parts.attention.big_bird import BlockSparseAttention, BlockTextEmbedding, TextOnly
from anyformer.parts.embedding.text import TextEmbedding
from anyformer.parts.feedforward.mlp import MLP
from anyformer.parts.head.base import Head
from anyformer.parts.head.classify import ClassifyHead, MultipleChoiceHead, PooledOutput
from anyformer.parts.head.pool import Pool
from anyformer.parts.head.pretraining import PretrainingHead
from anyformer.parts.head.question_span import QuestionHead
from anyformer.parts.head.span import SpanHead
from anyformer.parts.norm import LayerNorm
from anyformer.parts.unused import Unused
from anyformer.runtime.mask import FULL
from anyformer.specs.messages import quote
from anyformer.stacks.stack import Stack
from anyformer.weights.rules import Rule


def attention_type(spec: Any) -> str:
    op = encoder.inside("layers.attention.op")(spec)
    return "block_sparse" if isinstance(op, BlockSparseAttention) else "original_full"


def separator(spec: Any) -> int | None:
    if not isinstance(spec.head, QuestionHead):
        raise Absent
    return spec.head.separator


FIELDS: dict[str, ConfigField] = {
    **encoder.FIELDS,
    **encoder.DECODING,
    "vocab_size": Field(50358, "embedding.tokens.vocab_size"),
    **again(encoder.FIELDS, hidden_act="gelu_new"),
    "max_position_embeddings": Field(4096, "embedding.position.length"),
    "attention_type": Field("block_sparse", attention_type),
    "block_size": Field(64, encoder.inside("layers.attention.op.block_size")),
    "num_random_blocks": Field(3, encoder.inside("layers.attention.op.random_blocks")),
    "use_bias": Field(True, lambda spec: "q" in encoder.inside("layers.attention.op.bias")(spec)),
    "rescale_embeddings": Field(False, lambda spec: spec.embedding.scale is not None),
    "add_cross_attention": Fixed(False, "the published self-attention then looks at the memory too"),
    "sep_token_id": Field(66, separator),
    "bos_token_id": Ignored(1, "used by tokenizers and generation"),
    "eos_token_id": Ignored(2, "used by tokenizers and generation"),
}


def describe(c: Any) -> Model:
    if c.attention_type not in ("original_full", "block_sparse"):
        raise ValueError(f"attention_type {quote(c.attention_type)}; it is 'original_full' or 'block_sparse'")
    sparse = c.attention_type == "block_sparse"
    common: dict[str, Any] = {
        "num_heads": c.num_attention_heads,
        "dropout": c.attention_probs_dropout_prob,
        "bias": "qkvo" if c.use_bias else "o",
        "mask": seen(c) if c.is_decoder else FULL,
    }
    blocks = {"block_size": c.block_size, "random_blocks": c.num_random_blocks}
    length = c.max_position_embeddings
    op = BlockSparseAttention(**common, **blocks, length=length) if sparse else Attention(**common)
    kind: dict[str, Any] = {"order": ORDER, "scale": c.hidden_size**0.5 if c.rescale_embeddings else None}
    if sparse and not c.is_decoder:
        embedding = encoder.embedding(c, BlockTextEmbedding, **kind, **blocks)
    else:
        embedding = encoder.embedding(c, TextEmbedding, **kind)
    stack = Stack(layers=encoder.block(c, op), depth=c.num_hidden_layers, neck=neck(head(c)))
    model = encoder.model(c, embedding, head(c), stack)
    labelled = model.state_offered == "without labels"  # other than BERT's, its memory is returned with them too
    return model.replace(state_offered="always") if labelled else model


ORDER = ("segments", "position", "dropout", "norm", "project")
POOL = Pool(take="first", dense=True, activation="tanh")


def neck(head: Head | None) -> TextOnly:
    """Most classes carry a pooler that they do not use."""
    own = isinstance(head, (PretrainingHead, PooledOutput, MultipleChoiceHead, SpanHead))
    return TextOnly(rest=None if own else Unused(part=POOL))


def head(c: Any) -> Head | None:
    dropout, act, lm = encoder.classifier_dropout(c), activation_named(c.hidden_act), encoder.lm_head(c, c.hidden_act)
    match c.architecture:
        case "BigBirdForPreTraining":
            return PretrainingHead(lm=lm, pool=POOL, tokens_alone=True)
        case "BigBirdForQuestionAnswering":  # with two labels whatever num_labels is
            return QuestionHead(
                separator=c.sep_token_id,
                feedforward=MLP(width=c.intermediate_size, activation=act),
                norm=LayerNorm(eps=c.layer_norm_eps),
                dropout=c.hidden_dropout_prob,
            )
    classify = POOL.replace(activation=act, input_dropout=dropout, dropout=dropout)
    choose = POOL.replace(dropout=c.hidden_dropout_prob)
    return encoder_head(c, lm, classify, choose, PooledOutput(pool=POOL), dropout=dropout)


def rules(spec: Model) -> list[Rule]:
    names = {"cls.seq_relationship" if isinstance(spec.head, PretrainingHead) else "classifier": "head.out"}
    if isinstance(spec.head, ClassifyHead):
        names = {"classifier.dense": "head.pool.dense", "classifier.out_proj": "head.out"}
    if isinstance(spec.head, QuestionHead):
        names = {
            "intermediate.dense": "feedforward.up",
            "output.dense": "feedforward.down",
            "output.LayerNorm": "norm",
            "qa_outputs": "out",
        }
        names = {f"qa_classifier.{theirs}": f"head.{ours}" for theirs, ours in names.items()}
    stack = encoder.stack_of(spec)
    pooler: Any = getattr(spec, stack).neck.rest
    return [
        *encoder.lm_rules(spec, "cls.predictions", "transform.dense", "transform.LayerNorm"),
        *encoder.renames(names),
        *encoder.renames({"~pooler": "head.pool.dense" if pooler is None else f"{stack}.neck.rest.part.dense"}),
        *encoder.layer_rules(spec),
    ]


FAMILIES = (
    Family(
        name="big_bird",
        about="encoders for long texts, and decoders made of them",
        fields=FIELDS,
        describe=describe,
        rules=rules,
        architectures=(
            "BigBirdForPreTraining",
            "BigBirdForMaskedLM",
            "BigBirdForCausalLM",
            "BigBirdModel",
            "BigBirdForSequenceClassification",
            "BigBirdForTokenClassification",
            "BigBirdForQuestionAnswering",
            "BigBirdForMultipleChoice",
        ),
        base=("BigBirdModel",),
        prefix="bert.",
        dropped=("~embeddings.position_ids", "~embeddings.token_type_ids", "~pooler.{p}", "cls.seq_relationship.{p}"),
        sizes={"bigbird-roberta-base": Size({}, 127e6), "bigbird-roberta-large": Size(LARGE)},
    ),
)
