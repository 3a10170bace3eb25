"""Texts, frames and sounds in one sequence, of which spans are hidden and told apart [Zellers et al. 2022]."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn

from anyformer.models.call import Call
from anyformer.models.decoder_with_towers import TowerEncoderModel, TowerInputModule
from anyformer.models.single_stack import EncoderModel, OneStackModule
from anyformer.parts.head.base import Outputs
from anyformer.parts.head.similarity import HiddenSpansHead, ProjectionHead
from anyformer.specs.part import Site

KINDS = ("text", "audio")


class HiddenSpansModel(TowerEncoderModel):
    """An encoder fed by towers, beside which two small ones read what was hidden from it."""

    gives: ClassVar[tuple[str, ...]] = ("hidden spans",)

    hidden_text: EncoderModel
    hidden_audio: EncoderModel
    head: HiddenSpansHead

    def check(self) -> None:
        super().check()
        for name in KINDS:
            head, wanted = getattr(self, f"hidden_{name}").head, f"{name}_embeds"
            if not isinstance(head, ProjectionHead) or (head.name, head.width) != (wanted, self.head.width):
                end = f"ProjectionHead(width={self.head.width}, name='{wanted}')"
                raise ValueError(f"hidden_{name}.head: vectors of spans are compared, so it is {end}")
            if (token := getattr(self.head, name)) >= (size := self.embedding.tokens.vocab_size):
                raise ValueError(f"head.{name} is {token}, of a vocabulary of {size} tokens")
            if token in (tower.token for tower in self.input_towers.values()):
                raise ValueError(f"head.{name} is {token}, which is the place of what a tower says")

    def build(self, site: Site) -> nn.Module:
        return HiddenSpansModelModule(self, "encoder", site)


class HiddenSpansModelModule(TowerInputModule):
    hidden_text: OneStackModule
    hidden_audio: OneStackModule
    head: Any

    def __init__(self, spec: HiddenSpansModel, stack: str, site: Site) -> None:
        super().__init__(spec, stack, site)
        for name in (f"hidden_{kind}" for kind in KINDS):
            tower = getattr(spec, name)
            self.add_module(name, tower.build(site.child(name, width=tower.width)))
        self.declare()

    def run(self, call: Call) -> Outputs:
        inputs = call.inputs
        x, _, _, others = self.hidden_states(call)
        spans: dict[str, Tensor] = {}
        for name, key in zip(KINDS, ("hidden_ids", "hidden_values"), strict=True):
            if key not in inputs:
                continue
            tower: Any = getattr(self, f"hidden_{name}")
            own = {tower.spec.embedding.inputs[0]: inputs[key]}
            if name == "text" and "hidden_mask" in inputs:
                own["attention_mask"] = inputs["hidden_mask"]
            spans[name] = tower(Call(own, taps=call.taps, kernel=call.kernel))[f"{name}_embeds"]
        if spans and "input_ids" not in inputs:
            raise ValueError("what is hidden has its places in a text: give input_ids")
        return {**self.head(x, inputs.get("input_ids"), spans, inputs), **others}
