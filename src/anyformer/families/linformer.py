"""Linformer [Wang et al. 2020]: RoBERTa whose keys and values are projected along the length to a few. transformers has
no class of it: there are descriptions, saved in our own form, and config fields are named as RoBERTa's."""

from __future__ import annotations

from typing import Any

from anyformer.families import roberta
from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import ConfigField, Field
from anyformer.families.shared import encoder
from anyformer.models import Model
from anyformer.parts.attention.linear import LinformerAttention
from anyformer.parts.init import Normal
from anyformer.stacks.stack import Stack
from anyformer.weights.rules import Rule

OP = "encoder.layers.attention.op"

FIELDS: dict[str, ConfigField] = {
    **encoder.FIELDS,
    "vocab_size": Field(50265, "embedding.tokens.vocab_size"),
    "max_position_embeddings": encoder.COUNTED_LENGTH,
    "pad_token_id": Field(1, "embedding.tokens.padding_index"),
    "projected": Field(256, f"{OP}.projected"),
    "sharing": Field("layerwise", f"{OP}.sharing"),
}


def describe(c: Any) -> Model:
    embedding: Any = encoder.counted_embedding(c)
    op = LinformerAttention(
        num_heads=c.num_attention_heads,
        length=embedding.position.length,
        projected=c.projected,
        sharing=c.sharing,
        dropout=c.attention_probs_dropout_prob,
    )
    stack = Stack(layers=encoder.block(c, op), depth=c.num_hidden_layers)
    model = encoder.model(c, embedding, encoder.lm_head(c, "gelu"), stack)
    # variance 1 / k: lengths are kept in the mean [Johnson and Lindenstrauss 1984]
    return model.replace(init={"*.op.project*": Normal(std=c.projected**-0.5), **model.init})


def rules(spec: Model) -> list[Rule]:
    raise ValueError("no files of a linformer are published; load a folder that anyformer saved (spec.json)")


FAMILIES = (
    Family(
        name="linformer",
        about="encoders for text whose keys are projected to a few",
        fields=FIELDS,
        describe=describe,
        rules=rules,
        architectures=(),
        sizes={"linformer-base": Size(roberta.BASE, note="k = 256 for texts of 512, one projection for all layers")},
    ),
)
