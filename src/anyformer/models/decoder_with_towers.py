"""Towers that feed a decoder: vectors of images or audio replace tokens of the text [Liu et al. 2023]. They can also
feed an encoder, which reads all modalities together [Zellers et al. 2022]."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn

from anyformer.kernels.capture import can_read_values
from anyformer.models.call import Call, HeadInputs
from anyformer.models.model import Model
from anyformer.models.single_stack import DecoderModel, EncoderModel, OneStackModule
from anyformer.parts.base import HasDepth, PartModule
from anyformer.parts.embedding.text import TextEmbedding
from anyformer.parts.head.base import Outputs
from anyformer.parts.projector import MLPProjector, Projector
from anyformer.runtime.taps import OutputCollector, Taps
from anyformer.specs.field_types import Natural
from anyformer.specs.part import Part, Site


class Tower(Part, sees="all"):
    """A separate model whose hidden states replace each `token` of the text, after the `projector`."""

    model: EncoderModel
    token: Natural
    layers: tuple[int, ...] = (-1,)  # indices into the model's hidden states; several are concatenated
    skip: Natural = 0  # number of leading vectors to leave out (1 for CLIP's class token)
    projector: Projector = MLPProjector()

    @classmethod
    def upgrade(cls, data: dict[str, Any]) -> dict[str, Any]:
        """Earlier versions had the fields of the only projector."""
        if old := {name: data.pop(name) for name in ("activation", "bias") if name in data}:
            data["projector"] = {"kind": "MLPProjector", **old}
        return data

    def check(self) -> None:
        if not self.layers:
            raise ValueError("Tower.layers is empty; give the layers whose outputs are read")
        depth = self.model.encoder.depth if isinstance(self.model.encoder, HasDepth) else None
        for layer in self.layers:
            if depth is not None and not -depth - 1 <= layer <= depth:
                raise ValueError(f"Tower.layers: no hidden state {layer}; valid: {-depth - 1} to {depth}")


class TowerModule(PartModule, of=Tower):
    def __init__(self, part: Tower, site: Site) -> None:
        super().__init__()
        self.part, self.reads = part, part.model.embedding.inputs[0]
        self.model: Any = part.model.build(site.child("model", width=part.model.width))
        width = part.model.encoder.out_width(part.model.width) * len(part.layers)
        self.projector = part.projector.project(site.child("projector"), width)

    def forward(self, given: Tensor, kernel: str, taps: Taps | None) -> Tensor:
        """(M images or audio clips, ...) -> (M, N, D). An image tower also takes videos (M, C, frames, height, width):
        it embeds each frame and concatenates the frames' vectors -> (M, frames N, D)."""
        videos = len(given) if given.dim() == 5 and "an image" in self.part.model.embedding.gives else 0
        if videos:
            given = given.transpose(1, 2).flatten(0, 1)
        shown = OutputCollector(self.model.shows, ("output_hidden_states",), taps)
        self.model(Call({self.reads: given}, taps=shown, kernel=kernel))
        states = self.model.collect_outputs(shown)["hidden_states"]
        x = torch.cat([states[layer][:, self.part.skip :] for layer in self.part.layers], dim=-1)
        x = self.projector(x)
        return x.reshape(videos, -1, x.shape[-1]) if videos else x


class TowerInputModel(Model, abstract=True):
    """Base of models whose text contains vectors of images and audio, computed by towers."""

    embedding: TextEmbedding
    image: Tower | None = None
    audio: Tower | None = None

    @property
    def input_towers(self) -> dict[str, Tower]:
        return {name: tower for name in ("image", "audio") if (tower := getattr(self, name)) is not None}

    @property
    def readers(self) -> tuple[Model, ...]:
        return (self, *(tower.model for tower in self.input_towers.values()))

    def check(self) -> None:
        super().check()
        for name, tower in self.input_towers.items():
            if tower.token >= (size := self.embedding.tokens.vocab_size):
                raise ValueError(f"{name}.token is {tower.token}, but the vocabulary has only {size} tokens")
        if self.image is not None and self.audio is not None and self.image.token == self.audio.token:
            raise ValueError(f"image.token and audio.token are both {self.image.token}: they must differ")


class TowerDecoderModel(TowerInputModel, DecoderModel):
    """A decoder whose text contains vectors of images and audio, computed by towers."""

    def build(self, site: Site) -> nn.Module:
        return TowerDecoderModule(self, "decoder", site)


class TowerEncoderModel(TowerInputModel, EncoderModel):
    """An encoder whose text contains vectors of images and audio, computed by towers."""

    def build(self, site: Site) -> nn.Module:
        return TowerInputModule(self, "encoder", site)


class TowerInputModule(OneStackModule):
    embedding: Any

    def __init__(self, spec: Any, stack: str, site: Site) -> None:
        super().__init__(spec, stack, site)
        for name, tower in spec.input_towers.items():
            self.add_module(name, tower.build(site.child(name)))
        self.declare()

    def input_names(self) -> tuple[str, ...]:
        read = (tower.model.embedding.inputs[0] for tower in self.spec.input_towers.values())
        first, *rest = super().input_names()
        return first, *read, *rest

    def embed_towers(self, call: Call) -> tuple[dict[str, Any], Outputs]:
        inputs, rest = call.inputs, dict(call.inputs)
        outputs: Outputs = {}
        for name in self.spec.input_towers:
            tower: Any = getattr(self, name)
            if (given := rest.pop(tower.reads, None)) is None:
                continue
            ids, x = inputs.get("input_ids"), rest.get("inputs_embeds")
            if ids is None and x is None:
                token = tower.part.token
                raise ValueError(
                    f"{tower.reads} is inserted into a text: pass input_ids that contain the token {token}"
                )
            x = self.embedding.tokens(ids) if x is None else x
            vector = self.embedding.tokens(torch.tensor(tower.part.token, device=x.device))
            is_placeholder = (x == vector).all(-1) if ids is None else ids == tower.part.token  # (B, T)
            vectors = tower(given, call.kernel, call.taps).flatten(0, 1).to(x.dtype)  # (M N, D)
            if can_read_values() and (count := int(is_placeholder.sum())) != len(vectors):
                got = f"{tower.reads} of batch size {len(given)} gives {len(vectors)} vectors"
                raise ValueError(f"{got}, but the text contains the token {tower.part.token} {count} times")
            rest["inputs_embeds"] = x.masked_scatter(is_placeholder[..., None], vectors)
            outputs[f"{name}_hidden_states"] = vectors
        return rest, outputs

    def compute(self, call: Call) -> HeadInputs:
        inputs, vectors = self.embed_towers(call)
        if vectors:
            inputs.pop("input_ids", None)
        hidden = super().compute(dataclasses.replace(call, inputs=inputs))
        return hidden._replace(others=vectors)


class TowerDecoderModule(TowerInputModule):
    """A TowerInputModule whose stack is a decoder."""
