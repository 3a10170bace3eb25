"""Simulates the memory use of a CUDA device under autocast on the meta device. It replaces what the meta device does
differently: products in fp32, dropout with fp32 noise instead of a mask, attention that stores weights, unfused norms.

B batch, H heads, T queries, S keys, K head width, N tokens, D width, V vocabulary, C tokens of a chunk.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from anyformer.kernels import loss as kernel
from anyformer.parts.head.language import LMHeadModule

MASKED = 0.15  # share of tokens that a masked language model predicts [Devlin et al. 2019]

# torch's lists of operations that autocast computes in half precision on CUDA (PRODUCTS) and in fp32 (WIDE)
PRODUCTS = frozenset((
    "linear", "matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "mv", "addmm", "addmv", "addbmm", "baddbmm", "einsum",
    "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "prelu",
    "scaled_dot_product_attention", "grouped_linear.default",  # the last by kernels/grouped.py
))  # fmt: skip
WIDE = frozenset((
    "layer_norm", "group_norm", "softmax", "log_softmax", "logsumexp", "cross_entropy", "nll_loss", "mse_loss",
    "binary_cross_entropy_with_logits", "softplus", "exp", "expm1", "log", "log1p", "log2", "pow", "__pow__",
    "__rpow__", "square", "rsqrt", "reciprocal", "sum", "prod", "cumsum", "cumprod", "norm", "normalize",
    "cosine_similarity",
))  # fmt: skip


class Device(TorchFunctionMode):
    """The simulated device; `half` is autocast's dtype, None without autocast."""

    def __init__(self, model: nn.Module, half: torch.dtype | None) -> None:
        super().__init__()
        self.half = half
        self.weights = {id(parameter) for parameter in model.parameters()}
        self.copies: dict[int, Tensor] | None = {}  # autocast casts a weight once per forward pass
        self.casts: dict[int, int] = {}  # bytes of the live copies
        self.gradient_bytes = 0  # bytes of gradients that the loss computes in the forward pass

    def forget(self) -> None:
        """Drop the cast weights at the end of the forward pass."""
        self.copies = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        if self.half is not None and name in PRODUCTS:
            args, kwargs = tree_map(self.narrow, (args, kwargs))
        elif self.half is not None and name in WIDE:
            args, kwargs = tree_map(_wide, (args, kwargs))
        if func is F.scaled_dot_product_attention:
            q, k, v = args[:3]
            return self.attend(q, k, v, kwargs.get("attn_mask"))
        if func is torch.rand and args == ((),):  # LayerDrop: no layer is dropped
            return torch.ones((), device="cpu")
        if func is F.dropout:
            return _dropout(*args, **kwargs)
        if func is F.rms_norm:
            return _rms_norm(*args, **kwargs)
        out = func(*args, **kwargs)
        if func is torch.cat and all(id(each) in self.weights for each in args[0]):
            self.weights.add(id(out))  # concatenated projections are a weight, too
            weakref.finalize(out, self.weights.discard, id(out)).atexit = False
        return out

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        return _Attention.apply(q, k, v, mask)

    def narrow(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or value.dtype != torch.float32:
            return value
        if id(value) not in self.weights:
            return value.to(self.half)
        if self.copies is not None and id(value) in self.copies:
            return self.copies[id(value)]
        cast = value.to(self.half)
        storage = cast.untyped_storage()
        self.casts[storage._cdata] = storage.nbytes()
        weakref.finalize(storage, self.casts.pop, storage._cdata).atexit = False
        if self.copies is not None and value.is_leaf:
            self.copies[id(value)] = cast
        return cast

    def loss(self, head: LMHeadModule, pair: bool, x: Tensor) -> Tensor:
        """The loss of a language-model head in training, as in kernels/loss.py."""
        x = x.flatten(0, -2)
        if not head.part.shift and not pair:
            x = x[torch.empty(max(1, round(MASKED * x.shape[0])), dtype=torch.long)]
        x = x if head.transform is None else head.transform(x)
        weight, bias = head.out.weight, head.out.bias
        self.gradient_bytes += 4 * pad_rows(weight.shape[0]) * (weight.shape[1] + (bias is not None))
        return _CrossEntropy.apply(x if self.half is None else x.to(self.half), weight, bias)


def _wide(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype in (torch.bfloat16, torch.float16) else value


# -- memory of kernels ------------------------------------------------------------------------------------------------


class _Attention(torch.autograd.Function):
    """Fused attention, which does not store weights (B, H, T, S)."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        if mask is not None and mask.dtype == torch.bool:  # the kernel adds a float mask
            mask = torch.empty(mask.shape, dtype=q.dtype)
        V, turned = v.shape[-1], q.transpose(-3, -2)
        like = q[..., :V] if q.shape[-1] >= V else q.new_empty(*turned.shape[:-1], V).transpose(-3, -2)
        out = torch.empty_like(like)  # it has the strides of q
        ctx.save_for_backward(
            q, k, v, mask, out, q.new_empty(q.shape[:-1], dtype=torch.float32)
        )  # log-sum-exp of each row
        return out

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> Any:
        q, k, v, mask, *_ = ctx.saved_tensors
        gradients = None
        if ctx.needs_input_grad[3]:
            every = q.new_empty(*q.shape[:-1], k.shape[-2])  # (B, H, T, S), then summed to the mask's shape
            gradients = torch.empty_like(mask)
            del every
        return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), gradients


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(torch.empty_like(x, dtype=torch.bool))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> Tensor:
        return torch.empty_like(above)


def _dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    return _Dropout.apply(input) if training and p else input


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight, x.new_empty(x.shape[:-1], dtype=torch.float32))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> Any:
        x, weight, _ = ctx.saved_tensors
        return torch.empty_like(x), None if weight is None else torch.empty_like(weight)


def _rms_norm(input: Tensor, normalized_shape: Any, weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    return _Norm.apply(input, weight)


def pad_rows(V: int) -> int:
    return V + -V % kernel.ROWS["cuda"]


class _CrossEntropy(torch.autograd.Function):
    """Cross-entropy of kernels/loss.py, which computes gradients in the forward pass, C tokens at a time."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        (N, D), V = x.shape, pad_rows(weight.shape[0])
        C = kernel.even_rows(N, kernel.rows_of_chunk("cuda", weight.shape[0]))
        w = None if x.dtype == weight.dtype else x.new_empty(V, D)
        gradients = x.new_empty(N, D), torch.empty(V, D), None if bias is None else torch.empty(V)
        scores = x.new_empty(C, V)
        if bias is not None:
            wide = scores.float()  # the bias is added in fp32
            del wide
        product = x.new_empty(C, D)
        del w, scores, product
        ctx.save_for_backward(*gradients)
        ctx.rows = weight.shape[0]
        return x.new_empty((), dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> Any:
        by_x, by_weight, by_bias = ctx.saved_tensors
        rows = ctx.rows
        by_bias = None if by_bias is None else torch.empty_like(by_bias[:rows])
        return torch.empty_like(by_x), torch.empty_like(by_weight[:rows]), by_bias
