"""Activation checkpointing by address: equal gradients, fewer saved activations."""

from __future__ import annotations

import pytest
import torch

import anyformer as af
from anyformer.parts.position.relative import RelativeSinusoids
from anyformer.transforms.recompute import recompute
from tiny import inputs_of, model_of


def gradients(model: torch.nn.Module, family: str) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    inputs = inputs_of(family)
    loss = model(**inputs, labels=inputs.get("decoder_input_ids", inputs["input_ids"])).loss
    loss.backward()
    return loss.detach(), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("family", ["gpt2", "llama", "bert", "t5"])
def test_gradients_stay_the_same(family: str) -> None:
    plain, again = model_of(family), recompute(model_of(family))
    (loss, expected), (same, got) = gradients(plain, family), gradients(again, family)
    assert torch.equal(loss, same) and expected.keys() == got.keys()
    for name, gradient in expected.items():
        assert torch.allclose(gradient, got[name], rtol=1e-5, atol=1e-7), name


@pytest.mark.parametrize("position", [None, RelativeSinusoids(num_heads=3, dropout=0.5)], ids=["own", "shared"])
def test_dropout_draws_the_same_numbers_again(position: RelativeSinusoids | None) -> None:
    """Also in a tensor that the first layer computes for all layers."""
    runs, spec = [], af.override(model_of("gpt2").spec, {"decoder.layers.attention.op.position": position})
    for change in (lambda m: m, recompute):
        model = change(af.build(spec, seed=0).train())
        torch.manual_seed(3)
        runs.append(gradients(model, "gpt2"))
    (loss, expected), (same, got) = runs
    assert torch.equal(loss, same)
    for name, gradient in expected.items():
        assert torch.allclose(gradient, got[name], rtol=1e-5, atol=1e-7), name


def kept(model: torch.nn.Module) -> int:
    """Count the numbers saved for the backward pass."""
    total, inputs = 0, inputs_of("gpt2")

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal total
        total += tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(**inputs, labels=inputs["input_ids"])
    return total


def test_less_is_kept() -> None:
    everything = kept(model_of("gpt2"))
    assert kept(recompute(model_of("gpt2"))) < everything / 2
    one = kept(recompute(model_of("gpt2"), "decoder.layers.0"))
    assert kept(recompute(model_of("gpt2"))) < one < everything


def test_only_the_outermost_match() -> None:
    model = model_of("gpt2")
    inner = model.decoder.layers[0].attention.forward
    recompute(model)
    assert model.decoder.layers[0].attention.forward == inner


def test_nothing_matches() -> None:
    with pytest.raises(ValueError, match="no module matches 'decoder.layer.0'; .*decoder.layers.0"):
        recompute(model_of("gpt2"), "decoder.layer.0")
