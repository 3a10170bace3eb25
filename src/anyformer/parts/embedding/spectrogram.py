"""Embedding of spectrograms. For raw samples, see waveform.py.

B batch, T frames, C input channels, O output channels.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.kernels.convolution import convolve
from anyformer.parts.activation import ACTIVATIONS, Activation
from anyformer.parts.base import AbsolutePosition, Embedding, PartModule
from anyformer.parts.embedding.spec_augment import SpecAugment
from anyformer.parts.position.absolute import add_position
from anyformer.runtime.context import Context
from anyformer.runtime.inputs import check_shape
from anyformer.runtime.state import State
from anyformer.specs.field_types import Chance, Count, Odd
from anyformer.specs.part import Site


class TimeConvolution(nn.Conv1d):
    """A 1-D convolution without padding over (B, T, C), with channels last; returns (B, frames, O)."""

    silent = False

    def forward(self, x: Tensor) -> Tensor:
        return convolve(x, self.weight, self.bias, self.stride[0])


class SpectrogramEmbedding(Embedding, sees="all", called=("log-mel spectrogram",)):
    """Strided convolutions over the frames of a spectrogram (batch, channels, frames) [Radford et al. 2022]. The model
    attends to padding (silence) too: `attention_mask` (batch, frames) only marks the frames that `augment` may hide."""

    inputs: ClassVar[tuple[str, ...]] = ("input_features", "attention_mask")
    hides: ClassVar[bool] = False
    causal_alternative: ClassVar[str] = "Vectors()"

    channels: Count = 80
    kernel: Odd = 3
    strides: tuple[Count, ...] = (1, 2)
    activation: Activation = "gelu"
    augment: SpecAugment | None = None
    position: AbsolutePosition | None = None
    whole: bool = False  # inputs must fill all positions (Whisper: always 30 seconds)
    dropout: Chance = 0.0

    def check(self) -> None:
        if not self.strides:
            raise ValueError("SpectrogramEmbedding.strides is empty; give one stride per convolution")
        if self.whole and self.max_length is None:
            raise ValueError("SpectrogramEmbedding.whole needs a position with a fixed length")

    @property
    def hop(self) -> int:
        """Spectrogram frames per output vector."""
        return math.prod(self.strides)

    @property
    def frames(self) -> int | None:
        """Number of frames of every input if `whole` is set; None: any number."""
        return self.max_length * self.hop if self.whole and self.max_length is not None else None

    def row(self, length: int, width: int) -> dict[str, tuple[int, ...]]:
        return {"input_features": (self.channels, self.frames or length)}

    def vectors(self, length: int) -> int:
        ((_, frames),) = self.row(length, 0).values()
        for stride in self.strides:
            frames = -(-frames // stride)
        return frames


class SpectrogramEmbeddingModule(PartModule, of=SpectrogramEmbedding):
    def __init__(self, part: SpectrogramEmbedding, site: Site) -> None:
        super().__init__()
        self.part = part
        widths = (part.channels, *[site.width] * len(part.strides))
        self.convolutions = nn.ModuleList(
            TimeConvolution(before, site.width, part.kernel, stride)
            for before, stride in zip(widths, part.strides, strict=False)
        )
        self.activation = ACTIVATIONS[part.activation]
        self.augment = part.augment.build(site.child("augment", width=part.channels)) if part.augment else None
        self.position = part.position.build(site.child("position")) if part.position else None

    def forward(self, inputs: dict[str, Any], state: State | None = None) -> tuple[Tensor, Context]:
        features, mask, part = inputs.get("input_features"), inputs.get("attention_mask"), self.part
        if features is None or features.dim() != 3 or features.shape[1] != part.channels or features.shape[2] == 0:
            shape = None if features is None else tuple(features.shape)
            raise ValueError(f"input_features must be (batch, {part.channels} channels, frames), got {shape}")
        B, _, N = features.shape
        if part.frames not in (None, N):
            raise ValueError(f"input_features must have {part.frames} frames, got {N}: pad the audio with silence")
        check_shape("attention_mask", mask, (B, N))
        x = features.transpose(1, 2)
        if self.augment is not None:
            x = self.augment(x, None if mask is None else mask.bool(), None)
        for convolution in self.convolutions:
            x = self.activation(convolution(F.pad(x, (0, 0, part.kernel // 2, part.kernel // 2))))
        index = torch.arange(x.shape[1], device=x.device)
        ctx = Context(index=index, positions=index[None])
        if self.position is not None:
            x = add_position(self.position, x, ctx)
        return (F.dropout(x, part.dropout) if self.training and part.dropout else x), ctx
