"""What has no program for a decoding step is left as it is, and said: no device is needed to decide that."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import anyformer as af
from anyformer.models import Call
from anyformer.parts.norm import ScaleNorm
from anyformer.stacks.sublayer import SublayerModule
from anyformer.transforms import lora
from anyformer.transforms.decode_kernels import obstacle, remembers
from anyformer.transforms.quantize import FORMATS, quantize

SMALL = {"width": 32, "decoder.depth": 1, "embedding.tokens.vocab_size": 99, "head.vocab_size": 99}
HEADS = {"decoder.layers.attention.op.num_heads": 2, "decoder.layers.attention.op.head_width": 16}
FEW = {"decoder.layers.attention.op.num_kv_heads": 1, "decoder.layers.feedforward.op.expert.width": 24}


def build(name: str, **changes: Any) -> Any:
    return af.build(af.override(af.spec(name), {**SMALL, **changes}), seed=0).eval()


def mamba(**changes: Any) -> Any:
    changes = {"width": 64, **changes}
    return build("mamba-130m", **{f"decoder.layers.mixer.op.{name}": value for name, value in changes.items()})


def mamba2(**changes: Any) -> Any:
    changes = {"num_heads": 4, "head_width": 10, "states": 6, **changes}
    return build("mamba2-130m", **{f"decoder.layers.mixer.op.{name}": value for name, value in changes.items()})


def mixtral(**changes: Any) -> Any:
    return build("mixtral-8x7b", **HEADS, **FEW, **changes)


def llama() -> Any:
    return build("llama3.2-1b", **HEADS, **{"decoder.layers.attention.op.num_kv_heads": 1})


def obstacles(model: nn.Module, rows: int = 1) -> list[str | None]:
    return [obstacle(module, rows) for module in model.modules() if isinstance(module, SublayerModule)]


def test_published_ones_have_programs() -> None:
    assert obstacles(mamba()) == [None]
    assert obstacles(mixtral()) == [None, None]
    assert obstacles(mamba2()) == [None]
    assert obstacles(mamba().to(torch.bfloat16)) == [None]


def test_what_differs_is_said() -> None:
    assert obstacles(mamba(activation="mish")) == ["an activation without a kernel"]
    assert obstacles(mamba2(norm=ScaleNorm())) == ["ScaleNormModule in DualStateModule"]
    assert obstacles(mixtral(**{"decoder.layers.feedforward.op.expert.activation": "mish"}))[1] is not None
    model = mamba().to(torch.bfloat16)
    model.decoder.layers[0].mixer.op.step_bias.data = model.decoder.layers[0].mixer.op.step_bias.data.float()
    assert obstacles(model) == ["SelectiveStateModule with several dtypes"]  # the plain path rounds to the first one's
    model = mixtral()
    experts = model.decoder.layers[0].feedforward.op.experts
    experts.up.data = experts.up.data.mT.contiguous().mT
    assert obstacles(model) == [None, "an unusual kind of experts"]


@pytest.mark.parametrize(
    "change",
    [lambda m: quantize(m, format="int8"), lambda m: lora.apply(m, lora.LoRA(rank=2, targets=("*.op.select",)))],
)
def test_changed_layers_are_not_plain(change: Any) -> None:
    model = mamba()
    assert obstacles(change(model) or model) != [None]


@pytest.mark.parametrize("format", FORMATS)
def test_weights_of_8_and_4_bits_have_a_program_for_one_row_only(format: str) -> None:
    model = quantize(llama(), format=format, group=32)
    assert obstacles(model, rows=1) == [None, None]
    assert obstacles(model, rows=2) == [
        f"a layer of {name} is not a plain one" for name in ("AttentionModule", "GatedMLPModule")
    ]
    assert obstacles(llama(), rows=2) == [None, None]


def test_a_weight_that_is_not_contiguous_has_no_program() -> None:
    model = llama()
    weight = model.decoder.layers[0].feedforward.op.down.weight
    weight.data = weight.data.mT.contiguous().mT
    assert obstacles(model) == [None, "a layer of GatedMLPModule is not a plain one"]


@torch.no_grad()
def test_a_recurrence_needs_a_state_that_is_written_in_place() -> None:
    model, kept = mamba(), []
    step = next(module for module in model.modules() if isinstance(module, SublayerModule))
    step.op.register_forward_pre_hook(lambda op, inputs: kept.append(remembers(op, *inputs)))
    static, grown = model.new_state(2, 16), model.new_state()
    token = torch.ones(2, 1, dtype=torch.long)
    for state in (static, grown):
        model(Call({"input_ids": token}, state))
    static.is_token = torch.ones(2, 16, dtype=torch.bool)
    model(Call({"input_ids": token}, static))
    assert kept == [True, False, False]
