"""Linformer [Wang et al. 2020]: RoBERTa whose keys and values are projected along the length to a fixed number.
transformers has no such class, so models are saved only in our own format; config fields are named as RoBERTa's."""

from __future__ import annotations

from anyformer.families import roberta
from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import Entry
from anyformer.families.base.template import Class, Weights, activation, entry
from anyformer.families.shared import bert_like
from anyformer.families.shared.bert_like import NORM
from anyformer.parts import Initializer, LMHead, LinformerAttention, Model, Normal, Transform
from anyformer.specs.addresses import edit

OP = "encoder.layers.attention.op"


def init(projected: int, std: float) -> dict[str, Initializer]:
    # variance 1 / k preserves norms on average [Johnson and Lindenstrauss 1984]
    return {"*.op.project*": Normal(std=max(projected, 1) ** -0.5), "*": Normal(std=std)}


def weights(spec: Model) -> Weights:
    raise ValueError("no linformer checkpoints are published; load a folder saved by anyformer (with spec.json)")


LINFORMER = Family(
    name="linformer",
    about="text encoders with linear attention: keys are projected to a fixed number",
    tokenizer="",
    template=edit(
        roberta.TEMPLATE,
        {
            OP: LinformerAttention(num_heads=12, length=510, projected=256, sharing="layerwise", dropout=0.1),
            "init": init(projected=256, std=0.02),
        },
    ),
    classes={
        "": Class(LMHead(vocab_size=50265, bias=True, transform=Transform(activation="gelu", norm=NORM), shift=False))
    },
    config={
        **bert_like.CONFIG,
        **bert_like.COUNTED_CONFIG,
        "hidden_act": activation("encoder.layers.feedforward.op.activation"),
        "attention_probs_dropout_prob": f"{OP}.dropout",
        "initializer_range": Entry(0.02, lambda spec: spec.init["*"].std),
        "projected": entry(f"{OP}.projected", build=lambda spec, k, c: spec.replace(init=init(k, c.initializer_range))),
        "sharing": f"{OP}.sharing",
    },
    computed={
        **bert_like.COUNTED,
        f"{OP}.length": lambda c: bert_like.counted_position(c).length,
        "head.unused_bias": lambda c: not c.tie_word_embeddings,
    },
    weights=weights,
    checks=(bert_like.check,),
    sizes={"linformer-base": Size(roberta.BASE, note="k = 256 for 512 tokens, one projection for all layers")},
)
