"""Inside models that read images: attention over patches, filters of patches, likeness of positions, and windows.

N places of a grid, H heads, C channels.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.look.maps import attention
from anyformer.look.roles import short
from anyformer.look.trace import Trace
from anyformer.models import Model, TransformerModule
from anyformer.models.construct import skeleton
from anyformer.parts.computed import shapes_alone
from anyformer.parts.embedding.patches import PatchEmbedding, PatchEmbeddingModule
from anyformer.parts.grid.layout import Grid
from anyformer.parts.grid.windows import WindowsModule
from anyformer.runtime.context import Context

FILTERS = 28  # components that the paper shows


def filters(model: TransformerModule, number: int = FILTERS) -> Tensor:
    """(number, height, width, C): the principal components of the filters that read patches, the first first
    [Dosovitskiy et al. 2021, figure 7]. Of each and its opposite, the one whose largest value is positive."""
    patch = model.embedding.patch if isinstance(model.embedding, PatchEmbeddingModule) else None
    if not isinstance(patch, nn.Conv2d):
        raise ValueError("this model does not read an image in patches, so it has no filters of patches")
    weight = patch.weight.detach().float().cpu()  # (D, C, height, width)
    flat = weight.flatten(1)
    found = torch.linalg.svd(flat - flat.mean(0), full_matrices=False).Vh[: min(number, len(flat) - 1)]
    largest = found.gather(1, found.abs().argmax(1, keepdim=True))
    return (found * largest.sign()).unflatten(1, weight.shape[1:]).permute(0, 2, 3, 1)


def position_likeness(model: TransformerModule) -> Tensor | None:
    """(rows, columns, rows, columns): the cosine of the positions of every two patches; None where none are added."""
    position = model.embedding.position if isinstance(model.embedding, PatchEmbeddingModule) else None
    if position is None:
        return None
    grid = model.spec.embedding.grid
    vectors = F.normalize(position(torch.arange(grid[0] * grid[1], device=model.device)).detach().float().cpu(), dim=-1)
    return (vectors @ vectors.T).view(*grid, *grid)


def attention_map(run: Trace) -> tuple[str, Tensor]:
    """The last sublayer with attention, and the share of its attention that each patch gets (rows, columns): the mean
    over heads, of the class token if there is one, otherwise of all patches."""
    grid, prefix, maps = patch_attention(run)
    address, weights = [*maps.items()][-1]
    queries = weights[0, :, :1] if prefix else weights[0]
    return address, queries[..., prefix:].mean((0, 1)).view(*grid)


def attention_distance(run: Trace) -> dict[str, Tensor]:
    """(H,) by sublayer: patches between a query and what a head looks at, the mean of all that patches give to patches
    [Dosovitskiy et al. 2021, figure 7]."""
    grid, prefix, maps = patch_attention(run)
    places = torch.cartesian_prod(*(torch.arange(side).float() for side in grid))
    apart, found = torch.cdist(places, places), {}
    for address, every in maps.items():
        weights = every[:, :, prefix:, prefix:]
        found[address] = (weights * apart).sum((0, 2, 3)) / weights.sum((0, 2, 3)).clamp(min=1e-9)
    return found


def patch_attention(run: Trace) -> tuple[Grid, int, dict[str, Tensor]]:
    """The grid of patches, the number of tokens before them, and the weights (B, H, T, T) of every sublayer."""
    embedding: Any = run.model.embedding
    with torch.no_grad():
        _, ctx = embedding(run.inputs)
    grid = ctx.extra(Grid)
    if grid is None:
        raise ValueError("this model reads no image, and its attention is not between patches of one")
    tokens, found = ctx.index.shape[-1], {}
    for each in attention(run).maps:
        if each.weights.shape[-2:] != (tokens, tokens):
            raise ValueError(
                f"{short(each.address)} does not look from every patch at every other: it has windows, or fewer places"
            )
        found[short(each.address)] = each.weights.float().cpu()
    return grid, tokens - grid.rows * grid.columns, found


def sheet(tiles: Tensor, columns: int, between: float = math.nan) -> Tensor:
    """(n, height, width, ...) -> one picture of them in rows, a pixel apart."""
    number, height, width = tiles.shape[:3]
    rows = -(-number // columns)
    found = tiles.new_full((rows * (height + 1) - 1, columns * (width + 1) - 1, *tiles.shape[3:]), between)
    for i, tile in enumerate(tiles):
        top, left = i // columns * (height + 1), i % columns * (width + 1)
        found[top : top + height, left : left + width] = tile
    return found


# -- windows ----------------------------------------------------------------------------------------------------------


Point = tuple[float, float]  # pixels from the top and from the left


class Span(NamedTuple):
    """Pixels of one place."""

    height: int
    width: int


@dataclasses.dataclass(frozen=True)
class Windowed:
    """How layers group the places of their grid: those with one window are mixed together, and of them those of one
    part see each other. A window with several parts was joined by the shift from what lies at the edges."""

    addresses: tuple[str, ...]  # layers that do this alike
    size: int
    shift: int
    window: Tensor  # (rows, columns)
    part: Tensor  # (rows, columns)
    span: Span

    @property
    def joined(self) -> Tensor:
        """(rows, columns) whether the window of a place has several parts."""
        pairs = torch.stack((self.window, self.part)).flatten(1).unique(dim=1)
        return torch.bincount(pairs[0], minlength=int(self.window.max()) + 1)[self.window] > 1

    @property
    def about(self) -> str:
        """The layers, by stack: "encoder.stages.2, layers 0, 2, 4"."""
        stacks: dict[str, list[str]] = {}
        for address in self.addresses:
            stack, _, rest = address.rpartition(".layers.")
            stacks.setdefault(stack, []).append(rest.split(".")[0])
        return "; ".join(
            f"{stack}, {'layers' if len(numbers) > 1 else 'layer'} {', '.join(numbers)}"
            for stack, numbers in stacks.items()
        )

    def pieces(self) -> list[tuple[int, int, Point]]:
        """Window, part and middle of every part of the windows that were joined."""
        found = []
        for window, part in torch.stack((self.window, self.part))[:, self.joined].unique(dim=1).T.tolist():
            row, column = ((self.window == window) & (self.part == part)).nonzero().float().mean(0).tolist()
            found.append((window, part, ((row + 0.5) * self.span.height, (column + 0.5) * self.span.width)))
        return found

    def seams(self) -> list[tuple[Point, Point]]:
        """The lines between places that do not see each other, each as long as it goes on."""
        key = torch.stack((self.window, self.part), -1)
        below, right = ((key[1:] != key[:-1]).any(-1), (key[:, 1:] != key[:, :-1]).any(-1).T)
        high, wide = self.span
        found: list[tuple[Point, Point]] = []
        found += [((i * high, start * wide), (i * high, end * wide)) for i, start, end in stretches(below)]
        found += [((start * high, i * wide), (end * high, i * wide)) for i, start, end in stretches(right)]
        return found


def stretches(flags: Tensor) -> Iterator[tuple[int, int, int]]:
    """(number of the row, from 1; start; end) of everything that is True side by side."""
    for i, line in enumerate(flags.int(), 1):
        ends = torch.diff(line, prepend=line.new_zeros(1), append=line.new_zeros(1)).nonzero().view(-1, 2)
        yield from ((i, start, end) for start, end in ends.tolist())


def windows(spec: Model, image_size: tuple[int, int] | None = None) -> list[Windowed]:
    """The windows of every layer that has some, in order; layers that have the same are one. A description is enough:
    of images of `image_size`, default: its own.

    >>> import anyformer as af
    >>> plain, shifted, *_ = af.look.windows(af.spec("swin-tiny"))
    >>> shifted.about, shifted.size, shifted.shift
    ('encoder.stages.0, layer 1', 7, 3)
    """
    if spec.towers:
        raise ValueError("this model has two towers: give the description of one, as model.image.spec is")
    model = skeleton(spec).eval()
    read: Any = model.spec.embedding
    modules = {module: short(address) for address, module in model.named_modules() if isinstance(module, WindowsModule)}
    if not modules:
        raise ValueError("this model has no windows: its layers see all of their grid, or no grid (Swin's have some)")
    size: tuple[int, ...] = image_size or read.image_size
    grids: dict[WindowsModule, Grid] = {}

    def listen(module: Any, args: Any) -> None:
        grids.setdefault(module, args[1].extra(Grid))

    for module in modules:
        module.register_forward_pre_hook(listen)
    with shapes_alone(model), torch.no_grad():
        model(pixel_values=torch.empty(1, read.channels, *size))
    found: list[Windowed] = []
    span, before = (Span(*read.patch_size), None) if isinstance(read, PatchEmbedding) else (Span(1, 1), size)
    for module, grid in grids.items():
        if before is not None:  # an odd side is filled up before it is halved
            span = Span(*(pixels * -(-old // new) for pixels, old, new in zip(span, before, grid, strict=True)))
        before = grid
        each = Windowed((modules[module],), *module.window_and_shift(grid), *groups(module, grid), span)
        same = next((i for i, other in enumerate(found) if same_windows(other, each)), None)
        if same is None:
            found.append(each)
        else:
            found[same] = dataclasses.replace(each, addresses=(*found[same].addresses, *each.addresses))
    return found


def same_windows(one: Windowed, other: Windowed) -> bool:
    return one.span == other.span and torch.equal(one.window, other.window) and torch.equal(one.part, other.part)


def groups(module: WindowsModule, grid: Grid) -> tuple[Tensor, Tensor]:
    """(rows, columns) each: the window that a place comes into, and the part of it that the place sees; by handing the
    module the numbers of places."""
    index = torch.arange(grid.rows * grid.columns)
    cut, inner = module.cut(index[None, :, None] + 1, Context(index=index, positions=index[None], extras=(grid,)))
    places = cut[..., 0]  # (windows, T); 0 is what fills a grid up
    parts = torch.zeros_like(places) if inner.documents is None else inner.documents
    found = torch.empty(2, len(index) + 1, dtype=torch.long)
    found[:, places.flatten()] = torch.stack((torch.arange(len(places))[:, None].expand_as(places), parts)).flatten(1)
    window, part = found[:, 1:].view(2, *grid)
    return window, part
