"""Contrastive search [Su et al. 2022]: chooses a likely token whose hidden state differs from all earlier ones.

The score of candidate v is (1 - alpha) p(v) - alpha max_j cos(h_v, h_j). h_v is the last layer's hidden state of v as
the next token, h_j the last layer's hidden state of token j. B rows, k candidates, T tokens, D width.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.generation.search_state import Details, Search


def search(job: Search) -> dict[str, Any]:
    alpha, stepper = job.settings.penalty_alpha or 0.0, job.stepper
    k = min(job.settings.top_k, job.scores.shape[1])
    ids, raw, report = job.ids, job.scores, Details(job)
    assert stepper.hidden is not None
    before = F.normalize(stepper.hidden.float(), dim=-1)  # (B, T, D)
    real = torch.ones(before.shape[:2], dtype=torch.bool, device=ids.device) if stepper.mask is None else stepper.mask
    B = ids.shape[0]
    first = torch.arange(B, device=ids.device) * k
    while True:
        processed = job.process(ids, raw)
        p, candidates = processed.softmax(-1).topk(k)  # (B, k)
        stepper.repeat(k)  # each candidate is read by a copy of its row
        next_raw = stepper.step(candidates.flatten())
        assert stepper.hidden is not None
        h = F.normalize(stepper.hidden[:, -1].float(), dim=-1).view(B, k, -1)
        alike = (h @ before.mT).masked_fill(~real[:, None], -1.0).amax(-1)  # (B, k)
        best = choose(p, alike, alpha)
        rows = first + best
        ids = report.add(ids, raw, processed, candidates.gather(1, best[:, None])[:, 0])
        stepper.reorder(rows)
        if not bool(report.going.any()):
            return report.fields(ids)
        raw = next_raw[rows]
        before = torch.cat((before, h[torch.arange(B, device=ids.device), best][:, None]), dim=1)
        real = F.pad(real, (0, 1), value=True)


def choose(p: Tensor, alike: Tensor, alpha: float) -> Tensor:
    """Return the best candidate (B,), given probabilities p (B, k) and cosine similarities alike (B, k)."""
    return ((1 - alpha) * p - alpha * alike).masked_fill(p == 0, -torch.inf).argmax(-1)
