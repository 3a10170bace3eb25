"""Linear layers with 8-bit or 4-bit weights: how weights are rounded, and products with few rows on CUDA (Triton).

int8, fp8 (e4m3): (N, K) and one scale per output, w = scale * weight. int4: groups of G inputs, G a power of 2, each
with a scale and an offset, w = scale * weight + offset, weight from 0 to 15. Byte j of a group has input j in its low
four bits and input j + G / 2 in its high four, so that each half reads neighbouring inputs. An incomplete last group is
padded with zeros. The type of the weights determines the format: int8, float8_e4m3fn or uint8 (int4).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.kernels import few_rows
from anyformer.kernels.few_rows import power_above
from anyformer.kernels.triton_launch import HAS_TRITON

FEW = 64  # most rows for which a product takes as long as reading the weights
FP8 = torch.float8_e4m3fn
TINY = torch.finfo(torch.float32).tiny
CLIPPING = [1 - 0.04 * i for i in range(11)]  # shares of a group's range to try: clipping outliers helps the rest


# -- rounding: (N, K) float -> weights, scale, offset -----------------------------------------------------------------


def round_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    scale = weight.abs().amax(1).clamp(min=TINY) / 127
    return (weight / scale[:, None]).round().to(torch.int8), scale


def round_fp8(weight: Tensor) -> tuple[Tensor, Tensor]:
    scale = weight.abs().amax(1).clamp(min=TINY) / torch.finfo(FP8).max
    return (weight / scale[:, None]).to(FP8), scale


def round_int4(weight: Tensor, group: int) -> tuple[Tensor, Tensor, Tensor]:
    """Round to 4 bits; each group's range is clipped so that its squared error is least."""
    parts = [round_groups(F.pad(rows, (0, -rows.shape[1] % group)), group) for rows in weight.split(8192)]
    numbers, scale, offset = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    low, high = numbers.chunk(2, -1)
    return (low | high << 4).flatten(1), scale, offset


def round_groups(weight: Tensor, group: int) -> tuple[Tensor, Tensor, Tensor]:
    """(N, K) -> numbers (N, K / group, group) from 0 to 15, and scale and offset (N, K / group) in bf16."""
    weight = weight.unflatten(1, (-1, group))
    least, most = weight.aminmax(dim=-1, keepdim=True)
    best: tuple[Tensor, ...] = ()
    for share in CLIPPING:
        offset = (least * share).bfloat16()
        scale = ((most * share - offset) / 15).clamp(min=TINY).bfloat16()
        numbers = ((weight - offset) / scale).round_().clamp_(0, 15)
        error = (numbers * scale + offset - weight).square_().sum(-1, keepdim=True)
        trial = numbers.to(torch.uint8), scale, offset, error
        best = trial if not best else tuple(torch.where(error < best[3], new, old) for new, old in zip(trial, best))
    return best[0], best[1].squeeze(-1), best[2].squeeze(-1)


def dequantize(weight: Tensor, scale: Tensor, offset: Tensor | None, width: int) -> Tensor:
    """Return the weights as (N, K) fp32, K = width."""
    if offset is None:
        return weight.float() * scale[:, None]
    pairs = weight.unflatten(1, (offset.shape[1], -1))  # (N, groups, G / 2)
    numbers = torch.cat((pairs & 15, pairs >> 4), -1).float()
    return torch.addcmul(offset.float()[..., None], numbers, scale.float()[..., None]).flatten(1)[:, :width]


# -- products ---------------------------------------------------------------------------------------------------------


@torch.library.custom_op("anyformer::quantized_linear", mutates_args=())
def quantized_linear(x: Tensor, weight: Tensor, scale: Tensor, offset: Tensor | None, bias: Tensor | None) -> Tensor:
    """Multiply x (..., K) of few rows by quantised weights -> (..., N). One opaque operation for torch.compile. Triton
    needs no float copy of the weights."""
    able = HAS_TRITON and x.is_cuda and x.numel() > 0
    if able and weight.dtype == FP8:
        able = torch.cuda.get_device_capability(x.device) >= (8, 9)
    return launch(x, weight, scale, offset, bias) if able else plain_linear(x, weight, scale, offset, bias)


@quantized_linear.register_fake
def _(x: Tensor, weight: Tensor, scale: Tensor, offset: Tensor | None, bias: Tensor | None) -> Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0])


def plain_linear(x: Tensor, weight: Tensor, scale: Tensor, offset: Tensor | None, bias: Tensor | None) -> Tensor:
    """The same as `quantized_linear`, on any device and for any number of rows."""
    bias = None if bias is None else bias.to(x.dtype)
    if offset is not None or x.dtype == torch.float16:  # sums of unscaled weights exceed the range of fp16
        return F.linear(x, dequantize(weight, scale, offset, x.shape[-1]).to(x.dtype), bias)
    # scales after the product: a compiler fuses the conversion into it and makes no float copy of the weights
    out = F.linear(x, weight.to(x.dtype)) * scale.to(x.dtype)
    return out if bias is None else out + bias


def launch(x: Tensor, weight: Tensor, scale: Tensor, offset: Tensor | None, bias: Tensor | None) -> Tensor:
    """Launch the Triton program for this type of weights and number of rows."""
    from anyformer.kernels import quantized_triton as programs

    x, (N, stored), K = x.contiguous(), weight.shape, x.shape[-1]
    M, has_bias = x.numel() // K, bias is not None
    group = 0 if offset is None else 2 * stored // offset.shape[1]
    out = torch.empty(*x.shape[:-1], N, dtype=x.dtype, device=x.device)
    if M == 1:
        offsets = [] if offset is None else [offset]
        return few_rows.linear(x.view(1, K), [weight], [bias], scales=[scale], offsets=offsets).view_as(out)
    columns = 16 if N <= 4096 else 32 if N <= 32768 else 64  # small enough to give work to every SM
    rows, grid = max(16, power_above(M)), (-(-N // columns),)
    if offset is None:
        programs.few_rows[grid](
            x, weight, scale, bias, out, M, N, K, rows, columns, 128, has_bias, num_warps=4, num_stages=4
        )
    else:
        programs.few_rows_int4[grid](
            x, weight, scale, offset, bias, out, M, N, K, group, rows, columns, has_bias, num_warps=4, num_stages=4
        )
    return out
