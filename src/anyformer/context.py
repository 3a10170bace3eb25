"""What a forward pass hands down to every sublayer: one small typed object instead of `**kwargs`.

B batch, T tokens of this call, S tokens that can be seen (past included), D width.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from anyformer.kernels.attention import Visible
from anyformer.parts.mask import FULL, Causal, Mask, see
from anyformer.state import State


@dataclasses.dataclass
class Capture:
    """What a caller asked to see. Lists fill up in layer order while the model runs."""

    attentions: bool = False
    hidden_states: bool = False
    router_logits: bool = False
    seen: dict[str, list[Tensor]] = dataclasses.field(default_factory=dict)

    def add(self, kind: str, value: Tensor) -> None:
        self.seen.setdefault(kind, []).append(value)


@dataclasses.dataclass
class Context:
    """One forward pass through one stack."""

    index: Tensor  # (T,) place of each token in its row, pads and past counted: what masks compare
    positions: Tensor  # (1 or B, T) place of each token in its text, pads not counted: what embeddings and RoPE use
    padding: Tensor | None = None  # (B, S) True where a real token is; None when there is no padding
    documents: Tensor | None = None  # (B, T) number of the packed document each token belongs to
    parents: Tensor | None = None  # (B, T) place of each token's head in its dependency tree, -1 for roots
    memory: Tensor | None = None  # (B, M, D) what cross-attention looks at
    memory_padding: Tensor | None = None  # (B, M)
    memory_documents: Tensor | None = None  # (B, M)
    segments: Tensor | None = None  # (B, T) the kind of each token's segment, where attention compares them
    fine: Tensor | None = None  # (B, S, D) where keys are of a longer sequence: then all but the stream is about it
    spacing: int = 1  # tokens of the text from one place of the row to the next
    state: State | None = None
    bias: Tensor | None = None  # (1, H, T, S) a position bias shared by the layers of a stack (T5)
    global_tokens: Tensor | None = None  # (B, T) True where a token sees all and is seen by all (Longformer)
    num_global: int | None = None  # the most of them in a row, where that is known beforehand
    grid: tuple[int, int] | None = None  # (rows, columns) of an image, when tokens are laid out so
    kernel: str = "auto"
    capture: Capture | None = None
    shared: dict[str, Any] = dataclasses.field(default_factory=dict)
    losses: dict[str, list[Tensor]] = dataclasses.field(default_factory=dict)  # what routers say, a layer each

    @property
    def tokens(self) -> Tensor | None:
        """(B, T) True where a token of this call is real; None when all are."""
        if self.padding is not None and self.state is not None and self.state.capacity is not None:
            return self.padding[:, self.index]  # the mask is that of the whole row
        return None if self.padding is None else self.padding[:, -self.index.shape[0] :]

    def places(self) -> Tensor:
        """(S,) row places of all the keys that a state without windows holds after this call."""
        if self.fine is not None:
            return torch.arange(self.fine.shape[1], device=self.index.device)
        if self.state is None:
            return self.index
        if self.state.capacity is not None:
            return torch.arange(self.state.capacity, device=self.index.device)
        return torch.arange(int(self.state.length) + self.index.shape[0], device=self.index.device)

    def apart(self) -> tuple[Tensor, Tensor]:
        """Places of the tokens (T,) and of the keys (S,) between which distances count. Where a text goes on after
        a padded past, pads may stand between its tokens and do not count: (B, T) and (B, S)."""
        if self.state is None or self.padding is None or (isinstance(self.state.length, int) and not self.state.length):
            return self.index, self.places()
        keys = self.padding.cumsum(-1)
        return keys[:, self.index], keys

    def once(self, key: str, compute: Callable[[], Any]) -> Any:
        """Work that many layers share (rotary tables, masks, biases) is done by the first one that asks."""
        if key not in self.shared:
            self.shared[key] = compute()
        return self.shared[key]

    def visible(self, mask: Mask, key: str, keys: Tensor) -> Visible:
        """Which of the keys at row places `keys` (S,) each token may see; `key` names the mask and the kind of keys."""
        if self.index.shape[0] == 1 and isinstance(mask, Causal) and not (self.state and self.state.capacity):
            mask = FULL  # the last token of a row sees all of it
        documents = self.documents
        return self.once(f"visible {key}", lambda: see(mask, self.index, keys, self.padding, documents, documents))

    def visible_memory(self) -> Visible:
        """All of the memory but its padding and what belongs to other documents."""
        assert self.memory is not None
        places = torch.arange(self.memory.shape[1], device=self.memory.device)
        documents = None if self.memory_documents is None else self.documents
        return self.once(
            "visible memory",
            lambda: see(FULL, self.index, places, self.memory_padding, documents, self.memory_documents),
        )


def leading_pads(padding: Tensor) -> Tensor:
    """(B, S) -> (B, 1): how many pads stand before the first real token, by which positions are shifted."""
    return (padding.cumsum(-1) == 0).sum(-1, keepdim=True)
