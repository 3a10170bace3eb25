"""Decoding a batch on a CPU with packed weights: when they are packed, equal texts, and an unchanged model."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import anyformer as af
from anyformer.kernels import hardware
from anyformer.transforms import pack
from anyformer.transforms.fuse import fuse
from anyformer.transforms.pack import PACKED, PackedForward
from tiny import CONFIGS, model_of

packs = pytest.mark.skipif(not hardware.has("onednn"), reason="torch cannot pack weights for this CPU")
WRITERS = [family for family in CONFIGS if family != "bert"]


@pytest.fixture(autouse=True)
def every_layer_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    PACKED.kept.clear()
    monkeypatch.setattr(pack, "MIN_WEIGHTS", 1)
    monkeypatch.setattr(hardware, "free_memory", lambda: 2**40)
    monkeypatch.setattr(hardware, "packed_is_faster", lambda: hardware.has("onednn"))  # not measured: may be busy


def write(model: Any, rows: int = 4, **options: Any) -> Tensor:
    ids = torch.randint(3, 20, (rows, 5), generator=torch.Generator().manual_seed(0))
    options = {"max_new_tokens": 16, "eos_token_id": None, **options}
    return af.generate(model, input_ids=ids, **options)


@packs
@pytest.mark.parametrize("family", WRITERS)
@pytest.mark.parametrize("fused", [False, True])
def test_the_same_text_and_the_model_as_it_was(family: str, fused: bool) -> None:
    model = model_of(family)
    if fused:
        fuse(model)
    names, forwards = list(model.state_dict()), [module.forward for module in model.modules()]
    expected = write(model, compile=False)
    assert not PACKED.kept
    assert torch.equal(write(model), expected)
    assert PACKED.kept and "large layers are packed" in model.explain()
    assert list(model.state_dict()) == names and [module.forward for module in model.modules()] == forwards


@packs
def test_steps_run_by_what_was_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps use packed weights in every layer of the decoder and in the head; prompts do not."""
    model = model_of("gpt2")
    seen: list[nn.Module] = []

    def forward(packed: PackedForward, x: Tensor) -> Tensor:
        seen.append(packed.module)
        return nn.Linear.forward(packed.module, x)

    monkeypatch.setattr(PackedForward, "__call__", forward)
    write(model)
    linears = [module for module in model.modules() if isinstance(module, nn.Linear)]
    assert set(seen) == set(linears) and len(seen) == 15 * len(linears)  # the prompt gives the first of 16 tokens


@packs
def test_weights_that_change_are_packed_again_and_go_with_the_model() -> None:
    model = model_of("gpt2")
    write(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    assert torch.equal(write(model), write(model, compile=False))
    del model
    gc.collect()
    assert not PACKED.kept


@pytest.mark.parametrize(
    ("why", "rows", "options", "note"),
    [
        ("few rows", 3, {}, ""),
        ("many rows", 65, {}, ""),
        ("few tokens", 4, {"max_new_tokens": 15}, "; weights are packed for 16 or more new tokens"),
        ("hidden", 4, {}, ""),
        ("small layers", 4, {}, ""),
        ("little memory", 4, {}, "MB, more than 1/4 of the free memory"),
        ("half precision", 4, {}, ""),
    ],
)
def test_nothing_is_packed_for_nothing(
    why: str, rows: int, options: dict[str, Any], note: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of("gpt2")
    if why == "hidden":
        monkeypatch.setenv(hardware.HIDING, "onednn")
    elif not hardware.has("onednn"):
        pytest.skip("torch cannot pack weights for this CPU")
    if why == "small layers":
        monkeypatch.setattr(pack, "MIN_WEIGHTS", 2**19)
    if why == "little memory":
        monkeypatch.setattr(hardware, "free_memory", lambda: 1000)
    if why == "half precision":
        model = model.bfloat16()
    expected = write(model, rows, compile=False, **options)
    assert torch.equal(write(model, rows, **options), expected)
    assert not PACKED.kept
    assert model.explain().endswith(note or "use compile=True to compile the step")


@packs
def test_short_texts_that_come_again_are_worth_it() -> None:
    model = model_of("gpt2")
    for _ in range(3):
        write(model, max_new_tokens=6)
    assert not PACKED.kept
    write(model, max_new_tokens=6)
    assert PACKED.kept


def test_nothing_is_packed_where_that_is_no_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "packed_is_faster", lambda: False)
    model = model_of("gpt2")
    write(model)
    assert not PACKED.kept and "packed" not in model.explain()
