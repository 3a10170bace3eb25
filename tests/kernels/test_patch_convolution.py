"""Patches that do not overlap: a GPU computes the convolution as one matrix product."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from anyformer.parts.embedding.patches import PatchConvolution


class OnGPU(torch.Tensor):
    """A CPU tensor that claims to be on a GPU, to take the GPU's path on any machine."""

    is_cuda = True


@pytest.mark.parametrize(("size", "kernel", "stride", "padding"), [((8, 12), 4, 4, 0), ((9, 13), (4, 3), (4, 3), 0),
                                                                   ((8, 8), 4, 2, 0), ((8, 8), 4, 4, 1)])  # fmt: skip
def test_equals_a_convolution(size: tuple[int, int], kernel: int, stride: int, padding: int) -> None:
    torch.manual_seed(0)
    ours = PatchConvolution(3, 5, kernel, stride, padding).double()
    theirs = nn.Conv2d(3, 5, kernel, stride, padding).double()
    theirs.load_state_dict(ours.state_dict())
    pixels = torch.randn(2, 3, *size, dtype=torch.float64)
    found, wanted = ours(pixels.as_subclass(OnGPU)), theirs(pixels)
    assert found.shape == wanted.shape
    torch.testing.assert_close(found.as_subclass(torch.Tensor), wanted)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_equals_a_convolution_on_a_gpu() -> None:
    ours = PatchConvolution(3, 64, 16, 16).cuda()
    pixels = torch.randn(4, 3, 224, 230, device="cuda")
    wanted = nn.functional.conv2d(pixels.double(), ours.weight.double(), ours.bias.double(), 16)
    assert (ours(pixels) - wanted).abs().max() < 1e-4
    with torch.autocast("cuda", torch.bfloat16):
        half = ours(pixels)
    assert half.dtype == torch.bfloat16 and (half - wanted).abs().max() < 0.05
