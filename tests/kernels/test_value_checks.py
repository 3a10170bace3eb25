"""Checks of values: at once on a CPU and without gradients, later while gradients are computed on a GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import anyformer as af
from anyformer.kernels import value_checks
from anyformer.kernels.capture import without_reading
from anyformer.kernels.linear import cast_for_autocast
from anyformer.kernels.loss import linear_cross_entropy
from anyformer.kernels.value_checks import check_range, check_values

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


def too_large(values: list[int]) -> Exception | None:
    return ValueError(f"{max(values)} is above 3") if max(values) > 3 else None


def test_a_cpu_raises_at_once() -> None:
    check_values(torch.tensor([1, 3]), too_large)
    with pytest.raises(ValueError, match="4 is above 3"):
        check_values(torch.tensor([1, 4]), too_large)
    with without_reading():
        check_values(torch.tensor([1, 4]), too_large)  # values may not be read here


@pytest.mark.parametrize("bad", [-1, 5])
def test_a_range_has_two_ends(bad: int) -> None:
    ids = torch.tensor([[0, 4]])
    assert check_range(ids, 5, "{value}") is ids
    with pytest.raises(ValueError, match=f"id {bad} of 5"):
        check_range(torch.tensor([[0, bad]]), 5, "id {value} of 5")
    assert check_range(torch.empty(0, dtype=torch.long), 5, "").numel() == 0


class FakeEvent:
    """A CUDA event whose time the test decides."""

    done = False

    def record(self) -> None: ...

    def query(self) -> bool:
        return self.done

    def synchronize(self) -> None: ...


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The behaviour of a GPU during training, on any machine."""
    monkeypatch.setattr(value_checks, "reads_later", lambda values: True)
    monkeypatch.setattr(FakeEvent, "done", False)
    monkeypatch.setattr(torch, "cuda", SimpleNamespace(Event=FakeEvent))
    yield FakeEvent
    value_checks._pending.clear()


def test_a_later_check_raises_once_the_values_arrived(late: Any) -> None:
    check_values(torch.tensor([4]), too_large)
    check_values(torch.tensor([1]), too_large)  # the first values have not arrived
    late.done = True
    with pytest.raises(ValueError, match="4 is above 3"):
        check_values(torch.tensor([2]), too_large)
    check_values(torch.tensor([2]), too_large)  # an error is raised once


def test_values_that_are_read_later_are_clamped(late: Any) -> None:
    assert check_range(torch.tensor([-2, 3, 9]), 5, "id {value}").tolist() == [0, 3, 4]
    late.done = True
    with pytest.raises(ValueError, match="id -2"):
        check_range(torch.tensor([1]), 5, "id {value}")


def test_the_oldest_check_is_read_if_many_wait(late: Any) -> None:
    check_values(torch.tensor([4]), too_large)
    for _ in range(value_checks.MAX_PENDING):
        check_values(torch.tensor([1]), too_large)
    with pytest.raises(ValueError, match="4 is above 3"):
        check_values(torch.tensor([1]), too_large)


def test_layers_that_share_an_input_share_its_cast() -> None:
    x = torch.randn(2, 3)
    assert cast_for_autocast(x) is x
    with torch.autocast("cpu", torch.bfloat16):
        assert cast_for_autocast(x).dtype == torch.bfloat16
        assert cast_for_autocast(x.double()).dtype == torch.float64  # autocast does not cast fp64
        half = x.to(torch.bfloat16)
        assert cast_for_autocast(half) is half


def test_attention_casts_its_input_once() -> None:
    """Under autocast, the projections of q, k and v share one bf16 tensor instead of three casts."""
    from anyformer.parts.attention.attention import Attention
    from anyformer.parts.feedforward.mlp import GatedMLP
    from anyformer.runtime.context import Context
    from anyformer.specs.part import Site

    seen: list[int] = []
    places = torch.arange(5)
    for part, names in ((Attention(num_heads=2), "q k v"), (GatedMLP(width=8), "gate up")):
        module = part.build(Site(width=8))
        for name in names.split():
            module.get_submodule(name).register_forward_pre_hook(lambda m, args: seen.append(args[0].data_ptr()))
        with torch.autocast("cpu", torch.bfloat16):
            module(torch.randn(2, 5, 8), Context(index=places, positions=places[None]))
        assert len(set(seen)) == 1 and len(seen) == len(names.split())
        seen.clear()


# -- on a GPU ---------------------------------------------------------------------------------------------------------

SMALL = {"decoder.depth": 2, "width": 64, "decoder.layers.attention.op.num_heads": 4}


def small_gpt2(**changes: Any) -> Any:
    spec = af.override(af.spec("gpt2"), {**SMALL, "decoder.layers.feedforward.op.width": 128, **changes})
    return af.build(spec, seed=0, device="cuda").train()


@gpu
@pytest.mark.gpu
@pytest.mark.parametrize("name", ["gpt2", "vit-b16"])
def test_a_training_step_never_waits_for_the_gpu(name: str) -> None:
    if name == "gpt2":
        model, ids = small_gpt2(), torch.randint(0, 50257, (2, 16), device="cuda")
        batch = {"input_ids": ids, "labels": ids}
    else:
        changes = {"encoder.depth": 2}
        model = af.build(af.override(af.spec(name), changes), seed=0, device="cuda").train()
        batch = {"pixel_values": torch.randn(2, 3, 224, 224, device="cuda"),
                 "labels": torch.zeros(2, dtype=torch.long, device="cuda")}  # fmt: skip
    for mode in ("default", "error"):  # the first step builds tables
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode(mode)
        try:
            with torch.autocast("cuda", torch.bfloat16):
                loss = model(**batch).loss
            loss.backward()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()


@gpu
@pytest.mark.gpu
def test_nan_on_a_gpu_is_raised_in_the_next_step() -> None:
    model, ids = small_gpt2(), torch.randint(0, 50257, (2, 16), device="cuda")
    with torch.no_grad():
        model.decoder.norm.weight.fill_(float("nan"))
    with torch.autocast("cuda", torch.bfloat16), pytest.raises(FloatingPointError, match=r"decoder\.norm\.weight"):
        model(input_ids=ids, labels=ids).loss.backward()
        torch.cuda.synchronize()
        model(input_ids=ids, labels=ids)
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16), pytest.raises(FloatingPointError):
        model(input_ids=ids)  # at once if no gradients are computed
    value_checks._pending.clear()


@gpu
@pytest.mark.gpu
def test_bad_ids_and_labels_on_a_gpu_are_raised_in_the_next_step() -> None:
    model, ids = small_gpt2(), torch.randint(0, 50257, (2, 16), device="cuda")
    for wrong in ({"input_ids": ids + 50257, "labels": ids}, {"input_ids": ids, "labels": ids + 50257}):
        with pytest.raises(ValueError, match="5025[67]"):
            model(**wrong).loss.backward()  # raises here only if the values arrive in time
            torch.cuda.synchronize()
            model(input_ids=ids, labels=ids)
        value_checks._pending.clear()
    weight, x = torch.randn(9, 4, device="cuda", requires_grad=True), torch.randn(3, 4, device="cuda")
    labels = torch.tensor([0, -100, 8], device="cuda")
    total = linear_cross_entropy(x, weight, labels)
    expected = torch.nn.functional.cross_entropy(x @ weight.t(), labels, ignore_index=-100, reduction="sum")
    assert torch.allclose(total, expected)
