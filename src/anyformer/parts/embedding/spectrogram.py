"""From a spectrogram to frames.
Samples are read in waveform.py.

B batch, T frames, C channels, D width.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.kernels.convolution import convolve
from anyformer.parts.activation import ACTIVATIONS, Activation
from anyformer.parts.base import AbsolutePosition, Embedding
from anyformer.parts.embedding.spec_augment import SpecAugment
from anyformer.parts.position.absolute import add_position
from anyformer.runtime.context import Context
from anyformer.runtime.inputs import check_shape
from anyformer.runtime.state import State
from anyformer.specs.checks import at_least, chance
from anyformer.specs.part import Site


class TimeConvolution(nn.Conv1d):
    """(B, T, C) -> (B, frames, O)"""

    silent = False

    def forward(self, x: Tensor) -> Tensor:
        return convolve(x, self.weight, self.bias, self.stride[0])


class SpectrogramEmbedding(Embedding, sees="all", called=("log-mel spectrogram",)):
    """Frames of a spectrogram (batch, channels, frames) through convolutions of the model's width, whose strides make
    them fewer [Radford et al. 2022]. Silence is heard like any sound: `attention_mask` (batch, frames) says where there
    is something for augmentation to hide, and no more."""

    inputs: ClassVar[tuple[str, ...]] = ("input_features", "attention_mask")
    hides: ClassVar[bool] = False

    channels: int = 80
    kernel: int = 3
    strides: tuple[int, ...] = (1, 2)
    activation: Activation = "gelu"
    augment: SpecAugment | None = None
    position: AbsolutePosition | None = None
    whole: bool = False  # a recording has as many frames as there are positions for, no fewer (Whisper's 30 seconds)
    dropout: float = 0.0

    def check(self) -> None:
        at_least(self, 1, "channels", "kernel")
        chance(self, "dropout")
        if not self.strides or min(self.strides) < 1:
            raise ValueError("SpectrogramEmbedding.strides: one or more, each at least 1")
        if self.kernel % 2 == 0:
            raise ValueError(f"SpectrogramEmbedding.kernel is {self.kernel}; it is centred on a frame, so odd")
        if self.whole and self.max_length is None:
            raise ValueError("SpectrogramEmbedding.whole: as many frames as positions, of which there is no number")

    @property
    def hop(self) -> int:
        """Frames of the spectrogram from one vector to the next."""
        return math.prod(self.strides)

    @property
    def frames(self) -> int | None:
        """How many a recording has, where that is given."""
        return self.max_length * self.hop if self.whole and self.max_length is not None else None

    def row(self, length: int, width: int) -> dict[str, tuple[int, ...]]:
        return {"input_features": (self.channels, self.frames or length)}

    def vectors(self, length: int) -> int:
        ((_, frames),) = self.row(length, 0).values()
        for stride in self.strides:
            frames = -(-frames // stride)
        return frames

    @property
    def causal_alternative(self) -> str:
        return "Vectors()"

    def build(self, site: Site) -> nn.Module:
        return SpectrogramEmbeddingModule(self, site)


class SpectrogramEmbeddingModule(nn.Module):
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
            raise ValueError(f"input_features is (batch, {part.channels} channels, frames), got {shape}")
        B, _, N = features.shape
        if part.frames not in (None, N):
            wanted = f"input_features have {part.frames} frames here"
            raise ValueError(f"{wanted}, got {N}: fill the recording up with silence")
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
