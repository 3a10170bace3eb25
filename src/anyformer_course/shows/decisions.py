"""Decision tokens: an episode as a row of returns, states and actions, which a decoder continues.

A walker goes left or right for eight steps and gets 1 for each step to the right. A Decision Transformer learns from
random walks; then we ask for a return, and it acts so as to reach it [Chen et al. 2021].
"""

from __future__ import annotations

from typing import Any

import torch

import anyformer as af
from anyformer import families
from anyformer.look import figures
from anyformer.specs.messages import quote
from anyformer_course.shown import Shown, Table

STEPS = 8  # of an episode


def example(returns: str = "0 2 4 6 8", *, steps: int = 150, width: int = 32, seed: int = 0) -> Shown:
    """Train on random walks for `steps` steps, then act for each return in `returns`."""
    try:
        asked = [float(each) for each in str(returns).split()]
    except ValueError:
        asked = []
    if not asked or not all(abs(each) <= 100 for each in asked):
        raise ValueError(f"returns is {quote(returns)}; give numbers such as '0 4 8'")
    config = {
        "architectures": ["DecisionTransformerModel"], "state_dim": 1, "act_dim": 1, "hidden_size": width, "n_layer": 1,
        "n_head": 1, "n_positions": 64, "max_ep_len": 16, "action_tanh": True, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
    }  # fmt: skip
    model = af.build(families.find("decision_transformer").read(config), seed=seed)
    draws, optimizer = torch.Generator().manual_seed(seed), torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(steps):
        chance = torch.rand(64, 1, generator=draws)  # each walker has its own habit
        actions = (torch.rand(64, STEPS, generator=draws) < chance).float() * 2 - 1
        inputs = episode(actions)
        loss = (model(**inputs).action_preds - inputs["actions"]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    walks = {wanted: act(model, wanted) for wanted in asked}
    reached = {wanted: float((walk > 0).sum()) for wanted, walk in walks.items()}
    first = next(iter(walks))
    tokens = []
    to_go = episode(walks[first][None], first)["returns_to_go"][0, :, 0]
    states = episode(walks[first][None])["states"][0, :, 0]
    for t in range(3):
        tokens += [
            ["return to go", t, float(to_go[t])],
            ["state", t, float(states[t])],
            ["action", t, float(walks[first][t])],
        ]
    close = sum(abs(reached[wanted] - wanted) <= 1 for wanted in asked)

    def draw() -> Any:
        figure, axes = figures.new(2, 1, 9, 3.4)
        for wanted, walk in walks.items():
            axes[0, 0].plot([0, *walk.cumsum(0).tolist()], "o-", label=f"asked {wanted:g}", markersize=3)
        axes[0, 0].set(xlabel="step", ylabel="position", title="walks")
        axes[0, 0].legend(frameon=False, fontsize=8)
        axes[0, 1].plot(asked, list(reached.values()), "o")
        axes[0, 1].plot([min(asked), max(asked)], [min(asked), max(asked)], ":", color="gray")
        axes[0, 1].set(xlabel="requested return", ylabel="return reached")
        return figure

    return Shown(
        f"For {close} of {len(asked)} requests the return is within 1 of the requested return.",
        [
            Table(f"first tokens of the walk with return {first:g}", ("token", "time step", "value"), tokens),
            Table(
                "asked and reached", ("asked", "reached", "actions"),
                [[each, reached[each], "".join("R" if a > 0 else "L" for a in walk)] for each, walk in walks.items()],
            ),
        ],
        draw,
    )  # fmt: skip


def episode(actions: torch.Tensor, asked: float | None = None) -> dict[str, torch.Tensor]:
    """Return the inputs for actions (B, N): states before each action, and the reward still to come (or asked for)."""
    rewards = (actions > 0).float()
    past, moved = rewards.cumsum(1) - rewards, actions.cumsum(1) - actions
    total = rewards.sum(1, keepdim=True) if asked is None else torch.full_like(rewards[:, :1], asked)
    time = torch.arange(actions.shape[1]).expand(len(actions), -1)
    inputs = {"states": moved / 8, "actions": actions, "rewards": rewards, "returns_to_go": total - past}
    return {**{name: value[..., None] for name, value in inputs.items()}, "timesteps": time}


@torch.no_grad()
def act(model: Any, asked: float) -> torch.Tensor:
    """Choose one action after the other, with the return that is still missing as the prompt."""
    actions = torch.zeros(1, 0)
    for _ in range(STEPS):
        padded = torch.cat((actions, torch.zeros(1, 1)), 1)  # the action at this step is not known yet
        best = model(**episode(padded, asked)).action_preds[0, -1, 0]
        actions = torch.cat((actions, best.sign().view(1, 1)), 1)
    return actions[0]
