"""A stepper on its own: what it keeps of the text itself, beside what the model remembers."""

from __future__ import annotations

import pytest
import torch

from anyformer.generation.stepper import Stepper
from small import close
from writers import decoder, ids


@pytest.mark.parametrize("segments", [False, True])
@torch.no_grad()
def test_texts_that_join_go_on_as_they_would_alone(segments: bool) -> None:
    """All tokens, where nothing is remembered; or the segment that each prompt ended in."""
    model, tokens, steppers = decoder(), torch.tensor([7, 8, 9]), []
    for length in (3, 5, 2):
        source = {"token_type_ids": torch.full((1, length), 5 + length)} if segments else {}
        steppers.append(Stepper(model, source, use_cache=segments))
        steppers[-1].begin(ids(1, length, seed=length), None)
    alone = torch.cat([each.fork().step(token) for each, token in zip(steppers, tokens.split(1), strict=True)])
    first, *others = steppers
    first.join(others)
    close(first.step(tokens), alone, 1e-5)
