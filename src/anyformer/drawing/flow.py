"""Compute the length of the stream: a symbol if the input can have any length, a number if its size is fixed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from anyformer.drawing.part_labels import number
from anyformer.parts.base import Embedding
from anyformer.parts.embedding.convolution import GridEmbedding
from anyformer.parts.embedding.patches import PatchEmbedding
from anyformer.parts.grid.dvae import ImageDecoder
from anyformer.runtime.grid import Grid, Layout
from anyformer.specs.part import Part
from anyformer.stacks.funnel import Funnel
from anyformer.stacks.perceiver import Perceiver
from anyformer.stacks.stack import Stack
from anyformer.stacks.stages import Stages

MANY = 322_560  # example length in tokens, samples or frames; has many divisors, so fractions of it are exact


@dataclasses.dataclass(frozen=True)
class Flow:
    """The inputs of an embedding (one title, or several phrases), and the length of its output."""

    title: str
    phrases: tuple[str, ...]
    note: str
    length: str
    grid: Layout | None = None
    before: int = 0  # number of tokens before the grid

    def shape(self, width: int) -> str:
        return f"{self.length} × {number(width)}"

    def through(self, part: Part, width: int) -> Iterator[tuple[str, int]]:
        """Yield (shape, width) before each stack of a chain and after the last."""
        flow: Flow = self
        if isinstance(part, Perceiver):
            latent_width = part.width or width
            yield f"{number(part.latents)} × {number(latent_width)}", latent_width
            return
        if not isinstance(part, Stages) or part.first:
            yield flow.shape(width), width
        if isinstance(part, Stages):
            for down in part.down:
                flow, width = flow.step_down(down), down.out_width(width)
                yield flow.shape(width), width
        elif isinstance(part, Funnel):
            for i in range(1, len(part.stages)):
                yield f"{self.length}/{2**i} × {number(width)}", width

    def after_part(self, part: Part) -> Flow:
        flow: Flow = self
        if isinstance(part, Stages):
            for down in part.down:
                flow = flow.step_down(down)
        elif isinstance(part, Stack):
            flow = flow.step_down(part)
        elif isinstance(part, Funnel) and part.top is None and len(part.stages) > 1:
            flow = dataclasses.replace(flow, length=f"{self.length}/{2 ** (len(part.stages) - 1)}")
        elif isinstance(part, Perceiver) and not part.by_token:
            count = part.latents if part.write is None or part.write.count is None else part.write.count
            flow = dataclasses.replace(flow, length=number(count), grid=None)
        elif isinstance(part, ImageDecoder) and isinstance(self.grid, Grid):
            grid = part.finer(self.grid)
            flow = dataclasses.replace(flow, length=number(math.prod(grid)), grid=grid)
        return flow

    def step_down(self, down: Any) -> Flow:
        """Return the flow after a Down or a Stack."""
        if self.grid is None:
            return self
        grid = down.coarser(self.grid)
        return self if grid == self.grid else self.with_grid(grid)

    def with_grid(self, grid: Layout) -> Flow:
        return dataclasses.replace(self, length=number(self.before + math.prod(grid)), grid=grid)


def embedding_flow(part: Embedding, width: int, symbol: str, prefix: str = "") -> Flow:
    """Return the inputs and the output length of an embedding."""
    shapes = part.row(MANY, width)
    sides = {name: [symbol if side == MANY else number(side) for side in shape] for name, shape in shapes.items()}
    texts = {f"{prefix}{name}": " × ".join(each) for name, each in sides.items()}
    title, note = next(iter(texts.items()))
    phrases: tuple[str, ...] = ()
    if len(texts) > 1:
        title, note, phrases = "inputs", "", tuple(f"{name} {shape}" for name, shape in texts.items())
    vectors, any_length = part.vectors(MANY), any(MANY in shape for shape in shapes.values())
    length = in_terms(vectors, symbol) if any_length else number(vectors)
    grid = part.grid if isinstance(part, (PatchEmbedding, GridEmbedding)) else None
    return Flow(title, phrases, note, length, grid, part.num_prefix)


def in_terms(count: int, symbol: str) -> str:
    """Write a count as a multiple or a fraction of the symbol, which represents MANY."""
    if count % MANY == 0:
        return symbol if count == MANY else f"{count // MANY} {symbol}"
    return f"{symbol}/{round(MANY / count)}"
