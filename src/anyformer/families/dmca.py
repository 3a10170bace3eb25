"""T-DMCA [Liu et al. 2018]: a decoder for texts of thousands of tokens. Layers alternate between attention within
blocks (L) and attention to keys and values that a strided convolution compresses (M). transformers has no such class,
so models are saved only in our own format; config fields are named as in the original Transformer.

The other models of the paper's table: `transformer-d` has only full layers (F); `t-dmca-moe-128` and `t-dmca-moe-256`
have experts in the compressed layers (our choice of layers); `transformer-base` is the encoder-decoder; LSTM and
AdditiveAttention are the parts of seq2seq with attention."""

from __future__ import annotations

from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import ConfigField, Entry, activation_at, tied
from anyformer.families.base.template import Config
from anyformer.parts import (
    Attention, Block, BlockAttention, Causal, CompressedAttention, DecoderModel, LMHead, LayerNorm, MLP, MoE, Model,
    NoisyTopK, Normal, Sinusoidal, Stack, Sublayer, TextEmbedding, Tokens, Xavier,
)  # fmt: skip
from anyformer.parts.activation import activation_named
from anyformer.specs.messages import quote
from anyformer.specs.part import walk
from anyformer.weights.rules import Rule

KINDS = {"L": "local", "M": "compressed", "F": "full"}
FIRST = "decoder.layers.0"  # all layers have the same feed-forward


def order(spec: DecoderModel) -> str:
    letters = {kind: letter for letter, kind in KINDS.items()}
    stack = spec.decoder
    return "".join(letters[stack.pattern[i % len(stack.pattern)]] for i in range(stack.depth))


def expert_count(spec: DecoderModel) -> int:
    return next((part.num_experts for _, part in walk(spec) if isinstance(part, MoE)), 0)


def inner_width(spec: DecoderModel) -> int:
    return next(part.width for _, part in walk(spec) if isinstance(part, MLP))


FIELDS: dict[str, ConfigField] = {
    "vocab_size": Entry(32000, "embedding.tokens.vocab_size"),
    "d_model": Entry(512, "width"),
    "layers": Entry("LMLML", order),
    "num_heads": Entry(8, "decoder.layers.attention.op.num_heads"),
    "d_ff": Entry(2048, inner_width),
    "num_experts": Entry(0, expert_count),  # in the compressed layers; 0: no experts
    "block_size": Entry(256, "decoder.layers.local.attention.op.size"),
    "kernel_size": Entry(3, "decoder.layers.compressed.attention.op.kernel"),
    "stride": Entry(3, "decoder.layers.compressed.attention.op.stride"),
    "activation_function": Entry("relu", activation_at(f"{FIRST}.feedforward.op.activation")),
    "dropout": Entry(0.1, "embedding.dropout"),
    "attention_dropout": Entry(0.0, f"{FIRST}.attention.op.dropout"),
    "max_position_embeddings": Entry(11000, "embedding.position.length"),
    "tie_word_embeddings": Entry(True, tied(LMHead)),
    "pad_token_id": Entry(None, "embedding.tokens.padding_index"),
}


def describe(c: Config) -> Model:
    if not c.layers or set(c.layers) - KINDS.keys():
        raise ValueError(
            f"layers={quote(c.layers)} must have one letter per layer: L (local), M (memory-compressed) or F (full)"
        )

    def layer(op: Any, experts: int = 0) -> Block:
        norm = LayerNorm()
        inner: Any = MLP(width=c.d_ff, activation=activation_named(c.activation_function))
        if experts:
            inner = MoE(num_experts=experts, router=NoisyTopK(top_k=min(2, experts)), expert=inner)
        return Block(
            attention=Sublayer(op=op, out_norm=norm, dropout=c.dropout),
            feedforward=Sublayer(op=inner, out_norm=norm, dropout=c.dropout),
        )

    shared = {"num_heads": c.num_heads, "dropout": c.attention_dropout}
    return DecoderModel(
        width=c.d_model,
        embedding=TextEmbedding(
            tokens=Tokens(vocab_size=c.vocab_size, scale=c.d_model**0.5, padding_index=c.pad_token_id),
            position=Sinusoidal(length=c.max_position_embeddings),
            dropout=c.dropout,
        ),
        decoder=Stack(
            layers={
                "local": layer(BlockAttention(size=c.block_size, **shared)),
                "compressed": layer(
                    CompressedAttention(kernel=c.kernel_size, stride=c.stride, **shared), c.num_experts
                ),
                **({"full": layer(Attention(mask=Causal(), **shared))} if "F" in c.layers else {}),
            },
            pattern=tuple(KINDS[letter] for letter in c.layers),
            depth=len(c.layers),
        ),
        head=LMHead(vocab_size=c.vocab_size),
        ties=(("head.out.weight", "embedding.tokens.weight"),) if c.tie_word_embeddings else (),
        init={"embedding.tokens.weight": Normal(std=c.d_model**-0.5), "*": Xavier()},
    )


def rules(spec: Model) -> list[Rule]:
    raise ValueError("no T-DMCA checkpoints are published; load a folder saved by anyformer (with spec.json)")


FAMILIES = (
    Family(
        name="dmca",
        about="decoders for texts of thousands of tokens",
        tokenizer="",
        fields=FIELDS,
        describe=describe,
        rules=rules,
        architectures=(),
        sizes={
            "t-dmca": Size({}, note="L-M-L-M-L, blocks of 256 tokens, three keys compressed to one; no experts"),
            **{
                f"t-dmca-moe-{count}": Size({"num_experts": count}, note=f"{count} experts in each of the two M layers")
                for count in (128, 256)
            },
            "transformer-d": Size({"layers": "FFFFF"}, note="only the decoder; each layer sees all earlier tokens"),
        },
    ),
)
