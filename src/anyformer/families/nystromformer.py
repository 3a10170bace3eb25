"""Nystromformer [Xiong et al. 2021]: BERT with attention approximated through landmarks, plus a convolution over the
values."""

from __future__ import annotations

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import Fixed, Ignored
from anyformer.families.base.template import Class, Config, activation
from anyformer.families.shared import bert_like
from anyformer.parts import (
    Block, ByPlace, ClassifyHead, EncoderModel, FirstToken, LMHead, LayerNorm, Learned, MLP, MultipleChoiceHead, Normal,
    NystromAttention, Pool, SpanHead, Stack, Sublayer, TagHead, TextEmbedding, Tokens, Transform,
)  # fmt: skip
from anyformer.specs.addresses import value_at
from anyformer.weights.rules import Reshape, Rule

OP = "encoder.layers.attention.op"
NORM = LayerNorm(eps=1e-5)

TEMPLATE = EncoderModel(
    width=768,
    embedding=TextEmbedding(
        tokens=Tokens(vocab_size=30000, padding_index=1),
        # the table has two rows before the first position, and position_ids count them
        position=Learned(length=510, offset=2),
        numbering=ByPlace(first=2),
        segments=2,
        norm=NORM,
        dropout=0.1,
    ),
    encoder=Stack(
        depth=12,
        layers=Block(
            attention=Sublayer(
                op=NystromAttention(num_heads=12, length=64, landmarks=64, taps=65), out_norm=NORM, dropout=0.1
            ),
            feedforward=Sublayer(op=MLP(width=3072, activation="gelu_tanh"), out_norm=NORM, dropout=0.1),
        ),
    ),
    init={"*": Normal(std=0.02)},
)
LM = LMHead(vocab_size=30000, bias=True, transform=Transform(activation="gelu_tanh", norm=NORM), shift=False)
POOL = Pool(take=FirstToken(), input_dropout=0.1, dense=True, activation="gelu_tanh", dropout=0.1)


def convolution_rules(theirs: str, spec: EncoderModel) -> list[Rule]:
    op = value_at(spec, OP)
    shape = (op.num_heads, 1, op.taps or 1, 1)  # published as a 2D kernel of width 1
    return [Reshape(theirs, "encoder.layers.{i}.attention.op.conv.weight", shape)]


def check_kernel(c: Config) -> None:
    if c.conv_kernel_size and c.conv_kernel_size % 2 == 0:
        raise ValueError(f"conv_kernel_size must be odd, so that the length stays the same; got {c.conv_kernel_size}")


NYSTROMFORMER = Family(
    name="nystromformer",
    about="text encoders with linear attention through landmarks",
    base_tokenizer="always",
    template=TEMPLATE,
    classes={
        "NystromformerForMaskedLM": Class(LM),
        "NystromformerModel": Class(prefix=""),
        "NystromformerForSequenceClassification": Class(
            ClassifyHead(num_labels=2, pool=POOL),
            "classifier.out_proj",
            weights={"classifier.dense": "head.pool.dense"},
        ),
        "NystromformerForTokenClassification": Class(TagHead(num_labels=2, dropout=0.1), "classifier"),
        "NystromformerForQuestionAnswering": Class(SpanHead(), "qa_outputs"),  # ignores num_labels
        "NystromformerForMultipleChoice": Class(
            MultipleChoiceHead(pool=Pool(take=FirstToken(), dense=True, activation="relu")),
            "classifier",
            weights={"pre_classifier": "head.pool.dense"},
        ),
    },
    config={
        **bert_like.CONFIG,
        "hidden_act": activation(
            "encoder.layers.feedforward.op.activation",
            "head.transform.activation",
            "head[ClassifyHead].pool.activation",
        ),
        "hidden_dropout_prob": (
            "embedding.dropout",
            "encoder.layers.*.dropout",
            "head[ClassifyHead].pool.input_dropout",
            "head[ClassifyHead].pool.dropout",
            "head[TagHead].dropout",
        ),
        "segment_means_seq_len": f"{OP}.length",
        "num_landmarks": f"{OP}.landmarks",
        "conv_kernel_size": f"{OP}.taps",
        "add_cross_attention": Ignored(False, "not read by the published class"),
        "inv_coeff_init_option": Fixed(False, "the published class fails with it"),
        "attention_probs_dropout_prob": Ignored(0.1, "the published class never applies this dropout"),
        "bos_token_id": Ignored(0, "used by tokenizers"),
        "eos_token_id": Ignored(2, "used by tokenizers"),
    },
    computed={"head.unused_bias": lambda c: not c.tie_word_embeddings},
    weights={
        "~encoder.layer.{i}.attention.self.conv.weight": convolution_rules,
        "cls.predictions": bert_like.vocabulary("transform.dense", "transform.LayerNorm"),
        **bert_like.WEIGHTS,
    },
    prefix="nystromformer.",
    checks=(bert_like.check_shape, check_kernel),
    dropped=("~embeddings.position_ids", "~embeddings.token_type_ids"),
    sizes={"nystromformer-512": Size({})},
)
