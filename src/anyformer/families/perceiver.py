"""Perceiver IO on bytes of text [Jaegle et al. 2022]: latents read the text once by cross-attention, a deep stack runs
over the latents, and a second cross-attention computes one vector per position, or one for a label. transformers'
classes for images, optical flow and video are not supported."""

from __future__ import annotations

from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import Ignored
from anyformer.families.base.template import Class, Config, Entry, activation
from anyformer.families.shared.bert_like import TOKENS, renames
from anyformer.parts import (
    Attention, Block, ClassifyHead, EncoderModel, FirstToken, LMHead, LayerNorm, Learned, Look, MLP, Model, Normal,
    Perceiver, Pool, Stack, Sublayer, TextEmbedding, Tokens, Write,
)  # fmt: skip
from anyformer.parts.activation import activation_named
from anyformer.specs.addresses import value_at
from anyformer.specs.messages import nearest, quote
from anyformer.weights.rules import Rename, Rule

LAYER = "encoder.stack.layers"
OP = f"{LAYER}.attention.op"
SIDES = ("q", "kv")
IMAGES = "for the classes that read images or video"
HEADS, KEYS = 8, 32  # of the output cross-attention for text; not in the config


def channels(field: str) -> Any:
    """Return a path function for the width of all heads together; None if it is the default."""
    return lambda spec: (
        None if (each := value_at(spec, f"{OP}.{field}")) is None else each * value_at(spec, f"{OP}.num_heads")
    )


def widening_factor(path: str) -> Any:
    return lambda spec: value_at(spec, path) // (spec.encoder.width or spec.width)


CONFIG: dict[str, Any] = {
    "num_latents": Entry(256, "encoder.latents"),
    "d_latents": Entry(1280, "encoder.width"),
    "d_model": Entry(768, "width"),
    "num_blocks": Entry(1, "encoder.rounds"),
    "num_self_attends_per_block": Entry(26, "encoder.stack.depth"),
    "num_self_attention_heads": Entry(8, f"{OP}.num_heads"),
    "num_cross_attention_heads": Entry(8, "encoder.read.num_heads"),
    "qk_channels": Entry(None, channels("head_width")),
    "v_channels": Entry(None, channels("value_width")),
    "cross_attention_shape_for_attention": Entry("kv", lambda spec: SIDES[spec.encoder.read.head_width is not None]),
    "self_attention_widening_factor": Entry(1, widening_factor(f"{LAYER}.feedforward.op.width")),
    "cross_attention_widening_factor": Entry(1, widening_factor("encoder.read.feedforward.width")),
    "hidden_act": activation("encoder.read.feedforward.activation", default="gelu"),
    "attention_probs_dropout_prob": Entry(0.1, "encoder.read.dropout"),
    "initializer_range": Entry(0.02, lambda spec: spec.init["*"].std),
    "use_query_residual": Entry(True, "encoder.read.add"),
    "vocab_size": Entry(262, "embedding.tokens.vocab_size"),
    "max_position_embeddings": Entry(2048, "embedding.position.length"),
    "layer_norm_eps": Ignored(1e-12, "the published class uses torch's default of 1e-5 instead"),
    "image_size": Ignored(56, IMAGES),
    "train_size": Ignored((368, 496), IMAGES),
    "num_frames": Ignored(16, IMAGES),
    "audio_samples_per_frame": Ignored(1920, IMAGES),
    "samples_per_patch": Ignored(16, IMAGES),
    "output_shape": Ignored((1, 16, 224, 224), IMAGES),
    "output_num_channels": Ignored(512, IMAGES),
    "_label_trainable_num_channels": Ignored(1024, IMAGES),
}


def describe(c: Config) -> Model:
    W, writes = c.d_latents, c.architecture == "PerceiverForMaskedLM"
    if c.cross_attention_shape_for_attention not in SIDES:
        side = c.cross_attention_shape_for_attention
        raise ValueError(f"cross_attention_shape_for_attention={quote(side)} is not valid; {nearest(side, SIDES)}")
    if (values := c.v_channels or c.qk_channels or W) != W:
        raise ValueError(f"v_channels must equal d_latents {W}, because their outputs are added; got {values}")
    shape, norm = {"dropout": c.attention_probs_dropout_prob}, LayerNorm(eps=1e-5)

    def inner(width: int) -> MLP:
        return MLP(width=width, activation=activation_named(c.hidden_act))

    def head_width_of(width: int | None, heads: int, name: str) -> int | None:
        if width is not None and width % heads:
            raise ValueError(f"{name} {width} is not a multiple of {heads} heads")
        return None if width is None else width // heads

    cross_heads, self_heads = c.num_cross_attention_heads, c.num_self_attention_heads
    keys = c.qk_channels or (c.d_model if c.cross_attention_shape_for_attention == "kv" else None)
    attention = Attention(
        num_heads=self_heads,
        head_width=head_width_of(c.qk_channels, self_heads, "qk_channels"),
        value_width=head_width_of(c.v_channels, self_heads, "v_channels"),
        **shape,
    )
    layer = Block(
        attention=Sublayer(pre_norm=norm, op=attention),
        feedforward=Sublayer(pre_norm=norm, op=inner(c.self_attention_widening_factor * W)),
    )
    read = Look(
        num_heads=cross_heads,
        head_width=head_width_of(keys, cross_heads, "qk_channels"),
        value_width=head_width_of(c.v_channels, cross_heads, "v_channels"),
        add=c.use_query_residual,
        norm=norm,
        source_norm=norm,
        feedforward=inner(c.cross_attention_widening_factor * W),
        **shape,
    )
    width, count = (c.d_model, c.max_position_embeddings) if writes else (W, 1)
    look = Look(
        num_heads=HEADS if writes else 1,
        head_width=KEYS if writes else None,
        add=not writes,
        norm=norm,
        value_width=head_width_of(width, HEADS, "d_model") if writes else None,
        source_norm=norm,
        feedforward=inner(width),
        **shape,
    )
    return EncoderModel(
        width=c.d_model,
        embedding=TextEmbedding(
            tokens=Tokens(vocab_size=c.vocab_size), position=Learned(length=c.max_position_embeddings)
        ),
        encoder=Perceiver(
            latents=c.num_latents,
            width=W,
            read=read,
            rounds=c.num_blocks,
            stack=Stack(layers=layer, depth=c.num_self_attends_per_block, shows="stream"),
            write=Write(look=look, position=Learned(length=count), count=count, width=width),
        ),
        head=LMHead(vocab_size=c.vocab_size, bias=True, shift=False)
        if writes
        else ClassifyHead(num_labels=c.num_labels, pool=Pool(take=FirstToken()), problem=c.problem_type),
        ties=(("head.out.weight", TOKENS),) if writes else (),
        init={"*": Normal(std=c.initializer_range)},
    )


def rules(spec: Model) -> list[Rule]:
    lm = isinstance(spec.head, LMHead)
    write = "~decoder" if lm else "~decoder.decoder"
    named = {
        "attention.self.layernorm1": "pre_norm",
        "attention.self.layernorm2": "source_norm",
        "attention.self.query": "attention.q",
        "attention.self.key": "attention.k",
        "attention.self.value": "attention.v",
        "attention.output.dense": "attention.o",
        "layernorm": "norm",
        "mlp.dense1": "feedforward.up",
        "mlp.dense2": "feedforward.down",
    }
    norms = {"pre_norm": "attention.pre_norm", "norm": "feedforward.pre_norm"}
    modules = {"~encoder.cross_attention": "encoder.read", f"{write}.decoding_cross_attention": "encoder.write.look"}
    names: dict[str, str] = {}
    for theirs, ours in named.items():
        names |= {f"{source}.{theirs}": f"{target}.{ours}" for source, target in modules.items()}
        step, _, rest = ours.partition(".")
        inside = norms.get(step, f"{step}.op.{rest}")
        names |= {} if ours == "source_norm" else {f"~encoder.self_attends.{{i}}.{theirs}": f"{LAYER}.{{i}}.{inside}"}
    return [
        Rename("~embeddings.latents", "encoder.latents"),
        Rename(f"{write}.output_position_encodings.position_embeddings", "encoder.write.position.weight"),
        *renames(
            {
                "~input_preprocessor.embeddings": "embedding.tokens",
                "~input_preprocessor.position_embeddings": "embedding.position",
                ("embedding_decoder" if lm else f"{write}.final_layer"): "head.out",
                **names,
            }
        ),
    ]


PERCEIVER = Family(
    name="perceiver",
    about="encoders of text bytes through a small set of latents",
    tokenizer="PerceiverTokenizer",
    template=describe,
    config=CONFIG,
    weights=rules,
    classes={"PerceiverForMaskedLM": Class(), "PerceiverForSequenceClassification": Class()},
    prefix="perceiver.",
    sizes={"perceiver-language": Size({"qk_channels": 256, "v_channels": 1280}, 201e6)},
)
