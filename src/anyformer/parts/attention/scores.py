"""Changes of attention scores, and what turns scores into weights.

`Attention.scores` is a tuple of `ScoreChange`s, applied in order. A new change is a subclass of one of these kinds:

| kind | what it changes | kernels that can run it |
|---|---|---|
| `QueryChange` | queries, which scales the scores of a head | all |
| `PointwiseChange` | each score on its own, before position biases are added | eager, flex |
| `HeadMixing` | scores (after the biases) and weights of all heads together | eager |

`Attention.normalizer` turns scores into weights: `Softmax` on all kernels, the others on the eager one.

B batch, T tokens, S keys, H heads, K head width. `build` gets the number of heads as `site.width`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from anyformer.kernels.entmax import entmax, sparsemax
from anyformer.specs.checks import positive
from anyformer.specs.part import Part, Site

# -- changes of scores -------------------------------------------------------------------------------------------------


class ScoreChange(Part):
    """A change of attention scores."""

    def factor(self, layer: int) -> float:
        """Return the constant factor of all scores in this layer, counted from 0."""
        return 1.0


class QueryChange(ScoreChange):
    """A change of queries. Its module maps queries (B, H, T, K) to queries."""


class PointwiseChange(ScoreChange):
    """A change of each score on its own. Its module is a `PointwiseModule`."""


class PointwiseModule(nn.Module):
    def forward(self, scores: Tensor) -> Tensor:
        """Change scores (B, H, T, S), before position biases are added."""
        raise NotImplementedError

    def score_mod(self, score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """Change one score in FlexAttention: of batch row b, head h, query i and key j."""
        return self(score)


class HeadMixing(ScoreChange):
    """A change of all heads together. Its module is a `HeadMixingModule`."""


class HeadMixingModule(nn.Module):
    def forward(self, x: Tensor, after_softmax: bool) -> Tensor:
        """Change scores, or with `after_softmax` weights: (B, H, T, S) -> (B, H, T, S)."""
        raise NotImplementedError


class ScaleByLayer(ScoreChange, sees="itself"):
    """Divides the scores by the number of the layer, counted from 1 (Mistral's GPT-2)."""

    def factor(self, layer: int) -> float:
        return 1 / (layer + 1)

    def build(self, site: Site) -> nn.Module:
        return nn.Identity()


class LearnedScale(QueryChange, sees="itself"):
    """Multiplies the scores of each head by a learned number of at most `most`; used with cosines of queries and keys
    [Liu et al. 2022]. Set `Attention.scale` to 1."""

    start: float = 10.0
    most: float = 100.0

    def check(self) -> None:
        positive(self, "start", "most")

    def build(self, site: Site) -> nn.Module:
        return LearnedScaleModule(self, site.width)


class LearnedScaleModule(nn.Module):
    def __init__(self, part: LearnedScale, heads: int) -> None:
        super().__init__()
        self.starts, self.most = {"weight": math.log(part.start)}, math.log(part.most)
        self.weight = nn.Parameter(torch.full((heads, 1, 1), math.log(part.start)))  # logarithm of the scale

    def forward(self, q: Tensor) -> Tensor:
        return q * self.weight.clamp(max=self.most).exp()


class SoftCap(PointwiseChange, sees="itself", called=("logit softcapping", "tanh soft cap")):
    """Bounds the scores: bound * tanh(scores / bound) [Gemma 2, 2024]."""

    bound: float = 50.0

    def check(self) -> None:
        positive(self, "bound")

    def build(self, site: Site) -> nn.Module:
        return SoftCapModule(self.bound)


class SoftCapModule(PointwiseModule):
    def __init__(self, bound: float) -> None:
        super().__init__()
        self.bound = bound

    def forward(self, scores: Tensor) -> Tensor:
        return self.bound * torch.tanh(scores / self.bound)


class TalkingHeads(HeadMixing, sees="itself"):
    """Mixes heads with two matrices (H, H): scores before softmax and weights after it [Shazeer et al. 2020]."""

    def build(self, site: Site) -> nn.Module:
        return TalkingHeadsModule(site.width)


class TalkingHeadsModule(HeadMixingModule):
    def __init__(self, heads: int) -> None:
        super().__init__()
        self.scores, self.weights = nn.Linear(heads, heads, bias=False), nn.Linear(heads, heads, bias=False)

    def forward(self, x: Tensor, after_softmax: bool) -> Tensor:
        return (self.weights if after_softmax else self.scores)(x.movedim(1, -1)).movedim(-1, 1)


# -- scores to weights -------------------------------------------------------------------------------------------------


class Normalizer(Part):
    """Turns scores (B, H, T, S) into weights (B, H, T, S)."""


class Softmax(Normalizer, sees="itself"):
    """Weights are proportional to exp(score) and add up to 1."""

    def build(self, site: Site) -> nn.Module:
        return nn.Softmax(dim=-1)


class Entmax(Normalizer, sees="itself"):
    """1.5-entmax: between softmax and sparsemax, with exact zeros [Peters et al. 2019]."""

    def build(self, site: Site) -> nn.Module:
        return FunctionModule(entmax)


class Sparsemax(Normalizer, sees="itself"):
    """The nearest point of the simplex to the scores, with exact zeros [Martins and Astudillo 2016]."""

    def build(self, site: Site) -> nn.Module:
        return FunctionModule(sparsemax)


class FunctionModule(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, scores: Tensor) -> Tensor:
        return self.function(scores)


class Sinks(Normalizer, sees="itself", called=("attention sinks", "softmax with a learned sink")):
    """Softmax over the keys and one learned score per head, whose weight is dropped: a head can attend to nothing
    [gpt-oss, 2025]."""

    def build(self, site: Site) -> nn.Module:
        return SinksModule(site.width)


class SinksModule(nn.Module):
    def __init__(self, heads: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(heads))

    def forward(self, scores: Tensor) -> Tensor:
        sink = self.weight.to(scores.dtype)[:, None, None].expand(*scores.shape[:-1], 1)
        return torch.cat((scores, sink), dim=-1).softmax(-1)[..., :-1]


SOFTMAX = Softmax()
