"""The kernel for single queries on CUDA against the eager one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from anyformer.kernels import decode
from anyformer.kernels.attention import Plan, Visible, attend
from anyformer.kernels.triton_launch import HAS_TRITON
from anyformer.parts.position.rotary import Rope, RopeModule

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available() or not HAS_TRITON, reason="needs CUDA and Triton"),
]

SHAPES = [(1, 4, 2, 100, 16), (3, 6, 6, 256, 32), (2, 8, 1, 700, 64), (2, 32, 8, 4097, 64), (5, 16, 2, 33, 128)]


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.bfloat16, 2e-2), (torch.float16, 2e-3)])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("B, H, G, S, K", SHAPES)
@torch.no_grad()
def test_single_queries(B: int, H: int, G: int, S: int, K: int, padded: bool, dtype: torch.dtype, tolerance: float):
    generator = torch.Generator("cuda").manual_seed(S)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device="cuda").to(dtype)

    q, k, v = normal(B, H, 1, K), normal(B, G, S, K), normal(B, G, S, K)
    real = torch.rand(B, S, generator=generator, device="cuda") > 0.4
    real[-1] = B == 1  # a row that sees no key gets zeros

    def allows(b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (k <= q) & (real[b, k] if padded else k >= 0)

    place, keys = torch.tensor([S * 2 // 3], device="cuda"), torch.arange(S, device="cuda")
    visible = Visible(allows, place, keys, batch_size=B if padded else 1)
    assert decode.fits(q, v)
    expected = attend(q.float(), k.float(), v.float(), visible, Plan(K**-0.5, kernel="eager"))
    found = decode.decode(q, k, v, visible.dense(), None, K**-0.5)
    assert (found.float() - expected).abs().max() < tolerance
    v[:, :, S * 2 // 3 + 1 :] = float("nan")  # hidden keys are not read
    assert torch.equal(decode.decode(q, k, v, visible.dense(), None, K**-0.5), found)


@pytest.mark.parametrize("B, H, G, S, K", SHAPES)
@pytest.mark.parametrize("masked", [False, True])
@torch.no_grad()
def test_a_bias_of_the_scores(B: int, H: int, G: int, S: int, K: int, masked: bool):
    q, k, v = (torch.randn(B, n, length, K, device="cuda") for n, length in ((H, 1), (G, S), (G, S)))
    keys, last = torch.arange(S, device="cuda"), torch.tensor([S // 2 if masked else S - 1], device="cuda")
    visible = Visible(lambda b, q, k: k <= q, last, keys, everything=not masked)
    for rows in (1, B):
        bias = torch.randn(rows, H, 1, S, device="cuda")
        expected = attend(q, k, v, visible, Plan(K**-0.5, bias=bias, kernel="eager"))
        found = decode.decode(q, k, v, visible.dense() if masked else None, bias, K**-0.5)
        assert (found - expected).abs().max() < 1e-5


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)])
@pytest.mark.parametrize("interleaved", [None, False, True])
@pytest.mark.parametrize("B, H, G, S, K", SHAPES)
@torch.no_grad()
def test_a_new_token(
    B: int, H: int, G: int, S: int, K: int, interleaved: bool | None, dtype: torch.dtype, tolerance: float
):
    """The new key is rotated, cached and attended to, like earlier keys. A mask may hide it from its own query."""
    torch.manual_seed(0)
    keys, values = (torch.randn(B, G, S, K, device="cuda").to(dtype) for _ in range(2))
    qkv = torch.randn(B, (H + 2 * G) * K, device="cuda").to(dtype)
    columns = torch.arange(B, device="cuda") * 7 % S
    places = torch.arange(S, device="cuda")
    q, k, v = (t.unflatten(1, (-1, K))[:, :, None] for t in qkv.split([H * K, G * K, G * K], 1))
    angles = None
    if interleaved is not None:
        rope = RopeModule(Rope(interleaved=interleaved), K)
        angle = columns[:, None, None, None].float() * rope.frequency().cuda()
        angles = angle.cos().to(dtype), angle.sin().to(dtype)
        cos, sin = angles
        if interleaved:
            full = cos.repeat_interleave(2, -1), torch.stack((-sin, sin), -1).flatten(-2)
        else:
            full = torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
        q, k = (rope.turn(t, *full) for t in (q, k))
    wanted_keys, wanted_values = keys.clone(), values.clone()
    rows = torch.arange(B, device="cuda")
    wanted_keys[rows, :, columns], wanted_values[rows, :, columns] = k[:, :, 0], v[:, :, 0]
    wide = [t.float().clone() for t in (q, wanted_keys, wanted_values)]
    values[:, :, int(columns.max()) + 1 :] = wanted_values[:, :, int(columns.max()) + 1 :] = float("nan")
    for allows in (lambda b, q, k: k <= q, lambda b, q, k: k < q):
        visible = Visible(allows, columns[:, None], places, batch_size=B)
        expected = attend(*wide, visible, Plan(K**-0.5, kernel="eager")).transpose(1, 2).flatten(2)
        new = (qkv, (H, G, K), angles, bool(interleaved), keys, values, columns)
        found = decode.attend_new(*new, visible.dense(), K**-0.5)
        assert (found.float() - expected).abs().max() < tolerance
    assert torch.allclose(keys.float(), wanted_keys.float(), atol=tolerance)
    assert torch.equal(values.nan_to_num(9.0), wanted_values.nan_to_num(9.0))
