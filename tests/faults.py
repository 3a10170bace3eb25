"""Parts with one fault each, for tests of the checks that must find it."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor, nn

from anyformer.parts.recurrent.mamba import PackedRows
from anyformer.runtime.context import Context
from anyformer.runtime.stores import PerRow
from anyformer.specs.part import Part, Site


class Mixer(nn.Module):
    """Calls a function of the Part that it is built for."""

    def __init__(self, part: Any, site: Site) -> None:
        super().__init__()
        self.part, self.address, self.width = part, site.address, site.width
        self.o = nn.Linear(site.width, site.width)
        self.number = random.random()

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        return self.o(self.part.mix(x, ctx, self))


class Faulty(Part):
    """A user-defined mixer; a plain `Part` is enough."""

    def build(self, site: Site) -> nn.Module:
        return Mixer(self, site)


class Plain(Faulty, sees="itself"):
    """A correct Part."""

    def mix(self, x: Tensor, ctx: Context, module: Any) -> Tensor:
        return x


class Leaks(Faulty, sees="past"):
    def mix(self, x: Tensor, ctx: Context, module: Any) -> Tensor:
        return torch.cat((x[:, 1:], x[:, :1]), dim=1)


class SeesMore(Faulty, sees="itself"):
    def mix(self, x: Tensor, ctx: Context, module: Any) -> Tensor:
        return x.cumsum(1)


class Padded(Faulty, sees="past"):
    """Attends to padding like to tokens; it keeps documents apart."""

    def mix(self, x: Tensor, ctx: Context, module: Any) -> Tensor:
        documents = torch.zeros(x.shape[:2]) if ctx.documents is None else ctx.documents
        same = (documents[:, :, None] == documents[:, None]) & (ctx.index[:, None] >= ctx.index)
        return same.to(x.dtype) @ x / 8


class Packed(Faulty, sees="past"):
    """Attends to earlier documents of the row; it ignores padding."""

    def mix(self, x: Tensor, ctx: Context, module: Any) -> Tensor:
        return (x if ctx.tokens is None else x * ctx.tokens[..., None]).cumsum(1) / 8


class Forgets(Faulty, sees="past"):
    """Computes a running sum that starts at zero in each call, so it forgets its state."""

    def build(self, site: Site) -> nn.Module:
        return ForgetsModule(self, site)

    def mix(self, x: Tensor, ctx: Context, module: Any) -> Tensor:
        rows = PackedRows.from_context(ctx)
        x = rows.pack(x)
        x = x if rows.real is None else x * rows.real
        documents = torch.zeros(x.shape[:2]) if ctx.documents is None else ctx.documents
        same = (documents[:, :, None] == documents[:, None]) & torch.ones(x.shape[1], x.shape[1]).tril().bool()
        mixed = same.to(x.dtype) @ x / 8
        store = ctx.store(module.address)
        if store is not None:
            store.replace("sum", mixed[:, -1:].float())
        return rows.unpack(mixed)


class ForgetsModule(Mixer):
    def state_spec(self) -> PerRow:
        return PerRow({"sum": (1, self.width)}, dtypes={"sum": torch.float32})


class Batched(Faulty, sees="itself"):
    def mix(self, x: Tensor, ctx: Context, module: Any) -> Tensor:
        return x - x.mean(0, keepdim=True)


class Idles(Faulty, sees="itself"):
    def build(self, site: Site) -> nn.Module:
        module = Mixer(self, site)
        module.unused_scale = nn.Parameter(torch.empty(3, 3))
        return module

    def mix(self, x: Tensor, ctx: Context, module: Any) -> Tensor:
        return x


class Overflows(Faulty, sees="itself"):
    def mix(self, x: Tensor, ctx: Context, module: Any) -> Tensor:
        return x * 1e6 / 1e6


class Unsaved(Faulty, sees="itself"):
    def mix(self, x: Tensor, ctx: Context, module: Any) -> Tensor:
        return x * module.number


class Miscounted(Faulty, sees="itself"):
    """Has one more parameter in the first layer; counting builds one layer for all that are described alike."""

    def build(self, site: Site) -> nn.Module:
        module = Mixer(self, site)
        if ".0." in site.address:
            module.uncounted = nn.Parameter(torch.zeros(3, 3))
        return module

    def mix(self, x: Tensor, ctx: Context, module: Any) -> Tensor:
        return x
