"""T5: every family with a loss memorises one batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from catalogue import Case, cases, make_inputs, make_labels, ours, over, spec_of

# the first case of every published class with a head; variants learn in the same way
FIRST = {case.architecture: case for case in reversed(cases()) if "T5" not in case.skip and spec_of(case).head}
RATES = {1e-2: 60, 2e-3: 120}  # the second learning rate is for delicate models (post-norm, shared layers)


def loss(case: Case) -> tuple[Any, ...]:
    """Return the kinds of head and model. Gradients of every kind of Part: N8 in test_numerics.py."""
    return type(spec_of(case)), type(spec_of(case).head)


@over(list(FIRST.values())[::-1], loss)
def test_t5_one_batch_is_learnt_by_heart(case: Case) -> None:
    """The loss falls to half, without dropout, so that only the weights change."""
    inputs = make_inputs(case, batch=2, labels=True)
    if not make_labels(spec_of(case), 2, inputs, torch.Generator()):
        pytest.skip("a head without a loss")
    ends: list[float] = []
    for lr, steps in RATES.items():
        ends.append(remaining(case, inputs, lr, steps))
        if ends[-1] < 0.5:
            return
    raise AssertionError(f"what remains of its loss, at each rate: {ends}")


def remaining(case: Case, inputs: dict[str, Any], lr: float, steps: int) -> float:
    """Return the remaining share of the loss after all steps, or at the first step where it is below one half."""
    model = ours(case).eval()
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=lr, weight_decay=0.0)
    first = share = None
    for _ in range(steps):
        loss = model(**inputs).loss
        first = loss.detach() if first is None else first
        share = float(loss.detach() / first)
        assert share == share, "NaN"
        if share < 0.5:
            break
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
    assert share is not None
    return share
