"""BERT [Devlin et al. 2019]: post-norm encoder with learned positions and segments, trained on masked tokens and next
sentences. With `is_decoder` the layers are causal, with optional cross-attention [Rothe et al. 2020]."""

from __future__ import annotations

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import Ignored, Removed
from anyformer.families.base.template import Class
from anyformer.families.shared import bert_like
from anyformer.families.shared.bert_like import LAYERS, NORM
from anyformer.parts import (
    ClassifyHead, EncoderModel, FirstToken, LMHead, Learned, MultipleChoiceHead, NextSentenceHead, Normal, Pool,
    PooledOutput, PretrainingHead, SpanHead, Stack, TagHead, TextEmbedding, Tokens, Transform,
)  # fmt: skip

TEMPLATE = EncoderModel(
    width=768,
    embedding=TextEmbedding(
        tokens=Tokens(vocab_size=30522, padding_index=0),
        position=Learned(length=512),
        segments=2,
        norm=NORM,
        dropout=0.1,
    ),
    encoder=Stack(depth=12, layers=LAYERS),
    init={"*": Normal(std=0.02)},
)
POOL = Pool(take=FirstToken(), dense=True, activation="tanh")
DROPPED = POOL.replace(dropout=0.1)
LM = LMHead(vocab_size=30522, bias=True, transform=Transform(activation="gelu", norm=NORM), shift=False)

ORIGINAL = "in the first published files; no class reads it"
UNREAD = Ignored(None, ORIGINAL)
LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}


def small(width: int, depth: int, published: float) -> Size:
    """A size of "Well-Read Students Learn Better" [Turc et al. 2019]."""
    shape = {"num_hidden_layers": depth, "num_attention_heads": width // 64, "intermediate_size": 4 * width}
    return Size({"hidden_size": width, **shape}, published)


BERT = Family(
    name="bert",
    about="text encoders, and decoders with the same layers",
    tokenizer="BertTokenizer",
    template=TEMPLATE,
    classes={
        "BertForPreTraining": Class(PretrainingHead(lm=LM, pool=POOL), "cls.seq_relationship"),
        "BertForMaskedLM": Class(LM),
        "BertLMHeadModel": Class(LM.replace(shift=True)),
        "BertModel": Class(PooledOutput(pool=POOL), prefix=""),
        "BertForNextSentencePrediction": Class(NextSentenceHead(pool=POOL), "cls.seq_relationship"),
        "BertForSequenceClassification": Class(ClassifyHead(num_labels=2, pool=DROPPED), "classifier"),
        "BertForTokenClassification": Class(TagHead(num_labels=2, dropout=0.1), "classifier"),
        "BertForQuestionAnswering": Class(SpanHead(), "qa_outputs"),
        "BertForMultipleChoice": Class(MultipleChoiceHead(pool=DROPPED), "classifier"),
    },
    config={
        **bert_like.CONFIG,
        **bert_like.DECODER_FIELDS,
        "directionality": Removed("bidi", ORIGINAL),
        "pooler_type": Removed("first_token_transform", ORIGINAL),
        **{f"pooler_{name}": UNREAD for name in ("fc_size", "num_attention_heads", "num_fc_layers", "size_per_head")},
        "output_past": Ignored(True, "an old name of use_cache that nothing reads"),
    },
    computed={"**.unused_bias": lambda c: not c.tie_word_embeddings},  # files contain the bias under two names
    weights={**bert_like.WEIGHTS, "cls.predictions": bert_like.vocabulary("transform.dense", "transform.LayerNorm")},
    prefix="bert.",
    checks=(bert_like.check_decoder,),
    # left over from pretraining; most classes do not use them
    dropped=("~embeddings.position_ids", "~pooler.dense.{p}", "cls.seq_relationship.{p}"),
    sizes={
        "bert-base": Size({}, 110e6),
        "bert-large": Size(LARGE, 340e6),
        "bert-tiny": small(128, 2, 4.4e6),
        "bert-mini": small(256, 4, 11.3e6),
        "bert-small": small(512, 4, 29.1e6),
        "bert-medium": small(512, 8, 41.7e6),
        "bert-multilingual": Size({"vocab_size": 119547}, note="bert-base with a cased vocabulary of 104 languages"),
    },
)
