"""DropToken: train on a random part of the tokens of each row [Akbari et al. 2021].

B batch, T tokens, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from anyformer.runtime.context import Context


def drop_tokens(x: Tensor, ctx: Context, share: float) -> tuple[Tensor, Context]:
    """Drop a random `share` of the tokens of each row of x (B, T, D) and of its context. The remaining tokens keep
    their order and positions. Padding is dropped first. For training only."""
    B, T = x.shape[:2]
    chance = torch.rand(B, T, device=x.device)
    if ctx.is_token is not None:
        chance = chance.masked_fill(~ctx.is_token, 2.0)
    kept = chance.argsort(-1)[:, : max(1, round(T * (1 - share)))].sort(-1).values  # (B, K)
    is_token = None if ctx.is_token is None else ctx.is_token.take_along_dim(kept, 1)
    positions, index = ctx.positions.expand(B, -1).take_along_dim(kept, 1), torch.arange(kept.shape[1], device=x.device)
    return x.take_along_dim(kept[..., None], 1), ctx.replace(index=index, positions=positions, is_token=is_token)
