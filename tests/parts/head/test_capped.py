"""CappedHead: the training loss equals that of its scores, in chunks too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import anyformer as af
from anyformer.parts.head import capped
from anyformer.parts.head.capped import CappedHead
from anyformer.parts.head.language import LMHead
from swaps import V, plain, stirred, text


def model(bound: float = 0.7) -> Any:
    return stirred(plain(head=CappedHead(vocab_size=V, bound=bound)))


def test_scores_are_bounded() -> None:
    ids = text()
    free = stirred(plain(head=LMHead(vocab_size=V)))(input_ids=ids).logits.detach()
    scores = model()(input_ids=ids).logits.detach()
    assert float(free.abs().max()) > 0.7 > float(scores.abs().max())
    torch.testing.assert_close(scores, 0.7 * torch.tanh(free / 0.7))


@pytest.mark.parametrize("rows", (1000, 5))
@pytest.mark.parametrize("smoothing", (0.0, 0.1))
def test_training_loss_is_the_loss_of_the_scores(rows: int, smoothing: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capped, "rows_of_chunk", lambda device, size: rows)
    monkeypatch.setattr(capped, "even_rows", lambda count, most: most)
    trained, ids = model(), text()
    labels = ids.clone()
    labels[0, 3:6] = -100
    x = torch.randn(*ids.shape, 16, generator=torch.Generator().manual_seed(3), requires_grad=True)
    head, keep = trained.head, labels != -100
    ours = head.cross_entropy(x[keep], labels[keep], smoothing)
    scores = head.scores(x)[keep]
    expected = F.cross_entropy(scores, labels[keep], label_smoothing=smoothing, reduction="sum")
    torch.testing.assert_close(ours, expected)
    gradients = [torch.autograd.grad(loss, (x, head.out.weight), retain_graph=True) for loss in (ours, expected)]
    torch.testing.assert_close(*gradients)


def test_a_label_outside_the_vocabulary_is_named() -> None:
    head = model().head
    with pytest.raises(ValueError, match=f"{V} is outside 0 to {V - 1}"):
        head.cross_entropy(torch.randn(2, 16), torch.tensor([1, V]), 0.0)


def test_contributions_add_up_to_the_capped_score() -> None:
    trained = model().eval()
    run = af.trace(trained, input_ids=text())
    found = af.look.contributions(run, position=[0, -1])
    torch.testing.assert_close(found.values.sum(0), run.output.logits[0, [0, -1]].max(-1).values, rtol=1e-4, atol=1e-4)
    units = af.look.neurons(run, position=[0, -1]).shares["decoder.layers.1.feedforward"].sum(-1)
    free = stirred(plain(head=LMHead(vocab_size=V))).eval()
    tokens = run.output.logits[0, [0, -1]].argmax(-1).tolist()
    before = af.trace(free, input_ids=text())
    raw = before.output.logits[0, [0, -1], tokens]
    whole = af.look.neurons(before, tokens, position=[0, -1]).shares["decoder.layers.1.feedforward"].sum(-1)
    torch.testing.assert_close(units, whole * 0.7 * torch.tanh(raw / 0.7) / raw, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("fields", ({"unused_bias": True}, {"bound": 0.0}))
def test_unsupported_fields_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="CappedHead"):
        CappedHead(vocab_size=V, **fields)
