"""Appending without copies: equals torch.cat, and tensors that were returned never change."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from anyformer.kernels.growing_tensor import Appender


def piece(size: int, dtype: torch.dtype = torch.float32, rows: int = 2) -> Tensor:
    return torch.randn(rows, 3, size, 4).to(dtype)


@torch.no_grad()
def test_pieces_of_any_size_one_behind_the_other() -> None:
    torch.manual_seed(0)
    append, pieces = Appender(), [piece(5)]
    held, handed_out, places = pieces[0], [], set()
    for size in [1] * 60 + [7, 40, 1, 1, 100, 1]:
        pieces.append(piece(size))
        held = append(held, pieces[-1], 2)
        expected = torch.cat(pieces, 2)
        handed_out.append((held, expected))
        places.add(held.data_ptr())
    assert all(torch.equal(got, expected) for got, expected in handed_out)
    assert len(places) < 10  # of 66: most appends wrote into free memory


@torch.no_grad()
@pytest.mark.parametrize("change", ["cut", "cut at the front", "reordered", "shared", "inference", "dtype"])
def test_what_was_handed_out_never_changes(change: str) -> None:
    torch.manual_seed(0)
    append, held = Appender(), piece(4)
    for _ in range(4):
        held = append(held, piece(1), 2)
    before, kept, new = held, held.clone(), piece(2)
    dtype = torch.float64 if change == "dtype" else torch.float32
    if change == "cut":
        held = held.narrow(2, 0, 3)
    elif change == "cut at the front":
        held = held.narrow(2, 3, 3)
    elif change == "reordered":
        held = held.flip(0)
    other = Appender() if change == "shared" else append  # a fork of the state has the same tensor
    with torch.inference_mode() if change == "inference" else torch.no_grad():
        expected = torch.cat((held, new.to(dtype)), 2)
        found = other(held, new.to(dtype), 2)
        again = append(held, -new.to(dtype), 2) if change == "shared" else found
    assert found.dtype == dtype and torch.equal(found, expected) and torch.equal(before, kept)
    if change == "shared":
        assert torch.equal(again[:, :, -2:], -new) and torch.equal(found, expected)


def test_gradients_pass() -> None:
    append, first, second = Appender(), piece(2).requires_grad_(), piece(1).requires_grad_()
    held, total = first, torch.zeros(())
    for _ in range(4):
        held = append(held, second, 2)
        total = total + held.square().sum()  # autograd saves `held`
    total.backward()
    assert torch.allclose(first.grad, 8 * first) and torch.allclose(second.grad, 2 * 10 * second)


@torch.no_grad()
def test_memory_of_inference_mode_is_left_there() -> None:
    append, held, new = Appender(), piece(4), piece(1)
    with torch.inference_mode():
        for _ in range(3):
            held = append(held, new, 2)
    assert torch.equal(append(held, new, 2), torch.cat((held, new), 2))


@torch.no_grad()
def test_rows_that_do_not_fit_are_refused_and_not_repeated() -> None:
    append, held = Appender(), piece(4)
    held = append(append(held, piece(1), 2), piece(1), 2)
    with pytest.raises(RuntimeError):
        append(held, piece(1, rows=1), 2)
