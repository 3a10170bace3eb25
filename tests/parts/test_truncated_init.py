"""Initializers that are cut off, and the norm that the first layer does not have."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import anyformer as af
from anyformer.parts.init import Initializer
from anyformer.parts.later_norm import LaterLayerNorm
from anyformer.parts.truncated_init import TruncatedLeCun, TruncatedNormal
from swaps import plain


@pytest.mark.parametrize(
    ("rule", "std"),
    [
        (TruncatedNormal(std=0.02, cutoff=1.5), 0.02),
        (TruncatedNormal(std=0.02, residual=True), 0.01),
        (TruncatedLeCun(), 0.1),
    ],
)
def test_no_value_is_beyond_the_cutoff(rule: Initializer, std: float) -> None:
    tensor = torch.empty(400, 100)
    rule.fill(tensor, torch.Generator().manual_seed(0), depth=2)
    most = float(tensor.abs().max()) / std
    assert 0.98 * rule.cutoff < most <= rule.cutoff
    expected = {1.5: 0.743, 2.0: 0.880}[rule.cutoff]  # of a standard normal variable between -cutoff and cutoff
    assert abs(float(tensor.std()) / std - expected) < 0.01


def test_a_std_of_zero_fills_with_the_mean() -> None:
    tensor = torch.empty(3, 4)
    TruncatedNormal(std=0.0, mean=0.5).fill(tensor, torch.Generator(), depth=1)
    assert tensor.eq(0.5).all()


def test_the_first_layer_has_no_norm() -> None:
    spec = af.override(plain(), {"decoder.layers.attention.pre_norm": LaterLayerNorm()})
    first, second = (layer.attention.pre_norm for layer in af.build(spec).decoder.layers)
    assert isinstance(first, nn.Identity) and isinstance(second, nn.LayerNorm)
    assert af.count(spec).parameters == sum(p.numel() for p in af.build(spec).parameters())
