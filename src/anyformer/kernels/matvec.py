"""A linear layer for one row on CUDA (Triton), which reads every weight once. One opaque operation for
torch.compile."""

from __future__ import annotations

import torch
from torch import Tensor

from anyformer.kernels import few_rows
from anyformer.kernels.triton_launch import HAS_TRITON


def fits(x: Tensor, weight: Tensor) -> bool:
    """Whether x is one row in half precision, on CUDA with Triton."""
    return (
        HAS_TRITON
        and x.is_cuda
        and x.numel() == x.shape[-1]
        and x.dtype == weight.dtype
        and weight.is_contiguous()
        and x.dtype in (torch.bfloat16, torch.float16)
        and not torch.is_grad_enabled()
    )


@torch.library.custom_op("anyformer::matvec", mutates_args=())
def matvec(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Multiply one row x (..., K) by weight (N, K) and add bias (N,) -> (..., N)."""
    out = few_rows.linear(x.reshape(1, -1), [weight], [bias])
    return out.view(*x.shape[:-1], len(weight))


@matvec.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.empty(*x.shape[:-1], weight.shape[0], dtype=x.dtype, device=x.device)
