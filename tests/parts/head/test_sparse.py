"""SparseHead: one row of scores per label, as ModernBERT's `sparse_prediction`."""

from __future__ import annotations

import pytest
import torch
from catalogue import every_case, make_inputs, published, shared

IGNORED = -100


def test_scores_and_loss_with_labels_are_the_published_ones() -> None:
    pytest.importorskip("transformers")
    case = next(case for case in every_case() if case.id == "ModernBertForMaskedLM-sparse")
    inputs = make_inputs(case, labels=True)
    inputs["labels"][:, ::2] = IGNORED
    with torch.no_grad():
        ours, theirs = shared(case)(**inputs), published(case)[0](**inputs)
    count = int((inputs["labels"] != IGNORED).sum())
    assert ours.logits.shape == theirs.logits.shape == (count, 99)
    torch.testing.assert_close(ours.logits, theirs.logits, rtol=0, atol=1e-5)
    torch.testing.assert_close(ours.loss, theirs.loss, rtol=0, atol=1e-5)
