"""The residual stream by depth: the logit lens, and the norms of its vectors.

B batch, T tokens, D width, V what the head scores, L steps of the stack.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from anyformer.look.roles import body, calls, last_stretch, states
from anyformer.look.trace import Trace, main_tensor
from anyformer.parts.head.base import HeadModule


@dataclasses.dataclass(frozen=True)
class Lens:
    """The head applied to the stream before the first layer and after each [nostalgebraist 2020]."""

    addresses: tuple[str, ...]
    states: tuple[Tensor, ...]  # (B, T, D) each
    read: Callable[[Tensor], Tensor]

    def __len__(self) -> int:
        return len(self.states)

    def logits(self, depth: int) -> Tensor:
        """(B, T, V), or (B, V) of a head that speaks for a whole text: what it makes of the stream at this depth."""
        with torch.no_grad():
            return self.read(self.states[depth])

    def top(self, number: int = 5) -> tuple[Tensor, Tensor]:
        """The likeliest at each depth and their probabilities, (L + 1, B, T, number) each."""
        chances, names = [], []
        for depth in range(len(self)):
            found = self.logits(depth).float().softmax(-1)
            best = found.topk(min(number, found.shape[-1]), -1)
            chances.append(best.values)
            names.append(best.indices)
        return torch.stack(names), torch.stack(chances)

    def figure(self, decode: Callable[[int], str] = str, row: int = 0, positions: Sequence[int] | None = None) -> Any:
        """A matplotlib figure: the likeliest token at each depth and place."""
        from anyformer.look.figures import table

        names, chances = (found[:, row, ..., 0] for found in self.top(1))
        if names.dim() < 2:
            names, chances = names[:, None], chances[:, None]
        places = list(range(names.shape[1])) if positions is None else [*positions]
        words = [[decode(int(name)) for name in line] for line in names[:, places]]
        return table(chances[:, places], words, list(self.addresses), [str(place) for place in places])


def logit_lens(run: Trace) -> Lens:
    """The head's answer at every depth; after the last layer it is the model's own."""
    model, whole = run.model, body(run.model)
    stack = whole.last_stack
    if not isinstance(model.head, HeadModule):
        raise ValueError("this model has no head; load one with a head")
    head: HeadModule = model.head
    if stack.part.neck is not None and stack.part.neck.every_layer:
        raise ValueError(f"{stack.address}.neck mixes the states of all layers, so single layers cannot be read")
    heard = calls(run, [head, stack])
    ctx, (_, head_ctx, inputs) = heard[stack][-1].args[1].replace(taps=None), heard[head][-1].args
    head_ctx = head_ctx.replace(taps=None)
    found = states(run, stack)

    def read(x: Tensor) -> Tensor:
        finished, _ = whole.finish([found[0], x], ctx)
        said = main_tensor(head.answer(finished, head_ctx, inputs))[0]
        assert said is not None
        return said

    first, layers = last_stretch(stack)
    return Lens((first, *(f"{stack.address}.layers.{i}" for i in layers)), tuple(found), read)


def stream_norms(run: Trace) -> Tensor:
    """(L + 1, B, T): the length of every token's vector before the first layer and after each."""
    return torch.stack([state.float().norm(dim=-1) for state in states(run, body(run.model).last_stack)])
