"""Decision Transformer: episodes as sequences of returns-to-go, states and actions [Chen et al. 2021].

B batch, N time steps, T = 3 N tokens, S width of a state, A width of an action, D width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.kernels.capture import can_read_values
from anyformer.parts.base import Embedding, PartModule
from anyformer.parts.embedding.text import Tokens, text_context
from anyformer.parts.norm import LayerNorm, Norm
from anyformer.parts.position.absolute import Learned
from anyformer.parts.unused import mark_unused
from anyformer.runtime.context import Context
from anyformer.runtime.inputs import Kind, check_shape
from anyformer.runtime.state import State
from anyformer.specs.field_types import Chance, Count
from anyformer.specs.part import Site

KINDS = 3  # tokens per time step: return-to-go, state, action


class TrajectoryEmbedding(Embedding, sees="itself"):
    """Three tokens per time step: return-to-go, state, action. Each is a linear map of its numbers plus the vector of
    its time step, followed by a norm. As published, the first row of the table `everywhere` is added to every token;
    the table `tokens` and the input `rewards` are not used."""

    inputs: ClassVar[tuple[str, ...]] = ("states", "actions", "rewards", "returns_to_go", "timesteps", "attention_mask")
    input_kinds: ClassVar[Mapping[str, Kind]] = {
        "states": "floats",
        "actions": "floats",
        "rewards": "floats",
        "returns_to_go": "floats",
        "timesteps": "integers",
    }
    gives: ClassVar[tuple[str, ...]] = ("a row of tokens", "time steps")

    state_width: Count
    action_width: Count
    steps: Count = 4096  # maximum length of an episode
    norm: Norm | None = LayerNorm()
    everywhere: Learned | None = None
    tokens: Tokens | None = None
    dropout: Chance = 0.0

    def row(self, length: int, width: int) -> dict[str, tuple[int, ...]]:
        widths = {"states": self.state_width, "actions": self.action_width, "returns_to_go": 1}
        return {**{name: (length, each) for name, each in widths.items()}, "timesteps": (length,)}

    def vectors(self, length: int) -> int:
        return KINDS * length


class TrajectoryEmbeddingModule(PartModule, of=TrajectoryEmbedding):
    def __init__(self, part: TrajectoryEmbedding, site: Site) -> None:
        super().__init__()
        self.part = part
        self.time = nn.Embedding(part.steps, site.width)
        self.to_go = nn.Linear(1, site.width)
        self.state = nn.Linear(part.state_width, site.width)
        self.action = nn.Linear(part.action_width, site.width)
        self.norm = part.norm.build(site.child("norm")) if part.norm else None
        self.everywhere = part.everywhere.build(site.child("everywhere")) if part.everywhere else None
        self.tokens = mark_unused(nn.Embedding(part.tokens.vocab_size, site.width)) if part.tokens else None

    def forward(self, inputs: dict[str, Any], state: State | None = None) -> tuple[Tensor, Context]:
        part, states = self.part, inputs.get("states")
        if states is None or states.dim() != 3 or states.shape[2] != part.state_width:
            shape = None if states is None else tuple(states.shape)
            raise ValueError(f"states must be (batch, time steps, {part.state_width}), got {shape}")
        B, N = states.shape[:2]
        shapes: dict[str, list[tuple[int, ...]]] = {
            "actions": [(B, N, part.action_width)],
            "returns_to_go": [(B, N, 1)],
            "timesteps": [(B, N), (1, N)],
        }
        for name, allowed in shapes.items():
            if inputs.get(name) is None:
                raise ValueError(f"{name} is missing: give it together with states")
            check_shape(name, inputs[name], *allowed)
        times = inputs["timesteps"]
        if can_read_values() and not (int(times.min()) >= 0 and int(times.max()) < part.steps):
            low, high = int(times.min()), int(times.max())
            raise ValueError(f"timesteps must be between 0 and {part.steps - 1}, got {low} to {high}")
        tokens = self.to_go(inputs["returns_to_go"]), self.state(states), self.action(inputs["actions"])
        time = self.time(times)
        x, ctx = in_turn([each + time for each in tokens], inputs.get("attention_mask"), state)
        x = x if self.norm is None else self.norm(x)
        if self.everywhere is not None:
            x = x + self.everywhere(torch.zeros_like(ctx.index[..., :1])).to(x.dtype)
        return (F.dropout(x, part.dropout) if self.training and part.dropout else x), ctx


def in_turn(kinds: Sequence[Tensor], mask: Tensor | None, state: State | None) -> tuple[Tensor, Context]:
    """Interleave several kinds of tokens, (B, N, D) each, to (B, T, D); return them and their context. The mask (B, N)
    applies to all kinds."""
    x = torch.stack([*kinds], dim=2).flatten(1, 2)
    mask = None if mask is None else mask.repeat_interleave(len(kinds), 1)
    return x, text_context(x, {"attention_mask": mask}, state)
