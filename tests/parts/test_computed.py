"""Cached tensors that depend on sizes and a device: created once and usable in every later pass."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from anyformer.kernels.capture import graph_capture
from anyformer.parts.computed import cache_by_size, places


def test_tensors_are_cached_except_during_a_capture() -> None:
    made: list[int] = []

    @cache_by_size
    def count(size: int, device: torch.device) -> torch.Tensor:
        made.append(size)
        return torch.arange(size, device=device)

    cpu = torch.device("cpu")
    with torch.inference_mode():
        first = count(3, cpu)
    assert count(3, cpu) is first and made == [3], "computed once"
    assert not first.is_inference(), "it must be usable in a later training pass"
    with graph_capture():
        assert count(3, cpu) is not first, "a capture must not use the cache"
    assert count(3, cpu) is first, "nor fill it"
    assert count(4, cpu).shape == (4,) and made == [3, 3, 4]


def test_places_train_after_inference() -> None:
    table = torch.randn(5, 2, requires_grad=True)
    with torch.inference_mode():
        places(5, torch.device("cpu"))
    table[places(5, torch.device("cpu"))].sum().backward()
    assert table.grad is not None and table.grad.eq(1).all()


def test_a_tensor_of_a_fake_run_is_not_kept() -> None:
    with FakeTensorMode():
        assert isinstance(places(7919, torch.device("cpu")), FakeTensor)
    found = places(7919, torch.device("cpu"))
    assert not isinstance(found, FakeTensor) and found is places(7919, torch.device("cpu"))
