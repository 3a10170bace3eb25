"""The encoder-decoder of Narang et al. 2021, which resembles T5-base, and the changes of its description that are rows
of `narang_table.py`."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any

from anyformer.models import EncoderDecoderModel
from anyformer.parts.activation import Activation
from anyformer.parts.attention.attention import Attention
from anyformer.parts.attention.synthesizer import Synthesizer
from anyformer.parts.attention.transparent import TransparentAttention
from anyformer.parts.attention.weighted_transformer import BranchedAttention
from anyformer.parts.convolution.tokens import BranchedConvolution, Convolved, Gate, LightweightConvolution
from anyformer.parts.embedding.adaptive import AdaptiveTokens
from anyformer.parts.embedding.text import TextEmbedding, Tokens
from anyformer.parts.feedforward.balance import SwitchBalance, VariationBalance
from anyformer.parts.feedforward.mlp import MLP, GatedMLP
from anyformer.parts.feedforward.moe import MoE
from anyformer.parts.feedforward.product_keys import ProductKeyMemory
from anyformer.parts.feedforward.routers import NoisyTopK, Switch
from anyformer.parts.halve import Halve
from anyformer.parts.head.adaptive import AdaptiveHead, MixtureHead
from anyformer.parts.head.language import LMHead
from anyformer.parts.init import Initializer, Kaiming, Normal, fixup
from anyformer.parts.layer_mix import LayerMix
from anyformer.parts.mask import FULL, Causal
from anyformer.parts.norm import LayerNorm, RMSNorm
from anyformer.parts.op import Op
from anyformer.parts.position.bias import BucketedBias
from anyformer.parts.residual import Fixup
from anyformer.stacks.block import Block, Parallel
from anyformer.stacks.funnel import Funnel
from anyformer.stacks.stack import Stack
from anyformer.stacks.sublayer import Sublayer
from anyformer.stacks.timed import TimedStack

Changes = Mapping[str, Any]  # path -> value, as `override` takes them
NORM = LayerNorm(eps=1e-6)


@dataclasses.dataclass(frozen=True)
class TableSize:
    """The sizes of the model; the defaults are the paper's."""

    width: int = 768
    inner: int = 3072
    heads: int = 12
    head_width: int = 64
    depth: int = 12  # layers of the encoder and of the decoder
    vocabulary: int = 32_128
    length: int = 512  # longest text, for synthesizers
    narrow: int = 128  # width of factorized embeddings
    cutoffs: tuple[int, ...] = (2500, 8500)  # clusters of adaptive embeddings
    softmaxes: int = 15
    experts: int = 16  # the Switch Transformer has twice as many
    keys: int = 512  # keys per half of a product-key memory
    found: int = 32  # slots read per head of a product-key memory
    taps: int = 31  # kernel size of lightweight and dynamic convolutions

    def deeper(self, times: float) -> TableSize:
        """Return sizes with `times` times the layers, and heads and inner units divided by `times`."""
        depth, inner, heads = (max(1, round(n)) for n in (self.depth * times, self.inner / times, self.heads / times))
        return dataclasses.replace(self, depth=depth, inner=inner, heads=heads)


# -- baseline ---------------------------------------------------------------------------------------------------------


def step(op: Op) -> Sublayer:
    return Sublayer(pre_norm=NORM, op=op)


def attention(size: TableSize, causal: bool = False, memory: bool = False, heads: int | None = None) -> Attention:
    mask = Causal() if causal else FULL
    return Attention(num_heads=heads or size.heads, head_width=size.head_width, bias="", mask=mask, memory=memory)


def positions(size: TableSize, causal: bool, heads: int | None = None) -> BucketedBias:
    return BucketedBias(num_heads=heads or size.heads, both_ways=not causal)


def feedforward(size: TableSize) -> MLP:
    return MLP(width=size.inner, activation="relu", bias=False)


def blocks(size: TableSize) -> tuple[Block, Block]:
    """Return a layer of the encoder and a layer of the decoder."""
    last = step(feedforward(size))
    encoder = Block(attention=step(attention(size)), feedforward=last)
    causal, cross = attention(size, causal=True), attention(size, memory=True)
    return encoder, Block(attention=step(causal), cross=step(cross), feedforward=last)


def stacks(size: TableSize) -> dict[str, Any]:
    stacks = {}
    for name, block in zip(("encoder", "decoder"), blocks(size), strict=True):
        stacks[name] = Stack(layers=block, depth=size.depth, position=positions(size, name == "decoder"), norm=NORM)
    return stacks


def starts(size: TableSize) -> dict[str, Initializer]:
    """Return the initializers of T5: matrices by fan-in, tokens with std 1 (logits are scaled down)."""
    return {
        "*tokens*": Normal(std=1.0),
        "head.out*": Normal(std=1.0),
        "*.position.table.weight": Normal(std=size.width**-0.5),
        "*.experts.up": Normal(std=size.width**-0.5),
        "*.experts.down": Normal(std=size.inner**-0.5),
        "*": Kaiming(gain=1.0),
    }


INPUTS = ("decoder_embedding.tokens.weight", "embedding.tokens.weight")  # one table for both sides
OUTPUT = ("head.out.weight", "decoder_embedding.tokens.weight")


def vanilla(size: TableSize) -> EncoderDecoderModel:
    """Return T5-base with LayerNorm: pre-norm, shared relative position bias, one token table."""
    embedding = TextEmbedding(tokens=Tokens(vocab_size=size.vocabulary))
    return EncoderDecoderModel(
        width=size.width,
        embedding=embedding,
        decoder_embedding=embedding,
        **stacks(size),
        head=LMHead(vocab_size=size.vocabulary, shift=False, scale=size.width**-0.5),
        start_token=0,
        padding_token=0,
        init=starts(size),
        ties=(INPUTS, ("head.out.weight", INPUTS[1])),
    )


# -- changes ----------------------------------------------------------------------------------------------------------

MIXERS = ("encoder.layers.attention", "decoder.layers.attention")
FEEDS = ("encoder.layers.feedforward", "decoder.layers.feedforward")
STEPS = (*MIXERS, "decoder.layers.cross", *FEEDS)


def every_step(**fields: Any) -> Changes:
    """Change fields of every residual step."""
    return {f"{path}.{name}": value for path in STEPS for name, value in fields.items()}


def activation(name: Activation) -> Changes:
    return {f"{path}.op.activation": name for path in FEEDS}


def gated_feedforward(size: TableSize, name: Activation) -> Changes:
    """Use three matrices of two thirds of the width instead of two matrices."""
    op = GatedMLP(width=size.inner * 2 // 3, activation=name, bias=False)
    return {f"{path}.op": op for path in FEEDS}


def root_mean_square() -> Changes:
    return {**every_step(pre_norm=RMSNorm()), "encoder.norm": RMSNorm(), "decoder.norm": RMSNorm()}


def without_norms(size: TableSize) -> Changes:
    """Use the residuals and the initialization of Fixup instead of norms; a decoder layer has three branches."""
    rules = {**fixup("encoder", 2 * size.depth), **fixup("decoder", 3 * size.depth)}
    return {**every_step(pre_norm=None, residual=Fixup()), "init": {**rules, **starts(size)}}


def shared_layers(size: TableSize, *names: str) -> Changes:
    """Apply one layer `depth` times."""
    return {f"{name}.{field}": value for name in names for field, value in (("depth", 1), ("order", (0,) * size.depth))}


def narrow(size: TableSize) -> Changes:
    """Share factorized embeddings between both sides; the output table has the full width."""
    tokens = AdaptiveTokens(vocab_size=size.vocabulary, widths=(size.narrow,))
    return {**token_tables(tokens), "ties": ties(size, (size.narrow,), "decoder_embedding.tokens")}


def token_tables(tokens: Tokens) -> Changes:
    return {"embedding.tokens": tokens, "decoder_embedding.tokens": tokens}


def ties(size: TableSize, widths: tuple[int, ...], *others: str) -> tuple[tuple[str, str], ...]:
    """Return ties of these addresses to the encoder's tokens, cluster by cluster."""
    leaves = [[f"{i}.table", *([f"{i}.project"] if width != size.width else [])] for i, width in enumerate(widths)]
    names = [f"clusters.{leaf}" for leaf in itertools.chain(*leaves)]
    return tuple((f"{other}.{name}", f"embedding.tokens.{name}") for other in others for name in names)


def clustered_tokens(size: TableSize, widths: tuple[int, ...], hierarchical: bool) -> Changes:
    """Use clustered tokens with the same tables for input and output."""
    cutoffs = size.cutoffs[: len(widths) - 1]
    tokens = AdaptiveTokens(vocab_size=size.vocabulary, widths=widths, cutoffs=cutoffs)
    head = AdaptiveHead(
        vocab_size=size.vocabulary,
        widths=widths,
        cutoffs=cutoffs,
        hierarchical=hierarchical,
        shift=False,
        scale=size.width**-0.5,
    )
    return {**token_tables(tokens), "head": head, "ties": ties(size, widths, "decoder_embedding.tokens", "head.out")}


def adaptive(size: TableSize) -> tuple[int, ...]:
    return (size.width, size.width // 3, size.width // 12)


def mixture(size: TableSize) -> Changes:
    scale = size.width**-0.5
    return {"head": MixtureHead(vocab_size=size.vocabulary, softmaxes=size.softmaxes, shift=False, scale=scale)}


def transparent(size: TableSize) -> Changes:
    """Let each decoder layer attend to its own weighted average of all encoder layers."""
    plain = attention(size, memory=True).replace(memory_width=size.depth * size.width)
    cross = TransparentAttention(**dict(plain.items()))
    return {"encoder.neck": LayerMix(count=size.depth), "decoder.layers.cross.op": cross}


def convolution(size: TableSize, dynamic: bool) -> Changes:
    op = LightweightConvolution(num_heads=size.heads, kernel=size.taps, dynamic=dynamic, bias=False)
    ops = {f"{path}.op": op.replace(causal=path.startswith("decoder")) for path in MIXERS}
    return {**ops, "encoder.position": None, "decoder.position": None}


def evolved_transformer(size: TableSize) -> Changes:
    """Use one block of the Evolved Transformer per two layers [So et al. 2019]."""
    D = size.width

    def self_attention(causal: bool, heads: int) -> Sublayer:
        return step(attention(size, causal, heads=heads).replace(position=positions(size, causal, heads)))

    def convolved(width: int, kernel: int, separable: bool = True, activation: Activation = "identity") -> Convolved:
        return Convolved(width=width, kernel=kernel, separable=separable, activation=activation, bias=False)

    encoder = Block(
        gate=step(Gate(bias=False)),
        convolution=step(
            BranchedConvolution(
                left=convolved(4 * D, 1, False, "relu"),
                right=convolved(D // 2, 3, False, "relu"),
                out=convolved(D // 2, 9),
            )
        ),
        attention=self_attention(False, size.heads),
        feedforward=step(feedforward(size)),
    )
    cross = step(attention(size, memory=True))
    decoder = Block(
        both=Parallel(attention=self_attention(True, 2 * size.heads), cross=cross),
        convolution=step(
            BranchedConvolution(
                left=convolved(2 * D, 11, activation="relu"),
                right=convolved(D // 2, 7),
                out=convolved(D, 7),
                causal=True,
            )
        ),
        attention=self_attention(True, size.heads),
        cross=cross,
        feedforward=step(feedforward(size).replace(activation="silu")),
    )
    depth = max(1, size.depth // 2)
    both = {"encoder": encoder, "decoder": decoder}
    return {name: Stack(layers=block, depth=depth, norm=NORM) for name, block in both.items()}


def synthesizer(size: TableSize, scores: Any, products: Any = "none") -> Changes:
    """Use a Synthesizer. Without a dense layer it has 8 heads of width 128, not 12 of width 64: this is the default of
    attention in the authors' code, and gives the paper's number of parameters (inferred)."""
    heads, width = (size.heads, size.head_width) if scores == "dense" else (size.heads * 2 // 3, size.head_width * 2)
    op = Synthesizer(num_heads=heads, head_width=width, length=size.length, scores=scores, products=products, bias="")
    changes: dict[str, Any] = {}
    for name, mask in (("encoder", FULL), ("decoder", Causal())):
        changes[f"{name}.layers.attention.op"] = op.replace(mask=mask)
        changes[f"{name}.position"] = positions(size, name == "decoder", heads)
    return changes


def universal(size: TableSize) -> Changes:
    """Alternate two layers for four times as many steps as the baseline has layers, each with its own time vector."""
    order = (0, 1) * (2 * size.depth)
    both = {name: stack.as_kind(TimedStack, depth=2, order=order) for name, stack in stacks(size).items()}
    return {**both, "ties": (INPUTS,)}


def sparse(size: TableSize, op: MoE) -> Changes:
    """Use experts in every fourth layer."""
    every = min(4, size.depth)
    changes: dict[str, Any] = {}
    for name, block in zip(("encoder", "decoder"), blocks(size), strict=True):
        steps = dict(block.items())
        changes[f"{name}.layers"] = {"dense": block, "sparse": Block(**{**steps, "feedforward": step(op)})}
        changes[f"{name}.pattern"] = ("dense",) * (every - 1) + ("sparse",)
    return changes


def experts(size: TableSize) -> Changes:
    op = MoE(num_experts=size.experts, router=NoisyTopK(top_k=2), expert=feedforward(size))
    return {**sparse(size, op), "head.balance": VariationBalance(importance=0.01, load=0.01)}


def switch(size: TableSize) -> Changes:
    capacity = max(1, size.length * 5 // 4 // (2 * size.experts))
    op = MoE(num_experts=2 * size.experts, router=Switch(capacity=capacity, jitter=0.01), expert=feedforward(size))
    return {**sparse(size, op), "head.balance": SwitchBalance(weight=0.01, z_weight=0.0)}


def funnel(size: TableSize) -> Changes:
    """Split the encoder into three stages, each with half the tokens of the one before; the decoder reads the last."""
    encoder = stacks(size)["encoder"].replace(norm=None)
    depths = [size.depth * (i + 1) // 3 - size.depth * i // 3 for i in range(3)]
    stages = [encoder.replace(depth=depth) for depth in depths if depth]
    stages[-1] = stages[-1].replace(norm=NORM)
    return {"encoder": Funnel(stages=tuple(stages), pool=Halve(first_apart=False, truncate=False, queries_only=False))}


def weighted_transformer(size: TableSize) -> Changes:
    """Use attention with branches, each with its own feed-forward step; a decoder layer has two such attentions."""

    def branched_step(op: Attention) -> Sublayer:
        return step(BranchedAttention(**dict(op.items()), feedforward=feedforward(size)))

    causal, cross = attention(size, causal=True), attention(size, memory=True)
    return {
        "encoder.layers": Block(attention=branched_step(attention(size))),
        "decoder.layers": Block(attention=branched_step(causal), cross=branched_step(cross)),
    }


def product_keys(size: TableSize) -> Changes:
    """Replace one feed-forward layer in the middle of the decoder (inferred from the paper's operations)."""
    op = ProductKeyMemory(keys=size.keys, top_k=size.found, query_width=size.width // 3 // 2 * 2)
    return {f"decoder.layers.{size.depth // 2}.feedforward.op": op}
