"""Random numbers of generation: correct frequencies that depend only on seed, position and token."""

from __future__ import annotations

import math

import pytest
import torch

from anyformer.generation.random_state import SeededRows
from anyformer.kernels import random_bits
from anyformer.kernels.random_bits import mix

CPU = torch.device("cpu")
P = torch.tensor([0.5, 0.3, 0.15, 0.05, 0.0])
N = 100_000


@pytest.mark.parametrize("vary", ["seed", "copy", "place"])
def test_tokens_come_as_often_as_they_should(vary: str) -> None:
    rows, copies = {"seed": (list(range(N)), 1), "copy": ([3], N), "place": ([3] * N, 1)}[vary]
    rng = SeededRows(rows, len(rows), copies, CPU)
    places = torch.arange(N) if vary == "place" else torch.full((N,), 7)
    tokens = rng.one(P.log().expand(N, -1), places)
    share = tokens.bincount(minlength=5) / N
    assert (share - P).abs().max() < 0.006 and share[4] == 0
    first = (tokens == 0).double()
    assert abs(torch.corrcoef(torch.stack((first[1:], first[:-1])))[0, 1]) < 0.012, "neighbours must be independent"
    assert torch.equal(tokens, rng.one(P.log().expand(N, -1), places, top=4))


def test_several_are_without_replacement_and_in_proportion() -> None:
    rng = SeededRows(1, 1, N, CPU)
    both = rng.several(P.log().expand(N, -1), torch.zeros(N, dtype=torch.long), 2)
    assert (both[:, 0] != both[:, 1]).all()
    assert abs((both[:, 0] == 0).float().mean() - 0.5) < 0.006
    # P(1 second | 0 first) = 0.3 / 0.5
    assert abs((both[both[:, 0] == 0][:, 1] == 1).float().mean() - 0.6) < 0.01


def test_rows_are_independent_of_each_other() -> None:
    scores, places = torch.randn(4, 30), torch.tensor([3, 3, 9, 1])
    together = SeededRows([5, 6, 5, 8], 4, 1, CPU).one(scores, places)
    for row, seed in enumerate([5, 6, 5, 8]):
        assert SeededRows(seed, 1, 1, CPU).one(scores[row : row + 1], places[row : row + 1]) == together[row]


def test_no_two_seeds_copies_and_places_share_their_chance() -> None:
    """Copy 1 of seed 1 differs from copy 0 of seed 2, and position 1 of one differs from position 0 of the other."""
    rng = SeededRows(list(range(40)), 40, 40, CPU)
    assert len(set(rng.seeds.tolist())) == 1600
    token = torch.zeros(1, 1, dtype=torch.long)
    noise = [rng.gumbel(torch.full((1600,), place), token) for place in range(20)]
    assert len(torch.cat(noise).unique()) == 20 * 1600
    assert rng.seeds.tolist() == [seed for n in range(40) for seed in SeededRows(n, 1, 40, CPU).seeds.tolist()]


@pytest.mark.parametrize(("bits", "expected"), [(0, -math.log(54 * math.log(2))), (-1, 53 * math.log(2))])
def test_the_rarest_draws_are_finite(bits: int, expected: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_bits, "mix", lambda x: torch.full_like(x, bits))
    noise = SeededRows(3, 1, 1, CPU).gumbel(torch.zeros(1, dtype=torch.long), torch.arange(4)[None])
    assert noise.tolist() == [pytest.approx([expected] * 4)]


def test_a_seed_gives_what_it_always_gave() -> None:
    """A seed gives the same text on every machine and in every version."""
    tokens = SeededRows([0, 1, 2**40], 3, 2, CPU).one(torch.zeros(6, 50_000), torch.arange(6))
    assert tokens.tolist() == [37526, 16856, 15510, 42595, 21969, 40615]


def test_a_seed_a_prompt() -> None:
    with pytest.raises(ValueError, match="seed=.*one for each of the 3 prompts"):
        SeededRows([1, 2], 3, 1, CPU)
    torch.manual_seed(0)
    a, b = SeededRows(None, 2, 1, CPU).seeds, SeededRows(None, 2, 1, CPU).seeds
    torch.manual_seed(0)
    assert torch.equal(a, SeededRows(None, 2, 1, CPU).seeds) and not torch.equal(a, b) and a[0] != a[1]


def test_seeds_below_zero_are_seeds_of_their_own() -> None:
    x = torch.tensor([0, 1, 7, 2**40, 2**62])
    assert len({*mix(torch.cat((x, ~x))).tolist()}) == 10


def test_every_bit_of_a_seed_is_mixed_in() -> None:
    """Changing any bit of the seed changes about half of the bits of the result."""
    x = torch.arange(1000) * 0x9E3779B97F4A7C1
    for bit in range(64):
        changed = mix(x) ^ mix(x ^ (-(2**63) if bit == 63 else 2**bit))
        ones = sum(bin(each & (2**64 - 1)).count("1") for each in changed.tolist()) / 1000
        assert 30 < ones < 34, bit
