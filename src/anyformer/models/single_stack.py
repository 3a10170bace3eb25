"""One stack: an encoder, or a decoder."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn

from anyformer.models.base import Model, TransformerModule, memory_mask
from anyformer.parts.embedding.text import Embedding, TextEmbedding
from anyformer.parts.head.base import Outputs
from anyformer.parts.head.classify import ClassifyHead, PooledOutput
from anyformer.parts.head.language import LMHead
from anyformer.parts.head.tag import TagHead
from anyformer.parts.position.numbering import ByPlace
from anyformer.runtime.context import Context, Memory
from anyformer.runtime.state import State
from anyformer.runtime.taps import Shown, Taps, declared
from anyformer.specs.part import Site, walk
from anyformer.stacks.funnel import Funnel
from anyformer.stacks.perceiver import Perceiver
from anyformer.stacks.stack import Stack
from anyformer.stacks.stages import Stages
from anyformer.stacks.two_streams import Kept

ANY_VECTORS = (ClassifyHead, LMHead, PooledOutput, TagHead)  # heads that read these, of tokens or not


class EncoderModel(Model):
    """One stack that sees both sides."""

    embedding: Embedding
    encoder: Stack | Stages | Funnel | Perceiver

    def check(self) -> None:
        super().check()
        numbering = self.embedding.numbering if isinstance(self.embedding, TextEmbedding) else ByPlace()
        written = self.encoder.write if isinstance(self.encoder, Perceiver) and self.encoder.by_token else None
        position = None if written is None else written.position
        if numbering.before and position is not None and not position.has_padding_row:
            line = f"what {type(numbering).__name__} leaves out has the row before the first; set offset=1"
            raise ValueError(f"encoder.write.position: {line}")
        if isinstance(self.encoder, Perceiver) and self.head is not None and not self.encoder.by_token:
            pool: Any = getattr(self.head, "pool", None)
            if not isinstance(self.head, ANY_VECTORS) or (pool is not None and pool.requires):
                line = f"{type(self.head).__name__} reads a vector of each token, and the encoder gives others"
                raise ValueError(f"head: {line}; set encoder.write=Write(...) without a count")

    def build(self, site: Site) -> nn.Module:
        return OneStackModule(self, "encoder", site)


class DecoderModel(Model):
    """One stack that writes from left to right."""

    left_to_right: ClassVar[tuple[str, ...]] = ("embedding", "decoder")

    embedding: Embedding
    decoder: Stack

    def build(self, site: Site) -> nn.Module:
        return OneStackModule(self, "decoder", site)


class OneStackModule(TransformerModule):
    embedding: nn.Module

    def __init__(self, spec: EncoderModel | DecoderModel, stack: str, site: Site) -> None:
        super().__init__(spec)
        part = getattr(spec, stack)
        self.embedding = spec.embedding.build(site.child("embedding", depth=getattr(part, "depth", 1)))
        self.add_module(stack, part.build(site.child(stack)))
        self.stack_name, self.address, self.head_address = stack, site.address, site.child("head").address
        width = part.out_width(spec.width)
        self.head = spec.head.build(site.child("head", width=width)) if spec.head else None
        self.inputs, self.shows = self.known_inputs(), declared(self)
        if isinstance(part, Perceiver):  # which reads anything
            self.also = {"inputs": spec.embedding.inputs[0]}
        self.forgotten = self.forgets()

    def shown(self, seen: Shown) -> dict[str, tuple[Tensor, ...]]:
        found = getattr(self, self.stack_name).shown(seen)
        for kind, values in seen.under(self.head_address).items():  # a head's own form of the last state
            found[kind][-1:] = values
        return {kind: tuple(values) for kind, values in found.items()}

    def known_inputs(self) -> tuple[str, ...]:
        spec = self.spec
        reads = any(part.reads_memory for _, part in walk(spec))
        memory = ("encoder_hidden_states", "encoder_attention_mask") if reads else ()
        caching = self.caching if spec.left_to_right else ()
        return (
            *spec.embedding.inputs,
            *(spec.head.inputs if spec.head else ()),
            *memory,
            *self.tree_inputs,
            *caching,
            *self.common,
        )

    def hidden(
        self, inputs: dict[str, Any], taps: Taps | None = None, state: State | None = None
    ) -> tuple[Tensor, Context, Outputs]:
        x, ctx = self.embedding(inputs, state)
        memory, padding = inputs.get("encoder_hidden_states"), inputs.get("encoder_attention_mask")
        if state is not None and state.memory is None:
            state.look_at(memory, padding)
        elif state is not None and memory is None:
            memory, padding = state.memory, state.memory_padding
        seen = None if memory is None else Memory(memory, memory_mask(padding, memory, "encoder_attention_mask"))
        ctx = ctx.having(kernel=self.kernel, taps=taps, memory=seen)
        x, ctx = getattr(self, self.stack_name)(x, ctx)
        if state is not None:
            state.advance(ctx.index.shape[-1])
        kept = ctx.extra(Kept)
        return x, ctx, {} if kept is None else {"mems": kept.states}
