"""Convolutions over the tokens of a text. Padding and other documents count as zeros; past tokens are cached.

B batch, T tokens, C channels, H heads, K channels per head, D width, k kernel size.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.parts.activation import ACTIVATIONS, Activation
from anyformer.parts.base import PartModule
from anyformer.parts.norm import LayerNorm, Norm
from anyformer.parts.op import InHeads, Op
from anyformer.parts.recurrent.mamba import PackedRows
from anyformer.runtime.context import Context
from anyformer.runtime.stores import PerRow, Store
from anyformer.runtime.taps import TapNames
from anyformer.specs.field_types import Chance, Count
from anyformer.specs.part import Part, Sees, Site, farthest, parts_in


def neighbours(
    x: Tensor, taps: int, causal: bool, rows: PackedRows, store: Store | None = None, name: str = ""
) -> tuple[Tensor, Tensor | None]:
    """Return the k tokens around each token of x (B, T, C), or up to it if causal, as (B, T, C, k), with zeros beyond
    the text; and a mask (B, T, k) of those in the same document, if documents are packed."""
    after = 0 if causal else taps // 2
    before = taps - 1 - after
    x = x if rows.real is None else x * rows.real.to(x.dtype)
    if store is not None and before:
        x = torch.cat((store.tensors[name].expand(x.shape[0], -1, -1).to(x.dtype), x), dim=1)
        store.replace(name, rows.last_tokens(x, before))
    else:
        x = F.pad(x, (0, 0, before, 0))
    around = F.pad(x, (0, 0, 0, after)).unfold(1, taps, 1)
    if rows.age is None:
        return around, None
    T = around.shape[1]
    back = [rows.age >= i for i in range(before, -1, -1)]
    ahead = [
        F.pad(rows.age[:, i:] >= i, (0, i))[:, :T] for i in range(1, after + 1)
    ]  # in the same document, the i-th next token has age >= i
    return around, torch.stack((*back, *ahead), dim=-1)


def window_state(causal: bool, **windows: tuple[int, int]) -> PerRow | None:
    """Return the decoding state of causal convolutions {name: (taps, channels)}: the last taps - 1 tokens of each."""
    shapes = {name: (taps - 1, channels) for name, (taps, channels) in windows.items() if taps > 1}
    return PerRow(shapes) if causal and shapes else None


class Convolving(Op, abstract=True):
    """Base class of convolutions over tokens."""

    causal: bool = False  # use only past tokens

    @property
    def reach(self) -> int:
        """The largest kernel size."""
        raise NotImplementedError

    def reaches(self) -> Sees | None:
        own: Sees = "itself" if self.reach == 1 else "past" if self.causal else "all"
        return farthest(own, *(part for _, part in parts_in(self)))

    @property
    def causal_alternative(self) -> str:
        return repr(self.replace(causal=True))


# -- weights that the channels of a head share ------------------------------------------------------------------------


class LightweightConvolution(Convolving, sees="all", called=("LightConv", "DynamicConv (dynamic=True)")):
    """A gate, then a depthwise convolution whose kernel is normalised by a softmax and shared by the channels of a head
    [Wu et al. 2019]."""

    num_heads: Count
    kernel: Count = 31
    dynamic: bool = False  # predict the kernel from each token; False: learn it
    bias: bool = True
    dropout: Chance = 0.0  # on the kernel weights

    @property
    def reach(self) -> int:
        return self.kernel


class LightweightConvolutionModule(InHeads, of=LightweightConvolution):
    tapped: ClassVar[TapNames] = {"taps": None, "mixed": None}

    def __init__(self, part: LightweightConvolution, site: Site) -> None:
        super().__init__(site, part.num_heads)
        self.part, D, taps = part, site.width, part.num_heads * part.kernel
        self.gate, self.up, self.o = (nn.Linear(D, D, bias=part.bias) for _ in range(3))
        self.taps: Any = nn.Linear(D, taps, bias=part.bias) if part.dynamic else None
        self.weight: Any = None if part.dynamic else nn.Parameter(torch.empty(part.num_heads, part.kernel))

    def state_spec(self) -> PerRow | None:
        return window_state(self.part.causal, window=(self.part.kernel, self.o.in_features))

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        part, rows = self.part, PackedRows.from_context(ctx)
        x = rows.pack(x)
        x = self.up(x) * torch.sigmoid(self.gate(x))
        scores = self.weight if self.taps is None else self.taps(x).unflatten(-1, (part.num_heads, part.kernel))
        weights = scores.float().softmax(-1).to(x.dtype)  # (H, k) or (B, T, H, k)
        if self.training and part.dropout:
            weights = F.dropout(weights, part.dropout)
        store = ctx.store(self.address) if self.state_spec() is not None else None
        around, own = neighbours(x, part.kernel, part.causal, rows, store, "window")
        weights = ctx.tap(self.address, "taps", weights if own is None else weights * own[:, :, None].to(x.dtype))
        around = around.unflatten(2, (part.num_heads, self.head_width))  # (B, T, H, K, k)
        mixed = torch.matmul(around, weights[..., None]).flatten(2)
        return rows.unpack(self.o(ctx.tap(self.address, "mixed", mixed)))


# -- one convolution over all channels --------------------------------------------------------------------------------


class TokenConvolution(Op, sees="all", called=("1D convolution", "n-gram convolution")):
    """A convolution over tokens and an activation (DeBERTa v2). Padding counts as zeros."""

    kernel: Count = 3
    groups: Count = 1  # as in nn.Conv1d
    activation: Activation = "tanh"
    dropout: Chance = 0.0  # before the activation

    def reaches(self) -> Sees | None:
        return "itself" if self.kernel == 1 else "all"

    @property
    def causal_alternative(self) -> str:
        return repr(LightweightConvolution(num_heads=1, kernel=self.kernel, causal=True))


class TokenConvolutionModule(PartModule, of=TokenConvolution):
    tapped: ClassVar[TapNames] = {"taps": None}

    def __init__(self, part: TokenConvolution, site: Site) -> None:
        super().__init__()
        if site.width % part.groups:
            raise ValueError(f"{site.address}: width {site.width} is not a multiple of {part.groups} groups")
        self.part, self.address = part, site.address
        self.taps = nn.Conv1d(site.width, site.width, part.kernel, groups=part.groups)
        self.activation = ACTIVATIONS[part.activation]

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        x = x if ctx.tokens is None else x.masked_fill(~ctx.tokens[..., None], 0)
        padding = (self.part.kernel - 1) // 2, self.part.kernel // 2
        if ctx.documents is None:
            y = self.taps(F.pad(x, (0, 0, *padding)).transpose(1, 2)).transpose(1, 2)
        else:
            y = self.convolve_documents(x, padding, ctx.documents)
        y = ctx.tap(self.address, "taps", y)
        return self.activation(F.dropout(y, self.part.dropout) if self.training and self.part.dropout else y)

    def convolve_documents(self, x: Tensor, padding: tuple[int, int], documents: Tensor) -> Tensor:
        """Convolve x (B, T, C) separately within each document; `documents` is (B, T)."""
        k, (T, C) = self.part.kernel, x.shape[1:]
        around = F.pad(documents, padding, value=-1)
        same = torch.stack([around[:, i : i + T] == documents for i in range(k)], dim=1)  # (B, k, T)
        x = F.pad(x, (0, 0, *padding)).unfold(1, k, 1) * same.transpose(1, 2)[:, :, None].to(x.dtype)  # (B, T, C, k)
        return self.taps(x.reshape(-1, C, k)).view(-1, T, C)


# -- Evolved Transformer ----------------------------------------------------------------------------------------------


class Gate(Op, sees="itself", called=("gated linear unit",)):
    """up(x) * sigmoid(gate(x)), with the width of x [Dauphin et al. 2017]."""

    bias: bool = True


class GateModule(PartModule, of=Gate):
    def __init__(self, part: Gate, site: Site) -> None:
        super().__init__()
        self.gate, self.up = (
            nn.Linear(site.width, site.width, bias=part.bias),
            nn.Linear(site.width, site.width, bias=part.bias),
        )

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        return self.up(x) * torch.sigmoid(self.gate(x))


class Convolved(Part, sees="itself"):
    """One convolution over tokens."""

    width: Count  # output channels
    kernel: Count = 3
    separable: bool = False  # depthwise, then pointwise
    activation: Activation = "identity"
    bias: bool = True


class ConvolvedModule(PartModule, of=Convolved):
    def __init__(self, part: Convolved, site: Site) -> None:
        super().__init__()
        self.part = part
        self.each = nn.Parameter(torch.empty(site.width, part.kernel)) if part.separable else None
        self.out = nn.Linear(site.width if part.separable else site.width * part.kernel, part.width, bias=part.bias)
        self.activation = ACTIVATIONS[part.activation]

    def forward(self, around: Tensor, own: Tensor | None) -> Tensor:
        """(B, T, C, k) -> (B, T, width)"""
        around = around if own is None else around * own[:, :, None].to(around.dtype)
        x = around.flatten(2) if self.each is None else (around * self.each).sum(-1)
        return self.activation(self.out(x))


class BranchedConvolution(Convolving, sees="all", called=("Evolved Transformer convolution",)):
    """Two convolutions of the same input, added (the narrower output is zero-padded), normalised and convolved again
    [So et al. 2019]."""

    left: Convolved
    right: Convolved
    out: Convolved
    norm: Norm = LayerNorm()
    dropout: Chance = 0.0  # on the outputs of `left` and `right`

    @property
    def reach(self) -> int:
        return max(each.kernel for each in (self.left, self.right, self.out))


class BranchedConvolutionModule(PartModule, of=BranchedConvolution):
    tapped: ClassVar[TapNames] = {"inner": None}

    def __init__(self, part: BranchedConvolution, site: Site) -> None:
        super().__init__()
        if part.out.width > site.width:
            raise ValueError(f"{site.address}.out: width {part.out.width} is larger than the model's {site.width}")
        self.part, self.address, self.width = part, site.address, site.width
        self.inner_width = max(part.left.width, part.right.width)
        inner = site.child("out", width=self.inner_width)
        self.left, self.right = part.left.build(site.child("left")), part.right.build(site.child("right"))
        self.norm, self.out = part.norm.build(site.child("norm", width=self.inner_width)), part.out.build(inner)

    def state_spec(self) -> PerRow | None:
        part, width = self.part, self.width
        return window_state(
            part.causal,
            left=(part.left.kernel, width),
            right=(part.right.kernel, width),
            out=(part.out.kernel, self.inner_width),
        )

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        rows, store = PackedRows.from_context(ctx), ctx.store(self.address) if self.state_spec() is not None else None
        x = rows.pack(x)
        inner = x.new_zeros(())
        for name in ("left", "right"):
            y = self.convolve(name, x, rows, store)
            if self.training and self.part.dropout:
                y = F.dropout(y, self.part.dropout)
            inner = inner + F.pad(y, (0, self.inner_width - y.shape[-1]))
        y = self.convolve("out", self.norm(ctx.tap(self.address, "inner", inner)), rows, store)
        return rows.unpack(F.pad(y, (0, self.width - y.shape[-1])))

    def convolve(self, name: str, x: Tensor, rows: PackedRows, store: Store | None) -> Tensor:
        kernel = getattr(self.part, name).kernel
        return getattr(self, name)(*neighbours(x, kernel, self.part.causal, rows, store, name))
