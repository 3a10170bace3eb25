"""Subsampling of spectrograms by 2-D convolutions over time and frequency.

B batch, M spectrogram channels, T frames, C channels of the convolutions.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.parts.base import Embedding, PartModule
from anyformer.parts.embedding.spec_augment import SpecAugment
from anyformer.parts.init import Kaiming
from anyformer.runtime.context import Context
from anyformer.runtime.inputs import check_shape
from anyformer.runtime.state import State
from anyformer.specs.field_types import Chance, Count, Odd
from anyformer.specs.part import Site


class SubsampledSpectrogram(Embedding, sees="all", called=("convolution subsampling", "Fast Conformer")):
    """`depth` 2-D convolutions over a spectrogram (batch, frames, channels), each dividing the number of frames and
    channels by `stride` [Gulati et al. 2020]. If `separable`, all but the first are a depthwise and a pointwise
    convolution [Rekesh et al. 2023]. Padding is set to zero before and after every convolution, and hidden from
    attention."""

    inputs: ClassVar[tuple[str, ...]] = ("input_features", "attention_mask")
    causal_alternative: ClassVar[str] = "Vectors()"

    channels: Count = 80  # M
    depth: Count = 3
    width: Count = 256  # C
    kernel: Odd = 3
    stride: Count = 2
    separable: bool = True
    scale: float | None = None  # factor of the output vectors
    augment: SpecAugment | None = None  # applied to the spectrogram
    dropout: Chance = 0.0

    def check(self) -> None:
        if self.output_length(self.channels) < 1:
            raise ValueError(f"SubsampledSpectrogram: no channels remain of {self.channels}; use a smaller depth")

    @property
    def hop(self) -> int:
        """Spectrogram frames per output vector."""
        return self.stride**self.depth

    def fewer(self, number: Any) -> Any:
        """Return the output length of one convolution, along frames or channels."""
        return (number - 1) // self.stride + 1

    def output_length(self, number: int) -> int:
        """Return the output length of all convolutions, along frames or channels."""
        for _ in range(self.depth):
            number = self.fewer(number)
        return number

    @property
    def places(self) -> tuple[str, ...]:
        """Names of the modules that have weights."""
        kinds = ("depthwise", "pointwise") if self.separable else ("whole",)
        return ("first", *(f"{kind}.{i}" for i in range(self.depth - 1) for kind in kinds), "project")

    def row(self, length: int, width: int) -> dict[str, tuple[int, ...]]:
        return {"input_features": (length, self.channels)}

    def vectors(self, length: int) -> int:
        return self.output_length(length)


class SubsampledSpectrogramModule(PartModule, of=SubsampledSpectrogram):
    def __init__(self, part: SubsampledSpectrogram, site: Site) -> None:
        super().__init__()
        C, middle = part.width, part.kernel // 2
        self.part = part
        self.first = nn.Conv2d(1, C, part.kernel, part.stride, middle)
        again = range(part.depth - 1)

        def convolutions(groups: int) -> nn.ModuleList:
            return nn.ModuleList(nn.Conv2d(C, C, part.kernel, part.stride, middle, groups=groups) for _ in again)

        if part.separable:
            self.depthwise, self.pointwise = convolutions(C), nn.ModuleList(nn.Conv2d(C, C, 1) for _ in again)
        else:
            self.whole = convolutions(1)
        self.project = nn.Linear(C * part.output_length(part.channels), site.width)
        self.augment = part.augment.build(site.child("augment", width=part.channels)) if part.augment else None
        self.starts = {f"{place}.weight": Kaiming() for place in part.places}  # keeps the scale of activations

    def forward(self, inputs: dict[str, Any], state: State | None = None) -> tuple[Tensor, Context]:
        x, mask, part = inputs.get("input_features"), inputs.get("attention_mask"), self.part
        if x is None or x.dim() != 3 or x.shape[2] != part.channels or x.shape[1] == 0:
            shape = None if x is None else tuple(x.shape)
            raise ValueError(f"input_features must be (batch, frames, {part.channels} channels), got {shape}")
        check_shape("attention_mask", mask, tuple(x.shape[:2]))
        real = None if mask is None else mask.bool()
        if self.augment is not None:
            x = self.augment(x, real, None)
        x = x if real is None else x.masked_fill(~real[..., None], 0)
        length = None if real is None else real.sum(-1)  # padding is on the right
        x = self.first(x[:, None])  # (B, C, frames, channels)
        for i in range(part.depth):
            length = part.fewer(length) if length is not None else None
            if i and part.separable:
                x = self.pointwise[i - 1](self.zero_padding(self.depthwise[i - 1](x.relu()), length))
            elif i:
                x = self.whole[i - 1](x.relu())
            x = self.zero_padding(x, length)
        x = self.project(x.relu().transpose(1, 2).flatten(2))
        x = x if part.scale is None else x * part.scale
        index = torch.arange(x.shape[1], device=x.device)
        is_token = None if length is None else index < length[:, None]
        x = F.dropout(x, part.dropout) if self.training and part.dropout else x
        return x, Context(index=index, positions=index[None], is_token=is_token)

    def zero_padding(self, x: Tensor, length: Tensor | None) -> Tensor:
        """Set x (B, C, T, M) to zero from frame `length` (B,) on."""
        if length is None:
            return x
        return x * (torch.arange(x.shape[2], device=x.device) < length[:, None])[:, None, :, None]
