"""Residual steps of single families: subclasses of Sublayer."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from anyformer.parts.condition import AdaptiveNorm
from anyformer.parts.norm import Norm
from anyformer.runtime.context import Context, zero_padding
from anyformer.stacks.sublayer import Sublayer, SublayerModule, apply


class NormedShortcut(Sublayer, sees="itself"):
    """A residual step that adds the branch to pre_norm's output instead of its input (BLOOM's option, MViT)."""

    separable: ClassVar[bool] = False
    pre_norm: Norm | AdaptiveNorm


class NormedShortcutModule(SublayerModule, of=NormedShortcut):
    pre_norm: nn.Module

    def forward(self, x: Tensor, ctx: Context, shortcut: Tensor | None = None) -> Tensor:
        return x if self.is_skipped(ctx) else super().forward(apply(self.pre_norm, ctx, x), ctx)

    def apply_pre_norm(self, x: Tensor, ctx: Context) -> Tensor:
        return x  # `forward` has applied pre_norm


class ZeroedPadding(Sublayer, sees="itself"):
    """A residual step that sets its output to zero at padding (XLM)."""

    separable: ClassVar[bool] = False


class ZeroedPaddingModule(SublayerModule, of=ZeroedPadding):
    def forward(self, x: Tensor, ctx: Context, shortcut: Tensor | None = None) -> Tensor:
        return zero_padding(super().forward(x, ctx, shortcut), ctx)


class BlockInputStep(ZeroedPadding, sees="itself"):
    """A residual step whose branch reads the Block's input instead of the previous step's output; it also sets its
    output to zero at padding (the convolution of DeBERTa v2)."""

    reads_block_input: ClassVar[bool] = True
