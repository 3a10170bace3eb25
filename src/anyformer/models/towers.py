"""Two towers: a model of texts and one of images, whose vectors are compared [Radford et al. 2021]. Three: of texts,
videos and sounds [Akbari et al. 2021]."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from anyformer.models.base import TransformerModule
from anyformer.models.call import Call
from anyformer.models.model import Model
from anyformer.models.output import Output
from anyformer.models.single_stack import EncoderModel, OneStackModule
from anyformer.parts.base import Embedding
from anyformer.parts.head.base import Outputs
from anyformer.parts.head.similarity import ProjectionHead, SimilarityHead, SpacesHead
from anyformer.runtime.taps import OutputCollector
from anyformer.specs.part import Site

PUBLISHED = {"text": "text_model_output", "image": "vision_model_output"}  # what a tower says goes by


class TowersModel(Model):
    """Models of several kinds of data, whose vectors are compared. Each tower is a model of its own:
    `model.text(input_ids=...)` reads texts alone."""

    named: ClassVar[tuple[str, ...]]  # the towers, the one that reads texts first

    text: EncoderModel

    @property
    def towers(self) -> tuple[Model, ...]:
        return tuple(getattr(self, name) for name in self.named)

    @property
    def embedding(self) -> Embedding:
        """What reads the words, where only words are given."""
        return self.text.embedding

    def space(self, name: str) -> tuple[str, int]:
        """Where it is said how wide the vectors of a tower are, and how wide."""
        return "width", self.width

    def check(self) -> None:
        super().check()
        for name in self.named:
            tower, (where, width) = getattr(self, name), self.space(name)
            wanted = f"ProjectionHead(width={width}, name='{name}_embeds')"
            if not isinstance(tower.head, ProjectionHead) or tower.head.name != f"{name}_embeds":
                raise ValueError(f"{name}.head: two towers compare vectors, so each ends in {wanted}")
            if tower.head.width != width:
                raise ValueError(f"{name}.head.width is {tower.head.width} and {where} is {width}: change both")


class TwoTowerModel(TowersModel):
    """Texts and images that are to meet in one space of vectors, `width` numbers each."""

    named: ClassVar[tuple[str, ...]] = ("text", "image")
    gives: ClassVar[tuple[str, ...]] = ("two towers",)

    image: EncoderModel
    head: SimilarityHead | None = SimilarityHead()

    def build(self, site: Site) -> nn.Module:
        return TwoTowerModule(self, site)


class ThreeTowerModel(TowersModel):
    """Videos meet sounds in a space of `width` numbers, and texts in one of `head.width`."""

    named: ClassVar[tuple[str, ...]] = ("text", "video", "audio")
    gives: ClassVar[tuple[str, ...]] = ("three towers",)

    video: EncoderModel
    audio: EncoderModel
    head: SpacesHead

    def space(self, name: str) -> tuple[str, int]:
        return ("head.width", self.head.width) if name == "text" else super().space(name)

    def build(self, site: Site) -> nn.Module:
        return ThreeTowerModule(self, site)


class TowersModule(TransformerModule):
    text: OneStackModule
    head: Any

    def __init__(self, spec: TowersModel, site: Site) -> None:
        super().__init__(spec)
        for name, tower in zip(spec.named, spec.towers, strict=True):
            self.add_module(name, tower.build(site.child(name, width=tower.width)))
        self.head = spec.head.build(site.child("head")) if spec.head else None
        self.declare()
        self.stateless = ()

    @property
    def embedding(self) -> nn.Module:
        return self.text.embedding

    def input_names(self) -> tuple[str, ...]:
        towers = {name: tower.embedding.inputs for name, tower in zip(self.spec.named, self.spec.towers, strict=True)}
        read = [inputs[0] for inputs in towers.values()]
        rest = [each for inputs in towers.values() for each in inputs]
        masks = [mask_of(name) for name, inputs in towers.items() if "attention_mask" in inputs and self.masks(name)]
        head = self.spec.head.inputs if self.spec.head else ()
        return (*dict.fromkeys((*read, *rest, *masks, *head, *self.common)),)

    def masks(self, name: str) -> bool:
        """Whether a tower beside the text's can be given a mask of its own."""
        return False

    def lacks(self, inputs: dict[str, Any], name: str, wanted: str) -> None:
        """ValueError where something must be given for a tower, and is not."""
        raise NotImplementedError

    def compare(self, vectors: dict[str, Tensor], inputs: dict[str, Any]) -> Outputs:
        raise NotImplementedError

    def run(self, call: Call) -> Outputs:
        inputs, taps = call.inputs, call.taps
        said: dict[str, Any] = {}
        vectors: dict[str, Tensor] = {}
        balance: list[Tensor] = []  # of experts
        taken: set[str] = set()
        for name in self.spec.named:
            tower: Any = getattr(self, name)
            # a mask beside a text and an image is the text's
            own = {key: inputs[key] for key in tower.spec.embedding.inputs if key in inputs and key not in taken}
            if mask_of(name) in inputs:
                own["attention_mask"] = inputs[mask_of(name)]
            if not own:
                self.lacks(inputs, name, tower.spec.embedding.inputs[0])
                continue
            taken.update(own)  # `|=` with keys cannot be compiled on torch 2.11
            answer = tower(Call(own, taps=taps, kernel=call.kernel))
            vectors[name], x = answer[f"{name}_embeds"], answer["last_hidden_state"]
            balance += [answer["aux_loss"]] if "aux_loss" in answer else []
            shown = tower.collect_outputs(taps) if isinstance(taps, OutputCollector) else {}
            kept = {"last_hidden_state": x, "pooler_output": vectors[name], **shown}
            said[PUBLISHED.get(name, f"{name}_model_output")] = Output(kept)
        if self.head is None:
            return {f"{name}_embeds": vector for name, vector in vectors.items()} | said
        out = self.compare(vectors, inputs)
        if balance:
            both, loss = torch.stack(balance).sum(), out["loss"]
            out |= {"aux_loss": both, "loss": None if loss is None else loss + both}
        return {**out, **said}

    def collect_outputs(self, seen: OutputCollector) -> dict[str, tuple[Tensor, ...]]:
        return {}  # each tower's, among what it says


class TwoTowerModule(TowersModule):
    image: OneStackModule

    def lacks(self, inputs: dict[str, Any], name: str, wanted: str) -> None:
        other = "image" if name == "text" else "text"
        raise ValueError(f"texts are compared with images: give {wanted} too, or ask model.{other} alone")

    def compare(self, vectors: dict[str, Tensor], inputs: dict[str, Any]) -> Outputs:
        return self.head(vectors["text"], vectors["image"], inputs)


class ThreeTowerModule(TowersModule):
    video: OneStackModule
    audio: OneStackModule

    def masks(self, name: str) -> bool:
        return name != "text"

    def lacks(self, inputs: dict[str, Any], name: str, wanted: str) -> None:
        """A video may come without a sound, or without a text."""
        others = [getattr(self.spec, each).embedding.inputs[0] for each in self.spec.named if each != "video"]
        if name == "video" or not any(each in inputs for each in others):
            video = self.spec.video.embedding.inputs[0]
            what = f"videos are compared with sounds and texts: give {video}, and {' or '.join(others)}"
            raise ValueError(f"{what}, or ask one tower alone")

    def compare(self, vectors: dict[str, Tensor], inputs: dict[str, Any]) -> Outputs:
        return self.head(vectors, inputs)


def mask_of(name: str) -> str:
    """What the mask of a tower beside the text's is given by."""
    return f"{name}_attention_mask"
