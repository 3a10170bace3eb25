"""Diffusion: the noise schedule, the embedding of noisy images, and the head that predicts their noise
[Ho et al. 2020].

B batch, C channels, N patches, D width.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from anyformer.parts.base import Embedding, PartModule
from anyformer.parts.computed import Computed
from anyformer.parts.condition import Condition, StepAndLabel
from anyformer.parts.embedding.patches import PatchEmbedding, Size
from anyformer.parts.grid.windows import Grid
from anyformer.parts.head.base import Head, HeadModule, NamedTensors
from anyformer.runtime.context import Context
from anyformer.runtime.inputs import Kind
from anyformer.runtime.state import State
from anyformer.specs.field_types import Count, Natural
from anyformer.specs.part import Part, Site

MAX_STEPS = 1_000_000  # a hostile file must not exhaust the memory


class NoiseSchedule(Part, sees="itself", called=("betas", "DDPM", "DDIM")):
    """The variance of the noise that each of `steps` steps adds. "linear" grows from `start` to `end`; "scaled_linear"
    is the square of a ramp between their square roots (latent diffusion); with "cosine" the remaining share of the
    image is a squared cosine of the step [Nichol and Dhariwal 2021]."""

    curve: Literal["linear", "scaled_linear", "cosine"] = "linear"
    steps: Count = 1000
    start: float = 1e-4
    end: float = 0.02
    # sampling with fewer steps: evenly spaced, counted from the last step or from the first (plus `offset`)
    spacing: Literal["trailing", "leading"] = "trailing"
    offset: Natural = 0

    def check(self) -> None:
        if self.steps > MAX_STEPS:
            raise ValueError(f"NoiseSchedule.steps is {self.steps}; it must be at most {MAX_STEPS:,}")
        if not 0 < self.start <= self.end < 1:
            raise ValueError(f"NoiseSchedule.start is {self.start}, end is {self.end}; need 0 < start <= end < 1")

    def betas(self) -> Tensor:
        """(steps,) the variance that each step adds, in fp64."""
        if self.curve == "cosine":
            time = torch.arange(self.steps + 1, dtype=torch.float64) / self.steps
            remaining = torch.cos((time + 0.008) / 1.008 * math.pi / 2).square()
            return (1 - remaining[1:] / remaining[:-1]).clamp(max=0.999)
        if self.curve == "scaled_linear":
            return torch.linspace(self.start**0.5, self.end**0.5, self.steps, dtype=torch.float64).square()
        return torch.linspace(self.start, self.end, self.steps, dtype=torch.float64)

    def sampling_steps(self, wanted: int) -> list[int]:
        """Return the numbers of `wanted` steps, the noisiest first."""
        if not 1 <= wanted <= self.steps:
            raise ValueError(f"steps is {wanted}; it must be from 1 to {self.steps}, the noise steps of this model")
        if self.spacing == "trailing":
            return [round(self.steps - i * self.steps / wanted) - 1 for i in range(wanted)]
        return [min(i * (self.steps // wanted) + self.offset, self.steps - 1) for i in reversed(range(wanted))]

    def alphas_cumprod(self) -> Tensor:
        """(steps,) the share of the image's variance that remains after each step, in fp64."""
        return (1 - self.betas()).cumprod(0)


class NoisyEmbedding(Embedding, sees="all", called=("latent patches",)):
    """Patches of a noisy image or of its latents ("hidden_states"). The noise step ("timestep") and a label
    ("class_labels") become the condition that norms and residuals read."""

    inputs: ClassVar[tuple[str, ...]] = ("hidden_states", "timestep", "class_labels")
    input_kinds: ClassVar[Mapping[str, Kind]] = {"hidden_states": "floats", "class_labels": "integers"}

    image: PatchEmbedding
    condition: StepAndLabel

    def check(self) -> None:
        if self.image.num_prefix:
            raise ValueError("NoisyEmbedding.image: every token must be a patch; set prefix=()")
        if "an image" not in self.image.gives:
            raise ValueError("NoisyEmbedding.image must read images; use PatchEmbedding")

    @property
    def causal_alternative(self) -> str:
        return self.image.causal_alternative

    @property
    def gives(self) -> tuple[str, ...]:
        return (*self.image.gives, "a condition")

    @property
    def channels(self) -> int:
        return self.image.channels

    @property
    def image_size(self) -> Size:
        return self.image.image_size

    @property
    def patch_size(self) -> Size:
        return self.image.patch_size

    def row(self, length: int, width: int) -> dict[str, tuple[int, ...]]:
        labels = {} if self.condition.num_labels is None else {"class_labels": ()}
        return {"hidden_states": (self.channels, *self.image_size), "timestep": (), **labels}

    def vectors(self, length: int) -> int:
        return self.image.vectors(length)


class NoisyEmbeddingModule(PartModule, of=NoisyEmbedding):
    def __init__(self, part: NoisyEmbedding, site: Site) -> None:
        super().__init__()
        self.channels = part.channels
        self.image = part.image.build(site.child("image"))
        self.condition = part.condition.build(site.child("condition"))

    def forward(self, inputs: dict[str, Any], state: State | None = None) -> tuple[Tensor, Context]:
        picture = inputs.get("hidden_states")
        if picture is None or picture.dim() != 4 or picture.shape[1] != self.channels:
            shape = None if picture is None else tuple(picture.shape)
            raise ValueError(f"hidden_states must be (batch, {self.channels} channels, height, width), got {shape}")
        x, ctx = self.image({"pixel_values": picture})
        vectors = self.condition(inputs.get("timestep"), inputs.get("class_labels"), x.shape[0])
        return x, ctx.replace(Condition(vectors.unbind()))


class NoiseHead(Head, called=("unpatchify",)):
    """Predicts the noise in an image, one patch per token. Extra channels, if any, are the variance of the noise, which
    some published models predict too. `schedule` is the noise schedule of training."""

    requires: ClassVar[tuple[str, ...]] = ("an image", "a grid")

    out_channels: Count
    patch_size: Size
    schedule: NoiseSchedule = NoiseSchedule()


class NoiseModule(HeadModule, of=NoiseHead):
    def __init__(self, part: NoiseHead, site: Site) -> None:
        super().__init__()
        self.part = part
        self.out = nn.Linear(site.width, math.prod(part.patch_size) * part.out_channels)
        self.alphas_cumprod = Computed(part.schedule.alphas_cumprod)

    def add_noise(self, picture: Tensor, noise: Tensor, step: Tensor) -> Tensor:
        """Return images (B, C, height, width) with as much of `noise` as at the steps (B,)."""
        remaining = self.alphas_cumprod()[step].view(-1, 1, 1, 1)
        return (remaining.sqrt() * picture + (1 - remaining).sqrt() * noise).to(picture.dtype)

    def answer(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> NamedTensors:
        grid = ctx.extra(Grid)
        assert grid is not None
        patches = self.out(x).unflatten(2, (*self.part.patch_size, -1)).unflatten(1, grid)
        # (B, rows, columns, height, width, C) -> (B, C, rows height, columns width)
        return {"sample": patches.permute(0, 5, 1, 3, 2, 4).flatten(4, 5).flatten(2, 3)}
