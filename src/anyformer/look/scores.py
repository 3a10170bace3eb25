"""Scores of attention heads: how much a head attends to the previous token, to earlier copies of the current token, and
to the tokens that followed these copies. A head with a high third score is an induction head [Olsson et al. 2022].
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from anyformer.look.maps import attention
from anyformer.look.roles import short
from anyformer.look.trace import Trace, trace
from anyformer.models import TransformerModule, position_limit
from anyformer.parts.embedding.text import TextEmbedding
from anyformer.specs.messages import nearest, quote

KINDS = ("previous", "duplicate", "induction")


@dataclasses.dataclass(frozen=True)
class HeadScores:
    """kind -> address -> (H,): a head's share of attention on keys of that kind, mean over queries with such keys."""

    kinds: Mapping[str, Mapping[str, Tensor]]

    def best(self, kind: str, number: int = 1) -> list[tuple[str, int, float]]:
        """Return (address, head, score) of the heads with the highest scores."""
        if kind not in self.kinds:
            raise ValueError(f"no score {quote(kind)}; {nearest(kind, self.kinds)}")
        every = [
            (address, i, float(score)) for address, scores in self.kinds[kind].items() for i, score in enumerate(scores)
        ]
        return sorted(every, key=lambda head: -head[2])[:number]

    def figure(self) -> Any:
        """Return a matplotlib figure with a map of layers x heads for each kind."""
        from anyformer.look.figures import heat_maps

        return heat_maps([torch.stack([*scores.values()]) for scores in self.kinds.values()], [*self.kinds], "")


def head_scores(run: Trace) -> HeadScores:
    """Score the heads on the text of the run. "duplicate" and "induction" are NaN if the text has no repeated tokens;
    `repeated(model)` returns a run with repeated tokens."""
    ids = run.inputs.get(f"{run.model.spec.target.removesuffix('embedding')}input_ids")
    if not isinstance(ids, Tensor):
        raise ValueError("heads are scored by the tokens they attend to, but this run has no input_ids")
    kinds: dict[str, dict[str, Tensor]] = {kind: {} for kind in KINDS}
    B, T = ids.shape
    targets = target_keys(ids)
    for each in attention(run).maps:
        shape = each.weights.shape
        if each.kind == "self" and each.time == 0 and (shape[0], *shape[-2:]) == (B, T, T):
            for kind in KINDS:
                kinds[kind][short(each.address)] = share(each.weights, targets[kind])
    if not kinds[KINDS[0]]:
        raise ValueError("no self-attention of this model has one query and one key per token, so heads have no scores")
    return HeadScores(kinds)


def target_keys(ids: Tensor) -> dict[str, Tensor]:
    """Return kind -> (B, T, T), True for the keys of that kind for each query."""
    T = ids.shape[1]
    same = (ids[:, :, None] == ids[:, None, :]).tril(-1)
    previous = torch.eye(T, dtype=torch.bool, device=ids.device).roll(1, 0).tril(-1).expand_as(same)
    after = torch.zeros_like(same)
    after[:, :, 1:] = same[:, :, :-1]  # key s follows a copy of the query's token
    return {"previous": previous, "duplicate": same, "induction": after.tril(-1)}


def share(weights: Tensor, targets: Tensor) -> Tensor:
    """Return the mean weight on the target keys (H,) over the queries that have target keys."""
    total = (weights.float() * targets[:, None]).sum(-1)  # (B, H, T, T), (B, T, T) -> (B, H, T)
    has_target = targets.any(-1)[:, None].float()
    return (total * has_target).sum((0, 2)) / has_target.sum()


def repeated(model: TransformerModule, length: int = 25, rows: int = 2, seed: int = 0) -> Trace:
    """Return a run on random tokens followed by the same tokens: only copying can predict the second half."""
    read = getattr(model.spec, model.spec.target)
    if not isinstance(read, TextEmbedding) or model.spec.pair:
        raise ValueError("repeated() needs a model with one stack that reads text; score a run of your own instead")
    limit = position_limit(model.spec)
    length = length if limit is None else max(min(length, limit // 2), 1)
    generator = torch.Generator().manual_seed(seed)
    half = torch.randint(0, read.tokens.vocab_size, (rows, length), generator=generator).to(model.device)
    with torch.no_grad():
        return trace(model, input_ids=torch.cat((half, half), 1))
