"""Sound: from a spectrogram to frames, what is hidden from a model that learns, and what follows a speech encoder.
Samples are read in waveform.py.

B batch, T frames, C channels, D width.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.context import Context
from anyformer.kernels.convolution import convolve
from anyformer.part import Part, Site
from anyformer.parts.activation import ACTIVATIONS, Activation
from anyformer.parts.embed import Embedding
from anyformer.parts.given import check_shape
from anyformer.parts.head import Head, HeadModule, Said
from anyformer.parts.labels import Loss, class_loss
from anyformer.parts.neck import Neck
from anyformer.parts.norm import Norm
from anyformer.parts.position import AbsolutePosition, add_position
from anyformer.ranges import at_least, chance
from anyformer.state import State


class SpecAugment(Part, sees="itself", called=("time masking",)):
    """Spans of frames are replaced by a learned vector and spans of channels by zero while training [Park et al. 2019].
    About `time` of all frames are hidden, in spans of `time_span`, `time_least` spans a row or more; channels too."""

    time: float = 0.05
    time_span: int = 10
    time_least: int = 2
    channels: float = 0.0
    channel_span: int = 10
    channel_least: int = 0
    learned: bool = True  # the vector in the place of hidden frames; otherwise they are zero (Whisper)
    active: bool = True  # otherwise nothing is hidden, and the vector is there for nothing

    def check(self) -> None:
        at_least(self, 0, "time", "time_least", "channels", "channel_least")
        at_least(self, 1, "time_span", "channel_span")

    def build(self, site: Site) -> nn.Module:
        return SpecAugmentModule(self, site.width)


class SpecAugmentModule(nn.Module):
    def __init__(self, part: SpecAugment, width: int) -> None:
        super().__init__()
        self.part = part
        # without a chance to hide anything, published checkpoints have no such vector
        learned = part.learned and (part.time > 0 or part.channels > 0)
        self.mask_embedding = nn.Parameter(torch.empty(width), requires_grad=part.active) if learned else None

    def forward(self, x: Tensor, real: Tensor | None, given: Tensor | None) -> Tensor:
        """x (B, T, D); `real` (B, T) has the pads, `given` (B, T) the frames to hide, in training or not."""
        part = self.part
        if not part.active:
            return x
        if given is None and self.training and part.time:
            real = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if real is None else real
            given = spans(real, part.time, part.time_span, part.time_least)
        if given is not None and not part.learned:
            x = x.masked_fill(given.bool()[..., None], 0)
        elif given is not None:
            if self.mask_embedding is None:
                raise ValueError("mask_time_indices need a vector, which this model has not: mask_time_prob is 0")
            x = torch.where(given.bool()[..., None], self.mask_embedding.to(x.dtype), x)
        if self.training and part.channels:
            every = torch.ones(x.shape[0], x.shape[2], dtype=torch.bool, device=x.device)
            x = x.masked_fill(spans(every, part.channels, part.channel_span, part.channel_least)[:, None], 0)
        return x


def spans(real: Tensor, share: float, span: int, least: int) -> Tensor:
    """(B, L) -> (B, L) True in random spans: share * length / span of them in a row (rounded up or down by one draw for
    the batch), `least` or more, as many as fit, at different places that are equally likely."""
    B, L = real.shape
    if span > L:
        raise ValueError(f"spans of {span} do not fit {L} places: give longer inputs or a shorter mask length")
    starts = real.unfold(1, span, 1).all(-1)  # (B, L - span + 1) where a span has only real places
    length = real.sum(-1)
    wanted = (share * length / span + torch.rand((), device=real.device)).floor().clamp(min=least, max=L // span)
    noise = torch.rand(starts.shape, device=real.device).masked_fill(~starts, 2.0)
    rank = noise.argsort(-1).argsort(-1)
    chosen = (rank < wanted[:, None]) & starts
    return F.max_pool1d(F.pad(chosen.float(), (span - 1, span - 1)), span, 1).bool()


class TimeConvolution(nn.Conv1d):
    """(B, T, C) -> (B, frames, O)"""

    silent = False

    def forward(self, x: Tensor) -> Tensor:
        return convolve(x, self.weight, self.bias, self.stride[0])


class SpectrogramEmbedding(Embedding, sees="all"):
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
        if self.whole and not hasattr(self.position, "length"):
            raise ValueError("SpectrogramEmbedding.whole: as many frames as positions, of which there is no number")

    @property
    def hop(self) -> int:
        """Frames of the spectrogram from one vector to the next."""
        return math.prod(self.strides)

    @property
    def frames(self) -> int | None:
        """How many a recording has, where that is given."""
        return getattr(self.position, "length", 0) * self.hop if self.whole else None

    def row(self, length: int, width: int) -> dict[str, tuple[int, ...]]:
        return {"input_features": (self.channels, self.frames or length)}

    def vectors(self, length: int) -> int:
        (_, frames), = self.row(length, 0).values()
        for stride in self.strides:
            frames = -(-frames // stride)
        return frames

    @property
    def instead(self) -> str:
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


# -- after the encoder ------------------------------------------------------------------------------------------------


class ConvolutionAdapter(Part, sees="all"):
    """Strided gated convolutions that make frames fewer, after a projection where the width changes."""

    needs: ClassVar[tuple[str, ...]] = ("a waveform",)  # which is padded at its end

    width: int
    depth: int = 3
    kernel: int = 3
    stride: int = 2
    layer_drop: float = 0.0  # chance to skip a layer in training

    def check(self) -> None:
        at_least(self, 1, "width", "kernel", "stride")
        at_least(self, 0, "depth")

    @property
    def instead(self) -> str:
        return "None"

    def build(self, site: Site) -> nn.Module:
        return ConvolutionAdapterModule(self, site.width)


class ConvolutionAdapterModule(nn.Module):
    def __init__(self, part: ConvolutionAdapter, width: int) -> None:
        super().__init__()
        self.part = part
        changes = part.width != width
        self.project = nn.Linear(width, part.width) if changes else None
        self.norm = nn.LayerNorm(part.width) if changes else None
        self.convolutions = nn.ModuleList(
            TimeConvolution(part.width, 2 * part.width, part.kernel, part.stride) for _ in range(part.depth)
        )

    def forward(self, x: Tensor, ctx: Context) -> tuple[Tensor, Context]:
        length = torch.full(x.shape[:1], x.shape[1], device=x.device) if ctx.tokens is None else ctx.tokens.sum(-1)
        for _ in self.convolutions:  # the published count, which layers left out do not change
            length = torch.div(length - 1, self.part.stride, rounding_mode="floor") + 1
        if self.project is not None and self.norm is not None:
            x = self.norm(self.project(x))
        for convolution in self.convolutions:
            if self.training and self.part.layer_drop and torch.rand(()) <= self.part.layer_drop:
                continue
            x = F.glu(convolution(F.pad(x, (0, 0, 1, 1))), dim=-1)
        index = torch.arange(x.shape[1], device=x.device)
        return x, ctx.having(index=index, padding=index < length[:, None])


class SpeechNeck(Neck, sees="itself"):
    """The norm after the last layer, and what makes the frames fewer. The hidden states shown are those before it."""

    norm: Norm | None = None
    adapter: ConvolutionAdapter | None = None

    def out_width(self, width: int) -> int:
        return width if self.adapter is None else self.adapter.width

    def build(self, site: Site) -> nn.Module:
        return SpeechNeckModule(self, site)


class SpeechNeckModule(nn.Module):
    def __init__(self, part: SpeechNeck, site: Site) -> None:
        super().__init__()
        self.norm = part.norm.build(site.child("norm")) if part.norm else None
        self.adapter = part.adapter.build(site.child("adapter")) if part.adapter else None

    def forward(self, states: list[Tensor], ctx: Context) -> tuple[Tensor, Context]:
        x = states[-1] if self.norm is None else self.norm(states[-1])
        return (x, ctx) if self.adapter is None else self.adapter(x, ctx)


class SpeechOutput(Head):
    """The hidden states, and the features of the stem they came from (Wav2Vec2Model)."""

    needs: ClassVar[tuple[str, ...]] = ("a waveform",)

    def build(self, site: Site) -> nn.Module:
        return SpeechOutputModule()


class SpeechOutputModule(HeadModule):
    def answer(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> Said:
        return {"last_hidden_state": x, "extract_features": ctx.shared["extract_features"]}


class FrameHead(Head):
    """Scores of C labels for each frame; the labels are scores too (B, T, C), of which the highest counts."""

    inputs: ClassVar[tuple[str, ...]] = ("labels",)

    num_labels: int

    def build(self, site: Site) -> nn.Module:
        return FrameModule(self, site.width)


class FrameModule(HeadModule):
    def __init__(self, part: FrameHead, width: int) -> None:
        super().__init__()
        self.out = nn.Linear(width, part.num_labels)

    def answer(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> Said:
        return {"logits": self.out(x)}

    def label_loss(self, logits: Tensor, labels: Tensor, ctx: Context) -> Loss:
        check_shape("labels", labels, tuple(logits.shape))
        return class_loss(logits, labels.argmax(-1))
