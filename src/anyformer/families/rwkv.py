"""RWKV-4 [Peng et al. 2023]: a decoder without attention; a recurrence that can be trained in parallel."""

from __future__ import annotations

import math
from typing import Any

from anyformer.families.base.family import Family, Size
from anyformer.families.base.fields import Ignored
from anyformer.families.base.template import Class, Config, derived, entry, parameter, tied
from anyformer.parts import (
    Block, ChannelMix, DecoderModel, Halved, Initializer, LMHead, LayerNorm, Orthogonal, Residual, Stack, Sublayer,
    TextEmbedding, TimeMix, Tokens,
)  # fmt: skip
from anyformer.parts.residual import ADD

TIME, CHANNEL = "decoder.layers.time.op", "decoder.layers.channel.op"
THEIRS, OURS = "~blocks.{i}", "decoder.layers.{i}"
NORM = LayerNorm(eps=1e-5)


def initializers(width: int) -> dict[str, Initializer]:
    return {
        "embedding.tokens.weight": Orthogonal(gain=1e-4 * math.sqrt(max(width, 0))),  # width < 0 is refused later
        "head.out.weight": Orthogonal(gain=0.5),
        "*": Orthogonal(),
    }


TEMPLATE = DecoderModel(
    width=4096,
    embedding=TextEmbedding(tokens=Tokens(vocab_size=50277), norm=NORM),
    decoder=Stack(
        depth=32,
        layers=Block(
            time=Sublayer(pre_norm=NORM, op=TimeMix(width=4096, halve_every=6)),
            channel=Sublayer(pre_norm=NORM, op=ChannelMix(width=16384, halve_every=6), residual=Halved(every=6)),
        ),
        norm=NORM,
        shows="outputs",
    ),
    state_name="state",
    init=initializers(4096),
)

CONFIG: dict[str, Any] = {
    "vocab_size": ("embedding.tokens.vocab_size", "head.vocab_size"),
    "hidden_size": entry("width", build=lambda spec, width, c: spec.replace(init=initializers(width))),
    "num_hidden_layers": "decoder.depth",
    "attention_hidden_size": derived(f"{TIME}.width", of=lambda c: c.hidden_size, unset=(None,)),
    "intermediate_size": derived(f"{CHANNEL}.width", of=lambda c: 4 * c.hidden_size, unset=(None,)),
    "layer_norm_epsilon": ("embedding.norm.eps", "decoder.layers.*.pre_norm.eps"),  # the final norm always has 1e-5
    "rescale_every": entry(f"{TIME}.halve_every", f"{CHANNEL}.halve_every", read=lambda value, c: max(value, 0)),
    "tie_word_embeddings": tied(False, LMHead="head.out.weight"),
    "problem_type": None,
    "context_length": Ignored(1024, "the maximum of a published CUDA kernel; a recurrence has no limit"),
    "bos_token_id": Ignored(0, "used by generation"),
    "eos_token_id": Ignored(0, "used by generation"),
}

WEIGHTS = {
    "~embeddings": "embedding.tokens",
    "~blocks.0.pre_ln": "embedding.norm",
    f"{THEIRS}.{{ln1,ln2}}": f"{OURS}.{{time,channel}}.pre_norm",
    f"{THEIRS}.attention.{{key,value,receptance,output}}": f"{OURS}.time.op.{{k,v,gate,o}}",
    f"{THEIRS}.attention.time_{{decay,first}}": parameter(f"{OURS}.time.op.{{decay,bonus}}"),
    f"{THEIRS}.attention.time_mix_{{key,value,receptance}}": parameter(
        f"{OURS}.time.op.mix_{{k,v,gate}}", shape=(1, 1, -1)
    ),
    f"{THEIRS}.feed_forward.{{key,value,receptance}}": f"{OURS}.channel.op.{{up,down,gate}}",
    f"{THEIRS}.feed_forward.time_mix_{{key,receptance}}": parameter(
        f"{OURS}.channel.op.mix_{{up,gate}}", shape=(1, 1, -1)
    ),
    "~ln_out": "decoder.norm",
}


def residual(c: Config) -> Residual:
    return Halved(every=c.rescale_every) if c.rescale_every > 0 else ADD


def size(width: int, depth: int, published: float) -> Size:
    return Size({"hidden_size": width, "num_hidden_layers": depth}, published)


RWKV = Family(
    name="rwkv",
    about="language models without attention, trained in parallel and run as a recurrence",
    tokenizer="GPTNeoXTokenizer",
    template=TEMPLATE,
    classes={"RwkvForCausalLM": Class(LMHead(vocab_size=50277), "head"), "RwkvModel": Class(prefix="")},
    config=CONFIG,
    computed={"decoder.layers.channel.residual": residual},
    weights=WEIGHTS,
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
)
