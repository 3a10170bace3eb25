"""How long the stream is: a symbol where texts have any length, a number where the input has one size."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch

from anyformer.block import Stages
from anyformer.counting.work import NUMBERS
from anyformer.drawing.words import number
from anyformer.funnel import Funnel
from anyformer.kernels.recording import recorded
from anyformer.part import Part, Site
from anyformer.parts.embed import Embedding
from anyformer.parts.window import Grid

MANY = 322_560  # tokens, samples or frames: many, with many divisors


@dataclasses.dataclass(frozen=True)
class Flow:
    """What an embedding reads (a title, or several phrases), and how long what it makes of it is."""

    title: str
    phrases: tuple[str, ...]
    note: str
    length: str
    grid: Grid | None = None

    def shape(self, width: int) -> str:
        return f"{self.length} × {number(width)}"

    def through(self, part: Part, width: int) -> Iterator[tuple[str, int]]:
        """(shape, width) before each stack of a chain and after the last."""
        flow: Flow = self
        yield flow.shape(width), width
        if isinstance(part, Stages):
            for down in part.down:
                flow, width = flow.stepped(down, width), width * getattr(down, "widen", 1)
                yield flow.shape(width), width
        elif isinstance(part, Funnel):
            for i in range(1, len(part.stages)):
                yield f"{self.length}/{2**i} × {number(width)}", width

    def after(self, part: Part) -> Flow:
        flow: Flow = self
        if isinstance(part, Stages):
            for down in part.down:
                flow = flow.stepped(down, 1)
        elif isinstance(part, Funnel) and part.top is None and len(part.stages) > 1:
            flow = dataclasses.replace(flow, length=f"{self.length}/{2 ** (len(part.stages) - 1)}")
        return flow

    def stepped(self, down: Part, width: int) -> Flow:
        """After one step down from stage to stage, which maps (x, grid) to both."""
        if self.grid is None:
            return self
        with torch.device("meta"), torch.no_grad():
            module: Any = down.build(Site(width=width))
            x, grid = module(torch.empty(1, self.grid.rows * self.grid.columns, width), self.grid)
        return dataclasses.replace(self, length=number(x.shape[1]), grid=grid)


def entering(part: Embedding, width: int, symbol: str, prefix: str = "") -> Flow:
    """What an embedding reads and gives. One that reads tokens gives as many; others are asked, on the meta device."""
    shapes = part.row(MANY, width)
    texts = {name: " × ".join(symbol if side == MANY else number(side) for side in shape) for name, shape in shapes.items()}
    title, note = next((f"{prefix}{name}", shape) for name, shape in texts.items())
    told: tuple[str, ...] = ()
    if len(texts) > 1:
        title, note, told = "inputs", "", tuple(f"{name} {shape}" for name, shape in texts.items())
    grid = getattr(part, "grid", None)
    length = symbol if "token ids" in part.gives else measured(part, width, symbol)
    return Flow(title, told, note, length, grid)


def measured(part: Embedding, width: int, symbol: str) -> str:
    shapes = part.row(MANY, width)
    try:
        with torch.device("meta"), recorded(), torch.no_grad():
            module: Any = part.build(Site(width=width)).eval()
            kinds = {name: torch.long if name in NUMBERS else torch.float32 for name in shapes}
            inputs = {name: torch.zeros(1, *shape, dtype=kinds[name]) for name, shape in shapes.items()}
            x, _ = module(inputs, None)
    except (ValueError, RuntimeError, IndexError, NotImplementedError):
        return symbol
    given, many = x.shape[1], any(MANY in shape for shape in shapes.values())
    if not many:
        return number(given)
    if given % MANY == 0:
        return symbol if given == MANY else f"{given // MANY} {symbol}"
    step = round(MANY / given)
    return f"{symbol}/{step}" if step > 1 and abs(MANY / given - step) < 0.01 * step else symbol
