"""Two towers: a text and an image model whose vectors are compared [Radford et al. 2021]. Three towers: text, video and
audio [Akbari et al. 2021]."""

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

PUBLISHED = {"text": "text_model_output", "image": "vision_model_output"}  # tower -> published name of its output


class TowersModel(Model, abstract=True):
    """Models of several modalities whose vectors are compared. Each tower is also a separate model: call
    `model.text(input_ids=...)` to read only text."""

    named: ClassVar[tuple[str, ...]]  # names of the towers, the text tower first

    text: EncoderModel

    @property
    def towers(self) -> tuple[Model, ...]:
        return tuple(getattr(self, name) for name in self.named)

    @property
    def embedding(self) -> Embedding:
        """The text tower's embedding."""
        return self.text.embedding

    def space(self, name: str) -> tuple[str, int]:
        """Return the field that sets the vector width of a tower, and its value."""
        return "width", self.width

    def check(self) -> None:
        super().check()
        for name in self.named:
            tower, (where, width) = getattr(self, name), self.space(name)
            if not isinstance(tower.head, ProjectionHead) or tower.head.name != f"{name}_embeds":
                raise ValueError(f"{name}.head must be ProjectionHead(width={width}, name='{name}_embeds')")
            if tower.head.width != width:
                raise ValueError(
                    f"{name}.head.width is {tower.head.width}, but {where} is {width}: change both together"
                )


class TwoTowerModel(TowersModel):
    """A text and an image tower that share one vector space of `width` dimensions."""

    named: ClassVar[tuple[str, ...]] = ("text", "image")
    gives: ClassVar[tuple[str, ...]] = ("two towers",)

    image: EncoderModel
    head: SimilarityHead | None = SimilarityHead()


class ThreeTowerModel(TowersModel):
    """Text, video and audio towers. Video and audio share a space of `width` dimensions, video and text one of
    `head.width`."""

    named: ClassVar[tuple[str, ...]] = ("text", "video", "audio")
    gives: ClassVar[tuple[str, ...]] = ("three towers",)

    video: EncoderModel
    audio: EncoderModel
    head: SpacesHead

    def space(self, name: str) -> tuple[str, int]:
        return ("head.width", self.head.width) if name == "text" else super().space(name)


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
        """Whether a tower has a separate attention mask, named by `mask_of`."""
        return False

    def lacks(self, inputs: dict[str, Any], name: str, wanted: str) -> None:
        """Raise ValueError if the tower `name` requires its input `wanted`, which is missing."""
        raise NotImplementedError

    def compare(self, vectors: dict[str, Tensor], inputs: dict[str, Any]) -> Outputs:
        raise NotImplementedError

    def run(self, call: Call) -> Outputs:
        inputs, taps = call.inputs, call.taps
        tower_outputs: dict[str, Any] = {}
        vectors: dict[str, Tensor] = {}
        balance: list[Tensor] = []  # load-balancing losses of experts
        used: set[str] = set()
        for name in self.spec.named:
            tower: Any = getattr(self, name)
            # an input that several towers accept, such as attention_mask, goes to the first of them (text)
            own_inputs = {key: inputs[key] for key in tower.spec.embedding.inputs if key in inputs and key not in used}
            if mask_of(name) in inputs:
                own_inputs["attention_mask"] = inputs[mask_of(name)]
            if not own_inputs:
                self.lacks(inputs, name, tower.spec.embedding.inputs[0])
                continue
            used.update(own_inputs)  # torch 2.11 cannot compile `|=` with keys
            answer = tower(Call(own_inputs, taps=taps, kernel=call.kernel))
            vectors[name], x = answer[f"{name}_embeds"], answer["last_hidden_state"]
            balance += [answer["aux_loss"]] if "aux_loss" in answer else []
            shown = tower.collect_outputs(taps) if isinstance(taps, OutputCollector) else {}
            kept = {"last_hidden_state": x, "pooler_output": vectors[name], **shown}
            tower_outputs[PUBLISHED.get(name, f"{name}_model_output")] = Output(kept)
        if self.head is None:
            return {f"{name}_embeds": vector for name, vector in vectors.items()} | tower_outputs
        out = self.compare(vectors, inputs)
        if balance:
            both, loss = torch.stack(balance).sum(), out["loss"]
            out |= {"aux_loss": both, "loss": None if loss is None else loss + both}
        return {**out, **tower_outputs}

    def collect_outputs(self, seen: OutputCollector) -> dict[str, tuple[Tensor, ...]]:
        return {}  # they are in the output of each tower


class TwoTowerModule(TowersModule, of=TwoTowerModel):
    image: OneStackModule

    def lacks(self, inputs: dict[str, Any], name: str, wanted: str) -> None:
        other = "image" if name == "text" else "text"
        raise ValueError(f"missing input {wanted} to compare texts with images; to run one tower, call model.{other}")

    def compare(self, vectors: dict[str, Tensor], inputs: dict[str, Any]) -> Outputs:
        return self.head(vectors["text"], vectors["image"], inputs)


class ThreeTowerModule(TowersModule, of=ThreeTowerModel):
    video: OneStackModule
    audio: OneStackModule

    def masks(self, name: str) -> bool:
        return name != "text"

    def lacks(self, inputs: dict[str, Any], name: str, wanted: str) -> None:
        """Video is required, with audio, text or both."""
        others = [getattr(self.spec, each).embedding.inputs[0] for each in self.spec.named if each != "video"]
        if name == "video" or not any(each in inputs for each in others):
            video = self.spec.video.embedding.inputs[0]
            missing = f"missing input: pass {video}, and {' or '.join(others)}"
            raise ValueError(f"{missing}; to run one tower, call model.{name}")

    def compare(self, vectors: dict[str, Tensor], inputs: dict[str, Any]) -> Outputs:
        return self.head(vectors, inputs)


def mask_of(name: str) -> str:
    """Return the input name of a tower's separate attention mask."""
    return f"{name}_attention_mask"
