"""Convolutions within a text, against torch's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.parts.convolution.tokens import BranchedConvolution, Convolved, Gate, LightweightConvolution
from small import close, context, made

D, H, T = 12, 3, 9


def light(dynamic: bool = False, causal: bool = False, kernel: int = 5) -> Any:
    return made(LightweightConvolution(num_heads=H, kernel=kernel, dynamic=dynamic, causal=causal), D)


def evolved(causal: bool = False) -> Any:
    left, right = Convolved(width=16, kernel=4, activation="relu"), Convolved(width=8, kernel=3, separable=True)
    out = Convolved(width=6, kernel=5, separable=True)
    return made(BranchedConvolution(left=left, right=right, out=out, causal=causal), D)


def sides(kernel: int, causal: bool) -> tuple[int, int]:
    return (kernel - 1, 0) if causal else (kernel - 1 - kernel // 2, kernel // 2)


@pytest.mark.parametrize("causal", [False, True])
def test_lightweight_is_a_convolution_with_shared_taps(causal: bool) -> None:
    module, x = light(causal=causal), torch.randn(2, T, D)
    inner = F.glu(torch.cat((module.up(x), module.gate(x)), -1)).transpose(1, 2)
    taps = module.weight.softmax(-1).repeat_interleave(D // H, 0)[:, None]  # (D, 1, k)
    expected = F.conv1d(F.pad(inner, sides(5, causal)), taps, groups=D).transpose(1, 2)
    close(module(x, context(T)), module.o(expected))


def test_dynamic_taps_are_of_each_token() -> None:
    module, x = light(dynamic=True, causal=True, kernel=3), torch.randn(1, T, D)
    inner = module.up(x) * torch.sigmoid(module.gate(x))
    taps = module.taps(inner).unflatten(-1, (H, 3)).softmax(-1)
    expected = torch.zeros(1, T, D)
    for t in range(T):
        for i in range(max(0, t - 2), t + 1):
            expected[0, t] += taps[0, t, :, i - t + 2].repeat_interleave(D // H) * inner[0, i]
    close(module(x, context(T)), module.o(expected))


@pytest.mark.parametrize("causal", [False, True])
def test_evolved_is_three_convolutions(causal: bool) -> None:
    module, x = evolved(causal), torch.randn(2, T, D)

    def convolved(each: Any, x: Tensor) -> Tensor:
        kernel = each.part.kernel
        padded = F.pad(x.transpose(1, 2), sides(kernel, causal))
        if each.part.separable:
            return each.out(F.conv1d(padded, each.each[:, None], groups=padded.shape[1]).transpose(1, 2))
        weight = each.out.weight.unflatten(1, (-1, kernel))
        return F.conv1d(padded, weight, each.out.bias).transpose(1, 2)

    inner = torch.relu(convolved(module.left, x)) + F.pad(convolved(module.right, x), (0, 8))
    close(module(x, context(T)), F.pad(convolved(module.out, module.norm(inner)), (0, 6)))


def test_gate() -> None:
    module, x = made(Gate(), D), torch.randn(2, T, D)
    close(module(x, context(T)), F.glu(torch.cat((module.up(x), module.gate(x)), -1)))


def test_what_is_seen_and_what_does_not_fit() -> None:
    part = LightweightConvolution(num_heads=2)
    assert (part.sees, part.replace(causal=True).sees, part.replace(kernel=1).sees) == ("all", "past", "itself")
    assert part.causal_alternative == repr(part.replace(causal=True))
    wide = Convolved(width=D + 1)
    with pytest.raises(ValueError, match="here.out: width 13 is larger than the model's 12"):
        made(BranchedConvolution(left=wide, right=wide, out=wide), D)
