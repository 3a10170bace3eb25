"""The tokens that a drafter proposes. G3 tests for every family that drafts do not change the text."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from anyformer.generation.assisted import LookupDrafter


def drafter(size: int = 2) -> LookupDrafter:
    settings = SimpleNamespace(max_matching_ngram_size=size)
    return LookupDrafter(SimpleNamespace(settings=settings, scores=torch.zeros(1, 20), source_ids=None))  # type: ignore[arg-type]


@pytest.mark.parametrize(("row", "count", "expected"), [
    ([1, 2, 3, 4, 1, 2], 2, [3, 4]),  # a match at the first token
    ([1, 2, 3, 1, 2, 4, 1, 2], 1, [4]),  # the last of several matches
    ([5, 2, 3, 9, 2], 3, [3, 9, 2]),  # a shorter match if there is no longer one
    ([5, 2, 3, 5, 2], 9, [3, 5, 2]),  # not beyond the end of the text
    ([7, 7], 2, [7]),
    ([1, 2, 3], 2, []),
    ([4], 2, []),
    ([1, 2, 20, 3, 1, 2], 2, [3]),  # padding is ignored
])  # fmt: skip
def test_what_followed_the_last_tokens(row: list[int], count: int, expected: list[int]) -> None:
    assert drafter().find(row, count) == expected


def test_rows_that_propose_less_repeat_their_last_token() -> None:
    ids = torch.tensor([[1, 2, 3, 4, 1, 2], [1, 2, 3, 4, 5, 6], [6, 6, 8, 9, 8, 9]])
    assert drafter().propose(ids, 3).tolist() == [[3, 4, 1], [6, 6, 6], [8, 9, 9]]
    assert drafter().propose(ids[1:2], 3).shape == (1, 0)
