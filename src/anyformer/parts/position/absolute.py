"""Position schemes of the embedding, which are added to the input. Schemes of the attention rotate queries and keys
(rotary.py) or add a bias to the scores (bias.py, whose classes can be imported from here).

B batch, T tokens, S visible keys, H heads, K head width, D width.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.kernels.capture import can_read_values
from anyformer.kernels.value_checks import check_values, reads_later
from anyformer.parts.activation import ACTIVATIONS, Activation
from anyformer.parts.base import AbsolutePosition, InputPosition, PartModule
from anyformer.parts.computed import Computed, ComputesTensors
from anyformer.parts.init import Normal
from anyformer.parts.position import dependency_tree
from anyformer.parts.position.bias import (
    Alibi,
    AttentionPosition,
    AttentionPositionModule,
    BucketedBias,
    DistanceBias,
    RelativeVectors,
)
from anyformer.parts.position.dependency_tree import Tree
from anyformer.runtime.context import Context, InputExtra
from anyformer.specs.field_types import Chance, Count, Natural, NonNegative, Positive
from anyformer.specs.part import Site

__all__ = [
    "AbsolutePosition", "AttentionPosition", "AttentionPositionModule", "Computed", "add_position",
    "Learned", "AxialLearned", "Sinusoidal", "Sinusoidal2D", "Integer", "Binary", "Convolutional", "TreeDepth",
    "Summed", "Concatenated",
    "Alibi", "BucketedBias", "DistanceBias", "RelativeVectors",
]  # fmt: skip


def add_position(position: nn.Module, x: Tensor, ctx: Context) -> Tensor:
    """Return x (B, T, D) with its positions added."""
    if isinstance(position, InputPosition):
        return position.add(x, ctx)
    return x + position(ctx.positions).to(x.dtype)


class Learned(AbsolutePosition, sees="itself", called=("learned positions", "WPE", "learned position embeddings")):
    """A learned vector per position. Position 0 is row `offset` of the table (BART: 2)."""

    # for PatchEmbedding: whether the table is always interpolated to the grid of the image, or only if the caller asks
    always_resized: ClassVar[bool] = False

    @property
    def antialias(self) -> bool:
        """Whether the table is smoothed before it is interpolated to a smaller grid."""
        return False

    length: Count
    offset: Natural = 0
    padding: bool = False  # the row before position 0 is for padding: zero and not trained (RoBERTa)
    dropout: Chance = 0.0  # on the vectors

    def check(self) -> None:
        if self.padding and not self.offset:
            raise ValueError("Learned.offset is 0; with padding it must be at least 1")

    @property
    def has_padding_row(self) -> bool:
        return self.offset > 0


class LearnedModule(PartModule, nn.Embedding, of=Learned):
    def __init__(self, part: Learned, site: Site) -> None:
        super().__init__(part.length + part.offset, site.width, padding_idx=part.offset - 1 if part.padding else None)
        self.length, self.offset, self.dropout = part.length, part.offset, part.dropout

    def forward(self, positions: Tensor | None = None) -> Tensor:
        """Return the vectors of `positions`; None: of all rows, including those before position 0."""
        if positions is None and self.padding_idx is None:
            x = self.weight
        else:
            if positions is None:
                positions = torch.arange(-self.offset, self.length, device=self.weight.device)
            if not positions.is_cpu:
                positions = check_positions(positions, self.length)  # a GPU would abort instead of raising
            try:
                x = super().forward(positions + self.offset if self.offset else positions)
            except IndexError:
                check_positions(positions, self.length)
                first = int(positions.min())
                raise ValueError(f"position {first} is not a learned position; position_ids start at 0") from None
        return F.dropout(x, self.dropout) if self.dropout and self.training else x


def check_positions(positions: Tensor, length: int) -> Tensor:
    """Check that all positions are below `length` and return them, clamped if the check is evaluated later."""

    def judge(last: int) -> Exception | None:
        message = f"position {last} is beyond the model's {length} learned positions; shorten the input"
        return ValueError(message) if last >= length else None

    if not can_read_values() or positions.is_meta:
        return positions
    check_values(positions.max(), judge)
    return positions.clamp(max=length - 1) if reads_later(positions) else positions


class AxialLearned(AbsolutePosition, sees="itself", called=("axial positions",)):
    """Learned positions on a grid of `shape`, whose last side varies fastest. A position's vector concatenates
    one vector per side, with these `widths`, so that few vectors cover many positions [Kitaev et al. 2020]."""

    shape: tuple[int, ...]
    widths: tuple[int, ...]
    length: int | None = None  # number of positions in use; default: all
    std: NonNegative = 1.0  # standard deviation of the initial vectors
    dropout: Chance = 0.0  # of whole slices: all positions with the same second coordinate

    def check(self) -> None:
        if not self.shape or len(self.shape) != len(self.widths) or min(*self.shape, *self.widths) < 1:
            raise ValueError(f"AxialLearned.widths is {self.widths}; give one width per side of shape {self.shape}")
        if self.length is not None and not 1 <= self.length <= math.prod(self.shape):
            most = math.prod(self.shape)
            raise ValueError(f"AxialLearned.length is {self.length}; shape {self.shape} has {most} positions")


class AxialLearnedModule(PartModule, of=AxialLearned):
    def __init__(self, part: AxialLearned, site: Site) -> None:
        super().__init__()
        if sum(part.widths) != site.width:
            raise ValueError(f"{site.address}: the sum of widths {part.widths} is {sum(part.widths)}, not {site.width}")
        self.part, self.length = part, part.length or math.prod(part.shape)
        for i, size in enumerate(zip(part.shape, part.widths, strict=True)):
            self.register_parameter(f"side{i}", nn.Parameter(torch.empty(size)))
        self.starts = {name: Normal(std=part.std) for name, _ in self.named_parameters()}

    def forward(self, positions: Tensor) -> Tensor:
        positions = check_positions(positions, self.length)
        coordinates: list[Tensor] = []
        for side in reversed(self.part.shape):
            coordinates.insert(0, positions % side)
            positions = positions // side
        x = torch.cat([side[coordinate] for side, coordinate in zip(self.parameters(), coordinates, strict=True)], -1)
        if self.training and self.part.dropout:
            slices = x.new_ones(*x.shape[:1], self.part.shape[min(1, len(coordinates) - 1)])
            x = x * F.dropout(slices, self.part.dropout).gather(1, coordinates[min(1, len(coordinates) - 1)])[..., None]
        return x


class Sinusoidal(AbsolutePosition, sees="itself", called=("sine", "sinusoids", "sinusoidal positional encoding")):
    """Fixed sines and cosines [Vaswani et al. 2017]: sines in the first half of the width, or alternating if
    `interleaved`. They are computed once for `length` positions, and again for longer texts."""

    length: Count
    interleaved: bool = False
    base: Positive = 10000.0
    inclusive: bool = False  # the lowest frequency is exactly 1 / base (tensor2tensor, fairseq, Whisper)
    offset: int = 0  # position 0 is row `offset`; the row before it, for padding, is zero (fairseq)
    stored: bool = False  # saved as a weight, but not trained

    @property
    def has_padding_row(self) -> bool:
        return self.offset > 0


class SinusoidalModule(ComputesTensors, of=Sinusoidal):
    def __init__(self, part: Sinusoidal, site: Site) -> None:
        super().__init__()
        self.part, self.width = part, site.width
        if part.stored:
            self.weight = nn.Parameter(torch.empty(part.length + part.offset, site.width), requires_grad=False)
        else:
            self.table = Computed(lambda: self.rows(part.length))

    def rows(self, length: int) -> Tensor:
        """Return the table (length + offset, D)."""
        part = self.part
        table = sinusoids(length + part.offset, self.width, part.base, part.interleaved, part.inclusive)
        if part.offset:
            table[part.offset - 1] = 0
        return table

    def computed_tensors(self) -> dict[str, Callable[[], Tensor]]:
        return {"weight": lambda: self.rows(self.part.length)} if self.part.stored else {}

    def forward(self, positions: Tensor) -> Tensor:
        table = self.weight if self.part.stored else self.table()
        if can_read_values() and (last := int(positions.max())) >= self.part.length:
            table = self.rows(last + 1).to(table)
        return table[positions + self.part.offset if self.part.offset else positions]


def sinusoids(
    length: int, width: int, base: float, interleaved: bool, inclusive: bool = False, apart: float = 1.0
) -> Tensor:
    """(length, width) sines and cosines of positions that are `apart` from each other. Computed in fp64, because fp32
    is off by 1e-5 after a few hundred positions."""
    steps = torch.arange(0, width - width % 2 if inclusive else width, 2, dtype=torch.float64)
    frequency = base ** (-steps / (max(width // 2 - 1, 1) * 2 if inclusive else width))
    angle = apart * torch.arange(length, dtype=torch.float64)[:, None] * frequency
    pair = torch.stack((angle.sin(), angle.cos()), dim=-1 if interleaved else 1).flatten(1)[:, :width].float()
    return F.pad(pair, (0, width - pair.shape[1]))  # an odd width ends in a zero


class Sinusoidal2D(AbsolutePosition, sees="itself"):
    """Sinusoids of the cells of a grid, in reading order: the first half of the width encodes the column, the second
    the row (MAE, DiT; the other way round with `rows_first`), each with sines before cosines. `prefix` tokens before
    the grid (a class token) have no position."""

    rows: Count
    columns: Count
    rows_first: bool = False
    prefix: Natural = 0
    base: Positive = 10000.0

    @property
    def length(self) -> int:
        return self.prefix + self.rows * self.columns


class Sinusoidal2DModule(PartModule, of=Sinusoidal2D):
    def __init__(self, part: Sinusoidal2D, site: Site) -> None:
        super().__init__()
        if site.width % 4:
            raise ValueError(f"{site.address}: Sinusoidal2D needs a width that is a multiple of 4, got {site.width}")
        self.part, self.width, self.length = part, site.width, part.length
        self.table = Computed(lambda: F.pad(self.grid(part.rows, part.columns), (0, 0, part.prefix, 0)))

    def grid(self, rows: int, columns: int) -> Tensor:
        """(rows * columns, D) for a grid of this size that covers the same area as the described grid."""
        part, half = self.part, self.width // 2
        row = sinusoids(rows, half, part.base, interleaved=False, apart=part.rows / rows)
        column = sinusoids(columns, half, part.base, interleaved=False, apart=part.columns / columns)
        row, column = row.repeat_interleave(columns, 0), column.repeat(rows, 1)
        return torch.cat((row, column) if part.rows_first else (column, row), dim=-1)

    def table_for(self, grid: tuple[int, int]) -> Tensor:
        """Return the table for a grid of a different size, on the device of the described one."""
        return self.grid(*grid).to(self.table())

    def forward(self, positions: Tensor) -> Tensor:
        positions = check_positions(positions, self.length)
        return self.table()[positions]


class Integer(AbsolutePosition, sees="itself"):
    """The position number times `scale` in the first channel: the lectures' first scheme. It grows without bound; with
    scale = 1 / length it is at most 1, but then the step depends on the length."""

    scale: float = 1.0


class IntegerModule(PartModule, of=Integer):
    def __init__(self, part: Integer, site: Site) -> None:
        super().__init__()
        self.scale, self.width = part.scale, site.width

    def forward(self, positions: Tensor) -> Tensor:
        return F.pad(positions[..., None].float() * self.scale, (0, self.width - 1))


class Binary(AbsolutePosition, sees="itself"):
    """The bits of the position number, lowest first, in the first `bits` channels: the lectures' second scheme.
    Sinusoids are its smooth form."""

    bits: Count = 16


class BinaryModule(PartModule, of=Binary):
    def __init__(self, part: Binary, site: Site) -> None:
        super().__init__()
        if part.bits > min(site.width, 62):
            raise ValueError(f"{site.address}: {part.bits} bits do not fit into width {site.width} (at most 62)")
        self.bits, self.width = part.bits, site.width

    def forward(self, positions: Tensor) -> Tensor:
        check_positions(positions, 2**self.bits)
        bit = torch.arange(self.bits, device=positions.device)
        return F.pad((positions[..., None] >> bit & 1).float(), (0, self.width - self.bits))


class Convolutional(AbsolutePosition, sees="all"):
    """Adds a wide grouped convolution of the input, so that the neighbours of a token indicate its position. The kernel
    is stored as a direction and a length per tap (wav2vec 2.0 [Baevski et al. 2020])."""

    numbered: ClassVar[bool] = False
    causal_alternative: ClassVar[str] = "Sinusoidal(length=...)"

    kernel: Count = 128
    groups: Count = 16
    activation: Activation = "gelu"


class ConvolutionalModule(InputPosition, of=Convolutional):
    def __init__(self, part: Convolutional, site: Site) -> None:
        super().__init__()
        self.part, width = part, site.width
        if width % part.groups:
            raise ValueError(f"{site.address}: width {width} is not a multiple of {part.groups} groups")
        self.weight = nn.Parameter(torch.empty(width, width // part.groups, part.kernel))  # the direction of each tap
        self.scale = nn.Parameter(torch.empty(1, 1, part.kernel))  # the length of each tap
        self.bias = nn.Parameter(torch.empty(width))
        std = 2 / math.sqrt(part.kernel * width)
        self.starts = {"scale": std * width / math.sqrt(part.groups)}  # the length at the published initialisation

    def add(self, x: Tensor, ctx: Context) -> Tensor:
        if ctx.documents is not None or (ctx.state is not None and ctx.key_indices().shape[-1] != ctx.index.shape[-1]):
            raise ValueError("Convolutional positions need one document per row and cannot decode step by step")
        if ctx.tokens is not None:
            x = x * ctx.tokens[..., None]  # pads count as 0
        return x + self(x)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)"""
        part = self.part
        weight = self.weight * (self.scale / self.weight.norm(dim=(0, 1), keepdim=True))
        y = F.conv1d(x.transpose(1, 2), weight, self.bias, padding=part.kernel // 2, groups=part.groups)
        return ACTIVATIONS[part.activation](y[..., : x.shape[1]]).transpose(1, 2)  # an even kernel gives one too many


def check_numbered(part: TreeDepth | Concatenated) -> None:
    if not part.scheme.numbered:
        kind, scheme = type(part).__name__, type(part.scheme).__name__
        raise ValueError(f"{kind}.scheme is {scheme}, which does not encode numbers; use Sinusoidal, for example")


class TreeDepth(AbsolutePosition, sees="all", called=("tree positions",)):
    """Applies a scheme to each token's depth in its dependency tree instead of its position, for example in
    `Summed(parts=(Sinusoidal(...), TreeDepth(...)))` [Wang et al. 2019]. The tree is the input `tree_parents`."""

    extra_inputs: ClassVar[tuple[type[InputExtra], ...]] = (Tree,)
    requires: ClassVar[tuple[str, ...]] = ("a row of tokens",)
    numbered: ClassVar[bool] = False

    scheme: AbsolutePosition

    def check(self) -> None:
        check_numbered(self)

    @property
    def causal_alternative(self) -> str:
        return repr(self.scheme)


class TreeDepthModule(InputPosition, of=TreeDepth):
    def __init__(self, part: TreeDepth, site: Site) -> None:
        super().__init__()
        self.scheme = part.scheme.build(site.child("scheme"))

    def add(self, x: Tensor, ctx: Context) -> Tensor:
        return x + self.scheme(dependency_tree.depths(dependency_tree.parents_of(ctx))).to(x.dtype)


class Summed(AbsolutePosition, sees="itself"):
    """The sum of several schemes."""

    numbered: ClassVar[bool] = False

    parts: tuple[AbsolutePosition, ...]


class SummedModule(InputPosition, of=Summed):
    def __init__(self, part: Summed, site: Site) -> None:
        super().__init__()
        self.parts = nn.ModuleList(p.build(site.child(f"parts.{i}")) for i, p in enumerate(part.parts))

    def add(self, x: Tensor, ctx: Context) -> Tensor:
        for part in self.parts:
            x = add_position(part, x, ctx)
        return x


class Concatenated(AbsolutePosition, sees="itself", called=("concatenated positions", "positions by concatenation")):
    """Concatenates the vector of a scheme of this `width` to the token's vector instead of adding it, and projects both
    to the width of the model: W [x; p] = W1 x + W2 p, so adding p is the case W1 = W2 = 1."""

    numbered: ClassVar[bool] = False

    scheme: AbsolutePosition
    width: Count

    def check(self) -> None:
        check_numbered(self)

    @property
    def max_length(self) -> int | None:
        return self.scheme.max_length


class ConcatenatedModule(InputPosition, of=Concatenated):
    def __init__(self, part: Concatenated, site: Site) -> None:
        super().__init__()
        self.scheme = part.scheme.build(site.child("scheme", width=part.width))
        self.project = nn.Linear(site.width + part.width, site.width, bias=False)

    def add(self, x: Tensor, ctx: Context) -> Tensor:
        position = self.scheme(ctx.positions).to(x.dtype)
        return self.project(torch.cat((x, position.expand(*x.shape[:2], -1)), dim=-1))
