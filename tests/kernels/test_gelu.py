"""GELU computed with a sigmoid against torch's tanh form: values, first and second gradients, and extreme inputs."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from anyformer.kernels import gelu as kernel
from small import close


@pytest.mark.parametrize("form", [kernel.gelu_tanh, kernel.gelu_by_sigmoid])
def test_equals_torch(form) -> None:
    x = torch.linspace(-12, 12, kernel.LEAST + 3)
    close(form(x), F.gelu(x, approximate="tanh"), 1e-6)
    edges = torch.tensor([0.0, -0.0, 1e15, -1e15, 1e30, -1e30, float("inf")]).repeat(kernel.LEAST)
    assert torch.equal(form(edges), F.gelu(edges, approximate="tanh"))
    assert form(torch.full((kernel.LEAST,), float("nan"))).isnan().all()


@pytest.mark.parametrize("shape", [(3,), (2 * kernel.CHUNK + 5,), (5, 2**15)])
def test_gradients(shape: tuple[int, ...]) -> None:
    """Less than one chunk, several chunks, and more than one dimension."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0), requires_grad=True)
    found, right = kernel.gelu_tanh(x), F.gelu(x, approximate="tanh")
    close(found, right, 1e-6)
    once = [torch.autograd.grad(y.square().sum(), x, create_graph=True)[0] for y in (found, right)]
    close(*once, 1e-5)
    close(*(torch.autograd.grad(g.sum(), x)[0] for g in once), 1e-4)


def test_is_used_only_where_it_is_made_for() -> None:
    x = torch.randn(512, 512, dtype=torch.float64)
    for other in (x, x.bfloat16(), x.float().t()):
        assert torch.equal(kernel.gelu_tanh(other), F.gelu(other, approximate="tanh"))
    compiled = torch.compile(kernel.gelu_tanh, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x.float()), F.gelu(x.float(), approximate="tanh"))
