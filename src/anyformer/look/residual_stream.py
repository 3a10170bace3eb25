"""The residual stream by depth: the logit lens, and the norms of its vectors.

B batch, T tokens, D width, V classes of the head, L steps of the stack.
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
    """The head applied to the stream before the first layer and after every layer [nostalgebraist 2020]."""

    addresses: tuple[str, ...]
    states: tuple[Tensor, ...]  # (B, T, D) each
    read: Callable[[Tensor], Tensor]

    def __len__(self) -> int:
        return len(self.states)

    def logits(self, depth: int) -> Tensor:
        """Return the head's output for the stream at this depth: (B, T, V), or (B, V) if the head pools the text."""
        with torch.no_grad():
            return self.read(self.states[depth])

    def top(self, number: int = 5) -> tuple[Tensor, Tensor]:
        """Return the most likely classes at each depth and their probabilities, (L + 1, B, T, number) each."""
        chances, classes = [], []
        for depth in range(len(self)):
            probabilities = self.logits(depth).float().softmax(-1)
            best = probabilities.topk(min(number, probabilities.shape[-1]), -1)
            chances.append(best.values)
            classes.append(best.indices)
        return torch.stack(classes), torch.stack(chances)

    def figure(self, decode: Callable[[int], str] = str, row: int = 0, positions: Sequence[int] | None = None) -> Any:
        """Return a matplotlib figure of the most likely token at each depth and position."""
        from anyformer.look.figures import table

        classes, chances = (best[:, row, ..., 0] for best in self.top(1))
        if classes.dim() < 2:
            classes, chances = classes[:, None], chances[:, None]
        columns = list(range(classes.shape[1])) if positions is None else [*positions]
        words = [[decode(int(token)) for token in line] for line in classes[:, columns]]
        return table(chances[:, columns], words, list(self.addresses), [str(column) for column in columns])


def logit_lens(run: Trace) -> Lens:
    """Apply the head to the stream at every depth. After the last layer the result is the model's output."""
    model, whole = run.model, body(run.model)
    stack = whole.last_stack
    if not isinstance(model.head, HeadModule):
        raise ValueError("this model has no head; load a model with a head")
    head: HeadModule = model.head
    if stack.part.neck is not None and stack.part.neck.every_layer:
        raise ValueError(f"{stack.address}.neck mixes the states of all layers, so single layers cannot be read")
    recorded = calls(run, [head, stack])
    ctx, (_, head_ctx, inputs) = recorded[stack][-1].args[1].replace(taps=None), recorded[head][-1].args
    head_ctx = head_ctx.replace(taps=None)
    stream = states(run, stack)

    def read(x: Tensor) -> Tensor:
        finished, _ = whole.finish([stream[0], x], ctx)
        scores = main_tensor(head.answer(finished, head_ctx, inputs))[0]
        assert scores is not None
        return scores

    first, layers = last_stretch(stack)
    return Lens((first, *(f"{stack.address}.layers.{i}" for i in layers)), tuple(stream), read)


def stream_norms(run: Trace) -> Tensor:
    """Return the norm of every token's vector before the first layer and after every layer, (L + 1, B, T)."""
    return torch.stack([state.float().norm(dim=-1) for state in states(run, body(run.model).last_stack)])
