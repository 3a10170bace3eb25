"""A Part of one's own in a published architecture: half of the channels come from the token before.

docs/extending.md says what else a mixer may promise; moving_average.py is one with a memory.
"""

import torch
from torch import Tensor, nn

import anyformer as af
from anyformer.parts.op import Op
from anyformer.runtime.context import Context
from anyformer.specs.part import Site


class Shift(Op, sees="past"):
    """The first `share` of the channels are those of the token before, and a linear layer mixes all of them."""

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


small = {"width": 48, "decoder.depth": 2, "decoder.layers.attention.op": {"kind": "Shift", "share": 0.25}}
model = af.build(af.override(af.spec("gpt2"), small), seed=0)
ids = torch.arange(100, 130)[None]
model(input_ids=ids, labels=ids).loss.backward()
print(model.spec)

af.save(model, "shifted")  # and it is saved, loaded and counted like any other
assert af.load("shifted").spec.decoder == model.spec.decoder
