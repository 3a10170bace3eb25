"""Feed-forwards against their formulas; gated ones by their names [Shazeer 2020]."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from anyformer.parts.feedforward.clamped_mlp import ClampedGatedMLP
from anyformer.parts.feedforward.mlp import MLP, GatedMLP
from small import close, compiled_equals_eager, context, made

D = 12
GATED = {"GLU": ("sigmoid", torch.sigmoid), "SwiGLU": ("silu", F.silu), "GeGLU": ("gelu", F.gelu),
         "ReGLU": ("relu", F.relu), "LiGLU": ("identity", lambda x: x)}  # fmt: skip


@pytest.mark.parametrize("bias", [True, False])
def test_mlp(bias: bool) -> None:
    module, x = made(MLP(width=20, activation="relu", bias=bias), D), torch.randn(2, 5, D)
    inner = F.relu(F.linear(x, module.up.weight, module.up.bias))
    close(module(x, context(5)), F.linear(inner, module.down.weight, module.down.bias))
    assert (module.up.bias is not None) is bias is (module.down.bias is not None)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", sorted(GATED))
def test_gated(kind: str, bias: bool) -> None:
    name, function = GATED[kind]
    module, x = made(GatedMLP(width=20, activation=name, bias=bias), D), torch.randn(2, 5, D)
    inner = function(module.gate(x)) * module.up(x)
    close(module(x, context(5)), module.down(inner))
    assert (module.gate.bias is not None) is bias


def test_clamped_is_the_published_function() -> None:
    from transformers import GptOssConfig
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts

    sizes = {"hidden_size": D, "intermediate_size": 20, "num_local_experts": 1}
    published = GptOssExperts(GptOssConfig(**sizes, swiglu_limit=0.7, swiglu_alpha=1.3))
    module, x = made(ClampedGatedMLP(width=20, limit=0.7, alpha=1.3), D), 3 * torch.randn(2, 5, D)
    gate, up = module.gate(x), module.up(x)
    assert gate.max() > 0.7 and gate.min() < -0.7 and up.max() > 0.7 and up.min() < -0.7
    inner = published._apply_gate(torch.stack((gate, up), dim=-1).flatten(-2))
    close(module(x, context(5)), module.down(inner))


def test_glu_equals_torch() -> None:
    """F.glu splits its input: the first half is the value, the second the gate."""
    module, x = made(GatedMLP(width=20, activation="sigmoid"), D), torch.randn(2, 5, D)
    both = torch.cat((module.up(x), module.gate(x)), dim=-1)
    close(module(x, context(5)), module.down(F.glu(both)))


@pytest.mark.parametrize("part", [MLP(width=400, activation="identity", bias=False, dropout=0.25),
                                  GatedMLP(width=400, activation="identity", dropout=0.25)])  # fmt: skip
def test_dropout_is_on_the_inner_activations(part: Any) -> None:
    module, x = made(part, D), torch.randn(1, 1, D)
    with torch.no_grad():
        module.down.weight.copy_(torch.eye(D, 400))
    plain = module(x, context(1))
    compiled_equals_eager(lambda y: module(y, context(1)), x)
    module.train()
    outs = torch.stack([module(x, context(1)) for _ in range(300)])
    dropped = (outs == 0).float().mean()
    assert 0.2 < dropped < 0.3
    close(outs[outs != 0], (plain / 0.75).expand_as(outs)[outs != 0])


@pytest.mark.parametrize("kind", [MLP, GatedMLP])
def test_nonsense(kind: Any) -> None:
    for bad, line in (
        ({"width": 0}, "width is 0"), ({"width": -3}, "width is -3"), ({"width": 3, "dropout": 1.0}, "dropout is 1.0"),
        ({"width": 3, "dropout": -0.1}, r"dropout is -0.1; it must be in \[0, 1\)"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=line):
            kind(**bad)
    with pytest.raises(ValueError, match="did you mean 'gelu'"):
        kind(width=3, activation="gleu")
