"""Embeddings of raw audio samples: strided convolutions, or segments of the waveform.

B batch, N samples, T frames, C channels of the stem, D width.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.kernels.convolution import convolve_over_time
from anyformer.parts.activation import ACTIVATIONS, Activation
from anyformer.parts.base import AbsolutePosition, Embedding, PartModule
from anyformer.parts.embedding.drop_token import drop_tokens
from anyformer.parts.embedding.spec_augment import SpecAugment
from anyformer.parts.embedding.spectrogram import TimeConvolution
from anyformer.parts.norm import LayerNorm, Norm
from anyformer.parts.position.absolute import add_position
from anyformer.runtime.context import Context, leading_pads
from anyformer.runtime.inputs import Kind, hides_nothing
from anyformer.runtime.state import State
from anyformer.specs.field_types import Chance, Count
from anyformer.specs.part import Part, Site


class ConvolutionStem(Part, sees="all", called=("wav2vec",)):
    """Strided convolutions over the samples, without padding [Baevski et al. 2020]. `norm` is `group` (after the first
    layer, each channel over the whole row) or `layer` (after every layer, each frame over its channels)."""

    widths: tuple[Count, ...]
    kernels: tuple[Count, ...]
    strides: tuple[Count, ...]
    norm: Literal["group", "layer"] = "group"
    activation: Activation = "gelu"
    bias: bool = False

    def check(self) -> None:
        if not len(self.widths) == len(self.kernels) == len(self.strides) > 0:
            sizes = f"{len(self.widths)} widths, {len(self.kernels)} kernels, {len(self.strides)} strides"
            raise ValueError(f"ConvolutionStem has {sizes}; give the same number of each, at least one")

    @property
    def hop(self) -> int:
        """Samples between the starts of two successive frames."""
        return math.prod(self.strides)

    @property
    def reach(self) -> int:
        """Samples that one frame sees."""
        reach = 1
        for kernel, stride in zip(self.kernels[::-1], self.strides[::-1], strict=True):
            reach = (reach - 1) * stride + kernel
        return reach

    def frames(self, num_samples: int) -> int:
        return (num_samples - self.reach) // self.hop + 1


class ConvolutionStemModule(PartModule, of=ConvolutionStem):
    def __init__(self, part: ConvolutionStem, site: Site) -> None:
        super().__init__()
        self.part = part
        self.convolutions, self.norms = nn.ModuleList(), nn.ModuleList()
        for i, (width, kernel, stride) in enumerate(zip(part.widths, part.kernels, part.strides, strict=True)):
            before = part.widths[i - 1] if i else 1
            convolution = TimeConvolution(before, width, kernel, stride, bias=part.bias)
            convolution.silent = i == 0 and part.norm == "group"  # then the norm computes the convolution
            self.convolutions.append(convolution)
            if part.norm == "layer" or i == 0:
                self.norms.append((nn.LayerNorm if part.norm == "layer" else OverTime)(width))
        self.activation = ACTIVATIONS[part.activation]

    def forward(self, samples: Tensor) -> Tensor:
        """(B, N) -> (B, T, C)"""
        x = samples[..., None]
        for i, convolution in enumerate(self.convolutions):
            if i == 0 and self.part.norm == "group":
                x = self.norms[0](samples, convolution)
            else:
                x = convolution(x)
                x = self.norms[i](x) if i < len(self.norms) else x
            x = self.activation(x)
        return x


class OverTime(nn.LayerNorm):
    """A convolution of one input channel, then a norm of each output channel over the whole row, padding included.
    Weight and bias are inherited from LayerNorm."""

    def forward(self, samples: Tensor, convolution: nn.Conv1d) -> Tensor:  # type: ignore[override]
        weight, bias, stride = convolution.weight, convolution.bias, convolution.stride[0]
        return convolve_over_time(samples, weight, bias, stride, self.weight, self.bias, self.eps)


class WaveformEmbedding(Embedding, sees="all"):
    """Frames from the stem, normalised, projected to the model's width and augmented. Padding frames are zero."""

    inputs: ClassVar[tuple[str, ...]] = ("input_values", "attention_mask", "mask_time_indices")
    input_kinds: ClassVar[Mapping[str, Kind]] = {"mask_time_indices": "mask"}
    causal_alternative: ClassVar[str] = "Vectors()"
    gives: ClassVar[tuple[str, ...]] = ("a waveform",)

    stem: ConvolutionStem
    norm: Norm = LayerNorm()
    projection_dropout: Chance = 0.0
    augment: SpecAugment = SpecAugment()
    position: Part | None = None
    out_norm: Norm | None = None  # of the frames after positions are added
    dropout: Chance = 0.0

    @property
    def features(self) -> int:
        """Output channels of the stem, which a head may use."""
        return self.stem.widths[-1]

    def vectors(self, length: int) -> int:
        return self.stem.frames(length)


class WaveformEmbeddingModule(PartModule, of=WaveformEmbedding):
    def __init__(self, part: WaveformEmbedding, site: Site) -> None:
        super().__init__()
        self.part = part
        self.stem = part.stem.build(site.child("stem"))
        self.norm = part.norm.build(site.child("norm", width=part.stem.widths[-1]))
        self.project = nn.Linear(part.stem.widths[-1], site.width)
        self.augment = part.augment.build(site.child("augment"))
        self.position = part.position.build(site.child("position")) if part.position else None
        self.out_norm = part.out_norm.build(site.child("out_norm")) if part.out_norm else None

    def forward(self, inputs: dict[str, Any], state: State | None = None) -> tuple[Tensor, Context]:
        samples = inputs.get("input_values")
        stem, reach = self.part.stem, self.part.stem.reach
        if samples is None or samples.dim() != 2 or samples.shape[1] < reach:
            shape = None if samples is None else tuple(samples.shape)
            raise ValueError(f"input_values must be (batch, samples) with at least {reach} samples, got {shape}")
        ctx = frames_context(stem, samples, inputs.get("attention_mask"))
        features = self.norm(self.stem(samples))
        ctx.shared["extract_features"] = features
        x = self.drop(self.project(features), self.part.projection_dropout)
        x = self.augment(x, ctx.is_token, inputs.get("mask_time_indices"))
        if ctx.is_token is not None:
            x = x.masked_fill(~ctx.is_token[..., None], 0)
        if self.position is not None:
            x = add_position(self.position, x, ctx)
        if self.out_norm is not None:
            x = self.out_norm(x)
        return self.drop(x, self.part.dropout), ctx

    def drop(self, x: Tensor, p: float) -> Tensor:
        return F.dropout(x, p) if self.training and p else x


class SegmentEmbedding(Embedding, sees="all", called=("waveform patches", "VATT")):
    """One vector per segment of `size` samples, by a linear projection [Akbari et al. 2021]. An incomplete segment at
    the end is ignored. A segment with any padding sample counts as padding."""

    inputs: ClassVar[tuple[str, ...]] = ("input_values", "attention_mask")
    causal_alternative: ClassVar[str] = "Vectors()"

    size: Count
    position: AbsolutePosition | None = None
    norm: Norm | None = None  # of the segments after positions are added
    token_drop: Chance = 0.0  # share of segments that is dropped in training (DropToken)

    @property
    def hop(self) -> int:
        return self.size

    @property
    def reach(self) -> int:
        return self.size

    def frames(self, num_samples: int) -> int:
        return num_samples // self.size

    def row(self, length: int, width: int) -> dict[str, tuple[int, ...]]:
        """The audio fills all positions, if their number is limited."""
        most = self.max_length
        return {"input_values": (max(length, self.size) if most is None else most * self.size,)}

    def vectors(self, length: int) -> int:
        ((samples,),) = self.row(length, 0).values()
        return self.frames(samples)


class SegmentEmbeddingModule(PartModule, of=SegmentEmbedding):
    def __init__(self, part: SegmentEmbedding, site: Site) -> None:
        super().__init__()
        self.part = part
        self.project = nn.Linear(part.size, site.width)
        self.position = part.position.build(site.child("position")) if part.position else None
        self.norm = part.norm.build(site.child("norm")) if part.norm else None

    def forward(self, inputs: dict[str, Any], state: State | None = None) -> tuple[Tensor, Context]:
        samples, part = inputs.get("input_values"), self.part
        if samples is None or samples.dim() != 2 or samples.shape[1] < part.size:
            shape = None if samples is None else tuple(samples.shape)
            raise ValueError(f"input_values must be (batch, samples) with at least {part.size} samples, got {shape}")
        ctx = frames_context(part, samples, inputs.get("attention_mask"))
        segments = samples[:, : part.frames(samples.shape[1]) * part.size].unflatten(1, (-1, part.size))
        if ctx.is_token is not None:
            segments = segments.masked_fill(~ctx.is_token[..., None], 0)
        x = self.project(segments)
        if self.position is not None:
            x = add_position(self.position, x, ctx)
        if self.norm is not None:
            x = self.norm(x)
        return drop_tokens(x, ctx, part.token_drop) if self.training and part.token_drop else (x, ctx)


def frames_context(stem: ConvolutionStem | SegmentEmbedding, samples: Tensor, mask: Tensor | None) -> Context:
    """Return the context of the frames. A frame is real if all samples in its receptive field are real."""
    index = torch.arange(stem.frames(samples.shape[1]), device=samples.device)
    if mask is not None and mask.shape != samples.shape:
        shape = tuple(samples.shape)
        raise ValueError(f"attention_mask must have one value per sample, {shape}, got {tuple(mask.shape)}")
    if mask is None or hides_nothing(mask):
        return Context(index=index, positions=index[None])
    count = F.pad(mask.bool().cumsum(-1), (1, 0))  # number of real samples before each sample
    first = index * stem.hop
    real = count[:, first + stem.reach] - count[:, first] == stem.reach
    return Context(index=index, positions=(index[None] - leading_pads(real)).clamp(min=0), is_token=real)
