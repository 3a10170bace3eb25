"""Transparent attention: each decoder layer reads its own average of the encoder's layers [Bapna et al. 2018].

B batch, M tokens of the memory, D width.
"""

from __future__ import annotations

from torch import Tensor, nn

from anyformer.parts.attention.attention import Attention, AttentionModule
from anyformer.runtime.context import Context
from anyformer.specs.part import Site


class TransparentAttention(Attention, sees="past", called=("transparent attention",)):
    """Cross-attention to a memory (B, M, depth * D) that holds one average of the encoder's layers for each layer of
    the decoder, side by side, as `LayerMix(count=depth)` makes it [Bapna et al. 2018]."""

    def check(self) -> None:
        super().check()
        if not self.memory or self.memory_width is None:
            raise ValueError("TransparentAttention reads a memory: set memory=True and memory_width to depth * width")

    def build(self, site: Site) -> nn.Module:
        return TransparentAttentionModule(self, site)


class TransparentAttentionModule(AttentionModule):
    def __init__(self, part: TransparentAttention, site: Site) -> None:
        if part.memory_width != site.depth * site.width:
            forms = f"{site.depth} layers of {site.width}"
            raise ValueError(f"{site.address}: memory_width is {part.memory_width}, and the memory has {forms}")
        super().__init__(part.replace(memory_width=site.width), site)
        self.columns = slice(site.layer * site.width, (site.layer + 1) * site.width)

    def memory_keys(self, states: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
        return super().memory_keys(states[..., self.columns], ctx)
