"""How long the stream is: a symbol where texts have any length, a number where the input has one size."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from anyformer.drawing.words import number
from anyformer.parts.embedding.text import Embedding
from anyformer.parts.grid.dvae import ImageDecoder
from anyformer.parts.grid.layout import Grid, Layout
from anyformer.specs.part import Part
from anyformer.stacks.funnel import Funnel
from anyformer.stacks.perceiver import Perceiver
from anyformer.stacks.stack import Stack
from anyformer.stacks.stages import Stages

MANY = 322_560  # tokens, samples or frames: many, with many divisors


@dataclasses.dataclass(frozen=True)
class Flow:
    """What an embedding reads (a title, or several phrases), and how long what it makes of it is."""

    title: str
    phrases: tuple[str, ...]
    note: str
    length: str
    grid: Layout | None = None
    before: int = 0  # tokens that stand before the grid

    def shape(self, width: int) -> str:
        return f"{self.length} × {number(width)}"

    def through(self, part: Part, width: int) -> Iterator[tuple[str, int]]:
        """(shape, width) before each stack of a chain and after the last."""
        flow: Flow = self
        if isinstance(part, Perceiver):
            wide = part.width or width
            yield f"{number(part.latents)} × {number(wide)}", wide
            return
        if not isinstance(part, Stages) or part.first:
            yield flow.shape(width), width
        if isinstance(part, Stages):
            for down in part.down:
                flow, width = flow.stepped(down), down.out_width(width)
                yield flow.shape(width), width
        elif isinstance(part, Funnel):
            for i in range(1, len(part.stages)):
                yield f"{self.length}/{2**i} × {number(width)}", width

    def after(self, part: Part) -> Flow:
        flow: Flow = self
        if isinstance(part, Stages):
            for down in part.down:
                flow = flow.stepped(down)
        elif isinstance(part, Stack):
            flow = flow.stepped(part)
        elif isinstance(part, Funnel) and part.top is None and len(part.stages) > 1:
            flow = dataclasses.replace(flow, length=f"{self.length}/{2 ** (len(part.stages) - 1)}")
        elif isinstance(part, Perceiver) and not part.by_token:
            count = part.latents if part.write is None or part.write.count is None else part.write.count
            flow = dataclasses.replace(flow, length=number(count), grid=None)
        elif isinstance(part, ImageDecoder) and isinstance(self.grid, Grid):
            grid = part.finer(self.grid)
            flow = dataclasses.replace(flow, length=number(math.prod(grid)), grid=grid)
        return flow

    def stepped(self, down: Part) -> Flow:
        """After one step down from stage to stage."""
        coarser = getattr(down, "coarser", None)
        if self.grid is None or coarser is None:
            return self
        grid = coarser(self.grid)
        return self if grid == self.grid else self.on(grid)

    def on(self, grid: Layout) -> Flow:
        return dataclasses.replace(self, length=number(self.before + math.prod(grid)), grid=grid)


def entering(part: Embedding, width: int, symbol: str, prefix: str = "") -> Flow:
    """What an embedding reads and gives."""
    shapes = part.row(MANY, width)
    sides = {name: [symbol if side == MANY else number(side) for side in shape] for name, shape in shapes.items()}
    texts = {f"{prefix}{name}": " × ".join(each) for name, each in sides.items()}
    title, note = next(iter(texts.items()))
    told: tuple[str, ...] = ()
    if len(texts) > 1:
        title, note, told = "inputs", "", tuple(f"{name} {shape}" for name, shape in texts.items())
    given, many = part.vectors(MANY), any(MANY in shape for shape in shapes.values())
    length = in_terms(given, symbol) if many else number(given)
    return Flow(title, told, note, length, getattr(part, "grid", None), getattr(part, "prefix", 0))


def in_terms(given: int, symbol: str) -> str:
    """So many vectors of MANY, as a multiple or a share of any number."""
    if given % MANY == 0:
        return symbol if given == MANY else f"{given // MANY} {symbol}"
    return f"{symbol}/{round(MANY / given)}"
