"""ELECTRA [Clark et al. 2020]: a small generator that fills masks and a discriminator that detects the replaced tokens.
Both are BERT encoders whose token vectors have their own width."""

from __future__ import annotations

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import Ignored
from anyformer.families.base.template import Class, Entry, activation
from anyformer.families.shared import bert_like, summary
from anyformer.families.shared.bert_like import NORM
from anyformer.parts import (
    Attention, Block, ClassifyHead, DetectHead, EncoderModel, FirstToken, LMHead, Learned, MLP, MultipleChoiceHead,
    Normal, Pool, SpanHead, Stack, Sublayer, TagHead, TextEmbedding, Tokens, Transform,
)  # fmt: skip

TEMPLATE = EncoderModel(
    width=256,
    embedding=TextEmbedding(
        tokens=Tokens(vocab_size=30522, width=128, padding_index=0),
        position=Learned(length=512),
        segments=2,
        norm=NORM,
        dropout=0.1,
    ),
    encoder=Stack(
        depth=12,
        layers=Block(
            attention=Sublayer(op=Attention(num_heads=4, dropout=0.1), out_norm=NORM, dropout=0.1),
            feedforward=Sublayer(op=MLP(width=1024, activation="gelu"), out_norm=NORM, dropout=0.1),
        ),
    ),
    init={"*": Normal(std=0.02)},
)
POOL = Pool(take=FirstToken(), dense=True, activation="gelu", dropout=0.1)
LM = LMHead(vocab_size=30522, bias=True, transform=Transform(activation="gelu", norm=NORM, width=128), shift=False)


def size(embedding: int, width: int, depth: int, heads: int, published: float | None) -> Size:
    name = "ElectraForPreTraining" if published else "ElectraForMaskedLM"
    shape = {"embedding_size": embedding, "hidden_size": width, "num_hidden_layers": depth}
    return Size(
        {"architectures": [name], **shape, "num_attention_heads": heads, "intermediate_size": 4 * width}, published
    )


ELECTRA = Family(
    name="electra",
    about="text encoders trained to detect replaced tokens, and their generators",
    tokenizer="ElectraTokenizer",
    template=TEMPLATE,
    classes={
        "ElectraForPreTraining": Class(DetectHead(activation="gelu"), "discriminator_predictions.dense_prediction"),
        "ElectraForMaskedLM": Class(LM, "generator_lm_head"),
        "ElectraForCausalLM": Class(LM.replace(shift=True), "generator_lm_head"),
        "ElectraModel": Class(prefix=""),
        "ElectraForSequenceClassification": Class(
            ClassifyHead(num_labels=2, pool=POOL.replace(input_dropout=0.1)), "classifier.out_proj"
        ),
        "ElectraForTokenClassification": Class(TagHead(num_labels=2, dropout=0.1), "classifier"),
        "ElectraForQuestionAnswering": Class(SpanHead(), "qa_outputs"),
        "ElectraForMultipleChoice": Class(
            MultipleChoiceHead(pool=POOL), "classifier", weights={"sequence_summary.summary": "head.pool.dense"}
        ),
    },
    config={
        **bert_like.CONFIG,
        **bert_like.DECODER_FIELDS,
        "embedding_size": Entry(
            path=lambda spec: spec.embedding.tokens.width or spec.width,
            addresses=("embedding.tokens.width",),
            read=lambda width, c: None if width == c.hidden_size else width,
        ),
        "hidden_act": activation("*.layers.feedforward.op.activation", "head[DetectHead].activation"),
        "classifier_dropout": bert_like.head_dropout(
            "head[ClassifyHead].pool.input_dropout", "head[ClassifyHead].pool.dropout", "head[TagHead].dropout"
        ),
        **summary.pool_entries("head[MultipleChoiceHead].pool"),
        "generator_size": Ignored(None, "the relative size of the generator, which has its own config"),
        "output_past": Ignored(True, "an old name of use_cache that nothing reads"),
    },
    computed={"head.transform.width": lambda c: c.embedding_size},
    weights={
        "~embeddings_project": "embedding.project",
        "generator_predictions.{dense,LayerNorm}": "head.transform.{dense,norm}",
        "discriminator_predictions.dense": "head.dense",
        "classifier.dense": "head.pool.dense",
        **bert_like.WEIGHTS,
    },
    prefix="electra.",
    checks=(bert_like.check_decoder, lambda c: summary.check_pool(c, c.hidden_size, "ElectraForMultipleChoice")),
    dropped=("~embeddings.position_ids",),
    sizes={
        "electra-small": size(128, 256, 12, 4, 14e6),
        "electra-base": size(768, 768, 12, 12, 110e6),
        "electra-large": size(1024, 1024, 24, 16, 335e6),
        "electra-small-generator": size(128, 256, 12, 4, None),
        "electra-base-generator": size(768, 256, 12, 4, None),
        "electra-large-generator": size(1024, 256, 24, 4, None),
    },
)
