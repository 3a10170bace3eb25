"""Towers into a decoder: what a picture or a sound says stands in a text, in the place of tokens [Liu et al. 2023]; or
into an encoder, which reads all of them together [Zellers et al. 2022]."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from anyformer.kernels.recording import is_recording
from anyformer.models.base import Model
from anyformer.models.single_stack import DecoderModel, EncoderModel, OneStackModule
from anyformer.models.towers import listening
from anyformer.parts.activation import ACTIVATIONS, Activation
from anyformer.parts.embedding.text import TextEmbedding
from anyformer.parts.head.base import Outputs
from anyformer.runtime.context import Context
from anyformer.runtime.state import State
from anyformer.runtime.taps import Taps, declared
from anyformer.specs.part import Part, Site


class Tower(Part, sees="all"):
    """A model of its own whose hidden states, through two layers, stand in a text wherever it has `token`."""

    model: EncoderModel
    token: int
    layers: tuple[int, ...] = (-1,)  # which of its hidden states, as they are shown; of several, side by side
    skip: int = 0  # leaves out so many of its first vectors (CLIP's, which belongs to no patch)
    activation: Activation = "gelu"
    bias: bool = True

    def check(self) -> None:
        if not self.layers or not self.skip >= 0 or not self.token >= 0:
            raise ValueError(f"Tower: token {self.token}, layers {self.layers} and skip {self.skip} name nothing")
        depth = getattr(self.model.encoder, "depth", None)
        for layer in self.layers:
            if depth is not None and not -depth - 1 <= layer <= depth:
                raise ValueError(f"Tower.layers: there is no state {layer} of {depth} layers and their input")

    def build(self, site: Site) -> nn.Module:
        return TowerModule(self, site)


class TowerModule(nn.Module):
    def __init__(self, part: Tower, site: Site) -> None:
        super().__init__()
        self.part, self.reads = part, part.model.embedding.inputs[0]
        self.model: Any = part.model.build(site.child("model", width=part.model.width))
        width = part.model.encoder.out_width(part.model.width) * len(part.layers)
        self.up = nn.Linear(width, site.width, bias=part.bias)
        self.down = nn.Linear(site.width, site.width, bias=part.bias)

    def forward(self, given: Tensor, kernel: str, taps: Taps | None) -> Tensor:
        """(M pictures or sounds, ...) -> (M, N, D)"""
        self.model.kernel = kernel
        with listening(self.model, taps):
            states = self.model(**{self.reads: given}, output_hidden_states=True, return_dict=True).hidden_states
        x = torch.cat([states[layer][:, self.part.skip :] for layer in self.part.layers], dim=-1)
        return self.down(ACTIVATIONS[self.part.activation](self.up(x)))


class FedModel(Model):
    """What reads what towers make of pictures and sounds between its tokens."""

    embedding: TextEmbedding
    image: Tower | None = None
    audio: Tower | None = None

    @property
    def fed_by(self) -> dict[str, Tower]:
        return {name: tower for name in ("image", "audio") if (tower := getattr(self, name)) is not None}

    @property
    def readers(self) -> tuple[Model, ...]:
        return (self, *(tower.model for tower in self.fed_by.values()))

    def check(self) -> None:
        super().check()
        for name, tower in self.fed_by.items():
            if tower.token >= (size := self.embedding.tokens.vocab_size):
                raise ValueError(f"{name}.token is {tower.token}, of a vocabulary of {size} tokens")
        if self.image is not None and self.audio is not None and self.image.token == self.audio.token:
            raise ValueError(f"image.token and audio.token are both {self.image.token}: a place is for one of them")


class TowerDecoderModel(FedModel, DecoderModel):
    """A decoder that reads what towers make of pictures and sounds between its tokens."""

    def build(self, site: Site) -> nn.Module:
        return TowerDecoderModule(self, "decoder", site)


class TowerEncoderModel(FedModel, EncoderModel):
    """An encoder that reads what towers make of pictures and sounds between its tokens."""

    def build(self, site: Site) -> nn.Module:
        return FedModule(self, "encoder", site)


class FedModule(OneStackModule):
    embedding: Any

    def __init__(self, spec: Any, stack: str, site: Site) -> None:
        super().__init__(spec, stack, site)
        for name, tower in spec.fed_by.items():
            self.add_module(name, tower.build(site.child(name)))
        self.shows = declared(self)

    def known_inputs(self) -> tuple[str, ...]:
        read = (tower.model.embedding.inputs[0] for tower in self.spec.fed_by.values())
        first, *rest = super().known_inputs()
        return first, *read, *rest

    def fed(self, inputs: dict[str, Any], taps: Taps | None = None) -> tuple[dict[str, Any], Outputs]:
        """The inputs with what towers read as vectors in the text, and these vectors by themselves."""
        rest = dict(inputs)
        said: Outputs = {}
        for name in self.spec.fed_by:
            tower: Any = getattr(self, name)
            if (given := rest.pop(tower.reads, None)) is None:
                continue
            ids, x = inputs.get("input_ids"), rest.get("inputs_embeds")
            if ids is None and x is None:
                place = f"give input_ids that have the token {tower.part.token}"
                raise ValueError(f"{tower.reads} stands in a text: {place}")
            x = self.embedding.tokens(ids) if x is None else x
            own = self.embedding.tokens(torch.tensor(tower.part.token, device=x.device))
            places = (x == own).all(-1) if ids is None else ids == tower.part.token  # (B, T)
            vectors = tower(given, self.kernel, taps).flatten(0, 1).to(x.dtype)  # (M N, D)
            if not is_recording() and (count := int(places.sum())) != len(vectors):
                what = f"{tower.reads} makes {len(vectors)} vectors of {len(given)}"
                raise ValueError(f"{what}, and the text has {count} of the tokens {tower.part.token} for them")
            rest["inputs_embeds"] = x.masked_scatter(places[..., None], vectors)
            said[f"{name}_hidden_states"] = vectors
        return rest, said

    def hidden(
        self, inputs: dict[str, Any], taps: Taps | None = None, state: State | None = None
    ) -> tuple[Tensor, Context, Outputs]:
        inputs, said = self.fed(inputs, taps)
        if said:
            inputs.pop("input_ids", None)
        x, ctx, _ = super().hidden(inputs, taps, state)
        return x, ctx, said


class TowerDecoderModule(FedModule):
    """One that writes."""
