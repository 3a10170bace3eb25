"""Activations against torch.nn.functional, and the names that published configs use."""

from __future__ import annotations

import math
import typing

import pytest
import torch
import torch.nn.functional as F

from anyformer.parts.activation import ACTIVATIONS, ALIASES, Activation, activation_named, published_name

X = torch.cat((torch.linspace(-8.01, 7.97, 400), torch.tensor([0.0, -0.0, 50.0, -50.0])))

ORACLE = {
    "relu": torch.nn.functional.relu,
    "relu2": lambda x: torch.where(x > 0, x * x, 0.0),
    "relu6": lambda x: x.clamp(0, 6),
    "gelu": lambda x: x * 0.5 * (1 + torch.erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu_10": lambda x: (x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))).clamp(max=10),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "silu": lambda x: x * torch.sigmoid(x),
    "elu": lambda x: torch.where(x > 0, x, torch.expm1(x.clamp(max=0))),
    "selu": lambda x: 1.0507009873554805 * torch.where(x > 0, x, 1.6732632423543772 * torch.expm1(x.clamp(max=0))),
    "leaky_relu": lambda x: torch.where(x > 0, x, 0.01 * x),
    "hardswish": lambda x: x * (x + 3).clamp(0, 6) / 6,
    "mish": lambda x: x * torch.tanh(F.softplus(x)),
    "sigmoid": lambda x: 1 / (1 + torch.exp(-x)),
    "softplus": lambda x: torch.where(x > 20, x, torch.log1p(torch.exp(x.clamp(max=20)))),
    "sqrtsoftplus": lambda x: torch.where(x > 20, x.clamp(min=1e-9), torch.log1p(torch.exp(x.clamp(max=20)))).sqrt(),
    "laplace": lambda x: torch.special.ndtr((x - 0.707107) / 0.282095),
    "tanh": lambda x: (torch.exp(2 * x.clamp(-40, 40)) - 1) / (torch.exp(2 * x.clamp(-40, 40)) + 1),
    "identity": lambda x: x,
}


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_formula_and_gradient(name: str) -> None:
    a, b = (X.double().clone().requires_grad_() for _ in "ab")
    ours, theirs = ACTIVATIONS[name](a), ORACLE[name](b)
    torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=1e-7)
    ours.sum().backward()
    theirs.sum().backward()
    smooth = X != 0  # the gradient at a corner is ambiguous; 0 is the only corner in X
    torch.testing.assert_close(a.grad[smooth], b.grad[smooth], atol=1e-6, rtol=1e-5)


def test_the_type_names_them_all() -> None:
    assert set(typing.get_args(Activation)) == set(ACTIVATIONS) == set(ORACLE)


@pytest.mark.parametrize("name", sorted(ALIASES))
def test_published_aliases_are_the_same_function(name: str) -> None:
    from transformers.activations import ACT2FN

    torch.testing.assert_close(ACTIVATIONS[activation_named(name)](X), ACT2FN[name](X), atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_published_names_are_known_there(name: str) -> None:
    from transformers.activations import ACT2FN

    theirs = published_name(name)
    if theirs in ACT2FN:
        torch.testing.assert_close(ACTIVATIONS[name](X), ACT2FN[theirs](X), atol=2e-6, rtol=1e-5)
    assert activation_named(theirs) == name


def test_an_unknown_one_names_the_nearest() -> None:
    with pytest.raises(ValueError, match="unknown activation 'gleu'; did you mean 'gelu'"):
        activation_named("gleu")
