"""T-DMCA [Liu et al. 2018]: a decoder for texts of thousands of tokens. Layers alternate between attention within
blocks (L) and attention to keys and values that a strided convolution compresses (M). transformers has no such class,
so models are saved only in our own format; config fields are named as in the original Transformer.

The other models of the paper's table: `transformer-d` has only full layers (F); `t-dmca-moe-128` and `t-dmca-moe-256`
have experts in the compressed layers (our choice of layers); `transformer-base` is the encoder-decoder; LSTM and
AdditiveAttention are the parts of seq2seq with attention."""

from __future__ import annotations

from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.template import Class, Config, Entry, Weights, activation, tied
from anyformer.parts import (
    Attention, Block, BlockAttention, Causal, CompressedAttention, DecoderModel, LMHead, LayerNorm, MLP, MoE, Model,
    NoisyTopK, Normal, Op, Sinusoidal, Stack, Sublayer, TextEmbedding, Tokens, Xavier,
)  # fmt: skip
from anyformer.specs.addresses import edit, find, replace_all
from anyformer.specs.messages import quote

KINDS = {"L": "local", "M": "compressed", "F": "full"}
LETTERS = {kind: letter for letter, kind in KINDS.items()}
OP = "decoder.layers.feedforward.op"


def layer(op: Op) -> Block:
    return Block(
        attention=Sublayer(op=op, out_norm=LayerNorm(), dropout=0.1),
        feedforward=Sublayer(op=MLP(width=2048, activation="relu"), out_norm=LayerNorm(), dropout=0.1),
    )


TEMPLATE = DecoderModel(
    width=512,
    embedding=TextEmbedding(
        tokens=Tokens(vocab_size=32000, scale=512**0.5), position=Sinusoidal(length=11000), dropout=0.1
    ),
    decoder=Stack(
        layers={
            "local": layer(BlockAttention(num_heads=8, size=256)),
            "compressed": layer(CompressedAttention(num_heads=8, kernel=3, stride=3)),
            "full": layer(Attention(num_heads=8, mask=Causal())),
        },
        pattern=tuple(KINDS[letter] for letter in "LMLML"),
        depth=5,
    ),
    init={"embedding.tokens.weight": Normal(std=512**-0.5), "*": Xavier()},
)


def order(spec: DecoderModel) -> str:
    stack = spec.decoder
    return "".join(LETTERS[stack.pattern[i % len(stack.pattern)]] for i in range(stack.depth))


def without_full(spec: Any, layers: str, c: Config) -> Any:
    kinds = {name: block for name, block in spec.decoder.layers.items() if name != "full" or "F" in layers}
    return edit(spec, {"decoder.layers": kinds})


def build_experts(spec: Model, count: int, c: Config) -> Model:
    """Return the description with experts in the compressed layers, if the number of experts is not 0."""
    if not count:
        return spec
    router, mlps = NoisyTopK(top_k=min(2, count)), find(spec, "decoder.layers.compressed.feedforward.op")
    return replace_all(spec, {path: MoE(num_experts=count, router=router, expert=mlp) for path, mlp in mlps})


def check(c: Config) -> None:
    if not c.layers or set(c.layers) - KINDS.keys():
        raise ValueError(
            f"layers={quote(c.layers)} must have one letter per layer: L (local), M (memory-compressed) or F (full)"
        )


def weights(spec: Model) -> Weights:
    raise ValueError("no T-DMCA checkpoints are published; load a folder saved by anyformer (with spec.json)")


DMCA = Family(
    name="dmca",
    about="decoders for texts of thousands of tokens",
    tokenizer="",
    template=TEMPLATE,
    classes={"": Class(LMHead(vocab_size=32000))},
    config={
        "vocab_size": "**.vocab_size",
        "d_model": "width",
        "layers": Entry("LMLML", order, build=without_full),
        "num_heads": "decoder.layers.attention.op.num_heads",
        "d_ff": (f"{OP}.width", f"{OP}.expert.width"),
        "num_experts": Entry(  # in the compressed layers; 0: no experts
            0, lambda spec: next((n for _, n in find(spec, f"{OP}.num_experts")), 0), build=build_experts
        ),
        "block_size": "decoder.layers.local.attention.op.size",
        "kernel_size": "decoder.layers.compressed.attention.op.kernel",
        "stride": "decoder.layers.compressed.attention.op.stride",
        "activation_function": activation(f"{OP}.activation"),
        "dropout": ("embedding.dropout", "decoder.layers.*.dropout"),
        "attention_dropout": "decoder.layers.attention.op.dropout",
        "max_position_embeddings": "embedding.position.length",
        "tie_word_embeddings": tied(True, LMHead="head.out.weight"),
        "pad_token_id": "embedding.tokens.padding_index",
        "problem_type": None,
    },
    computed={
        "decoder.pattern": lambda c: tuple(KINDS[letter] for letter in c.layers),
        "decoder.depth": lambda c: len(c.layers),
        "embedding.tokens.scale": lambda c: c.d_model**0.5,
        "init": lambda c: {"embedding.tokens.weight": Normal(std=c.d_model**-0.5), "*": Xavier()},
    },
    checks=(check,),
    weights=weights,
    sizes={
        "t-dmca": Size({}, note="L-M-L-M-L, blocks of 256 tokens, three keys compressed to one; no experts"),
        **{
            f"t-dmca-moe-{count}": Size({"num_experts": count}, note=f"{count} experts in each of the two M layers")
            for count in (128, 256)
        },
        "transformer-d": Size({"layers": "FFFFF"}, note="only the decoder; each layer sees all earlier tokens"),
    },
)
