"""A custom Part in a published architecture: a mixer that takes some channels from the previous token.

docs/extending.md describes what else a mixer can do; moving_average.py is a mixer with a decoding state.
"""

import torch
from torch import Tensor, nn

import anyformer as af
from anyformer.parts.op import Op
from anyformer.runtime.context import Context
from anyformer.specs.part import Site


class Shift(Op, sees="past"):
    """Takes the first `share` of the channels from the previous token; a linear layer mixes all channels."""

    share: float = 0.5

    def build(self, site: Site) -> nn.Module:
        return ShiftModule(self, site)


class ShiftModule(nn.Module):
    def __init__(self, part: Shift, site: Site) -> None:
        super().__init__()
        self.moved = int(site.width * part.share)
        self.o = nn.Linear(site.width, site.width)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:  # (B, T, D) in and out
        before = nn.functional.pad(x[..., : self.moved], (0, 0, 1, 0))[:, :-1]
        return self.o(torch.cat((before, x[..., self.moved :]), dim=-1))


small = {
    "width": 48,
    "decoder.depth": 2,
    "decoder.layers.attention.op": {"kind": "Shift", "share": 0.25},
    "decoder.layers.feedforward.op.width": 192,
}
model = af.build(af.override(af.spec("gpt2"), small), seed=0)
ids = torch.arange(100, 130)[None]
model(input_ids=ids, labels=ids).loss.backward()
print(model.spec)

af.save(model, "shifted")  # it is saved and loaded like any other Part
assert af.load("shifted").spec.decoder == model.spec.decoder
