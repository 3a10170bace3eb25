"""Changes of scores and normalizers against formulas, and a change that another package adds."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import anyformer as af
from anyformer.kernels.attention import Plan
from anyformer.parts.attention.attention import Attention
from anyformer.parts.attention.scores import LearnedScale, PointwiseChange, PointwiseModule, Sinks, SoftCap
from anyformer.parts.mask import Causal
from anyformer.specs.part import Site
from anyformer.weights.rules import same_names
from small import Weights, close, context, made
from swaps import plain, stirred

D, H, T = 16, 4, 7


def scores_of(module: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Causal scores (B, H, T, T) and values (B, H, T, K)."""
    q, k, v = (layer(x).unflatten(-1, (H, -1)).transpose(1, 2) for layer in (module.q, module.k, module.v))
    return (q @ k.mT * (D // H) ** -0.5).masked_fill(torch.ones(T, T).triu(1).bool(), -torch.inf), v


@pytest.mark.parametrize("kernel", ["auto", "sdpa", "eager"])
def test_sinks_take_weight_and_give_nothing(kernel: str) -> None:
    module, x, seen = (
        made(Attention(num_heads=H, mask=Causal(), normalizer=Sinks()), D),
        torch.randn(2, T, D),
        Weights(),
    )
    module.normalizer.weight.data = torch.tensor([-9.0, 0.0, 1.0, 5.0])
    scores, v = scores_of(module, x)
    exp = scores.exp()
    weights = exp / (exp.sum(-1, keepdim=True) + module.normalizer.weight.exp()[:, None, None])
    close(module(x, context(T, kernel=kernel, taps=seen)), module.o((weights @ v).transpose(1, 2).flatten(2)), 1e-5)
    close(seen[0], weights, 1e-6)
    assert (seen[0].sum(-1) < 1).all()


class SignedSquare(PointwiseChange, sees="itself"):
    """score * |score|, as a user would add it."""

    def build(self, site: Site) -> nn.Module:
        return SignedSquareModule()


class SignedSquareModule(PointwiseModule):
    def forward(self, scores: Tensor) -> Tensor:
        return scores * scores.abs()


def test_a_new_change_needs_no_other_file() -> None:
    """Changes are applied in order; it is traced, saved and used in generation."""
    module, x = (
        made(Attention(num_heads=H, mask=Causal(), scores=(SoftCap(bound=2.0), SignedSquare())), D),
        torch.randn(2, T, D),
    )
    scores, v = scores_of(module, x)
    capped = 2.0 * torch.tanh(scores / 2.0)
    changed = (capped * capped.abs()).masked_fill(scores.isinf(), -torch.inf)
    close(module(x, context(T)), module.o((changed.softmax(-1) @ v).transpose(1, 2).flatten(2)), 1e-5)
    model = stirred(af.override(plain(), {"decoder.layers.attention.op.scores": [{"kind": "SignedSquare"}]})).eval()
    ids = torch.arange(1, 6)[None]
    with_cache, without = (af.generate(model, ids, max_new_tokens=5, use_cache=cached) for cached in (True, False))
    assert torch.equal(with_cache, without)


class Temperature(PointwiseModule):
    """A factor per head, without a form for FlexAttention."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(H, 1, 1))

    def forward(self, scores: Tensor) -> Tensor:
        return scores * self.weight


class FlexTemperature(Temperature):
    def score_mod(self, score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return score * self.weight[h, 0, 0]


@pytest.mark.parametrize(("module", "kernel"), [
    (SignedSquareModule, "flex"), (Temperature, "eager"), (FlexTemperature, "flex")
])  # fmt: skip
def test_flex_runs_what_has_a_form_for_one_score(module: type[PointwiseModule], kernel: str) -> None:
    assert Plan(1.0, changes=(module(),), kernel="flex").chosen_kernel() == kernel


@pytest.mark.parametrize("part", [SoftCap(), LearnedScale(), SignedSquare()], ids=lambda part: type(part).__name__)
def test_a_change_is_checked_on_its_own(part: PointwiseChange) -> None:
    """`af.check` puts it into the tuple of changes."""
    report = af.check(part)
    assert not report.failures and {check.name for check in report.checks} >= {"causality", "cached decoding"}


def test_tensor_names_of_earlier_versions_are_found() -> None:
    now = ["a.op.scores.0.weight", "a.op.scores.1.scores.weight", "a.op.scores.1.weights.weight", "a.op.q.weight"]
    old = ["a.op.learned_scale.weight", "a.op.talk.scores.weight", "a.op.talk.weights.weight", "a.op.q.weight"]
    assert same_names(None, old, now).names == dict(zip(now, old, strict=True))
    assert same_names(None, now, now).names == dict(zip(now, now, strict=True))
