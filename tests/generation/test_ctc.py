"""Compares CTC decoding with all alignments and with torch's CTC loss."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from catalogue import cases, make_inputs, shared, spec_of

import anyformer as af
from anyformer.generation.ctc import best_path, merge_frames, prefixes
from anyformer.parts.head.ctc import CTCHead


def scores(T: int, V: int, seed: int) -> torch.Tensor:
    return (2 * torch.randn(T, V, generator=torch.Generator().manual_seed(seed))).log_softmax(-1)


def collapsed(path: tuple[int, ...], blank: int) -> tuple[int, ...]:
    return tuple(c for c, _ in itertools.groupby(path) if c != blank)


@pytest.mark.parametrize("blank", [0, 2])
@pytest.mark.parametrize("seed", range(4))
def test_against_every_path(seed: int, blank: int) -> None:
    T, V = 5, 3
    table = scores(T, V, seed)
    sums: dict[tuple[int, ...], float] = {}
    paths = {p: float(sum(table[t, c] for t, c in enumerate(p))) for p in itertools.product(range(V), repeat=T)}
    for path, score in paths.items():
        text = collapsed(path, blank)
        sums[text] = float(torch.logaddexp(torch.tensor(sums.get(text, -torch.inf)), torch.tensor(score)))
    best = max(paths, key=lambda p: paths[p])
    text, score = best_path(table, blank)
    ends = [end for end in range(1, T + 1) if best[end - 1] != blank and best[end : end + 1] != best[end - 1 : end]]
    assert [span.end for span in merge_frames(best, blank)] == ends
    assert tuple(text) == collapsed(best, blank) and score == pytest.approx(paths[best], abs=1e-5)
    found = prefixes([table], blank, 200)  # more beams than texts: nothing is dropped
    assert {tuple(text): score for text, score in found} == pytest.approx(sums, abs=1e-4)
    assert [score for _, score in found] == pytest.approx(sorted(sums.values(), reverse=True), abs=1e-4)


def test_scores_are_those_of_the_loss() -> None:
    T = 10
    table = scores(T, 5, 1)
    for beams, lost in ((20, 0.5), (3000, 1e-3)):  # with fewer beams, a text may lose paths but not gain any
        for text, score in prefixes([table], 0, beams)[:5]:
            loss = F.ctc_loss(table, torch.tensor(text), torch.tensor(T), torch.tensor(len(text)), reduction="sum")
            assert -lost < score + float(loss) < 1e-4


@pytest.mark.parametrize("beams", [2, 7])
def test_pieces_of_a_recording_are_the_whole(beams: int) -> None:
    """The text does not depend on the cuts: prefixes that all beams share are emitted early, also with repeats at a
    cut."""
    table = (4 * scores(60, 6, 3)).log_softmax(-1)
    whole = prefixes([table], 0, beams)
    for size in (1, 7, 30):
        found = prefixes(table.split(size), 0, beams)
        assert [text for text, _ in found] == [text for text, _ in whole]
        assert [score for _, score in found] == pytest.approx([score for _, score in whole])


CTC = [case for case in cases() if isinstance(spec_of(case).head, CTCHead)]


@pytest.mark.parametrize("case", CTC, ids=lambda case: case.id)
def test_a_model_writes(case: Any) -> None:
    model, inputs = shared(case), make_inputs(case, batch=2)
    blank = spec_of(case).head.blank
    out = af.generate(model, **inputs, return_dict=True)
    with torch.no_grad():
        path = model(**inputs).logits.argmax(-1)
    for row, seen in zip(out.sequences.tolist(), path.tolist(), strict=True):
        assert [c for c in row if c != blank] == list(collapsed(tuple(seen), blank))
    beams = af.generate(model, **inputs, num_beams=6, num_return_sequences=2, return_dict=True)
    assert len(beams.sequences) == 4 and bool((beams.sequences_scores.view(2, 2).diff() <= 0).all())
    assert bool((beams.sequences_scores.view(2, 2)[:, 0] >= out.sequences_scores - 1e-4).all())
    with pytest.raises(ValueError, match="temperature"):
        af.generate(model, **inputs, temperature=0.5)
