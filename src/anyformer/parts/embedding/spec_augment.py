"""SpecAugment: spans of time and of channels hidden while a model trains [Park et al. 2019].
Samples are read in waveform.py.

B batch, T frames, C channels, D width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.specs.checks import at_least
from anyformer.specs.part import Part, Site


class SpecAugment(Part, sees="itself", called=("time masking",)):
    """Spans of frames are replaced by a learned vector and spans of channels by zero while training [Park et al. 2019].
    About `time` of all frames are hidden, in spans of `time_span`, `time_least` spans a row or more; channels too."""

    time: float = 0.05
    time_span: int = 10
    time_least: int = 2
    channels: float = 0.0
    channel_span: int = 10
    channel_least: int = 0
    learned: bool = True  # the vector in the place of hidden frames; otherwise they are zero (Whisper)
    active: bool = True  # otherwise nothing is hidden, and the vector is there for nothing

    def check(self) -> None:
        at_least(self, 0, "time", "time_least", "channels", "channel_least")
        at_least(self, 1, "time_span", "channel_span")

    def build(self, site: Site) -> nn.Module:
        return SpecAugmentModule(self, site.width)


class SpecAugmentModule(nn.Module):
    def __init__(self, part: SpecAugment, width: int) -> None:
        super().__init__()
        self.part = part
        # without a chance to hide anything, published checkpoints have no such vector
        learned = part.learned and (part.time > 0 or part.channels > 0)
        self.mask_embedding = nn.Parameter(torch.empty(width), requires_grad=part.active) if learned else None

    def forward(self, x: Tensor, real: Tensor | None, given: Tensor | None) -> Tensor:
        """x (B, T, D); `real` (B, T) has the pads, `given` (B, T) the frames to hide, in training or not."""
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
                raise ValueError("mask_time_indices need a vector, which this model has not: mask_time_prob is 0")
            x = torch.where(given.bool()[..., None], self.mask_embedding.to(x.dtype), x)
        if self.training and part.channels:
            every = torch.ones(x.shape[0], x.shape[2], dtype=torch.bool, device=x.device)
            x = x.masked_fill(spans(every, part.channels, part.channel_span, part.channel_least)[:, None], 0)
        return x


def spans(real: Tensor, share: float, span: int, least: int) -> Tensor:
    """(B, L) -> (B, L) True in random spans: share * length / span of them in a row (rounded up or down by one draw for
    the batch), `least` or more, as many as fit, at different places that are equally likely."""
    B, L = real.shape
    if span > L:
        raise ValueError(f"spans of {span} do not fit {L} places: give longer inputs or a shorter mask length")
    starts = real.unfold(1, span, 1).all(-1)  # (B, L - span + 1) where a span has only real places
    length = real.sum(-1)
    wanted = (share * length / span + torch.rand((), device=real.device)).floor().clamp(min=least, max=L // span)
    noise = torch.rand(starts.shape, device=real.device).masked_fill(~starts, 2.0)
    rank = noise.argsort(-1).argsort(-1)
    chosen = (rank < wanted[:, None]) & starts
    return F.max_pool1d(F.pad(chosen.float(), (span - 1, span - 1)), span, 1).bool()
