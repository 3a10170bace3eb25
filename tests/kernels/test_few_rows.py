"""Fused kernels of a decoding step against the plain modules: on a GPU, or in Triton's interpreter
(`TRITON_INTERPRET=1`) on any machine with Triton."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.kernels import few_rows
from anyformer.kernels.few_rows import NormWeights
from anyformer.kernels.quantized import dequantize, round_fp8, round_int4, round_int8
from anyformer.parts.activation import ACTIVATIONS
from anyformer.parts.norm import RMSNorm
from anyformer.parts.position.rotary import Rope, RopeModule
from anyformer.specs.part import Site

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton") is not None
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
needs_triton = pytest.mark.skipif(not few_rows.HAS_TRITON, reason="needs Triton")
pytestmark = [] if INTERPRETED else [pytest.mark.gpu, needs_triton]
HALF = (torch.bfloat16, torch.float16)


def close(found: Tensor, exact: Tensor, dtype: torch.dtype) -> None:
    """Assert equality up to rounding: sums are computed in a different order."""
    assert found.dtype == dtype and found.shape == exact.shape
    eps = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[dtype]
    assert torch.allclose(found.double(), exact.double(), rtol=eps, atol=eps)


def draw(*size: int, dtype: torch.dtype, scale: float = 1.0) -> Tensor:
    return (torch.randn(*size, device=DEVICE) * scale).to(dtype)


def turn(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """Apply the rotary formula to the first channels of x, twice as many as `cos` has."""
    x, rest = x[..., : 2 * cos.shape[-1]], x[..., 2 * cos.shape[-1] :]
    a, b = (x[..., ::2], x[..., 1::2]) if interleaved else x.chunk(2, -1)
    new = a * cos - b * sin, b * cos + a * sin
    return torch.cat((torch.stack(new, -1).flatten(-2) if interleaved else torch.cat(new, -1), rest), -1)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def plain_norm(x: Tensor, kind: str) -> tuple[Tensor, NormWeights]:
    K = x.shape[1]
    weight, bias = draw(K, dtype=x.dtype), draw(K, dtype=x.dtype)
    if kind == "layer":
        return F.layer_norm(x, (K,), weight, bias, 1e-5), NormWeights("layer", weight, bias, 1e-5)
    module = RMSNorm(eps=1e-6).build(Site(width=K)).to(DEVICE, x.dtype)
    module.weight.data.copy_(weight)
    return module(x), NormWeights("rms", weight, None, 1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, *HALF])
@pytest.mark.parametrize("kind", ["rms", "layer"])
@pytest.mark.parametrize("M, K", [(1, 64), (3, 100), (5, 2049)])
@torch.no_grad()
def test_norm(M: int, K: int, kind: str, dtype: torch.dtype) -> None:
    x = draw(M, K, dtype=dtype)
    exact, norm = plain_norm(x, kind)
    close(few_rows.norm_rows(x, norm), exact, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("norm", [None, "rms", "layer"])
@pytest.mark.parametrize("sizes", [(33,), (48, 16, 16)])
@pytest.mark.parametrize("M, K", [(1, 100), (1, 5000), (2, 96), (33, 130)])
@torch.no_grad()
def test_projections_side_by_side(M: int, K: int, sizes: tuple[int, ...], norm: str | None, dtype: torch.dtype) -> None:
    if M > 1 and dtype == torch.float32:
        return  # torch multiplies several rows in fp32
    x = draw(M, K, dtype=dtype)
    weights = [draw(N, K, dtype=dtype, scale=K**-0.5) for N in sizes]
    biases = [draw(N, dtype=dtype) if i % 2 == 0 else None for i, N in enumerate(sizes)]
    normed, weights_of_norm = (x, None) if norm is None else plain_norm(x, norm)
    exact = torch.cat([F.linear(normed, w, b) for w, b in zip(weights, biases)], 1)
    close(few_rows.linear(x, weights, biases, norm=weights_of_norm), exact, dtype)


@pytest.mark.parametrize("activation", few_rows.ACTIVATIONS)
@pytest.mark.parametrize("M, bias", [(1, True), (4, False)])
@torch.no_grad()
def test_gates_and_activations(M: int, bias: bool, activation: str) -> None:
    K, N, dtype = 80, 37, torch.float16
    x = draw(M, K, dtype=dtype)
    gate, up = (draw(N, K, dtype=dtype, scale=K**-0.5) for _ in range(2))
    a, b = (draw(N, dtype=dtype) if bias else None for _ in range(2))
    act = ACTIVATIONS[activation]
    exact = act(F.linear(x, gate, a)) * F.linear(x, up, b)
    close(few_rows.linear(x, [gate, up], [a, b], activation=activation, gated=True), exact, dtype)
    close(few_rows.linear(x, [gate], [a], activation=activation), act(F.linear(x, gate, a)), dtype)


@pytest.mark.parametrize("M", [1, 6])
@torch.no_grad()
def test_a_sum_with_the_stream(M: int) -> None:
    x, onto = draw(M, 72, dtype=torch.bfloat16), draw(M, 50, dtype=torch.bfloat16)
    weight, bias = draw(50, 72, dtype=torch.bfloat16, scale=0.1), draw(50, dtype=torch.bfloat16)
    close(few_rows.linear(x, [weight], [bias], onto=onto), onto + F.linear(x, weight, bias), torch.bfloat16)


@pytest.mark.parametrize("kind", [None, "rms"])
@pytest.mark.parametrize("M", [1, 6])
@torch.no_grad()
def test_a_stream_wider_than_the_weights(M: int, kind: str | None) -> None:
    """The stream is rounded before a norm or product. The branch is rounded before the sum; the sum is not."""
    stream, dtype = 30 * draw(M, 72, dtype=torch.float32), torch.float16
    normed, norm = (stream.to(dtype), None) if kind is None else plain_norm(stream.to(dtype), kind)
    weight = draw(72, 72, dtype=dtype, scale=0.1)
    inner = few_rows.linear(stream, [weight], [None], norm=norm)
    close(inner, F.linear(normed, weight), dtype)
    found = few_rows.linear(inner, [weight], [None], onto=stream)
    assert found.dtype == torch.float32
    branch = (found - stream).double()
    assert torch.allclose(branch, branch.half().double(), rtol=0, atol=2e-5)  # rounding error of the stream
    close(branch.to(dtype), F.linear(inner, weight), dtype)


@pytest.mark.parametrize("kind", ["int8", "fp8", "int4"])
@pytest.mark.parametrize("norm_kind", [None, "rms", "layer"])
@pytest.mark.parametrize("K", [72, 300])
@torch.no_grad()
def test_weights_of_few_bits(K: int, norm_kind: str | None, kind: str) -> None:
    """Concatenated, gated and residual products equal the plain formula with dequantized weights. K is not a multiple
    of the group size 32: padding of the last group has no effect, even after a norm that maps zeros to other values."""
    dtype = torch.float16  # the interpreter cuts off bits of bf16
    x, onto = draw(1, K, dtype=dtype), draw(1, 50, dtype=dtype)
    round_weight = {"int8": round_int8, "fp8": round_fp8, "int4": lambda weight: round_int4(weight, 32)}[kind]
    tensors = [round_weight(draw(N, K, dtype=torch.float32, scale=0.1) + 0.05) for N in (50, 50, 20)]
    weights, scales, *offsets = zip(*tensors, strict=True)
    plain = [dequantize(*each, *[None] * (3 - len(each)), K).to(torch.float32) for each in tensors]
    bias = [draw(len(weight), dtype=dtype) for weight in weights]
    normed, norm = (x, None) if norm_kind is None else plain_norm(x, norm_kind)

    def found(count: int, **options: Any) -> Tensor:
        tables = {"scales": scales[:count], "offsets": offsets[0][:count] if offsets else ()}
        return few_rows.linear(x, weights[:count], bias[:count], norm=norm, **tables, **options)

    exact = [F.linear(normed.float(), weight, b.float()) for weight, b in zip(plain, bias, strict=True)]
    close(found(3), torch.cat(exact, 1), dtype)
    close(found(2, gated=True, activation="silu"), F.silu(exact[0].to(dtype)) * exact[1].to(dtype), dtype)
    close(found(1, onto=onto), onto + exact[0].to(dtype), dtype)


@pytest.mark.parametrize("dtype", [torch.float32, *HALF])
@pytest.mark.parametrize("interleaved, fraction", [(False, 1.0), (True, 1.0), (False, 0.5), (None, 1.0)])
@torch.no_grad()
def test_turned_keys_go_to_their_columns(interleaved: bool | None, fraction: float, dtype: torch.dtype) -> None:
    M, H, G, K, L = 3, 4, 2, 24, 11
    qkv, columns = draw(M, (H + 2 * G) * K, dtype=dtype), torch.tensor([4, 0, 10], device=DEVICE)
    keys, values = draw(M, G, L, K, dtype=dtype), draw(M, G, L, K, dtype=dtype)
    q, k, v = (t.unflatten(1, (-1, K)) for t in qkv.split([H * K, G * K, G * K], 1))
    angles = None
    if interleaved is not None:
        rope = RopeModule(Rope(interleaved=interleaved, fraction=fraction), K)
        angle = columns[:, None].float() * rope.frequency().to(DEVICE)
        angles = angle.cos().to(dtype), angle.sin().to(dtype)
        q, k = (turn(t, *(a[:, None] for a in angles), interleaved) for t in (q, k))
    wanted_keys, wanted_values = keys.clone(), values.clone()
    for row, column in enumerate(columns.tolist()):
        wanted_keys[row, :, column], wanted_values[row, :, column] = k[row], v[row]
    found = few_rows.rotate_append(qkv, (H, G, K), angles, bool(interleaved), keys, values, columns)
    close(found[:, :, 0], q, dtype)
    close(keys, wanted_keys, dtype)
    assert torch.equal(values, wanted_values)


@torch.no_grad()
def test_the_likeliest_token_is_written() -> None:
    V, L = 5001, 4
    scores = draw(3, V, dtype=torch.bfloat16)
    scores[1, [4000, 7]] = 99.0  # the first of equal scores wins
    tokens, written = (
        torch.zeros(3, 1, dtype=torch.long, device=DEVICE),
        torch.zeros(3, L, dtype=torch.long, device=DEVICE),
    )
    count, broken = torch.full((3,), 2, device=DEVICE), torch.zeros((), dtype=torch.bool, device=DEVICE)
    few_rows.take_highest(scores, tokens, written, count, broken)
    exact = [int((row == row.max()).nonzero()[0]) for row in scores]
    assert tokens[:, 0].tolist() == written[:, 2].tolist() == exact and exact[1] == 7
    assert count.tolist() == [3, 3, 3] and not broken
    scores[2, 4999] = float("nan")
    few_rows.take_highest(scores, tokens, written, count, broken)
    assert broken and int(tokens[2]) == 4999
