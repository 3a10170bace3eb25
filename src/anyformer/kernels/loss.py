"""Cross-entropy computed from hidden states, without the logits of all tokens in memory at once.

Tokens are processed in chunks: the scores (logits) of a chunk, its loss, and immediately the gradients of the hidden
states and weights. So no tensor of size (N, V) is kept for the backward pass, which only multiplies these gradients by
the incoming one. N tokens, D width, V vocabulary, C tokens per chunk.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.kernels.capture import can_read_values
from anyformer.kernels.triton_launch import HAS_TRITON
from anyformer.kernels.value_checks import check_range, reads_later

IGNORED = -100  # label of tokens without a loss
CHUNK = {"cuda": 6 * 10**8, "cpu": 2**21}  # most scores per chunk; on a CPU they fit its cache
LEAST = 256  # fewest rows per chunk, so that products are worth reading the weights
BLOCK, WARPS = 2048, 16  # scores that a program reads at a time, and its warps
ROWS = {"cuda": 64}  # the vocabulary is padded to a multiple of this: products of odd widths are twice as slow


def linear_cross_entropy(
    x: Tensor,
    weight: Tensor,
    labels: Tensor,
    bias: Tensor | None = None,
    *,
    smoothing: float = 0.0,
    z_loss: float = 0.0,
    chunk: int | None = None,
) -> Tensor:
    """Return the sum (fp32) of -log softmax(x @ weight.T + bias)[label] over the labels that are not -100.

    x is (..., D), weight (V, D), bias (V,), labels (...). `smoothing` is the share of the target that is spread evenly
    over all V tokens [Szegedy et al. 2016]; `z_loss` times (log of the softmax's denominator)^2 is added per label
    [Chowdhery et al. 2022]. Products are in autocast's type if autocast is enabled, sums in fp32. `chunk` is C.
    """
    x, labels = x.reshape(-1, x.shape[-1]), labels.reshape(-1)
    V = weight.shape[0]
    if x.shape[0] != labels.shape[0]:
        raise ValueError(f"{labels.shape[0]} labels for {x.shape[0]} tokens")
    ignored = labels == IGNORED
    known = check_range(labels.masked_fill(ignored, 0), V, f"label {{value}} is outside the vocabulary of {V}")
    if reads_later(labels):
        labels = known.masked_fill(ignored, IGNORED)
    kind = x.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
    rows = even_rows(x.shape[0], chunk or rows_of_chunk(kind, V), 1 if chunk else LEAST)
    needs = [t is not None and t.requires_grad and torch.is_grad_enabled() for t in (x, weight, bias)]
    with torch.autocast(kind, enabled=False):
        if dtype == torch.bfloat16:  # it has fp32's range, and halves the memory traffic
            x = x.to(dtype)
        return _loss(x, weight, bias, labels, smoothing, z_loss, rows, dtype, needs)[0]


def cross_entropy_sum(scores: Tensor, labels: Tensor, ignored: int = IGNORED) -> Tensor:
    """Return the sum (fp32) of -log softmax(scores)[label] over the labels (N,) that are not `ignored`; scores (N, V).

    During training in half precision on a GPU, one Triton program computes the loss and its gradient from the scores.
    Otherwise torch computes both from a copy of the scores in fp32.
    """
    V = scores.shape[-1]
    if scores.is_cuda and can_read_values():  # a GPU would abort the process instead of raising
        skipped, ignored = labels == ignored, IGNORED
        known = check_range(labels.masked_fill(skipped, 0), V, f"labels: {{value}} is outside 0 to {V - 1}")
        labels = known.masked_fill(skipped, IGNORED)
        trains, halves = scores.requires_grad and torch.is_grad_enabled(), (torch.float16, torch.bfloat16)
        if HAS_TRITON and trains and scores.dtype in halves and V >= LEAST:
            return _ScoresLoss.apply(scores, labels)
    return F.cross_entropy(scores.float(), labels, ignore_index=ignored, reduction="sum")


class _ScoresLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, labels: Tensor) -> Tensor:
        scores = scores.contiguous()
        ctx.save_for_backward(scores, labels)
        return _in_place(scores, scores.shape[-1], labels, 0.0, 0.0, False)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor, None]:
        scores, labels = ctx.saved_tensors
        gradient = scores.clone()
        _in_place(gradient, scores.shape[-1], labels, 0.0, 0.0, True, above)
        return gradient, None


def rows_of_chunk(device: str, V: int) -> int:
    return max(LEAST, CHUNK.get(device, CHUNK["cpu"]) // V)


def even_rows(N: int, most: int, multiple: int = LEAST) -> int:
    """Return the rows per chunk for N rows: as few chunks of at most `most` rows as possible, of about equal size,
    which is a multiple of `multiple` if there are several."""
    number = max(1, -(-N // most))
    rows = -(-N // number)
    return max(1, N) if number == 1 else -(-rows // multiple) * multiple


# one opaque operation for torch.compile and CUDA graphs, which could not improve it
@torch.library.custom_op("anyformer::linear_cross_entropy", mutates_args=())
def _loss(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    smoothing: float,
    z_loss: float,
    rows: int,
    dtype: torch.dtype,
    needs: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the loss and its gradients of x, weight and bias; a gradient is empty if its entry of `needs` is False."""
    total, *gradients = _by_chunks(x, weight, bias, labels, smoothing, z_loss, rows, dtype, needs)
    by_x, by_weight, by_bias = (x.new_empty(0) if g is None else g for g in gradients)
    return total, by_x, by_weight, by_bias


@_loss.register_fake
def _(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    smoothing: float,
    z_loss: float,
    rows: int,
    dtype: torch.dtype,
    needs: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    by_x, by_weight, by_bias = (
        x.new_empty(0) if t is None or not need else torch.empty(t.shape, dtype=t.dtype, device=t.device)
        for t, need in zip((x, weight, bias), needs, strict=True)
    )
    return x.new_empty((), dtype=torch.float32), by_x, by_weight, by_bias


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.needs = inputs[-1]
    ctx.save_for_backward(*output[1:])


def _backward(ctx: Any, above: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    gradients = zip(ctx.needs, ctx.saved_tensors, strict=True)
    return *[(g * above).to(g.dtype) if need else None for need, g in gradients], *[None] * 6


_loss.register_autograd(_backward, setup_context=_keep)


def _by_chunks(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    smoothing: float,
    z_loss: float,
    rows: int,
    dtype: torch.dtype,
    needs: list[bool],
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """Return the loss and its gradients of x, weight and bias; a gradient is None if its entry of `needs` is False."""
    V, D = weight.shape
    w = weight.to(dtype)
    spare = -V % ROWS.get(x.device.type, 1)  # rows of zeros score 0
    w = F.pad(w, (0, 0, 0, spare)) if spare else w
    by_x = torch.empty_like(x) if needs[0] else None
    by_weight = torch.zeros(V + spare, D, dtype=torch.float32, device=x.device) if needs[1] else None
    by_bias = torch.zeros(V, dtype=torch.float32, device=x.device) if needs[2] else None
    total = torch.zeros((), dtype=torch.float32, device=x.device)
    for start in range(0, x.shape[0], rows):
        part = slice(start, start + rows)
        inner = x[part].to(dtype)  # (C, D)
        scores = inner @ w.T  # (C, V + spare)
        if bias is None and HAS_TRITON and x.is_cuda:
            total += _in_place(scores, V, labels[part], smoothing, z_loss, any(needs))
            gradient = scores  # the spare columns are already zero
        else:
            loss, gradient = _chunk(scores[:, :V], bias, labels[part], smoothing, z_loss, any(needs))
            total += loss
            if by_bias is not None:
                by_bias += gradient.sum(0)
            if any(needs) and (spare or gradient.dtype != dtype):
                scores[:, :V] = gradient
                gradient = scores
        if by_x is not None:
            by_x[part] = gradient @ w
        if by_weight is not None:
            _accumulate(by_weight, gradient.T, inner)
        del scores, gradient  # free them before the next chunk: they are the largest tensors of a step
    by_weight = None if by_weight is None else by_weight[:V].to(weight.dtype)
    return total, by_x, by_weight, None if by_bias is None or bias is None else by_bias.to(bias.dtype)


def _accumulate(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Compute total (fp32) += a @ b. For half precision on CUDA, the product itself is accumulated in fp32."""
    if a.dtype == torch.float32:
        total.addmm_(a, b)
    elif a.is_cuda:
        torch.addmm(total, a, b, out_dtype=torch.float32, out=total)
    else:
        total += a @ b


def _in_place(
    scores: Tensor,
    V: int,
    labels: Tensor,
    smoothing: float,
    z_loss: float,
    needs_gradient: bool,
    above: Tensor | None = None,
) -> Tensor:
    """Return the loss of (C, V + spare) scores. With `needs_gradient`, overwrite them by its gradient times the scalar
    `above`."""
    from anyformer.kernels.loss_triton import loss_and_gradient

    losses = torch.empty(scores.shape[0], dtype=torch.float32, device=scores.device)
    shape = scores.stride(0), smoothing, z_loss, V, IGNORED, BLOCK, needs_gradient, smoothing > 0, above is not None
    loss_and_gradient[(scores.shape[0],)](
        scores, labels, losses, losses if above is None else above, *shape, num_warps=WARPS
    )
    return losses.sum()


def _chunk(
    scores: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float, z_loss: float, needs_gradient: bool
) -> tuple[Tensor, Any]:
    """Return the loss of (C, V) scores and its gradient (fp32), which overwrites the scores if they are fp32."""
    V = scores.shape[1]
    asked = labels != IGNORED
    labels = torch.where(asked, labels, 0)[:, None]
    l = scores.float()
    if bias is not None:
        l = l.add_(bias)
    top = l.amax(-1, keepdim=True)
    l = l.sub_(top)
    hit = l.gather(1, labels)
    mean = l.mean(-1, keepdim=True) if smoothing else hit
    e = l.exp_()
    total = e.sum(-1, keepdim=True)
    log_total = total.log()
    loss = log_total - (1 - smoothing) * hit - smoothing * mean
    if z_loss:
        loss = loss + z_loss * (log_total + top).square()
    loss = torch.where(asked[:, None], loss, 0).sum()
    if not needs_gradient:
        return loss, None
    ours = asked[:, None].float()  # (C, 1)
    gradient = e.mul_(ours * (1 + 2 * z_loss * (log_total + top)) / total if z_loss else ours / total)
    if smoothing:
        gradient = gradient.sub_(ours * (smoothing / V))
    taken = ours * (1 - smoothing)
    return loss, gradient.scatter_add_(1, labels, -taken)
