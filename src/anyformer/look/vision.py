"""Inside vision models: attention over patches, filters of the patch embedding, similarity of positions, windows.

H heads, C channels. A cell is one position of the grid (a patch, or several merged patches).
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
from anyformer.parts.computed import run_on_meta
from anyformer.parts.embedding.patches import PatchEmbedding, PatchEmbeddingModule
from anyformer.parts.grid.windows import WindowsModule
from anyformer.runtime.context import Context
from anyformer.runtime.grid import Grid

FILTERS = 28  # number of components in the paper's figure


def filters(model: TransformerModule, number: int = FILTERS) -> Tensor:
    """Return the principal components of the patch embedding's filters, (number, height, width, C), the largest first
    [Dosovitskiy et al. 2021, figure 7]. The sign is chosen so that the largest value is positive."""
    patch = model.embedding.patch if isinstance(model.embedding, PatchEmbeddingModule) else None
    if not isinstance(patch, nn.Conv2d):
        raise ValueError("this model has no patch embedding, so it has no filters of patches")
    weight = patch.weight.detach().float().cpu()  # (D, C, height, width)
    flat = weight.flatten(1)
    components = torch.linalg.svd(flat - flat.mean(0), full_matrices=False).Vh[: min(number, len(flat) - 1)]
    largest = components.gather(1, components.abs().argmax(1, keepdim=True))
    return (components * largest.sign()).unflatten(1, weight.shape[1:]).permute(0, 2, 3, 1)


def position_likeness(model: TransformerModule) -> Tensor | None:
    """Return the cosine of the position vectors of all pairs of patches, (rows, columns, rows, columns), or None."""
    position = model.embedding.position if isinstance(model.embedding, PatchEmbeddingModule) else None
    if position is None:
        return None
    grid = model.spec.embedding.grid
    vectors = F.normalize(position(torch.arange(grid[0] * grid[1], device=model.device)).detach().float().cpu(), dim=-1)
    return (vectors @ vectors.T).view(*grid, *grid)


def attention_map(run: Trace) -> tuple[str, Tensor]:
    """Return the last sublayer with attention, and the share of its attention that each patch gets (rows, columns):
    the mean over heads, of the class token if there is one, otherwise of all patches."""
    grid, prefix, maps = patch_attention(run)
    address, weights = [*maps.items()][-1]
    queries = weights[0, :, :1] if prefix else weights[0]
    return address, queries[..., prefix:].mean((0, 1)).view(*grid)


def attention_distance(run: Trace) -> dict[str, Tensor]:
    """Return the attention distance (H,) by sublayer: the distance in patches between query and key, averaged with the
    attention weights over all pairs of patches [Dosovitskiy et al. 2021, figure 7]."""
    grid, prefix, maps = patch_attention(run)
    places = torch.cartesian_prod(*(torch.arange(side).float() for side in grid))
    apart, found = torch.cdist(places, places), {}
    for address, every in maps.items():
        weights = every[:, :, prefix:, prefix:]
        found[address] = (weights * apart).sum((0, 2, 3)) / weights.sum((0, 2, 3)).clamp(min=1e-9)
    return found


def patch_attention(run: Trace) -> tuple[Grid, int, dict[str, Tensor]]:
    """Return the grid of patches, the number of prefix tokens, and the weights (B, H, T, T) of every sublayer."""
    embedding: Any = run.model.embedding
    with torch.no_grad():
        _, ctx = embedding(run.inputs)
    grid = ctx.extra(Grid)
    if grid is None:
        raise ValueError("this model does not read images, so it has no attention between patches")
    tokens, found = ctx.index.shape[-1], {}
    for each in attention(run).maps:
        if each.weights.shape[-2:] != (tokens, tokens):
            raise ValueError(
                f"{short(each.address)} does not attend from every patch to all others: it has windows or a coarse grid"
            )
        found[short(each.address)] = each.weights.float().cpu()
    return grid, tokens - grid.rows * grid.columns, found


def sheet(tiles: Tensor, columns: int, between: float = math.nan) -> Tensor:
    """Arrange tiles (n, height, width, ...) in rows in one picture, one pixel apart."""
    number, height, width = tiles.shape[:3]
    rows = -(-number // columns)
    picture = tiles.new_full((rows * (height + 1) - 1, columns * (width + 1) - 1, *tiles.shape[3:]), between)
    for i, tile in enumerate(tiles):
        top, left = i // columns * (height + 1), i % columns * (width + 1)
        picture[top : top + height, left : left + width] = tile
    return picture


# -- windows ----------------------------------------------------------------------------------------------------------


Point = tuple[float, float]  # pixels from the top and from the left


class Span(NamedTuple):
    """Size of one cell in pixels."""

    height: int
    width: int


@dataclasses.dataclass(frozen=True)
class Windowed:
    """How layers group the cells of their grid. A cell attends to the cells of the same window and part. A window with
    several parts was joined by the shift from cells at opposite edges."""

    addresses: tuple[str, ...]  # layers with these windows
    size: int
    shift: int
    window: Tensor  # (rows, columns)
    part: Tensor  # (rows, columns)
    span: Span

    @property
    def joined(self) -> Tensor:
        """(rows, columns) True if the window of a cell has several parts."""
        pairs = torch.stack((self.window, self.part)).flatten(1).unique(dim=1)
        return torch.bincount(pairs[0], minlength=int(self.window.max()) + 1)[self.window] > 1

    @property
    def about(self) -> str:
        """The layers by stack, for example "encoder.stages.2, layers 0, 2, 4"."""
        stacks: dict[str, list[str]] = {}
        for address in self.addresses:
            stack, _, rest = address.rpartition(".layers.")
            stacks.setdefault(stack, []).append(rest.split(".")[0])
        return "; ".join(
            f"{stack}, {'layers' if len(numbers) > 1 else 'layer'} {', '.join(numbers)}"
            for stack, numbers in stacks.items()
        )

    def pieces(self) -> list[tuple[int, int, Point]]:
        """Return the window, part and center of every part of the joined windows."""
        centers = []
        for window, part in torch.stack((self.window, self.part))[:, self.joined].unique(dim=1).T.tolist():
            row, column = ((self.window == window) & (self.part == part)).nonzero().float().mean(0).tolist()
            centers.append((window, part, ((row + 0.5) * self.span.height, (column + 0.5) * self.span.width)))
        return centers

    def seams(self) -> list[tuple[Point, Point]]:
        """Return the lines between neighbouring cells that do not attend to each other, joined to long lines."""
        key = torch.stack((self.window, self.part), -1)
        below, right = ((key[1:] != key[:-1]).any(-1), (key[:, 1:] != key[:, :-1]).any(-1).T)
        high, wide = self.span
        lines: list[tuple[Point, Point]] = []
        lines += [((i * high, start * wide), (i * high, end * wide)) for i, start, end in stretches(below)]
        lines += [((start * high, i * wide), (end * high, i * wide)) for i, start, end in stretches(right)]
        return lines


def stretches(flags: Tensor) -> Iterator[tuple[int, int, int]]:
    """Yield (row number from 1, start, end) of every run of True values in a row."""
    for i, line in enumerate(flags.int(), 1):
        ends = torch.diff(line, prepend=line.new_zeros(1), append=line.new_zeros(1)).nonzero().view(-1, 2)
        yield from ((i, start, end) for start, end in ends.tolist())


def windows(spec: Model, image_size: tuple[int, int] | None = None) -> list[Windowed]:
    """Return the windows of every layer that has windows, in order; layers with the same windows share one entry. A
    description is enough. The default of `image_size` is the description's image size.

    >>> import anyformer as af
    >>> plain, shifted, *_ = af.look.windows(af.spec("swin-tiny"))
    >>> shifted.about, shifted.size, shifted.shift
    ('encoder.stages.0, layer 1', 7, 3)
    """
    if spec.towers:
        raise ValueError("this model has two towers: give the description of one of them, such as model.image.spec")
    model = skeleton(spec).eval()
    read: Any = model.spec.embedding
    modules = {module: short(address) for address, module in model.named_modules() if isinstance(module, WindowsModule)}
    if not modules:
        raise ValueError("this model has no windows; windows are in models such as Swin")
    size: tuple[int, ...] = image_size or read.image_size
    grids: dict[WindowsModule, Grid] = {}

    def listen(module: Any, args: Any) -> None:
        grids.setdefault(module, args[1].extra(Grid))

    for module in modules:
        module.register_forward_pre_hook(listen)
    with run_on_meta(model), torch.no_grad():
        model(pixel_values=torch.empty(1, read.channels, *size))
    groupings: list[Windowed] = []
    span, before = (Span(*read.patch_size), None) if isinstance(read, PatchEmbedding) else (Span(1, 1), size)
    for module, grid in grids.items():
        if before is not None:  # an odd side is padded before it is halved
            span = Span(*(pixels * -(-old // new) for pixels, old, new in zip(span, before, grid, strict=True)))
        before = grid
        each = Windowed((modules[module],), *module.window_and_shift(grid), *groups(module, grid), span)
        same = next((i for i, other in enumerate(groupings) if same_windows(other, each)), None)
        if same is None:
            groupings.append(each)
        else:
            groupings[same] = dataclasses.replace(each, addresses=(*groupings[same].addresses, *each.addresses))
    return groupings


def same_windows(one: Windowed, other: Windowed) -> bool:
    return one.span == other.span and torch.equal(one.window, other.window) and torch.equal(one.part, other.part)


def groups(module: WindowsModule, grid: Grid) -> tuple[Tensor, Tensor]:
    """Return the window and the part of each cell, (rows, columns) each, by running the module on cell indices."""
    index = torch.arange(grid.rows * grid.columns)
    cut, inner = module.cut(index[None, :, None] + 1, Context(index=index, positions=index[None], extras=(grid,)))
    cells = cut[..., 0]  # (windows, T); 0 is padding of the grid
    parts = torch.zeros_like(cells) if inner.documents is None else inner.documents
    labels = torch.empty(2, len(index) + 1, dtype=torch.long)
    labels[:, cells.flatten()] = torch.stack((torch.arange(len(cells))[:, None].expand_as(cells), parts)).flatten(1)
    window, part = labels[:, 1:].view(2, *grid)
    return window, part
