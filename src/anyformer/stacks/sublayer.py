"""One residual step: norm, op, dropout, residual.

    x = out_norm(residual(x, post_norm(op(pre_norm(x)))))

Pre-norm models set `pre_norm`, BERT sets `out_norm`, and sandwich norm sets `pre_norm` and `post_norm`. DeepNorm and
the Conformer's half-step are kinds of `residual`.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.parts.base import PartModule
from anyformer.parts.computed import Computed
from anyformer.parts.condition import AdaptiveNorm, Condition, Conditioned
from anyformer.parts.grid.pooled_attention import Skip
from anyformer.parts.norm import Norm
from anyformer.parts.op import Op, Reshaping
from anyformer.parts.residual import ADD, Add, Residual
from anyformer.runtime.context import Context
from anyformer.runtime.taps import TapNames
from anyformer.specs.field_types import Chance
from anyformer.specs.part import Part, Site, walk


class Sublayer(
    Part,
    sees="itself",
    called=(
        "residual step",
        "pre-LN (pre_norm=...)",
        "post-LN (out_norm=...)",
        "sandwich norm (pre_norm=..., post_norm=...)",
    ),
):
    """One residual step around any op."""

    separable: ClassVar[bool] = True  # the result is out_norm(residual(x, branch(x))); Parallel and Reversible need it
    reads_block_input: ClassVar[bool] = False  # the branch reads the Block's input, not the previous step's output

    op: Op
    pre_norm: Norm | AdaptiveNorm | None = None
    post_norm: Norm | AdaptiveNorm | None = None  # on the branch
    out_norm: Norm | AdaptiveNorm | None = None  # after the add
    residual: Residual = ADD
    skip: Skip | None = None  # transforms the shortcut if the op changes the width or the grid
    dropout: Chance = 0.0  # on the branch, before its norm
    drop_path: Chance = 0.0  # drop rate of the last layer's branch; proportionally less before [Huang et al. 2016]

    def check(self) -> None:
        for path, part in walk(self.op, "Sublayer.op"):
            if isinstance(part, Reshaping) and part.reshapes and part is not self.op:
                raise ValueError(
                    f"{path}: this {type(part).__name__} changes the width or grid; only Sublayer.op itself may"
                )
        if self.reshapes != (self.skip is not None):
            kind = type(self.op).__name__
            if self.reshapes:
                raise ValueError(f"Sublayer.skip: {kind} changes the width or grid; set skip=Skip()")
            raise ValueError(f"Sublayer.skip is {self.skip}, but {kind} keeps the shape; set skip=None")

    def drop_rate(self, layer: int, depth: int) -> float:
        """Return the drop rate of the branch in this layer, counted from 0."""
        return self.drop_path * layer / max(depth - 1, 1)

    def check_separable(self, address: str) -> None:
        """Raise ValueError unless the result of this step is residual(x, branch(x)), in the shape of x."""
        if not self.separable or self.out_norm is not None or self.reshapes:
            use = "use a Sublayer without out_norm whose op does not change the width or grid"
            raise ValueError(f"{address}: this {type(self).__name__} does not only add its branch; {use}")

    @classmethod
    def upgrade(cls, data: dict[str, Any]) -> dict[str, Any]:
        """Earlier versions had a field for each kind in step_kinds.py."""
        if cls is not Sublayer:
            return data
        fields = {"of_block": "BlockInputStep", "zero_pads": "ZeroedPadding", "normed_skip": "NormedShortcut"}
        used = [kind for field, kind in fields.items() if data.pop(field, False)]
        if len(used) > 1 and "NormedShortcut" in used:
            raise ValueError("Sublayer.normed_skip with of_block or zero_pads is no longer supported; leave one out")
        return {**data, "kind": used[0]} if used else data

    @property
    def reshapes(self) -> bool:
        """Whether the op changes the stream's width or grid."""
        return isinstance(self.op, Reshaping) and self.op.reshapes

    def out_width(self, width: int) -> int:
        return self.op.out_width(width)


class SublayerModule(PartModule, of=Sublayer):
    tapped: ClassVar[TapNames] = {"branch": None}

    def __init__(self, part: Sublayer, site: Site) -> None:
        super().__init__()
        self.pre_norm = part.pre_norm.build(site.child("pre_norm")) if part.pre_norm else None
        self.op, out = part.op.build(site.child("op")), part.out_width(site.width)
        self.post_norm = part.post_norm.build(site.child("post_norm", width=out)) if part.post_norm else None
        self.residual = part.residual.build(site.child("residual", width=out))
        self.out_norm = part.out_norm.build(site.child("out_norm", width=out)) if part.out_norm else None
        self.skip: nn.Module | None = None
        self.stride: tuple[int, ...] = ()
        if part.skip is not None and isinstance(part.op, Reshaping):
            self.skip, self.stride = part.skip.fit(part.op, site.child("skip")), part.op.stride
        self.address = site.address
        self.reads_memory = part.op.reads_memory
        self.fp32_stream = isinstance(part.residual, Add) and part.residual.float32
        self.dropout = part.dropout
        self.keep_path: Computed | None = None  # a tensor, so that all layers compile to the same code
        if part.drop_path:
            kept = 1 - part.drop_rate(site.layer, site.depth)
            self.keep_path = Computed(lambda: torch.tensor([kept]))

    def forward(self, x: Tensor, ctx: Context, shortcut: Tensor | None = None) -> Tensor:
        """Add the branch computed from x to `shortcut` (default: x)."""
        shortcut = x if shortcut is None else shortcut
        if self.reads_memory and self.is_skipped(ctx):  # most steps read no memory: no call
            return shortcut
        branch = self.branch(x, ctx)
        x = apply(self.residual, ctx, shortcut if self.skip is None else self.skip(shortcut, ctx), branch)
        return x if self.out_norm is None else apply(self.out_norm, ctx, x)

    def is_skipped(self, ctx: Context) -> bool:
        """Whether to skip this step: cross-attention of a decoder that is used without an encoder, as published."""
        return self.reads_memory and ctx.memory is None

    def branch(self, x: Tensor, ctx: Context) -> Tensor:
        """Return the tensor that this step adds to the stream."""
        if self.fp32_stream:
            x = x.to(next(self.op.parameters()).dtype)
        if ctx.key_states is not None and (norm := self.pre_norm) is not None:  # keys get the same pre-norm as queries
            ctx = ctx.replace(key_states=apply(norm, ctx, ctx.key_states))
        y = self.op(self.apply_pre_norm(x, ctx), ctx)
        if self.training and self.dropout:
            y = F.dropout(y, self.dropout)
        if self.post_norm is not None:
            y = apply(self.post_norm, ctx, y)
        if self.training and self.keep_path is not None:  # drops the branch of whole examples
            keep = self.keep_path()[0]
            y = y * torch.bernoulli(keep.expand(y.shape[0], *[1] * (y.dim() - 1))).to(y.dtype) / keep
        return ctx.tap(self.address, "branch", y)

    def apply_pre_norm(self, x: Tensor, ctx: Context) -> Tensor:
        """Return the op's input."""
        norm = self.pre_norm
        return x if norm is None else apply(norm, ctx, x)


def apply(module: nn.Module, ctx: Context, *values: Tensor) -> Tensor:
    """Call a norm or a residual; one that depends on the condition also receives it."""
    return module(*values, ctx.extra(Condition)) if isinstance(module, Conditioned) else module(*values)
