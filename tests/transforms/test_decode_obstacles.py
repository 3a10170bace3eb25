"""Modules without a fused kernel run unchanged, and the reason is reported. These tests need no GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import anyformer as af
from anyformer.kernels import few_experts, few_rows
from anyformer.models import Call
from anyformer.parts.decode_step import DecodeStep, decode_step, norm_weights
from anyformer.parts.feedforward.clamped_mlp import ClampedGatedMLP
from anyformer.parts.feedforward.mlp import GatedMLP, GatedMLPModule
from anyformer.parts.feedforward.moe import route
from anyformer.parts.norm import ScaleNorm
from anyformer.specs.part import Site
from anyformer.stacks.sublayer import SublayerModule
from anyformer.transforms import lora
from anyformer.transforms.decode_kernels import decode_kernels, obstacle, takes
from anyformer.transforms.quantize import FORMATS, quantize
from small import context

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
    sizes = {"decoder.layers.attention.op.num_kv_heads": 1, "decoder.layers.feedforward.op.width": 48}
    return build("llama3.2-1b", **HEADS, **sizes)


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
    assert obstacles(model) == ["SelectiveStateModule with several dtypes"]  # the plain path rounds to the first dtype
    model = mixtral()
    experts = model.decoder.layers[0].feedforward.op.experts
    experts.up.data = experts.up.data.mT.contiguous().mT
    assert obstacles(model) == [None, "an unusual kind of experts"]


class ShiftedGate(GatedMLP, sees="itself"):
    """Has an activation that kernels know, but a different function around it."""

    def inner(self, gate: Any, up: Any) -> Any:
        return super().inner(gate + 1, up)

    def build(self, site: Any) -> nn.Module:
        return GatedMLPModule(self, site.width)


@pytest.mark.parametrize("kind", [ClampedGatedMLP, ShiftedGate])
def test_a_feed_forward_with_another_inner_function_has_no_program(kind: Any) -> None:
    why = "an activation without a kernel"
    assert obstacles(mixtral(**{"decoder.layers.feedforward.op.expert": kind(width=24)})) == [None, why]
    model = llama()
    model.decoder.layers[0].feedforward.op = kind(width=48).build(Site(width=32))
    assert obstacles(model)[1] == why


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


def test_modules_are_changed_while_a_step_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules do not change on devices without kernels, or under autocast, which would cast inside them."""
    model = llama()
    forwards = [module.forward for module in model.modules()]
    for fits, autocast in ((True, False), (False, False), (True, True)):
        monkeypatch.setattr(
            few_rows, "fits", lambda like, rows, fits=fits: fits and like.is_floating_point() and rows == 1
        )
        monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind, autocast=autocast: autocast)
        with decode_kernels(model, rows=1) as used:
            changed = [module.forward for module in model.modules()] != forwards
        assert changed == (fits and not autocast) and used.fused == (2 if changed else 0)
        assert used.others == ({} if changed else {"1 rows of torch.float32": 2})
        assert [module.forward for module in model.modules()] == forwards


def test_a_step_is_one_token_of_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """If weights and stream have different dtypes, the dtype of the weights decides."""
    half = torch.zeros(1, dtype=torch.bfloat16)
    monkeypatch.setattr(few_rows, "fits", lambda x, rows: rows <= 3 and x.dtype == half.dtype)
    shapes = [(3, 1, 8), (4, 1, 8), (1, 4, 8), (3, 2, 8), (3, 8)]
    assert [takes(torch.zeros(shape).bfloat16()) for shape in shapes] == [True, False, False, False, False]
    assert takes(torch.zeros(3, 1, 8), half) and not takes(torch.zeros(3, 1, 8))


def test_norms_of_one_dimension_have_a_program() -> None:
    assert norm_weights(nn.LayerNorm(8)) is not None
    assert norm_weights(nn.LayerNorm((2, 8))) is None
    assert norm_weights(nn.LayerNorm(few_rows.WIDEST)) is not None
    assert norm_weights(nn.LayerNorm(few_rows.WIDEST + 1)) is None


def test_a_router_with_a_bias_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    monkeypatch.setattr(few_rows, "linear", lambda x, weights, biases: given.append((weights, biases)))
    monkeypatch.setattr(few_experts, "choose", lambda *values: values)
    op = mixtral(**{"decoder.layers.feedforward.op.router.bias": True}).decoder.layers[0].feedforward.op
    route(op, torch.zeros(1, 32), context(1))
    assert given == [([op.router.weight], [op.router.bias])] and op.router.bias is not None


@torch.no_grad()
def test_a_router_without_a_program_routes_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """A router that computes in fp32 in a bf16 model runs as a plain module; the usual router is fused."""
    x, programs = torch.randn(3, 32, dtype=torch.bfloat16), (torch.zeros(3, 2), torch.ones(3, 2))
    monkeypatch.setattr(few_rows, "linear", lambda x, weights, biases: x @ weights[0].mT)
    monkeypatch.setattr(few_experts, "choose", lambda *args: programs)
    for exact in (True, False):
        model = mixtral(**{"decoder.layers.feedforward.op.router.float32": exact}).bfloat16()
        op = model.decoder.layers[0].feedforward.op
        own = op.router(x[:, None], context(1))
        expected = (own.experts, own.weights) if exact else programs
        assert all(map(torch.equal, route(op, x, context(1)), expected))


def test_a_recurrence_needs_a_state_that_is_written_in_place() -> None:
    model, kept = mamba(), []
    step = next(module for module in model.modules() if isinstance(module, SublayerModule))
    step.op.register_forward_pre_hook(lambda op, inputs: kept.append(decode_step(op).is_ready(*inputs)))
    static, grown = model.new_state(2, 16), model.new_state()
    token = torch.ones(2, 1, dtype=torch.long)
    for state in (static, grown):
        model(Call({"input_ids": token}, state))
    static.is_token = torch.ones(2, 16, dtype=torch.bool)
    model(Call({"input_ids": token}, static))
    assert kept == [True, False, False]


class Doubled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor, ctx: Any) -> torch.Tensor:
        raise AssertionError("the fused step should run")


class DoubledSubclass(Doubled):
    pass


@torch.no_grad()
def test_a_new_op_offers_its_own_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The class of a step is all that an op needs; subclasses of the op do not inherit it."""
    monkeypatch.setattr(DecodeStep, "offers", dict(DecodeStep.offers))

    class DoubledStep(DecodeStep, of=Doubled):
        layers = ("up",)

        def __call__(self, x: Any, norm: Any, shortcut: Any, ctx: Any) -> torch.Tensor:
            return shortcut + 2 * x

    model, x = llama(), torch.randn(1, 1, 32)
    step = model.decoder.layers[0].feedforward
    step.op = DoubledSubclass()
    assert obstacles(model) == [None, "DoubledSubclass"]
    step.op = Doubled()
    assert obstacles(model) == [None, None]
    monkeypatch.setattr(few_rows, "fits", lambda like, rows: True)
    with decode_kernels(model, rows=1):
        assert torch.equal(step(x, context(1)), 3 * x)
    with pytest.raises(AssertionError, match="the fused step should run"):
        step(x, context(1))
