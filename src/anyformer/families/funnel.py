"""Funnel-Transformer [Dai et al. 2020]: an encoder that halves the sequence between its blocks. Classes that need a
vector per token add a small decoder at full length."""

from __future__ import annotations

from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import Ignored
from anyformer.families.base.template import Class, Config, Entry, activation, tied
from anyformer.families.shared.bert_like import TOKENS, renames
from anyformer.families.shared.heads import encoder_head
from anyformer.parts import (
    Attention, Block, DetectHead, EncoderModel, FirstToken, Funnel, Halve, Head, LMHead, LayerNorm, MLP, Model, Normal,
    Pool, SegmentedSinusoids, SegmentedText, SpanHead, Stack, Sublayer, TagHead, Tokens, Uniform, Xavier,
)  # fmt: skip
from anyformer.parts.activation import activation_named
from anyformer.specs.addresses import value_at
from anyformer.specs.messages import nearest, quote
from anyformer.weights.rules import Heads, Rename, Rule

NO_DECODER = ("FunnelBaseModel", "FunnelForSequenceClassification", "FunnelForMultipleChoice")
LAYER = "encoder.stages.0.layers"
ATTENTION, TYPES = f"{LAYER}.attention.op", ("relative_shift", "factorized")
OLD = "in the first published files; no class reads it"


CONFIG: dict[str, Any] = {
    "vocab_size": Entry(30522, "embedding.tokens.vocab_size"),
    "block_sizes": Entry((4, 4, 4), lambda spec: [stage.depth for stage in spec.encoder.stages]),
    "block_repeats": Entry(None, lambda spec: [len(stage.steps) // stage.depth for stage in spec.encoder.stages]),
    "num_decoder_layers": Entry(2, "encoder.top.depth"),
    "d_model": Entry(768, "width"),
    "n_head": Entry(12, f"{ATTENTION}.num_heads"),
    "d_head": Entry(64, f"{ATTENTION}.head_width"),
    "d_inner": Entry(3072, f"{LAYER}.feedforward.op.width"),
    "hidden_act": activation(f"{LAYER}.feedforward.op.activation", default="gelu_new"),
    "hidden_dropout": Entry(0.1, "embedding.dropout"),
    "attention_dropout": Entry(0.1, f"{ATTENTION}.dropout"),
    "activation_dropout": Entry(0.0, f"{LAYER}.feedforward.op.dropout"),
    "initializer_range": Entry(0.1, lambda spec: spec.init["*.position.*"].high),
    "initializer_std": Entry(None, lambda spec: spec.init["*"].std if isinstance(spec.init["*"], Normal) else None),
    "layer_norm_eps": Entry(1e-9, "embedding.norm.eps"),
    "pooling_type": Entry("mean", "encoder.pool.by"),
    "attention_type": Entry("relative_shift", lambda spec: TYPES[value_at(spec, f"{ATTENTION}.position.factorized")]),
    "separate_cls": Entry(True, "encoder.pool.first_apart"),
    "truncate_seq": Entry(True, "encoder.pool.truncate"),
    "pool_q_only": Entry(True, "encoder.pool.queries_only"),
    "pad_token_id": Entry(None, "embedding.tokens.padding_index"),
    "tie_word_embeddings": tied(True, LMHead="head.out.weight"),
    "max_position_embeddings": Ignored(512, OLD),
    "rel_attn_type": Ignored("factorized", OLD),
    "type_vocab_size": Ignored(3, OLD),
}


def describe(c: Config) -> Model:
    sizes, repeats = c.block_sizes, [1] * len(c.block_sizes) if c.block_repeats is None else c.block_repeats
    if len(sizes) != len(repeats) or min((*sizes, *repeats), default=0) < 1:
        raise ValueError(f"block_sizes {sizes} and block_repeats {repeats} need one number of at least 1 per block")
    if c.attention_type not in TYPES:
        raise ValueError(f"attention_type={quote(c.attention_type)} is not valid; {nearest(c.attention_type, TYPES)}")
    position = SegmentedSinusoids(
        num_heads=c.n_head,
        width=c.d_model,
        dropout=c.hidden_dropout,
        first_apart=c.separate_cls,
        factorized=c.attention_type == "factorized",
    )
    attention = Attention(
        num_heads=c.n_head, head_width=c.d_head, bias="kvo", position=position, dropout=c.attention_dropout
    )
    inner = MLP(width=c.d_inner, activation=activation_named(c.hidden_act), dropout=c.activation_dropout)
    norm, dropout = LayerNorm(eps=c.layer_norm_eps), c.hidden_dropout
    layer = Block(
        attention=Sublayer(op=attention, out_norm=norm, dropout=dropout),
        feedforward=Sublayer(op=inner, out_norm=norm, dropout=dropout),
    )

    def block(depth: int, times: int) -> Stack:
        order = tuple(i for i in range(depth) for _ in range(times))
        return Stack(layers=layer, depth=depth, order=None if times == 1 else order)

    encoder = Funnel(
        stages=tuple(block(depth, times) for depth, times in zip(sizes, repeats, strict=True)),
        pool=Halve(by=c.pooling_type, first_apart=c.separate_cls, truncate=c.truncate_seq, queries_only=c.pool_q_only),
    )
    if c.architecture not in NO_DECODER:
        # published: the decoder resumes after block_sizes[0] steps, even if repeats make the first block longer
        resume = sizes[0] if repeats[0] > 1 else None
        encoder = encoder.replace(top=block(c.num_decoder_layers, 1), resume=resume)
    linear = Xavier(gain=2**-0.5, normal=True) if c.initializer_std is None else Normal(std=c.initializer_std)
    return EncoderModel(
        width=c.d_model,
        embedding=SegmentedText(
            tokens=Tokens(vocab_size=c.vocab_size, padding_index=c.pad_token_id), norm=norm, dropout=dropout
        ),
        encoder=encoder,
        head=head(c),
        init={
            TOKENS: Normal(std=1.0 if c.initializer_std is None else c.initializer_std),
            "*.position.*": Uniform(low=0.0, high=c.initializer_range),
            "*": linear,
        },
    )


def head(c: Config) -> Head | None:
    pool = Pool(take=FirstToken(), dense=True, activation="tanh", dropout=c.hidden_dropout)
    if c.architecture == "FunnelForPreTraining":
        return DetectHead(activation=activation_named(c.hidden_act))
    lm = LMHead(vocab_size=c.vocab_size, bias=True, shift=False)
    return encoder_head(c, lm, pool, pool, dropout=c.hidden_dropout)


def rules(spec: Model) -> list[Rule]:
    op = value_at(spec, "encoder").stages[0].layers.steps["attention"].op
    layers: list[Rule] = []
    for theirs, ours in (("blocks.{b}.{i}", "stages.{b}.layers.{i}"), ("layers.{i}", "top.layers.{i}")):
        theirs, ours = f"~{'encoder' if '{b}' in ours else 'decoder'}.{theirs}", f"encoder.{ours}"
        position = f"{ours}.attention.op.position"
        names = {"r_w_bias": "u", "r_r_bias": "v", "r_s_bias": "s", "seg_embed": "kinds"}
        layers += [Rename(f"{theirs}.attention.{name}", f"{position}.{mine}") for name, mine in names.items()]
        shape = op.num_heads, op.head_width
        layers.append(Heads(f"{theirs}.attention.r_kernel", f"{position}.project.weight", shape))
        layers += renames(
            {
                **{f"{theirs}.attention.{n}_head": f"{ours}.attention.op.{n}" for n in "qkv"},
                f"{theirs}.attention.post_proj": f"{ours}.attention.op.o",
                f"{theirs}.attention.layer_norm": f"{ours}.attention.out_norm",
                f"{theirs}.ffn.linear_1": f"{ours}.feedforward.op.up",
                f"{theirs}.ffn.linear_2": f"{ours}.feedforward.op.down",
                f"{theirs}.ffn.layer_norm": f"{ours}.feedforward.out_norm",
            }
        )
    out = {
        LMHead: "lm_head",
        SpanHead: "qa_outputs",
        TagHead: "classifier",
        DetectHead: "discriminator_predictions.dense_prediction",
    }
    return layers + renames(
        {
            "~embeddings.word_embeddings": "embedding.tokens",
            "~embeddings.layer_norm": "embedding.norm",
            "discriminator_predictions.dense": "head.dense",
            "classifier.linear_hidden": "head.pool.dense",
            out.get(type(spec.head), "classifier.linear_out"): "head.out",
        }
    )


def sizes() -> dict[str, Size]:
    """Return each size with the decoder, as the authors count it, and without."""
    large = {"d_model": 1024, "n_head": 16, "d_inner": 4096}
    named: dict[str, tuple[list[int], dict[str, Any], float, float]] = {
        "small": ([4, 4, 4], {}, 130e6, 115e6),
        "medium": ([6, 3, 3], {"block_repeats": [1, 2, 2]}, 130e6, 115e6),
        "intermediate": ([6, 6, 6], {}, 177e6, 162e6),
        "large": ([8, 8, 8], large, 386e6, 358e6),
        "xlarge": ([10, 10, 10], large, 468e6, 440e6),
    }
    return {
        f"funnel-{name}{end}": Size({"architectures": [kind], "block_sizes": blocks, **more}, counts[n])
        for n, (end, kind) in enumerate({"": "FunnelModel", "-base": "FunnelBaseModel"}.items())
        for name, (blocks, more, *counts) in named.items()
    }


FUNNEL = Family(
    name="funnel",
    about="text encoders that shorten the sequence between blocks",
    tokenizer="FunnelTokenizer",
    template=describe,
    config=CONFIG,
    weights=rules,
    classes={
        "FunnelForPreTraining": Class(),
        "FunnelForMaskedLM": Class(),
        "FunnelModel": Class(prefix=""),
        "FunnelBaseModel": Class(prefix=""),
        "FunnelForSequenceClassification": Class(),
        "FunnelForTokenClassification": Class(),
        "FunnelForQuestionAnswering": Class(),
        "FunnelForMultipleChoice": Class(),
    },
    prefix="funnel.",
    aliases={"hidden_size": "d_model", "num_attention_heads": "n_head"},
    sizes=sizes(),
)
