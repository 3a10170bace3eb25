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

import torch
from torch import Tensor, nn

from anyformer.kernels.entmax import entmax, sparsemax
from anyformer.parts.base import PartModule
from anyformer.specs.field_types import Positive
from anyformer.specs.part import Part, Site

# -- changes of scores -------------------------------------------------------------------------------------------------


class ScoreChange(Part, abstract=True):
    """A change of attention scores."""

    def factor(self, layer: int) -> float:
        """Return the constant factor of all scores in this layer, counted from 0."""
        return 1.0


class QueryChange(ScoreChange, abstract=True):
    """A change of queries. Its module maps queries (B, H, T, K) to queries."""


class PointwiseChange(ScoreChange, abstract=True):
    """A change of each score on its own. Its module is a `PointwiseModule`."""


class PointwiseModule(PartModule):
    def forward(self, scores: Tensor) -> Tensor:
        """Change scores (B, H, T, S), before position biases are added."""
        raise NotImplementedError

    def score_mod(self, score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """Change one score in FlexAttention: of batch row b, head h, query i and key j. A module with parameters per
        head overrides this (`score * self.weight[h]`); otherwise it runs on the eager kernel only."""
        return self(score)

    @property
    def in_flex(self) -> bool:
        """Whether `score_mod` can change a single score: it is overridden, or nothing depends on the head."""
        return type(self).score_mod is not PointwiseModule.score_mod or next(self.parameters(), None) is None


class HeadMixing(ScoreChange, abstract=True):
    """A change of all heads together. Its module is a `HeadMixingModule`."""


class HeadMixingModule(PartModule):
    def forward(self, x: Tensor, after_softmax: bool) -> Tensor:
        """Change scores, or with `after_softmax` weights: (B, H, T, S) -> (B, H, T, S)."""
        raise NotImplementedError


class ScaleByLayer(ScoreChange, sees="itself"):
    """Divides the scores by the number of the layer, counted from 1 (Mistral's GPT-2)."""

    def factor(self, layer: int) -> float:
        return 1 / (layer + 1)


class ScaleByLayerModule(PartModule, of=ScaleByLayer):
    silent = True  # `factor` is part of the scale: there is nothing to compute or trace


class LearnedScale(QueryChange, sees="itself"):
    """Multiplies the scores of each head by a learned number of at most `most`; used with cosines of queries and keys
    [Liu et al. 2022]. Set `Attention.scale` to 1."""

    start: Positive = 10.0
    most: Positive = 100.0


class LearnedScaleModule(PartModule, of=LearnedScale):
    def __init__(self, part: LearnedScale, site: Site) -> None:
        super().__init__()
        self.starts, self.most = {"weight": math.log(part.start)}, math.log(part.most)
        self.weight = nn.Parameter(torch.full((site.width, 1, 1), math.log(part.start)))  # logarithm of the scale

    def forward(self, q: Tensor) -> Tensor:
        return q * self.weight.clamp(max=self.most).exp()


class SoftCap(PointwiseChange, sees="itself", called=("logit softcapping", "tanh soft cap")):
    """Bounds the scores: bound * tanh(scores / bound) [Gemma 2, 2024]."""

    bound: Positive = 50.0


class SoftCapModule(PointwiseModule, of=SoftCap):
    def __init__(self, part: SoftCap, site: Site) -> None:
        super().__init__()
        self.bound = part.bound

    def forward(self, scores: Tensor) -> Tensor:
        return self.bound * torch.tanh(scores / self.bound)


class TalkingHeads(HeadMixing, sees="itself"):
    """Mixes heads with two matrices (H, H): scores before softmax and weights after it [Shazeer et al. 2020]."""


class TalkingHeadsModule(HeadMixingModule, of=TalkingHeads):
    def __init__(self, part: TalkingHeads, site: Site) -> None:
        super().__init__()
        self.scores, self.weights = (nn.Linear(site.width, site.width, bias=False) for _ in range(2))

    def forward(self, x: Tensor, after_softmax: bool) -> Tensor:
        return (self.weights if after_softmax else self.scores)(x.movedim(1, -1)).movedim(-1, 1)


# -- scores to weights -------------------------------------------------------------------------------------------------


class Normalizer(Part, abstract=True):
    """Turns scores (B, H, T, S) into weights (B, H, T, S)."""


class Softmax(Normalizer, sees="itself"):
    """Weights are proportional to exp(score) and add up to 1."""

    def build(self, site: Site) -> nn.Module:
        return nn.Softmax(dim=-1)


class Entmax(Normalizer, sees="itself"):
    """1.5-entmax: between softmax and sparsemax, with exact zeros [Peters et al. 2019]."""


class EntmaxModule(PartModule, of=Entmax):
    def forward(self, scores: Tensor) -> Tensor:
        return entmax(scores)


class Sparsemax(Normalizer, sees="itself"):
    """The nearest point of the simplex to the scores, with exact zeros [Martins and Astudillo 2016]."""


class SparsemaxModule(PartModule, of=Sparsemax):
    def forward(self, scores: Tensor) -> Tensor:
        return sparsemax(scores)


class Sinks(Normalizer, sees="itself", called=("attention sinks", "softmax with a learned sink")):
    """Softmax over the keys and one learned score per head, whose weight is dropped: a head can attend to nothing
    [gpt-oss, 2025]."""


class SinksModule(PartModule, of=Sinks):
    def __init__(self, part: Sinks, site: Site) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(site.width))

    def forward(self, scores: Tensor) -> Tensor:
        sink = self.weight.to(scores.dtype)[:, None, None].expand(*scores.shape[:-1], 1)
        return torch.cat((scores, sink), dim=-1).softmax(-1)[..., :-1]


SOFTMAX = Softmax()
