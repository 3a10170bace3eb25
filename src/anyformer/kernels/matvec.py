"""A linear layer of one row on CUDA: every weight is read once and nothing else takes time (Triton)."""

from __future__ import annotations

import torch
from torch import Tensor

from anyformer.kernels.launch import HAS_TRITON


def fits(x: Tensor, weight: Tensor) -> bool:
    """Whether this is one row in half precision, on a device that has the program."""
    return (
        HAS_TRITON
        and x.is_cuda
        and x.numel() == x.shape[-1]
        and x.dtype == weight.dtype
        and x.dtype in (torch.bfloat16, torch.float16)
        and not torch.is_grad_enabled()
    )


@torch.library.custom_op("anyformer::matvec", mutates_args=())
def matvec(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """(..., K) of one row, (N, K), (N,) -> (..., N)"""
    from anyformer.kernels.matvec_triton import multiply

    N, K = weight.shape
    out = torch.empty(*x.shape[:-1], N, dtype=x.dtype, device=x.device)
    # outputs of one program, columns it reads at once, warps: the best of a sweep on an H200 (84 to 104 % of its
    # bandwidth for 16k and 128k outputs, 2 to 2.5 TB/s where the whole product takes 4 microseconds)
    rows, block, warps = (1, 4096, 16) if K > 4096 else (2, min(2048, 1 << (K - 1).bit_length()), 4)
    shape = N, weight.stride(0), K, rows, block, bias is not None
    multiply[(-(-N // rows),)](x.contiguous(), weight, bias, out, *shape, num_warps=warps)
    return out


@matvec.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.empty(*x.shape[:-1], weight.shape[0], dtype=x.dtype, device=x.device)
