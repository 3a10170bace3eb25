"""Perceiver: a stack over a few learned latents that attend to a long input once [Jaegle et al. 2021].

B batch, T tokens, N latents, L output vectors, D width of the stream, W width of the latents.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from anyformer.parts.attention.set_transformer import Across, each_row
from anyformer.parts.base import Embedding, PartModule
from anyformer.parts.embedding.text import TextEmbedding
from anyformer.parts.feedforward.base import FeedForward
from anyformer.parts.head.base import Head
from anyformer.parts.head.classify import ClassifyHead, PooledOutput
from anyformer.parts.head.language import LMHead
from anyformer.parts.head.tag import TagHead
from anyformer.parts.norm import LayerNorm, Norm
from anyformer.parts.op import Reshaping
from anyformer.parts.position.absolute import Learned, Sinusoidal, add_position
from anyformer.runtime.context import Context
from anyformer.runtime.taps import OutputCollector, TapNames
from anyformer.specs.field_types import QKVO, Chance, Count
from anyformer.specs.part import Part, Site, walk
from anyformer.stacks.backbone import Backbone
from anyformer.stacks.stack import Stack, StackModule

ANY_VECTORS = (ClassifyHead, LMHead, PooledOutput, TagHead)  # heads that do not need one vector per token


class Look(Part, sees="itself", called=("cross-attend",)):
    """A cross-attention layer from vectors x to a source y: x + attention(norm(x), source_norm(y)), then
    x + feedforward(norm(x)). The Part that contains it chooses the source."""

    num_heads: Count
    feedforward: FeedForward
    head_width: Count | None = None  # default: width of x / num_heads
    value_width: Count | None = None
    norm: Norm | None = LayerNorm()  # pre-norm of x, before attention and before the feed-forward layer
    source_norm: Norm | None = LayerNorm()
    add: bool = True  # add x to the output of the attention
    bias: QKVO = "qkvo"  # projections that have a bias
    dropout: Chance = 0.0  # on the attention weights

    def check(self) -> None:
        if isinstance(self.feedforward, Reshaping) and self.feedforward.out is not None:
            raise ValueError("Look.feedforward.out: Look cannot change the width of its vectors; leave it out")

    def build_for(self, source: int, site: Site) -> LookModule:
        """Build the module for a source of this width."""
        return LookModule(self, source, site)


class LookModule(nn.Module):
    def __init__(self, part: Look, source: int, site: Site) -> None:
        super().__init__()
        self.add = part.add
        widths = {"head_width": part.head_width, "value_width": part.value_width, "memory_width": source}
        self.pre_norm = part.norm.build(site.child("pre_norm")) if part.norm else None
        self.source_norm = part.source_norm.build(site.child("source_norm", width=source)) if part.source_norm else None
        self.attention = Across(part, site.child("attention"), "cross_attentions", **widths)
        self.norm = part.norm.build(site.child("norm")) if part.norm else None
        self.feedforward = part.feedforward.build(site.child("feedforward"))

    def forward(self, x: Tensor, ctx: Context, source: Tensor, real: Tensor | None = None) -> Tensor:
        """x (B, M, W) and source (B, S, .) -> (B, M, W)"""
        source = source if self.source_norm is None else self.source_norm(source)
        seen = self.attention(x if self.pre_norm is None else self.pre_norm(x), ctx, source, real)
        x = x + seen if self.add else seen
        return x + self.feedforward(x if self.norm is None else self.norm(x), ctx)


class Write(Part, sees="itself"):
    """The decoder of a Perceiver IO: queries made only of position embeddings attend to the latents. There is one query
    per input token or, if `count` is set, `count` queries for any input."""

    look: Look
    position: Learned | Sinusoidal
    count: Count | None = None
    width: Count | None = None  # default: width of the stream

    def check(self) -> None:
        if self.count is not None and isinstance(self.position, Learned) and self.position.length != self.count:
            raise ValueError(f"Write.position.length is {self.position.length}, but Write.count is {self.count}")


class Perceiver(Backbone, sees="all", called=("latent bottleneck", "Perceiver IO (write=...)")):
    """`latents` learned vectors attend to the tokens (`read`) and go through `stack`, `rounds` times with the same
    weights. The head reads the latents or, with `write`, vectors decoded from them [Jaegle et al. 2021, 2022]. Only
    `read` and `write` cost more for longer texts. Packed documents are refused."""

    feeds_decoder: ClassVar[bool] = False  # the mask of the tokens does not fit its output
    input_aliases: ClassVar[tuple[str, ...]] = ("inputs",)

    latents: Count
    read: Look
    stack: Stack
    width: Count | None = None  # W; default: width of the stream
    rounds: Count = 1
    reread: bool = False  # attend to the tokens before every round, with the same weights
    write: Write | None = None

    def check(self) -> None:
        self.stack.check_inner("Perceiver.stack")
        for path, part in walk(self.stack, "Perceiver.stack"):
            if part.requires:
                kind, need = type(part).__name__, part.requires[0]
                raise ValueError(f"{path}: {kind} needs {need}, which latents do not have; Attention does not need it")
        if self.stack.norm is not None and self.rounds > 1:
            raise ValueError("Perceiver.stack.norm is only possible with rounds=1; leave it out")
        if self.reread and self.rounds == 1:
            raise ValueError("Perceiver.reread is True, but there is only one round; set rounds too")

    def check_model(self, embedding: Embedding, head: Head | None) -> None:
        numbering = embedding.numbering if isinstance(embedding, TextEmbedding) else None
        offset = self.write.position.offset if self.write is not None and self.by_token else 1
        if numbering is not None and numbering.before and offset < 1:
            reason = f"{type(numbering).__name__} gives some tokens position -1"
            raise ValueError(f"encoder.write.position: {reason}; set offset=1")
        if head is not None and not self.by_token:
            pool = head.pool if isinstance(head, (ClassifyHead, PooledOutput)) else None
            if not isinstance(head, ANY_VECTORS) or (pool is not None and pool.take.requires):
                reason = f"{type(head).__name__} reads one vector per token, but the encoder returns a fixed number"
                raise ValueError(f"head: {reason}; set encoder.write=Write(...) without a count")

    @property
    def by_token(self) -> bool:
        """Whether the output has one vector per input token."""
        return self.write is not None and self.write.count is None

    def out_width(self, width: int) -> int:
        return (self.width or width) if self.write is None else self.write.width or width


class PerceiverModule(PartModule, of=Perceiver):
    tapped: ClassVar[TapNames] = {}
    stack: Any

    def __init__(self, part: Perceiver, site: Site) -> None:
        super().__init__()
        self.part, self.address = part, site.address
        W = part.width or site.width
        self.latents = nn.Parameter(torch.empty(part.latents, W))
        self.read = part.read.build_for(site.width, site.child("read", width=W))
        self.stack = part.stack.build(site.child("stack", width=W))
        self.write: WriteModule | None = None
        if part.write is not None:
            self.write = WriteModule(part.write, W, site.child("write", width=part.write.width or site.width))

    def forward(self, x: Tensor, ctx: Context) -> tuple[Tensor, Context]:
        if ctx.documents is not None:
            raise ValueError(f"{self.address}: latents attend to a whole row, so documents cannot be packed")
        z = each_row(self.latents, x)
        latent_ctx = self.context_of(self.part.latents, ctx.replace(Outer(ctx)))
        for i in range(self.part.rounds):
            if i == 0 or self.part.reread:
                z = self.read(z, latent_ctx, x, ctx.tokens)
            z, _ = self.stack(z, latent_ctx)
        return self.decode(z, latent_ctx)

    def context_of(self, count: int, ctx: Context) -> Context:
        """Return the context of `count` vectors that are not tokens."""
        index = torch.arange(count, device=ctx.index.device)
        outer = tuple(each for each in ctx.extras if isinstance(each, Outer))
        return ctx.replace(index=index, positions=index[None], is_token=None, extras=outer, shared={})

    def decode(self, z: Tensor, latent_ctx: Context) -> tuple[Tensor, Context]:
        if self.write is None:
            return z, latent_ctx
        outer = latent_ctx.extra(Outer)
        assert outer is not None
        count = self.part.write.count if self.part.write is not None else None
        places = outer.ctx if count is None else self.context_of(count, outer.ctx)
        return self.write(z, places), places

    @property
    def last_stack(self) -> StackModule:
        return self.stack

    @property
    def between(self) -> str | None:
        """Address of the computation between one run of the stack and the head; None if there is none."""
        if self.write is not None:
            return f"{self.address}.write"
        return f"{self.address}.rounds" if self.part.rounds > 1 else None

    def finish(self, states: list[Tensor], ctx: Context) -> tuple[Tensor, Context]:
        """Return the input of the head, computed from the states of the stack."""
        return self.decode(self.stack.finish(states, ctx)[0], ctx)

    def collect_outputs(self, seen: OutputCollector) -> dict[str, list[Tensor]]:
        """Return the input and the output of each layer, for each round."""
        found = seen.values_below(self.address)
        each = self.part.stack.depth + 2  # values per round: input, layers, and the output after the norm
        if states := found.get("hidden_states"):
            found["hidden_states"] = [x for i in range(0, len(states), each) for x in states[i : i + each - 1]]
        return found


@dataclasses.dataclass(frozen=True)
class Outer:
    """The context of the input tokens, as an extra in the context of the latents."""

    ctx: Context


class WriteModule(nn.Module):
    def __init__(self, part: Write, source: int, site: Site) -> None:
        super().__init__()
        self.width = site.width
        self.position = part.position.build(site.child("position"))
        self.look = part.look.build_for(source, site.child("look"))

    def forward(self, z: Tensor, ctx: Context) -> Tensor:
        """Latents (B, N, W) -> (B, L, .)"""
        places = add_position(self.position, z.new_zeros(z.shape[0], ctx.index.shape[-1], self.width), ctx)
        return self.look(places, ctx, z)
