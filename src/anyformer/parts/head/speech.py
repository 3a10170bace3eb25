"""Parts after a speech encoder: an adapter that shortens the sequence, frames as output, a class per frame.

B batch, T frames, C labels.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.parts.base import PartModule
from anyformer.parts.embedding.spectrogram import TimeConvolution
from anyformer.parts.head.base import Head, HeadModule, NamedTensors
from anyformer.parts.head.losses import Loss, class_loss
from anyformer.parts.layer_mix import Neck
from anyformer.parts.norm import Norm
from anyformer.runtime.context import Context
from anyformer.runtime.inputs import check_shape
from anyformer.specs.field_types import Count, Natural
from anyformer.specs.part import Part, Site


class ConvolutionAdapter(Part, sees="all"):
    """Strided gated convolutions that shorten the sequence, after a projection if the width changes."""

    requires: ClassVar[tuple[str, ...]] = ("a waveform",)  # padded on the right
    causal_alternative: ClassVar[str] = "None"

    width: Count
    depth: Natural = 3
    kernel: Count = 3
    stride: Count = 2
    layer_drop: float = 0.0  # chance to skip a layer in training


class ConvolutionAdapterModule(PartModule, of=ConvolutionAdapter):
    def __init__(self, part: ConvolutionAdapter, site: Site) -> None:
        super().__init__()
        self.part = part
        changes = part.width != site.width
        self.project = nn.Linear(site.width, part.width) if changes else None
        self.norm = nn.LayerNorm(part.width) if changes else None
        self.convolutions = nn.ModuleList(
            TimeConvolution(part.width, 2 * part.width, part.kernel, part.stride) for _ in range(part.depth)
        )

    def forward(self, x: Tensor, ctx: Context) -> tuple[Tensor, Context]:
        length = torch.full(x.shape[:1], x.shape[1], device=x.device) if ctx.tokens is None else ctx.tokens.sum(-1)
        for _ in self.convolutions:  # as published, dropped layers count too
            length = torch.div(length - 1, self.part.stride, rounding_mode="floor") + 1
        if self.project is not None and self.norm is not None:
            x = self.norm(self.project(x))
        for convolution in self.convolutions:
            if self.training and self.part.layer_drop and torch.rand(()) <= self.part.layer_drop:
                continue
            x = F.glu(convolution(F.pad(x, (0, 0, 1, 1))), dim=-1)
        index = torch.arange(x.shape[1], device=x.device)
        return x, ctx.replace(index=index, is_token=index < length[:, None])


class SpeechNeck(Neck, sees="itself"):
    """The norm and adapter after the last layer. They do not apply to the model's `hidden_states`."""

    norm: Norm | None = None
    adapter: ConvolutionAdapter | None = None

    def out_width(self, width: int) -> int:
        return width if self.adapter is None else self.adapter.width


class SpeechNeckModule(PartModule, of=SpeechNeck):
    def __init__(self, part: SpeechNeck, site: Site) -> None:
        super().__init__()
        self.norm = part.norm.build(site.child("norm")) if part.norm else None
        self.adapter = part.adapter.build(site.child("adapter")) if part.adapter else None

    def forward(self, states: list[Tensor], ctx: Context) -> tuple[Tensor, Context]:
        x = states[-1] if self.norm is None else self.norm(states[-1])
        return (x, ctx) if self.adapter is None else self.adapter(x, ctx)


class SpeechOutput(Head):
    """The hidden states and the stem's features (Wav2Vec2Model)."""

    requires: ClassVar[tuple[str, ...]] = ("a waveform",)


class SpeechOutputModule(HeadModule, of=SpeechOutput):
    def answer(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> NamedTensors:
        return {"last_hidden_state": x, "extract_features": ctx.shared["extract_features"]}


class FrameHead(Head):
    """Scores of C labels for each frame. Labels are scores (B, T, C) too; the highest one is the target."""

    inputs: ClassVar[tuple[str, ...]] = ("labels",)

    num_labels: int


class FrameModule(HeadModule, of=FrameHead):
    def __init__(self, part: FrameHead, site: Site) -> None:
        super().__init__()
        self.out = nn.Linear(site.width, part.num_labels)

    def answer(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> NamedTensors:
        return {"logits": self.out(x)}

    def label_loss(self, logits: Tensor, labels: Tensor, ctx: Context) -> Loss:
        check_shape("labels", labels, tuple(logits.shape))
        return class_loss(logits, labels.argmax(-1))
