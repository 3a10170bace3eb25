"""Text, video frames and audio in one sequence with masked spans, predicted contrastively [Zellers et al. 2022]."""

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
    """An encoder fed by towers, and two small encoders that read the masked spans of text and audio."""

    gives: ClassVar[tuple[str, ...]] = ("hidden spans",)

    hidden_text: EncoderModel
    hidden_audio: EncoderModel
    head: HiddenSpansHead

    def check(self) -> None:
        super().check()
        for name, tower in zip(KINDS, (self.hidden_text, self.hidden_audio), strict=True):
            head, wanted = tower.head, f"{name}_embeds"
            if not isinstance(head, ProjectionHead) or (head.name, head.width) != (wanted, self.head.width):
                width = self.head.width
                raise ValueError(f"hidden_{name}.head must be ProjectionHead(width={width}, name='{wanted}')")
            if (token := getattr(self.head, name)) >= (size := self.embedding.tokens.vocab_size):
                raise ValueError(f"head.{name} is {token}, but the vocabulary has only {size} tokens")
            if token in (tower.token for tower in self.input_towers.values()):
                raise ValueError(f"head.{name} is {token}, which is already the token of a tower")

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
            tower: Any = self.get_submodule(f"hidden_{name}")
            own_inputs = {tower.spec.embedding.inputs[0]: inputs[key]}
            if name == "text" and "hidden_mask" in inputs:
                own_inputs["attention_mask"] = inputs["hidden_mask"]
            spans[name] = tower(Call(own_inputs, taps=call.taps, kernel=call.kernel))[f"{name}_embeds"]
        if spans and "input_ids" not in inputs:
            raise ValueError("hidden_ids and hidden_values need the text with the masked spans: pass input_ids")
        return {**self.head(x, inputs.get("input_ids"), spans, inputs), **others}
