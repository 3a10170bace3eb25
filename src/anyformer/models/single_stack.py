"""Models of one stack: encoder-only or decoder-only."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from anyformer.models.base import TransformerModule, memory_mask
from anyformer.models.call import Call, HeadInputs
from anyformer.models.model import Model
from anyformer.parts.base import Embedding, HasDepth
from anyformer.runtime.context import Memory, StackOutputs
from anyformer.runtime.taps import OutputCollector
from anyformer.specs.part import Site, walk
from anyformer.stacks.backbone import Backbone
from anyformer.stacks.stack import Stack


class EncoderModel(Model):
    """An encoder-only model: one bidirectional stack."""

    embedding: Embedding
    encoder: Backbone

    def check(self) -> None:
        super().check()
        self.encoder.check_model(self.embedding, self.head)

    def build(self, site: Site) -> nn.Module:
        return OneStackModule(self, "encoder", site)


class DecoderModel(Model):
    """A decoder-only model: one stack that generates from left to right."""

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
        self.embedding = spec.embedding.build(
            site.child("embedding", depth=part.depth if isinstance(part, HasDepth) else 1)
        )
        self.add_module(stack, part.build(site.child(stack)))
        self.stack_name, self.address, self.head_address = stack, site.address, site.child("head").address
        width = part.out_width(spec.width)  # Stages change the width
        self.head = spec.head.build(site.child("head", width=width)) if spec.head else None
        self.declare()
        self.also = dict.fromkeys(part.input_aliases, spec.embedding.inputs[0])
        self.stateless = self.find_stateless()

    def collect_outputs(self, seen: OutputCollector) -> dict[str, tuple[Tensor, ...]]:
        outputs = getattr(self, self.stack_name).collect_outputs(seen)
        for name, values in seen.values_below(self.head_address).items():  # the head's version of the last state
            outputs[name][-1:] = values
        return {name: tuple(values) for name, values in outputs.items()}

    def input_names(self) -> tuple[str, ...]:
        spec = self.spec
        reads = any(part.reads_memory for _, part in walk(spec))
        memory = ("encoder_hidden_states", "encoder_attention_mask") if reads else ()
        caching = self.caching if spec.left_to_right else ()
        return (
            *spec.embedding.inputs,
            *(spec.head.inputs if spec.head else ()),
            *memory,
            *self.extra_inputs,
            *caching,
            *self.common,
        )

    def compute(self, call: Call) -> HeadInputs:
        inputs, state = call.inputs, call.state
        x, ctx = self.embedding(inputs, state)
        memory, mask = inputs.get("encoder_hidden_states"), inputs.get("encoder_attention_mask")
        if state is not None and state.memory is None:
            state.set_memory(memory, mask)
        elif state is not None and memory is None:
            memory, mask = state.memory, state.memory_is_token
        seen = None if memory is None else Memory(memory, memory_mask(mask, memory, "encoder_attention_mask"))
        ctx = ctx.replace(kernel=call.kernel, taps=call.taps, memory=seen)
        x, ctx = getattr(self, self.stack_name)(x, ctx)
        if state is not None:
            state.advance(ctx.index.shape[-1])
        others = ctx.extra(StackOutputs)
        return HeadInputs(x, ctx, inputs, {} if others is None else others.fields)
