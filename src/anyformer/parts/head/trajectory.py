"""Decision Transformer's head: actions, states and returns predicted from a trajectory [Chen et al. 2021]."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn

from anyformer.parts.embedding.trajectory import KINDS
from anyformer.parts.head.base import Head, HeadModule, NamedTensors
from anyformer.runtime.context import Context
from anyformer.specs.field_types import Count
from anyformer.specs.part import Site


class TrajectoryHead(Head, sees="itself"):
    """Predicts the action from each state token, and the next state and return from each action token."""

    requires: ClassVar[tuple[str, ...]] = ("time steps",)
    remembers: ClassVar[bool] = False

    state_width: Count
    action_width: Count
    bounded: bool = True  # predicted actions are between -1 and 1 (tanh)


class TrajectoryModule(HeadModule, of=TrajectoryHead):
    unlisted = ("last_hidden_state", "hidden_states", "attentions")

    def __init__(self, part: TrajectoryHead, site: Site) -> None:
        super().__init__()
        self.bounded = part.bounded
        self.state = nn.Linear(site.width, part.state_width)
        self.action = nn.Linear(site.width, part.action_width)
        self.to_go = nn.Linear(site.width, 1)

    def answer(self, x: Tensor, ctx: Context, inputs: dict[str, Any]) -> NamedTensors:
        _, states, actions = x.unflatten(1, (-1, KINDS)).unbind(2)  # (B, N, D) each
        action = self.action(states)
        return {
            "state_preds": self.state(actions),
            "action_preds": action.tanh() if self.bounded else action,
            "return_preds": self.to_go(actions),
            "last_hidden_state": x,
        }
