"""Transparent attention: each decoder layer reads its own average of the encoder's layers [Bapna et al. 2018].

B batch, M tokens of the memory, D width.
"""

from __future__ import annotations

from torch import Tensor

from anyformer.parts.attention.attention import Attention, AttentionModule
from anyformer.runtime.context import Context
from anyformer.specs.part import Site


class TransparentAttention(Attention, sees="past", called=("transparent attention",)):
    """Cross-attention to a memory (B, M, depth * D) that contains one average of the encoder's layers per decoder
    layer, concatenated, as computed by `LayerMix(count=depth)` [Bapna et al. 2018]."""

    def check(self) -> None:
        super().check()
        if not self.memory or self.memory_width is None:
            raise ValueError("TransparentAttention needs memory=True and memory_width, which is depth * width")


class TransparentAttentionModule(AttentionModule, of=TransparentAttention):
    def __init__(self, part: TransparentAttention, site: Site) -> None:
        if part.memory_width != site.depth * site.width:
            size = f"{site.depth} * {site.width}"
            raise ValueError(f"{site.address}: memory_width is {part.memory_width}; it must be depth * width, {size}")
        super().__init__(part.replace(memory_width=site.width), site)
        self.columns = slice(site.layer * site.width, (site.layer + 1) * site.width)

    def memory_keys(self, states: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
        return super().memory_keys(states[..., self.columns], ctx)
