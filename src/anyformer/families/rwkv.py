"""RWKV-4 [Peng et al. 2023]: a decoder without attention; a recurrence that is trained in parallel."""

from __future__ import annotations

import math
from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import ConfigField, Field, Ignored, tied
from anyformer.models import DecoderModel, Model
from anyformer.parts.embedding.text import TextEmbedding, Tokens
from anyformer.parts.head.language import LMHead
from anyformer.parts.norm import LayerNorm
from anyformer.parts.recurrent.rwkv import ChannelMix, Halved, Orthogonal, TimeMix
from anyformer.parts.residual import ADD
from anyformer.stacks.block import Block
from anyformer.stacks.stack import Stack
from anyformer.stacks.sublayer import Sublayer
from anyformer.weights.rules import Rename, Reshape, Rule

TIME, CHANNEL = "decoder.layers.time.op", "decoder.layers.channel.op"

FIELDS: dict[str, ConfigField] = {
    "vocab_size": Field(50277, "embedding.tokens.vocab_size"),
    "hidden_size": Field(4096, "width"),
    "num_hidden_layers": Field(32, "decoder.depth"),
    "attention_hidden_size": Field(None, f"{TIME}.width"),  # the width unless said
    "intermediate_size": Field(None, f"{CHANNEL}.width"),  # four times the width unless said
    "layer_norm_epsilon": Field(1e-5, "embedding.norm.eps"),
    "rescale_every": Field(6, f"{TIME}.halve_every"),
    "tie_word_embeddings": Field(False, tied(LMHead)),
    "context_length": Ignored(1024, "the most that a published CUDA kernel takes at once; a recurrence has no end"),
    "bos_token_id": Ignored(0, "used by generation"),
    "eos_token_id": Ignored(0, "used by generation"),
}


def describe(c: Any) -> Model:
    norm, every = LayerNorm(eps=c.layer_norm_epsilon), max(c.rescale_every, 0)
    width = c.hidden_size if c.attention_hidden_size is None else c.attention_hidden_size
    inner = 4 * c.hidden_size if c.intermediate_size is None else c.intermediate_size
    time, channel = TimeMix(width=width, halve_every=every), ChannelMix(width=inner, halve_every=every)
    lm = c.architecture == "RwkvForCausalLM"
    return DecoderModel(
        width=c.hidden_size,
        embedding=TextEmbedding(tokens=Tokens(vocab_size=c.vocab_size), norm=norm),
        decoder=Stack(
            layers=Block(
                time=Sublayer(pre_norm=norm, op=time),
                channel=Sublayer(pre_norm=norm, op=channel, residual=Halved(every=every) if every else ADD),
            ),
            depth=c.num_hidden_layers,
            norm=LayerNorm(),
            shows="outputs",
        ),
        head=LMHead(vocab_size=c.vocab_size) if lm else None,
        ties=(("head.out.weight", "embedding.tokens.weight"),) if lm and c.tie_word_embeddings else (),
        state_name="state",
        init={
            "embedding.tokens.weight": Orthogonal(gain=1e-4 * math.sqrt(c.hidden_size)),
            "head.out.weight": Orthogonal(gain=0.5),
            "*": Orthogonal(),
        },
    )


def rules(spec: Model) -> list[Rule]:
    theirs, ours = "~blocks.{i}", "decoder.layers.{i}"
    found: list[Rule] = [
        Rename("~embeddings.weight", "embedding.tokens.weight"),
        Rename("~blocks.0.pre_ln.{p}", "embedding.norm.{p}"),
        Rename("~ln_out.{p}", "decoder.norm.{p}"),
        Rename("head.weight", "head.out.weight"),
    ]
    steps = (
        ("ln1", "attention", "time", {"key": "k", "value": "v", "receptance": "gate", "output": "o"}),
        ("ln2", "feed_forward", "channel", {"key": "up", "value": "down", "receptance": "gate"}),
    )
    for norm, op, step, projections in steps:
        found.append(Rename(f"{theirs}.{norm}.{{p}}", f"{ours}.{step}.pre_norm.{{p}}"))
        for name, mine in projections.items():
            found.append(Rename(f"{theirs}.{op}.{name}.weight", f"{ours}.{step}.op.{mine}.weight"))
            found.append(Reshape(f"{theirs}.{op}.time_mix_{name}", f"{ours}.{step}.op.mix_{mine}", (1, 1, -1)))
    for name, mine in (("time_decay", "decay"), ("time_first", "bonus")):
        found.append(Rename(f"{theirs}.attention.{name}", f"{ours}.time.op.{mine}"))
    return found


def size(width: int, depth: int, published: float) -> Size:
    return Size({"hidden_size": width, "num_hidden_layers": depth}, published)


FAMILIES = (
    Family(
        name="rwkv",
        about="language models without attention, trained in parallel and run as a recurrence",
        fields=FIELDS,
        describe=describe,
        rules=rules,
        architectures=("RwkvForCausalLM", "RwkvModel"),
        base=("RwkvModel",),
        prefix="rwkv.",
        aliases={"max_position_embeddings": "context_length"},
        sizes={
            "rwkv-4-169m": size(768, 12, 169e6),
            "rwkv-4-430m": size(1024, 24, 430e6),
            "rwkv-4-1b5": size(2048, 24, 1.515e9),
            "rwkv-4-3b": size(2560, 32, 2.985e9),
            "rwkv-4-7b": size(4096, 32, 7.393e9),
            "rwkv-4-14b": size(5120, 40, 14.15e9),
        },
    ),
)
