"""Longformer [Beltagy et al. 2020]: RoBERTa for long texts; tokens attend within a window, and chosen tokens are
global."""

from __future__ import annotations

from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import Ignored, Removed
from anyformer.families.base.template import Class, Config, Entry, activation
from anyformer.families.bert import DROPPED, LARGE, LM, POOL
from anyformer.families.shared import bert_like
from anyformer.families.shared.bert_like import LAYERS, NORM
from anyformer.parts import (
    ClassifyHead, EncoderModel, GlobalTextEmbedding, Learned, LocalAttention, MultipleChoiceHead, Normal, PooledOutput,
    SpanHead, Stack, TagHead, Tokens, WithoutToken,
)  # fmt: skip
from anyformer.specs.addresses import edit, value_at

TEMPLATE = EncoderModel(
    width=768,
    embedding=GlobalTextEmbedding(
        tokens=Tokens(vocab_size=30522, padding_index=1),
        position=Learned(length=510, offset=2, padding=True),
        numbering=WithoutToken(token=1, first=2),
        segments=2,
        norm=NORM,
        dropout=0.1,
    ),
    encoder=Stack(
        depth=12,
        layers=edit(LAYERS, {"attention.op": LocalAttention(num_heads=12, window=256, dropout=0.1, shown=512)}),
    ),
    init={"*": Normal(std=0.02)},
)


def set_windows(spec: EncoderModel, window: Any, c: Config) -> EncoderModel:
    """Set the window of each layer. Configs count both sides together."""
    depth = c.num_hidden_layers
    sizes = [window] * depth if isinstance(window, int) else list(window)
    if len(sizes) != depth or any(not isinstance(size, int) or size < 2 or size % 2 for size in sizes):
        raise ValueError(f"attention_window must be an even number, or one per layer ({depth}); got {window}")
    shown, stack = max(sizes, default=1), value_at(spec, "encoder")
    kinds = {
        f"window_{size}": edit(stack.layers, {"attention.op.window": size // 2, "attention.op.shown": shown})
        for size in sizes
    }
    one = len(kinds) == 1
    pattern = () if one else tuple(f"window_{size}" for size in sizes)
    layers = next(iter(kinds.values())) if one else kinds
    return spec.replace(encoder=stack.replace(layers=layers, pattern=pattern))


def windows(spec: EncoderModel) -> list[int]:
    stack: Stack = value_at(spec, "encoder")
    return [2 * stack.layer(i).steps["attention"].op.window for i in range(stack.depth)]


BASE = {"vocab_size": 50265, "max_position_embeddings": 4098, "type_vocab_size": 1, "layer_norm_eps": 1e-5}

LONGFORMER = Family(
    name="longformer",
    about="encoders for long texts",
    tokenizer="LongformerTokenizer",
    template=TEMPLATE,
    classes={  # with the tokens that are global by default
        "LongformerForMaskedLM": Class(LM),
        "LongformerModel": Class(PooledOutput(pool=POOL), prefix=""),
        "LongformerForSequenceClassification": Class(
            ClassifyHead(num_labels=2, pool=DROPPED.replace(input_dropout=0.1)),
            "classifier.out_proj",
            weights={"classifier.dense": "head.pool.dense"},
            changes={"embedding.global_tokens": "first"},
        ),
        "LongformerForTokenClassification": Class(TagHead(num_labels=2, dropout=0.1), "classifier"),
        "LongformerForQuestionAnswering": Class(
            SpanHead(), "qa_outputs", changes={"embedding.global_tokens": "before", "embedding.separator": 2}
        ),
        "LongformerForMultipleChoice": Class(
            MultipleChoiceHead(pool=DROPPED),
            "classifier",
            changes={"embedding.global_tokens": "after", "embedding.separator": 2},
        ),
    },
    config={
        **bert_like.CONFIG,
        **bert_like.COUNTED_CONFIG,
        "hidden_act": activation("encoder.layers.feedforward.op.activation"),
        "hidden_dropout_prob": (
            "embedding.dropout",
            "encoder.layers.*.dropout",
            "head[ClassifyHead].pool.dropout",
            "head[ClassifyHead].pool.input_dropout",
            "head[MultipleChoiceHead].pool.dropout",
            "head[TagHead].dropout",
        ),
        "attention_probs_dropout_prob": "encoder.layers.attention.op.dropout",
        "attention_window": Entry(512, windows, build=set_windows),
        "sep_token_id": "embedding.separator[int]",
        "attention_dilation": Removed(None, "dilated windows, which no published class has", ([1] * 12, [1] * 24)),
        "attention_mode": Removed("longformer", "an option of the original code that no published class has"),
        "ignore_attention_mask": Removed(False, "an option of the original code that no published class has"),
        "bos_token_id": Ignored(0, "used by tokenizers"),
        "eos_token_id": Ignored(2, "used by tokenizers"),
        "onnx_export": Ignored(False, "how chunks are computed, not the result"),
    },
    computed={**bert_like.COUNTED, "head.unused_bias": lambda c: not c.tie_word_embeddings},
    weights={
        **bert_like.WEIGHTS,
        "~encoder.layer.{i}.attention.self.{query,key,value}_global": "*.layers.{i}.attention.op.global_{q,k,v}",
        "lm_head": bert_like.vocabulary("dense", "layer_norm"),
    },
    prefix="longformer.",
    checks=(bert_like.check,),
    dropped=("~embeddings.position_ids", "~pooler.dense.{p}"),
    sizes={"longformer-base": Size(BASE, 149e6), "longformer-large": Size({**BASE, **LARGE}, 435e6)},
)
