"""TokenLearner and TokenFuser against their formulas."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import anyformer as af
from anyformer import families
from anyformer.parts.attention.attention import Attention
from anyformer.parts.attention.token_learner import TokenLearner
from anyformer.parts.position.rotary import Rope
from anyformer.runtime.context import Context
from anyformer.specs.part import Site


@torch.no_grad()
@pytest.mark.parametrize("mixer", [None, Attention(num_heads=2)], ids=["alone", "attention"])
@pytest.mark.parametrize("pads", [0, 3])
def test_tokens_are_learned_mixed_and_read_back(mixer: Any, pads: int) -> None:
    torch.manual_seed(0)
    op = TokenLearner(tokens=3, width=5, mixer=mixer).build(Site(width=8, address="op")).eval()
    x, real = torch.randn(2, 9, 8), torch.arange(9) >= pads
    index = torch.arange(9)
    is_token = real.expand(2, -1) if pads else None
    found = op(x, Context(index=index, positions=index[None], is_token=is_token))[:, pads:]
    x = x[:, pads:]
    scores = op.down(F.gelu(op.up(x)))
    learned = torch.stack([(scores[..., i].softmax(1)[..., None] * x).sum(1) for i in range(3)], 1)
    if mixer is not None:
        learned = op.mixer(learned, Context(index=torch.arange(3), positions=torch.arange(3)[None]))
    y = torch.einsum("ij,bjd->bid", op.fuse.weight, learned)
    expected = sum(op.gate(x)[..., i, None].sigmoid() * y[:, i, None] for i in range(3))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_it_keeps_what_every_mixer_keeps() -> None:
    vit = {"image_size": 8, "patch_size": 4, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
           "intermediate_size": 8}  # fmt: skip
    spec = families.find("vit").read(vit).replace(family="", architecture="")
    spec = af.override(spec, {"encoder.layers.attention.op": TokenLearner(tokens=2, mixer=Attention(num_heads=2))})
    run = af.trace(af.build(spec), keep=["encoder.layers.0.attention.op.weights"], pixel_values=torch.randn(2, 3, 8, 8))
    assert run["encoder.layers.0.attention.op.weights"].shape == (2, 2, 5)
    assert af.check(TokenLearner(tokens=2)).passed
    with pytest.raises(ValueError, match="TokenLearner.mixer .*position=None"):
        TokenLearner(mixer=Attention(num_heads=2, position=Rope()))
    with pytest.raises(ValueError, match=r"^decoder\.layers\.attention\.op: TokenLearner lets a token see the future"):
        af.override(af.spec("gpt2"), {"decoder.layers.attention.op": TokenLearner()})
