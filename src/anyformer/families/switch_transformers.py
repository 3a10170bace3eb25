"""Switch Transformers [Fedus et al. 2021]: T5 with experts in every other feed-forward layer, one expert per token."""

from __future__ import annotations

from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import Ignored, Removed
from anyformer.families.base.template import Class, Config, Entry, activation, parameter, rules_of
from anyformer.families.shared import t5
from anyformer.families.shared.heads import causal, read_mask
from anyformer.parts import (
    Block, EncoderDecoderModel, EncoderModel, LMHead, MLP, MoE, Model, Normal, SpareTableTokens, Stack, Sublayer,
    Switch, SwitchBalance, TextEmbedding, Tokens,
)  # fmt: skip
from anyformer.parts.activation import activation_named
from anyformer.parts.mask import FULL
from anyformer.specs.addresses import value_at
from anyformer.weights.rules import Rename, Rule
from anyformer.weights.rules import Stack as StackRule

DENSE, SPARSE = "encoder.layers.dense", "encoder.layers.sparse.feedforward.op"
TOKENS = "embedding.tokens.weight"

CONFIG: dict[str, Any] = {
    "vocab_size": Entry(32128, "embedding.tokens.vocab_size"),
    "d_model": Entry(768, "width"),
    "d_kv": Entry(64, f"{DENSE}.attention.op.head_width"),
    "d_ff": Entry(2048, f"{DENSE}.feedforward.op.width"),
    "num_layers": Entry(12, "encoder.depth"),
    "num_decoder_layers": Entry(12, "decoder.depth"),
    "num_sparse_encoder_layers": Entry(3),
    "num_sparse_decoder_layers": Entry(3),
    "encoder_sparse_step": Entry(None, lambda spec: step_of(spec.encoder)),  # default: from num_sparse_encoder_layers
    "decoder_sparse_step": Entry(None, lambda spec: step_of(spec.decoder)),  # default: from num_sparse_decoder_layers
    "num_heads": Entry(12, f"{DENSE}.attention.op.num_heads"),
    "num_experts": Entry(8, f"{SPARSE}.num_experts"),
    "expert_capacity": Entry(64, f"{SPARSE}.router.capacity"),
    "router_bias": Entry(False, f"{SPARSE}.router.bias"),
    "router_jitter_noise": Entry(0.01, f"{SPARSE}.router.jitter"),
    "router_dtype": Entry("float32", f"{SPARSE}.router.dtype"),
    "router_z_loss_coef": Entry(0.001, "head.balance.z_weight"),
    "router_aux_loss_coef": Entry(0.001, "head.balance.weight"),
    "relative_attention_num_buckets": Entry(32, "encoder.position.num_buckets"),
    "relative_attention_max_distance": Entry(128, "encoder.position.max_distance"),
    "dropout_rate": Entry(0.1, "encoder.dropout"),
    "layer_norm_epsilon": Entry(1e-6, "encoder.norm.eps"),
    "initializer_factor": Entry(1.0, lambda spec: spec.init["*norm.weight"].value),
    "dense_act_fn": activation(f"{DENSE}.feedforward.op.activation", default="relu"),
    "tie_word_embeddings": Entry(True, lambda spec: not isinstance(spec.embedding.tokens, SpareTableTokens)),
    "pad_token_id": Entry(0, "padding_token"),
    "decoder_start_token_id": Entry(None, "start_token"),
    "add_cross_attention": Ignored(False, "published code never reads it"),
    "is_causal": causal("decoder.layers.dense.attention.op.mask"),
    "problem_type": None,
    "is_decoder": Entry(False),  # read by encoder classes; other classes set it per stack
    "is_encoder_decoder": Entry(True),
    "eos_token_id": Ignored(1, "used by generation"),
    "router_ignore_padding_tokens": Ignored(False, "published code never reads it"),
    "add_router_probs": Ignored(False, "published code never reads it"),
    "n_positions": Ignored(512, "the length of training texts, which nothing reads: relative positions have no limit"),
    "feed_forward_proj": Removed("relu", "replaced by dense_act_fn"),
    "is_gated_act": Removed(False, "gated experts"),
    "router_type": Removed("tokens_masked", "other kinds of routers"),
    "num_selected_experts": Removed(1, "each token has one expert"),
    "batch_prioritized_routing": Removed(False, "experts serve tokens in order"),
}


def pattern(step: int) -> tuple[str, ...]:
    """Return the kinds of layers: the second of every `step` layers is sparse (1: all layers, 0: no layer)."""
    return ("dense", "sparse", *["dense"] * (step - 2)) if step > 1 else ("sparse" if step == 1 else "dense",)


def step_of(stack: Stack) -> int:
    return len(stack.pattern) if "sparse" in stack.pattern else 0


def describe(c: Config) -> Model:
    act = activation_named(c.dense_act_fn)
    mlp = MLP(width=c.d_ff, activation=act, bias=False, dropout=c.dropout_rate)
    router = Switch(
        capacity=c.expert_capacity, bias=c.router_bias, jitter=float(c.router_jitter_noise), dtype=c.router_dtype
    )
    ops = {"dense": mlp, "sparse": MoE(num_experts=c.num_experts, router=router, expert=mlp)}

    def stack(depth: int, every: int, both_ways: bool, **steps: Sublayer) -> Stack:
        kinds = {name: Block(**steps, feedforward=t5.step(c, op)) for name, op in ops.items()}
        return t5.stack(c, depth, both_ways, layers=kinds, pattern=pattern(every))

    def sparse_step(given: int | None, layers: int, sparse: int) -> int:
        return given if given is not None else layers // sparse if sparse > 0 else layers

    layers = t5.decoder_depth(c)
    every = sparse_step(c.encoder_sparse_step, c.unaliased.num_layers, c.num_sparse_encoder_layers)
    decoder_every = sparse_step(c.decoder_sparse_step, layers, c.num_sparse_decoder_layers)
    tie = c.tie_word_embeddings  # if not tied, each stack has a table, and files have a third one that nothing reads
    embedding = TextEmbedding(tokens=Tokens(vocab_size=c.vocab_size), dropout=c.dropout_rate)
    first = embedding if tie else embedding.replace(tokens=SpareTableTokens(vocab_size=c.vocab_size))
    factor = c.initializer_factor
    init = {"*router.weight": Normal(std=factor), "*experts.*": Normal(std=factor * c.d_model**-0.5), **t5.init(c)}
    encoder = stack(c.num_layers, every, True, attention=t5.attention(c, mask=FULL))
    shared: Any = {"width": c.d_model, "embedding": first, "encoder": encoder, "init": init}
    if c.architecture == "SwitchTransformersEncoderModel":
        t5.check_encoder_only(c)
        return EncoderModel(**shared)
    if not c.is_encoder_decoder:
        raise ValueError(f"is_encoder_decoder=False is not supported with {c.architecture}")
    ties, head = ["decoder_embedding.tokens.weight"], None
    if c.architecture == "SwitchTransformersForConditionalGeneration":
        # published code adds no loss for a stack without dense layers
        balance = SwitchBalance(
            weight=c.router_aux_loss_coef, z_weight=c.router_z_loss_coef, encoder=every > 1, decoder=decoder_every > 1
        )
        scale = c.d_model**-0.5 if tie else None
        head = LMHead(vocab_size=c.vocab_size, shift=False, scale=scale, balance=balance)
        ties.append("head.out.weight")
    return EncoderDecoderModel(
        **shared,
        head=head,
        decoder_embedding=embedding,
        decoder=stack(
            layers,
            decoder_every,
            False,
            attention=t5.attention(c, mask=read_mask(c)),
            cross=t5.attention(c, memory=True),
        ),
        start_token=c.decoder_start_token_id,
        padding_token=c.pad_token_id,
        ties=tuple((name, TOKENS) for name in ties if tie),
    )


def rules(spec: Model) -> list[Rule]:
    count = value_at(spec, f"{SPARSE}.num_experts")
    weights: dict[Any, Any] = {**t5.WEIGHTS, "lm_head": "head.out"}
    if isinstance(value_at(spec, "embedding.tokens"), SpareTableTokens):  # the tables are not tied
        del weights["~shared", "~encoder.embed_tokens"]
        weights |= {"shared.weight": parameter("embedding.tokens.spare"), "encoder.embed_tokens": "embedding.tokens"}
    rules = [*rules_of(weights, spec)]
    for stack, n in (("encoder", 1), ("decoder", 2)):
        theirs, ours = f"{stack}.block.{{i}}.layer.{n}.mlp", f"{stack}.layers.{{i}}.feedforward.op"
        rules.append(Rename(f"{theirs}.router.classifier.{{p}}", f"{ours}.router.{{p}}"))
        for theirs_name, name in (("wi", "up"), ("wo", "down")):
            rules.append(Rename(f"{theirs}.{theirs_name}.weight", f"{ours}.{name}.weight"))
            expert = f"{theirs}.experts.expert_{{e}}.{theirs_name}.weight"
            rules.append(StackRule(expert, f"{ours}.experts.{name}", count, True))
    return rules


def size(experts: int, published: float | None = None, **more: Any) -> Size:
    return Size(
        {
            "d_ff": 3072,
            "num_sparse_encoder_layers": 6,
            "num_sparse_decoder_layers": 6,
            "num_experts": experts,
            "decoder_start_token_id": 0,
            **more,
        },
        published,
    )


LARGE = {
    "d_model": 1024,
    "d_ff": 4096,
    "num_heads": 16,
    "num_layers": 24,
    "num_decoder_layers": 24,
    "num_sparse_encoder_layers": 12,
    "num_sparse_decoder_layers": 12,
}

C = {
    "d_model": 2080,
    "d_ff": 6144,
    "num_heads": 32,
    "num_layers": 15,
    "num_decoder_layers": 15,
    "num_sparse_encoder_layers": 15,
    "num_sparse_decoder_layers": 15,
}

SWITCH_TRANSFORMERS = Family(
    name="switch_transformers",
    about="encoder-decoders with experts, one expert per token",
    tokenizer="T5Tokenizer",
    template=describe,
    config=CONFIG,
    weights=rules,
    classes={
        "SwitchTransformersForConditionalGeneration": Class(),
        "SwitchTransformersModel": Class(),
        "SwitchTransformersEncoderModel": Class(),
    },
    aliases={"hidden_size": "d_model", "num_attention_heads": "num_heads", "num_hidden_layers": "num_layers"},
    sizes={
        "switch-base-8": size(8),
        "switch-base-16": size(16),
        "switch-base-32": size(32),
        "switch-base-64": size(64),
        "switch-base-128": size(128, 7.4e9),
        "switch-base-256": size(256),
        "switch-large-128": size(128, 26.3e9, **LARGE),
        "switch-c-2048": size(2048, 1571e9, **C),
    },
)
