"""Scaled dot-product attention: one function with three kernels that give the same result.

B batch, H heads, G key/value heads (H is a multiple of G), T queries, S keys, K head width.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.kernels import decode, hardware
from anyformer.kernels.capture import is_capturing
from anyformer.specs.messages import nearest, quote

KERNELS = ("auto", "eager", "sdpa", "flex")


class Visible:
    """Which keys each query may see. The mask that a kernel needs is computed from one predicate, on demand and once.

    `allows(b, q, k)` takes broadcastable tensors of batch rows, row indices of queries and row indices of keys. `index`
    (T,) or (B, T) has the row indices of the queries, `keys` (S,) or (B, S) the row indices of the keys. `batch_size`
    is 1 if the mask is the same for all rows.
    """

    def __init__(
        self,
        allows: Callable[[Tensor, Tensor, Tensor], Tensor],
        index: Tensor,
        keys: Tensor,
        *,
        batch_size: int = 1,
        everything: bool = False,
        causal: bool = False,
        trailing: bool = False,
    ) -> None:
        self.allows, self.index, self.keys, self.batch_size = allows, index, keys, batch_size
        self.sizes = index.shape[-1], keys.shape[-1]
        self.everything = everything  # no restriction
        self.causal = causal  # exactly SDPA's is_causal, which needs no mask tensor
        self.trailing = trailing  # causal, and the queries are the last keys: the lower right of a causal mask
        self._dense: Tensor | None = None
        self._hidden: Tensor | None = None
        self._biased: tuple[Tensor, Tensor] | None = None
        self._block: Any = None

    def dense(self) -> Tensor:
        """(1 or B, 1, T, S), True for visible keys."""
        if self._dense is None:
            b = torch.arange(self.batch_size, device=self.index.device)[:, None, None]
            keys = self.keys if self.keys.dim() == 1 else self.keys[:, None]
            seen, shape = self.allows(b, self.index[..., None], keys), (self.batch_size, *self.sizes)
            self._dense = (seen if seen.shape == shape else seen.expand(shape))[:, None]
        return self._dense

    def hidden(self) -> Tensor:
        """(1 or B, 1, T, S), True for hidden keys."""
        if self._hidden is None:
            self._hidden = ~self.dense()
        return self._hidden

    def masked_bias(self, bias: Tensor) -> Tensor:
        """Return `bias` with -inf for hidden keys; computed once if layers share the bias (T5, ALiBi)."""
        if self.everything:
            return bias
        if bias.requires_grad:  # no caching: activation recomputation must repeat the same operations
            return bias.masked_fill(self.hidden(), float("-inf"))
        if self._biased is None or self._biased[0] is not bias:
            self._biased = bias, bias.masked_fill(self.hidden(), float("-inf"))
        return self._biased[1]

    def block_mask(self) -> Any:
        """Return FlexAttention's block-sparse mask."""
        if self._block is None:

            def mask_mod(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
                at = self.index[q] if self.index.dim() == 1 else self.index[b, q]
                return self.allows(b, at, self.keys[k] if self.keys.dim() == 1 else self.keys[b, k])

            batch = None if self.batch_size == 1 else self.batch_size
            self._block = _block_mask(mask_mod, batch, *self.sizes, device=str(self.index.device))
        return self._block


EVERYTHING = Visible(lambda b, q, k: q >= 0, torch.arange(0), torch.arange(0), everything=True)  # for any T and S


class ScoreChange(Protocol):
    """A change of each score on its own."""

    @property
    def in_flex(self) -> bool: ...

    def __call__(self, scores: Tensor) -> Tensor: ...

    def score_mod(self, score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor: ...


class Plan(NamedTuple):
    """How `attend` computes scores and weights: normalize(changes(scale * q k^T) + bias)."""

    scale: float
    bias: Tensor | None = None  # (1 or B, H, T, S)
    changes: tuple[ScoreChange, ...] = ()  # of scores, before the bias
    mix_heads: Callable[[Tensor, bool], Tensor] | None = None  # of scores after the bias (False) and of weights (True)
    normalize: Callable[[Tensor], Tensor] | None = None  # scores to weights; None: softmax
    dropout: float = 0.0  # on the weights
    value_bias: Callable[[Tensor], Tensor] | None = None  # maps the weights to (B, H, T, K), added to the result
    on_weights: Callable[[Tensor], Tensor] | None = None  # receives the weights and returns them, changed or not
    kernel: str = "auto"

    @property
    def fusible(self) -> bool:
        """Whether a fused kernel can run it: softmax, and nothing that needs the weights of several heads or keys."""
        return self.mix_heads is None and self.normalize is None and self.value_bias is None

    @property
    def flexible(self) -> bool:
        """Whether FlexAttention can run it."""
        return self.fusible and all(change.in_flex for change in self.changes)

    def chosen_kernel(self) -> str:
        """Return the kernel that runs this plan for few tokens: `kernel`, or the eager one if that cannot run it."""
        kernel = "sdpa" if self.kernel == "auto" else self.kernel
        if self.changes:
            return "flex" if kernel == "flex" and self.flexible else "eager"
        return kernel if self.fusible else "eager"


def attend(q: Tensor, k: Tensor, v: Tensor, visible: Visible, plan: Plan) -> Tensor:
    """Return the values (B, H, T, K) that the visible keys select, as `plan` says. A query that sees no key gets zeros.

    Only the eager kernel computes weights. For `on_weights`, the other kernels compute them in addition, so tracing
    changes no result.
    """
    if plan.kernel not in KERNELS:
        raise ValueError(f"unknown attention kernel {quote(plan.kernel)}; {nearest(plan.kernel, KERNELS)}")
    if plan.kernel == "flex" and q.device.type != "cuda":
        raise ValueError("the flex kernel needs a CUDA device; use kernel='sdpa'")
    bias, listen = plan.bias, plan.on_weights
    kernel = "flex" if plan.kernel == "auto" and flex_is_faster(q, k, v, visible, plan) else plan.chosen_kernel()
    if kernel == "eager":
        seen, dropout = _weights(q, k, visible, plan, v.dtype), plan.dropout
        if plan.mix_heads is not None:
            seen, dropout = plan.mix_heads(F.dropout(seen, dropout) if dropout else seen, True), 0.0
        return _mix_values(seen if listen is None else listen(seen), v, dropout, plan.value_bias)
    if kernel == "flex":
        out = _flex(q, k, v, visible, plan)
    elif decode.fits(q, v) and (is_capturing() or (bias is None and not visible.everything)):
        out = decode.decode(q, k, v, None if visible.everything else visible.dense(), bias, plan.scale)
    else:
        out = _sdpa(q, k, v, visible, plan)
    if listen is not None:
        seen = _weights(q, k, visible, plan, v.dtype)
        used = listen(seen)
        out = out if used is seen else _mix_values(used, v, plan.dropout, None)
    return out


# Above how many scores (rows x heads x queries x keys) FlexAttention is faster than the kernel that `auto` uses
# otherwise, which is the eager one if scores change (soft caps): measured on an H200 with benchmarks/masks_gpu.py.
# Below, the launches take longer than the work, and the first call, which compiles for some seconds, is never repaid.
FLEX_SCORES = {"training": 2**30, "training, changed scores": 2**27, "inference": 2**32}
FLEX_WIDTHS = (16, 32, 64, 128, 256)  # of a head


def flex_is_faster(q: Tensor, k: Tensor, v: Tensor, visible: Visible, plan: Plan) -> bool:
    """Whether FlexAttention can run this call and is faster than SDPA with a dense mask, or than the eager kernel.

    SDPA needs no dense mask for causal and full attention, and then nothing is faster.
    """
    if not q.is_cuda or q.element_size() != 2 or torch.compiler.is_compiling():  # compiled code cannot make block masks
        return False
    needs_mask = not (visible.everything or visible.causal or visible.trailing) or bool(plan.changes)
    work = "training" if torch.is_grad_enabled() and q.requires_grad else "inference"
    least = FLEX_SCORES.get(f"{work}, changed scores" if plan.changes else work, FLEX_SCORES[work])
    if not needs_mask or q.shape[:3].numel() * k.shape[2] < least:
        return False
    widths_fit = q.shape[-1] in FLEX_WIDTHS and v.shape[-1] in FLEX_WIDTHS
    return plan.flexible and plan.bias is None and not plan.dropout and widths_fit and hardware.triton()


def _weights(q: Tensor, k: Tensor, visible: Visible, plan: Plan, dtype: torch.dtype) -> Tensor:
    """Return the attention weights (B, H, T, S), 0 for hidden keys."""
    # in half precision, scores are in fp32, as in the fused kernels: they may exceed fp16's range
    scores = torch.matmul(_wide(q), _wide(_each_head(k, q.shape[1])).transpose(-1, -2)) * plan.scale
    for change in plan.changes:
        scores = change(scores)
    if plan.bias is not None:
        scores = scores + plan.bias
    if plan.mix_heads is not None:
        scores = plan.mix_heads(scores.to(dtype), False).to(scores.dtype)
    weigh = plan.normalize or functools.partial(torch.softmax, dim=-1)
    if visible.everything:
        return weigh(scores).to(dtype)
    # the finite minimum instead of -inf, then an exact zero: a query that sees no key has a finite gradient too
    hidden = visible.hidden()
    scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
    return weigh(scores).to(dtype).masked_fill(hidden, 0)


def _mix_values(weights: Tensor, v: Tensor, dropout: float, value_bias: Callable[[Tensor], Tensor] | None) -> Tensor:
    used = F.dropout(weights, dropout) if dropout else weights
    mixed = torch.matmul(used, _each_head(v, weights.shape[1]))
    return mixed if value_bias is None else mixed + value_bias(used)


def _each_head(x: Tensor, num_heads: int) -> Tensor:
    """(B, G, S, K) -> (B, H, S, K)"""
    return x if x.shape[1] == num_heads else x.repeat_interleave(num_heads // x.shape[1], dim=1)


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _sdpa(q: Tensor, k: Tensor, v: Tensor, visible: Visible, plan: Plan) -> Tensor:
    is_causal = visible.causal and plan.bias is None
    mask: Tensor | None = None
    if plan.bias is not None:
        mask = visible.masked_bias(plan.bias)
    elif visible.trailing and q.is_cuda and q.dtype in (torch.float16, torch.bfloat16):
        from torch.nn.attention.bias import causal_lower_right  # here: it imports torch._dynamo, 2 s

        mask = causal_lower_right(*visible.sizes)
    elif not visible.everything and not is_causal:
        mask = visible.dense()
    return F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=mask,
        dropout_p=plan.dropout,
        is_causal=is_causal,
        scale=plan.scale,
        enable_gqa=k.shape[1] != q.shape[1],
    )


@functools.cache
def _compiled(name: str) -> Any:
    """Return a compiled function of torch's flex_attention module."""
    import torch.nn.attention.flex_attention as flex

    compiled = torch.compile(vars(flex)[name])

    def run(*args: Any, **options: Any) -> Any:
        # one kernel per kind of mask and bias; above the default limit of 8, torch silently runs a slow unfused kernel
        with torch._dynamo.config.patch(recompile_limit=256):
            return compiled(*args, **options)

    return run


EAGER_PAIRS = 2**28  # pairs of tokens up to which the block mask is computed from a dense mask, without compiling


def _block_mask(mask_mod: Callable[..., Tensor], batch: int | None, T: int, S: int, device: str) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    plain = torch.compiler.is_compiling() or (batch or 1) * T * S <= EAGER_PAIRS
    create = create_block_mask if plain else _compiled("create_block_mask")
    return create(mask_mod, batch, None, T, S, device=device)


def _flex(q: Tensor, k: Tensor, v: Tensor, visible: Visible, plan: Plan) -> Tensor:
    if plan.dropout:
        raise ValueError("the flex kernel does not support attention dropout; use kernel='sdpa' or set dropout to 0")
    bias, changes = plan.bias, plan.changes

    def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        for change in changes:
            score = change.score_mod(score, b, h, i, j)
        return score if bias is None else score + bias[b if bias.shape[0] > 1 else 0, h, i, j]

    from torch.nn.attention.flex_attention import flex_attention

    run = flex_attention if torch.compiler.is_compiling() else _compiled("flex_attention")
    return run(
        q,
        k,
        v,
        score_mod=None if bias is None and not changes else score_mod,
        scale=plan.scale,
        block_mask=None if visible.everything else visible.block_mask(),
        enable_gqa=k.shape[1] != q.shape[1],
    )
