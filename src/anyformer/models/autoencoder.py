"""Image autoencoders: image -> small grid of codes -> image. The text-to-image models of this package generate
codes."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from anyformer.models.base import TransformerModule
from anyformer.models.call import Call, HeadInputs
from anyformer.models.model import Model
from anyformer.parts.embedding.convolution import GridEmbedding
from anyformer.parts.grid.dvae import GumbelCodes, ImageDecoder, Latent
from anyformer.parts.grid.windows import Grid
from anyformer.parts.head.base import Head, Outputs
from anyformer.runtime.taps import OutputCollector
from anyformer.specs.part import Site


class AutoencoderModel(Model):
    """Encodes an image as a grid of vectors of `width`, reduces each vector to a code (or to a few numbers), and
    decodes the image again. `model.codes(pixel_values)` only encodes and `model.picture(codes)` only decodes."""

    embedding: GridEmbedding
    latent: Latent = GumbelCodes()
    image_decoder: ImageDecoder
    head: Head | None = None
    input_name: str = "pixel_values"  # name of the input image in the published class
    output_name: str = "reconstruction"  # name of the output image in the published class

    def check(self) -> None:
        super().check()
        read, drawn = self.embedding, self.image_decoder
        if self.head is not None:
            raise ValueError("head: an autoencoder returns the image and takes no head; leave it out")
        if drawn.channels != read.channels:
            raise ValueError(f"image_decoder.channels is {drawn.channels}, but embedding.channels is {read.channels}")
        if drawn.finer(read.grid) != read.image_size:
            (height, width), (rows, columns) = drawn.finer(read.grid), read.image_size
            raise ValueError(
                f"image_decoder.widths has {len(drawn.widths)} stages, which decode images of {height} x {width} pixels"
                f", but embedding.image_size is {rows} x {columns}"
            )

    @property
    def grid(self) -> Grid:
        return self.embedding.grid

    @property
    def numbers(self) -> tuple[int, int, int] | None:
        """(channels, rows, columns) of an image's latent numbers; None if the latent is discrete codes."""
        return None if self.latent.discrete else (self.latent.width, *self.grid)

    def draws(self, shape: tuple[int, ...]) -> bool:
        """Whether `picture` accepts a latent of this shape: (channels, rows, columns), or (rows, columns) of codes."""
        wanted = self.numbers or tuple(self.grid)
        return shape == wanted or (self.embedding.any_size and len(shape) == len(wanted) and shape[:-2] == wanted[:-2])


class AutoencoderModule(TransformerModule, of=AutoencoderModel):
    head: None
    embedding: nn.Module

    def __init__(self, spec: AutoencoderModel, site: Site) -> None:
        super().__init__(spec)
        self.embedding = spec.embedding.build(site.child("embedding"))
        self.latent: Any = spec.latent.build(site.child("latent"))
        self.image_decoder: Any = spec.image_decoder.build(site.child("image_decoder", width=spec.latent.width))
        self.head, self.stateless = None, ()
        self.declare()

    def input_names(self) -> tuple[str, ...]:
        return (*dict.fromkeys((self.spec.input_name, *self.spec.embedding.inputs)), "return_dict")

    def compute(self, call: Call) -> HeadInputs:
        inputs = call.inputs
        if self.spec.input_name in inputs:
            inputs = {**inputs, self.spec.embedding.inputs[0]: inputs[self.spec.input_name]}
        x, ctx = self.embedding(inputs)
        return HeadInputs(x, ctx.replace(taps=call.taps), inputs, {})

    def run(self, call: Call) -> Outputs:
        x, ctx, _, _ = self.hidden_states(call)
        z, price = self.latent(x)
        grid = ctx.extra(Grid)
        assert grid is not None
        image = self.image_decoder(z, grid)
        return {self.spec.output_name: image, "price": price.to(self.dtype), "last_hidden_state": x}

    def collect_outputs(self, seen: OutputCollector) -> dict[str, tuple[Tensor, ...]]:
        return {}

    def codes(self, pixel_values: Tensor) -> Tensor:
        """Encode images: (B, rows, columns) codes, or (B, E, rows, columns) numbers if the latent is continuous."""
        x, ctx, _, _ = self.hidden_states(Call({self.spec.input_name: pixel_values}))
        latent, grid = self.latent.read(x), ctx.extra(Grid)
        assert grid is not None
        return (latent if self.spec.latent.discrete else latent.transpose(1, 2)).unflatten(-1, grid)

    def picture(self, codes: Tensor) -> Tensor:
        """Decode the codes of a whole grid to images (B, C, H, W)."""
        latent = self.spec.latent
        if not self.spec.draws(tuple(codes.shape[1:])):
            wanted = self.spec.numbers or tuple(self.spec.grid)
            raise ValueError(f"codes must be (batch, {', '.join(map(str, wanted))}), got {tuple(codes.shape)}")
        if latent.discrete and not (int(codes.min()) >= 0 and int(codes.max()) < latent.codes):
            low, high = int(codes.min()), int(codes.max())
            raise ValueError(f"codes must be from 0 to {latent.codes - 1}, got {low} to {high}")
        flat = codes.flatten(-2)
        flat = flat if latent.discrete else flat.transpose(1, 2)
        return self.image_decoder(self.latent.vectors(flat), Grid(*codes.shape[-2:]))
