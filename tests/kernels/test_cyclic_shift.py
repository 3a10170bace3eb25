"""Cyclic shift of a grid: equals torch.roll, also in code that a compiler fused for a GPU."""

from __future__ import annotations

import pytest
import torch

from anyformer.kernels import cyclic_shift as kernel
from anyformer.parts.attention.attention import Attention
from anyformer.parts.grid.windows import Windows
from anyformer.parts.position.grid import GridBias
from anyformer.runtime.context import Context
from anyformer.runtime.grid import Grid
from anyformer.specs.part import Site


@pytest.mark.parametrize("shift", [3, -3, 0, 17, 5])
def test_shifts_equal_torch(shift: int) -> None:
    """Compiled too, for one shift within the grid and one beyond it."""
    compiled = torch.compile(kernel.roll_grid, backend="aot_eager", fullgraph=True)
    x = torch.randn(2, 5, 7, 3, dtype=torch.float64, requires_grad=True)
    expected, above = x.roll((shift, shift), (1, 2)), torch.randn_like(x)
    for form in (kernel.roll_grid, compiled) if shift in (-3, 17) else (kernel.roll_grid,):
        found = form(x, shift)
        assert torch.equal(found, expected)
        assert torch.equal(torch.autograd.grad(found, x, above)[0], above.roll((-shift, -shift), (1, 2)))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize(("batch", "side", "width"), [(512, 14, 128), (64, 28, 96), (16, 56, 96)])
def test_shifted_windows_on_a_gpu(batch: int, side: int, width: int) -> None:
    """Compares compiled code, in which the norm is fused into the slices, with uncompiled code in fp32."""
    part = Windows(mixer=Attention(num_heads=4, position=GridBias(num_heads=4, size=7)), size=7, shift=3)
    torch.manual_seed(0)
    windows, norm = part.build(Site(width=width)).cuda(), torch.nn.LayerNorm(width).cuda()
    for name, parameter in windows.named_parameters():
        torch.nn.init.normal_(parameter, std=1.0 if "position" in name else 0.2)

    def run(x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(side * side, device=x.device)
        return x + windows(norm(x), Context(index=places, positions=places[None], extras=(Grid(side, side),)))

    x = torch.randn(batch, side * side, width, device="cuda", requires_grad=True)
    above = torch.randn_like(x)
    compiled, weights = torch.compile(run), [x, *windows.parameters()]
    right = run(x)
    right_gradients = torch.autograd.grad(right, weights, above, materialize_grads=True)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        found = compiled(x)
    gradients = torch.autograd.grad(found, weights, above.to(found.dtype), materialize_grads=True)
    for a, b in zip((found - x, *gradients), (right - x, *right_gradients), strict=True):
        if b.norm() > 1e-3 * above.norm():  # the gradient of a key bias is only rounding error
            assert (a - b).norm() / b.norm() < 0.05
