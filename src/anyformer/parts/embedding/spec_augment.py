"""SpecAugment: hide spans of frames and channels in training [Park et al. 2019].

B batch, T frames, D width, L length.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.parts.base import PartModule
from anyformer.specs.field_types import Count, Natural, NonNegative
from anyformer.specs.part import Part, Site


class SpecAugment(Part, sees="itself", called=("time masking",)):
    """Replaces spans of frames by a learned vector, and spans of channels by zeros, in training [Park et al. 2019]."""

    time: NonNegative = 0.05  # share of frames to hide, approximately
    time_span: Count = 10  # frames per span
    time_least: Natural = 2  # minimum number of spans per row
    channels: NonNegative = 0.0  # share of channels to hide, approximately
    channel_span: Count = 10  # channels per span
    channel_least: Natural = 0  # minimum number of channel spans per row
    learned: bool = True  # hidden frames become a learned vector; False: zeros (Whisper)
    active: bool = True  # False: hide nothing; the vector exists only for the checkpoint


class SpecAugmentModule(PartModule, of=SpecAugment):
    def __init__(self, part: SpecAugment, site: Site) -> None:
        super().__init__()
        self.part = part
        # published checkpoints have no such vector if nothing is ever hidden
        learned = part.learned and (part.time > 0 or part.channels > 0)
        self.mask_embedding = nn.Parameter(torch.empty(site.width), requires_grad=part.active) if learned else None

    def forward(self, x: Tensor, real: Tensor | None, given: Tensor | None) -> Tensor:
        """Hide spans of x (B, T, D). `real` (B, T) is False for padding. `given` (B, T): hide these frames instead of
        random ones, also outside training."""
        part = self.part
        if not part.active:
            return x
        if given is None and self.training and part.time:
            real = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if real is None else real
            given = spans(real, part.time, part.time_span, part.time_least)
        if given is not None and not part.learned:
            x = x.masked_fill(given.bool()[..., None], 0)
        elif given is not None:
            if self.mask_embedding is None:
                raise ValueError("mask_time_indices: this model has no mask vector, because mask_time_prob is 0")
            x = torch.where(given.bool()[..., None], self.mask_embedding.to(x.dtype), x)
        if self.training and part.channels:
            channels = torch.ones(x.shape[0], x.shape[2], dtype=torch.bool, device=x.device)
            x = x.masked_fill(spans(channels, part.channels, part.channel_span, part.channel_least)[:, None], 0)
        return x


def spans(real: Tensor, share: float, span: int, least: int) -> Tensor:
    """Return a mask (B, L) that is True in random spans of real elements. A row gets share * length / span spans
    (rounded up or down by one random number per batch), at least `least` and at most L // span, with distinct starts
    that are equally likely."""
    B, L = real.shape
    if span > L:
        raise ValueError(f"spans of {span} do not fit a length of {L}: give longer inputs or a shorter mask length")
    starts = real.unfold(1, span, 1).all(-1)  # (B, L - span + 1) True if a span starting here has no padding
    length = real.sum(-1)
    wanted = (share * length / span + torch.rand((), device=real.device)).floor().clamp(min=least, max=L // span)
    noise = torch.rand(starts.shape, device=real.device).masked_fill(~starts, 2.0)
    rank = noise.argsort(-1).argsort(-1)
    chosen = (rank < wanted[:, None]) & starts
    return F.max_pool1d(F.pad(chosen.float(), (span - 1, span - 1)), span, 1).bool()
