"""Encoder-decoder models: a decoder with cross-attention to an encoder's output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.models.base import TransformerModule, memory_mask
from anyformer.models.call import Call, HeadInputs
from anyformer.models.model import Model
from anyformer.parts.base import Embedding
from anyformer.parts.head.classify import ClassifyHead, MultipleChoiceHead
from anyformer.runtime.context import Context, Memory
from anyformer.runtime.taps import OutputCollector
from anyformer.runtime.visibility import begins
from anyformer.specs.messages import quote
from anyformer.specs.part import Site, walk
from anyformer.stacks.backbone import Backbone
from anyformer.stacks.stack import Stack


class EncoderDecoderModel(Model):
    """A decoder with cross-attention to an encoder's output. If labels but no decoder inputs are given, the decoder
    reads the labels, shifted right by one after `start_token`."""

    left_to_right: ClassVar[tuple[str, ...]] = ("decoder_embedding", "decoder")
    pair: ClassVar[bool] = True
    target: ClassVar[str] = "decoder_embedding"

    embedding: Embedding
    encoder: Backbone
    decoder_embedding: Embedding
    decoder: Stack
    start_token: int | None = None
    padding_token: int | None = None
    reads_source: bool = False  # without labels, the decoder reads the encoder's tokens, shifted (BART; T5 for spans)

    @classmethod
    def upgrade(cls, data: dict[str, Any]) -> dict[str, Any]:
        """Earlier versions had a field for LastTokenStartModel."""
        kind = {"kind": "LastTokenStartModel"} if data.pop("wrap", False) else {}
        return {**super().upgrade(data), **kind}

    def check(self) -> None:
        super().check()
        if not self.encoder.feeds_decoder:
            raise ValueError(f"encoder: a decoder cannot read the output of {type(self.encoder).__name__}; use a Stack")
        self.encoder.check_model(self.embedding, None)
        if not any(part.reads_memory for _, part in walk(self.decoder)):
            raise ValueError("EncoderDecoderModel: no layer of the decoder attends to the encoder; set memory=True")
        for address, part in walk(self.encoder, "encoder"):
            if part.reads_memory:
                raise ValueError(f"{address}: cross-attention (memory=True) is only for the decoder, not the encoder")
        if self.head is not None and self.head.declared_sees == "all":
            name, instead = type(self.head).__name__, self.head.causal_alternative
            raise ValueError(f"head: {name} is not available for encoder-decoder models; use {instead}")
        if isinstance(self.head, MultipleChoiceHead) and "a row of tokens" not in self.embedding.gives:
            name = type(self.embedding).__name__
            raise ValueError(f"head: MultipleChoiceHead needs choices made of tokens, but {name} reads no tokens")
        given = self.encoder.out_width(self.width)
        for address, part in walk(self.decoder, "decoder"):
            wanted = part.memory_width or self.width
            if part.reads_memory and wanted != given:
                raise ValueError(f"{address}: memory_width is {wanted}, but the encoder's output has width {given}")


class EncoderDecoderModule(TransformerModule, of=EncoderDecoderModel):
    encoder: Any
    decoder: Any

    def __init__(self, spec: EncoderDecoderModel, site: Site) -> None:
        super().__init__(spec)
        self.embedding = spec.embedding.build(site.child("embedding"))
        self.encoder = spec.encoder.build(site.child("encoder"))
        self.decoder_embedding = spec.decoder_embedding.build(site.child("decoder_embedding"))
        self.decoder = spec.decoder.build(site.child("decoder"))
        width = spec.decoder.out_width(spec.width)
        self.head = spec.head.build(site.child("head", width=width)) if spec.head else None
        self.declare()
        self.stateless = self.find_stateless()

    def input_names(self) -> tuple[str, ...]:
        spec = self.spec
        decoder = tuple(f"decoder_{name}" for name in spec.decoder_embedding.inputs)
        head = spec.head.inputs if spec.head else ()
        return (
            *spec.embedding.inputs,
            *decoder,
            "encoder_outputs",
            *head,
            *self.extra_inputs,
            *self.caching,
            *self.common,
        )

    def encode(self, call: Call) -> tuple[Tensor, Context]:
        x, ctx = self.embedding(call.inputs)
        return self.encoder(x, ctx.replace(kernel=call.kernel, taps=call.taps))

    def compute(self, call: Call) -> HeadInputs:
        inputs, state = call.inputs, call.state
        memory = inputs.get("encoder_outputs")
        mask = inputs.get("attention_mask") if self.spec.embedding.hides else None
        read: dict[str, Any] = {}  # other outputs of the encoder
        routed = None  # router logits of the encoder
        losses: dict[str, list[Tensor]] = {}
        if memory is not None:
            memory, read = _encoder_outputs(memory)
            routed = read.get("router_logits")
        elif state is not None and state.memory is not None:
            memory, mask = state.memory, state.memory_is_token if mask is None else mask
        else:
            memory, source = self.encode(call)
            mask = source.is_token  # mask of the encoder's output, which may be shorter than its input
            losses = dict(source.losses)
            routed = losses.pop("router_logits", None)
        if state is not None and memory is not state.memory:
            state.set_memory(memory, mask)
        x, ctx = self.decoder_embedding(self.decoder_inputs(inputs), state)
        seen = Memory(memory, memory_mask(mask, memory, "attention_mask"), inputs.get("document_ids"))
        losses |= {"encoder_router_logits": list(routed)} if routed else {}
        x, ctx = self.decoder(x, ctx.replace(kernel=call.kernel, taps=call.taps, memory=seen, losses=losses))
        if state is not None:
            state.advance(ctx.index.shape[-1])
        others = {"encoder_last_hidden_state": memory, **{f"encoder_{kind}": v for kind, v in read.items()}}
        return HeadInputs(x, ctx, inputs, others)

    def collect_outputs(self, seen: OutputCollector) -> dict[str, tuple[Tensor, ...]]:
        found = {f"encoder_{kind}": tuple(values) for kind, values in self.encoder.collect_outputs(seen).items()}
        for kind, values in self.decoder.collect_outputs(seen).items():
            found[kind if kind == "cross_attentions" else f"decoder_{kind}"] = tuple(values)
        return found

    def decoder_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Return the inputs named decoder_*, or else the labels (or the source tokens) shifted right by one."""
        mine = {name[len("decoder_") :]: value for name, value in inputs.items() if name.startswith("decoder_")}
        if (
            "input_ids" in self.spec.decoder_embedding.inputs
            and "input_ids" not in mine
            and "inputs_embeds" not in mine
        ):
            # a classifier's labels are not tokens
            labels = None if isinstance(self.spec.head, ClassifyHead) else inputs.get("labels")
            given = inputs.get("input_ids") if labels is None and self.spec.reads_source else labels
            if given is None:
                name = self.spec.embedding.inputs[0]
                raise ValueError(f"pass decoder_input_ids (or labels) in addition to {name}")
            if given.dim() != 2 or given.dtype not in (torch.long, torch.int):
                got = f"{given.dtype} of shape {tuple(given.shape)}"
                raise ValueError(f"labels must be token ids of shape (batch, tokens), got {got}")
            mine["input_ids"] = self.shift_right(given, mine.get("document_ids"))
        return mine

    def shift_right(self, labels: Tensor, documents: Tensor | None = None) -> Tensor:
        """Shift labels (B, T) right by one, with the start token first in each packed document."""
        if self.spec.start_token is None or self.spec.padding_token is None:
            raise ValueError(
                "labels without decoder_input_ids need decoder_start_token_id and pad_token_id in the config"
            )
        moved = F.pad(labels[:, :-1], (1, 0), value=self.spec.start_token)
        if documents is not None:
            moved = moved.masked_fill(begins(documents), self.spec.start_token)
        return moved.masked_fill(moved == -100, self.spec.padding_token)


def _encoder_outputs(given: Any) -> tuple[Tensor, dict[str, Any]]:
    """Return the memory and the other outputs, from a tensor, a tuple or an encoder's named outputs."""
    if isinstance(given, Tensor):
        return given, {}
    try:
        memory = given[0]
    except (TypeError, LookupError):
        memory = None
    if not isinstance(memory, Tensor):
        raise ValueError(f"encoder_outputs must be an encoder's output or its hidden states, got {quote(given)}")
    kinds = ("hidden_states", "attentions", "router_logits")
    named = given if isinstance(given, Mapping) else dict(zip(kinds, given[1:], strict=False))
    return memory, {kind: named.get(kind) for kind in kinds}
