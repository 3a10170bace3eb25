"""What kind each attention head is: how much it looks at the token before, at the same token, and at what followed it.

A head that looks at what came after an earlier copy of the present token is an induction head [Olsson et al. 2022].
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
    """kind -> address -> (H,): the share of its attention that a head gives to such tokens, where there are some."""

    kinds: Mapping[str, Mapping[str, Tensor]]

    def best(self, kind: str, number: int = 1) -> list[tuple[str, int, float]]:
        """(address, head, score) of the heads with the highest."""
        if kind not in self.kinds:
            raise ValueError(f"no score {quote(kind)}; {nearest(kind, self.kinds)}")
        every = [
            (address, i, float(score)) for address, scores in self.kinds[kind].items() for i, score in enumerate(scores)
        ]
        return sorted(every, key=lambda head: -head[2])[:number]

    def figure(self) -> Any:
        """A matplotlib figure: layers x heads for each kind."""
        from anyformer.look.figures import heat_maps

        return heat_maps([torch.stack([*scores.values()]) for scores in self.kinds.values()], [*self.kinds], "")


def head_scores(run: Trace) -> HeadScores:
    """Of the run's own text: it must have repeated tokens for "duplicate" and "induction", which are NaN otherwise;
    `repeated(model)` makes a run that has."""
    ids = run.inputs.get(f"{run.model.spec.target.removesuffix('embedding')}input_ids")
    if not isinstance(ids, Tensor):
        raise ValueError("heads are scored by the tokens they look at, and this run read none (input_ids)")
    found: dict[str, dict[str, Tensor]] = {kind: {} for kind in KINDS}
    for each in attention(run).maps:
        if (
            each.kind == "self"
            and each.time == 0
            and each.weights.shape[0] == ids.shape[0]
            and (each.weights.shape[-2:] == (ids.shape[1], ids.shape[1]))
        ):
            for kind, targets in target_keys(ids).items():
                found[kind][short(each.address)] = share(each.weights, targets)
    if not found[KINDS[0]]:
        raise ValueError("no attention here is between single tokens of the text, so its heads have no such scores")
    return HeadScores(found)


def target_keys(ids: Tensor) -> dict[str, Tensor]:
    """kind -> (B, T, T): which keys are of that kind for each query."""
    T = ids.shape[1]
    same = (ids[:, :, None] == ids[:, None, :]).tril(-1)
    previous = torch.eye(T, dtype=torch.bool, device=ids.device).roll(1, 0).tril(-1).expand_as(same)
    after = torch.zeros_like(same)
    after[:, :, 1:] = same[:, :, :-1]  # key s follows a copy of the query's token
    return {"previous": previous, "duplicate": same, "induction": after.tril(-1)}


def share(weights: Tensor, targets: Tensor) -> Tensor:
    """(B, H, T, T), (B, T, T) -> (H,): the mean over queries that have such a key."""
    given = (weights.float() * targets[:, None]).sum(-1)  # (B, H, T)
    there = targets.any(-1)[:, None].float()
    return (given * there).sum((0, 2)) / there.sum()


def repeated(model: TransformerModule, length: int = 25, rows: int = 2, seed: int = 0) -> Trace:
    """A run on random tokens, twice over: nothing but what stands in the text can help to predict its second half."""
    read = getattr(model.spec, model.spec.target)
    if not isinstance(read, TextEmbedding) or model.spec.pair:
        raise ValueError("random tokens twice over are read by one stack of text; give a run of your own")
    limit = position_limit(model.spec)
    length = length if limit is None else max(min(length, limit // 2), 1)
    generator = torch.Generator().manual_seed(seed)
    half = torch.randint(0, read.tokens.vocab_size, (rows, length), generator=generator).to(model.device)
    with torch.no_grad():
        return trace(model, input_ids=torch.cat((half, half), 1))
