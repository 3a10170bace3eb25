"""Positions in a dependency tree [Wang et al. 2019]: the depth of a token, and the distance between two tokens.

A tree is given as `parents` (B, T): the row index of each token's head; roots and pads have -1 or their own index.
B batch, T tokens.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from anyformer.kernels.capture import can_read_values
from anyformer.runtime.context import Context, InputExtra


@dataclasses.dataclass(frozen=True)
class Tree(InputExtra, name="tree_parents"):
    """The dependency tree of each row."""

    parents: Tensor  # (B, T) row index of each token's head, -1 for roots


def parents_of(ctx: Context) -> Tensor:
    """(B, T) parents of the tokens of this call; roots point at themselves."""
    tree = ctx.extra(Tree)
    if tree is None:
        raise ValueError("positions in a dependency tree need the input tree_parents: each token's head, -1 for roots")
    T, parents = ctx.index.shape[-1], tree.parents
    if parents.shape[1] != T or (ctx.state is not None and ctx.key_indices().shape[0] != T):
        raise ValueError(f"tree_parents covers {parents.shape[1]} tokens of {T}; a tree cannot grow while decoding")
    index = torch.arange(T, device=parents.device)
    if can_read_values() and int(parents.max()) >= T:
        raise ValueError(f"tree_parents contains index {int(parents.max())}, but a row has {T} tokens")
    return torch.where(parents < 0, index, parents)


def depths(parents: Tensor) -> Tensor:
    """(B, T) number of steps from each token to its root: the absolute structural position."""
    T = parents.shape[1]
    above, steps = parents, (parents != torch.arange(T, device=parents.device)).long()
    for _ in range((T - 1).bit_length()):  # each round doubles the number of steps
        steps = steps + steps.gather(1, above)
        above = above.gather(1, above)
    if can_read_values() and bool((parents.gather(1, above) != above).any()):
        raise ValueError("tree_parents has a cycle: some token never reaches a root")
    return steps


def distances(parents: Tensor) -> Tensor:
    """(B, T, T) relative structural position of query i and key j: the difference of their depths if one is an ancestor
    of the other, otherwise the sum of their depths with the sign of i - j."""
    T = parents.shape[1]
    index = torch.arange(T, device=parents.device)
    above = torch.zeros(*parents.shape, T, device=parents.device)
    above = above.scatter(2, parents[..., None], 1.0)
    above[:, index, index] = 1.0
    for _ in range((T - 1).bit_length()):
        above = (above @ above).clamp(max=1.0)  # i -> j, j -> k: i -> k
    depth = depths(parents)
    related = (above + above.transpose(1, 2)) > 0
    unrelated = (index[:, None] - index[None, :]).sign() * (depth[:, :, None] + depth[:, None, :])
    return torch.where(related, depth[:, :, None] - depth[:, None, :], unrelated)
