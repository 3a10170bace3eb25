"""Two towers: a model of texts and one of images, whose vectors are compared [Radford et al. 2021]."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from anyformer.model.base import Model, Output, TransformerModule
from anyformer.model.one import EncoderModel, OneStackModule
from anyformer.part import Site
from anyformer.parts.embed import Embedding
from anyformer.parts.head import Outputs
from anyformer.parts.similarity import ProjectionHead, SimilarityHead
from anyformer.state import State
from anyformer.taps import Shown, Taps, declared

PUBLISHED = {"text": "text_model_output", "image": "vision_model_output"}  # what a tower says goes by


class TwoTowerModel(Model):
    """Texts and images that are to meet in one space of vectors, `width` numbers each. Each tower is a model of its
    own: `model.text(input_ids=...)` reads texts alone."""

    text: EncoderModel
    image: EncoderModel
    head: SimilarityHead | None = SimilarityHead()

    @property
    def towers(self) -> tuple[Model, ...]:
        return self.text, self.image

    @property
    def embedding(self) -> Embedding:
        """What reads the words, where only words are given."""
        return self.text.embedding

    def check(self) -> None:
        super().check()
        for name in ("text", "image"):
            tower = getattr(self, name)
            wanted = f"ProjectionHead(width={self.width}, name='{name}_embeds')"
            if not isinstance(tower.head, ProjectionHead) or tower.head.name != f"{name}_embeds":
                raise ValueError(f"{name}.head: two towers compare vectors, so each ends in {wanted}")
            if tower.head.width != self.width:
                raise ValueError(f"{name}.head.width is {tower.head.width} and width is {self.width}: change both")

    def build(self, site: Site) -> nn.Module:
        return TwoTowerModule(self, site)


class TwoTowerModule(TransformerModule):
    text: OneStackModule
    image: OneStackModule
    head: Any

    def __init__(self, spec: TwoTowerModel, site: Site) -> None:
        super().__init__(spec)
        self.text, self.image = (
            getattr(spec, name).build(site.child(name, width=getattr(spec, name).width)) for name in ("text", "image")
        )
        self.head = spec.head.build(site.child("head")) if spec.head else None
        self.inputs, self.shows = self.known_inputs(), declared(self)
        self.forgotten = ()

    @property
    def kernel(self) -> str:
        return self.text.kernel

    @kernel.setter
    def kernel(self, name: str) -> None:
        for tower in self.children():
            if isinstance(tower, TransformerModule):
                tower.kernel = name

    @property
    def embedding(self) -> nn.Module:
        return self.text.embedding

    def known_inputs(self) -> tuple[str, ...]:
        read = (*self.text.spec.embedding.inputs[:1], *self.image.spec.embedding.inputs[:1])
        rest = (*self.text.spec.embedding.inputs, *self.image.spec.embedding.inputs)
        head = self.spec.head.inputs if self.spec.head else ()
        return (*dict.fromkeys((*read, *rest, *head, *self.common)),)

    def run(self, inputs: dict[str, Any], taps: Taps | None, state: State | None) -> Outputs:
        said: dict[str, Any] = {}
        vectors: dict[str, Tensor] = {}
        balance: list[Tensor] = []  # of experts
        taken: set[str] = set()
        for name, other, tower in (("text", "image", self.text), ("image", "text", self.image)):
            # a mask beside a text and an image is the text's
            own = {key: inputs[key] for key in tower.spec.embedding.inputs if key in inputs and key not in taken}
            if not own:
                wanted = tower.spec.embedding.inputs[0]
                raise ValueError(f"texts are compared with images: give {wanted} too, or ask model.{other} alone")
            taken |= own.keys()
            with listening(tower, taps):
                answer = tower(**own)
            vectors[name], x = answer[f"{name}_embeds"], answer["last_hidden_state"]
            balance += [answer["aux_loss"]] if "aux_loss" in answer else []
            shown = tower.shown(taps) if isinstance(taps, Shown) else {}
            said[PUBLISHED[name]] = Output({"last_hidden_state": x, "pooler_output": vectors[name], **shown})
        if self.head is None:
            return {f"{name}_embeds": vector for name, vector in vectors.items()} | said
        out = self.head(vectors["text"], vectors["image"], inputs)
        if balance:
            out["aux_loss"] = torch.stack(balance).sum()
            out["loss"] = None if out["loss"] is None else out["loss"] + out["aux_loss"]
        return {**out, **said}

    def shown(self, seen: Shown) -> dict[str, tuple[Tensor, ...]]:
        return {}  # each tower's, among what it says


@contextlib.contextmanager
def listening(tower: TransformerModule, taps: Taps | None) -> Iterator[None]:
    """Whoever listens to the whole listens to this tower of it."""
    if taps is None:
        yield
        return
    tower.listener = taps
    try:
        yield
    finally:
        tower.listener = None
