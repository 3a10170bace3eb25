"""GAIL: imitation by an adversary; a discriminator separates the expert's actions from ours, and we fool it.

A walker on seven cells sees a few walks of an expert. Cloning counts the expert's actions. GAIL alternates between a
step of the discriminator D and a step of the policy against log D, with a weight on entropy [Ho and Ermon 2016].
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from anyformer.look import figures
from anyformer.specs.messages import amount
from anyformer_course.shown import Shown, Table

CELLS, STEPS, ACTIONS = 7, 6, ("left", "stay", "right")


def example(goal: int = 5, *, walks: int = 1, rounds: int = 120, entropy: float = 0.01, seed: int = 0) -> Shown:
    """Imitate `walks` walks of an expert that goes to cell `goal`, by cloning and by GAIL."""
    goal = int(goal)
    if not 0 <= goal < CELLS or not 1 <= walks <= 50 or not 1 <= rounds <= 400:
        raise ValueError(f"goal must be from 0 to {CELLS - 1}, walks from 1 to 50, rounds from 1 to 400")
    draws = torch.Generator().manual_seed(seed)
    expert = torch.full((CELLS, 3), -20.0)
    for cell in range(CELLS):
        expert[cell, 2 if cell < goal else 0 if cell > goal else 1] = 0.0
    states, actions = roll(expert, walks, draws)
    seen = torch.zeros(CELLS, 3)
    seen.index_put_((states.flatten(), actions.flatten()), torch.ones(states.numel()), accumulate=True)
    cloned = (seen + 1e-3).log()
    policy = torch.zeros(CELLS, 3, requires_grad=True)  # logits of the actions in each cell
    score = torch.zeros(CELLS, 3, requires_grad=True)  # D = sigmoid(score): near 1 for our own actions
    judge, actor = torch.optim.Adam([score], lr=0.1), torch.optim.Adam([policy], lr=0.1)
    history = []
    for _ in range(rounds):
        s, a = roll(policy.detach(), 64, draws)
        # gradient of E_policy[log D] + E_expert[log(1 - D)], equation 17 of the paper
        fooled = F.logsigmoid(score[s, a]).mean() + F.logsigmoid(-score[states, actions]).mean()
        judge.zero_grad()
        (-fooled).backward()
        judge.step()
        cost = F.logsigmoid(score.detach())[s, a]
        Q = cost.flip(1).cumsum(1).flip(1)  # cost of this and all later steps, equation 18
        log_p = policy.log_softmax(-1)
        spread = -(log_p.exp() * log_p).sum(-1).mean()
        loss = (log_p[s, a] * (Q - Q.mean(0))).mean() - entropy * spread
        actor.zero_grad()
        loss.backward()
        actor.step()
        history.append(success(policy.detach(), goal))
    results = {"expert": expert, "cloning": cloned, "GAIL": policy.detach(), "random": torch.zeros(CELLS, 3)}
    shares = {name: success(logits, goal) for name, logits in results.items()}

    def draw() -> Any:
        figure, axes = figures.new(2, 1, 9, 3.4)
        axes[0, 0].plot(history)
        axes[0, 0].set(xlabel="round", title="share of time steps at the goal, GAIL", ylim=(0, 1))
        axes[0, 1].imshow(policy.detach().softmax(-1).T.numpy(), vmin=0, vmax=1, cmap="Blues", aspect="auto")
        axes[0, 1].set_yticks(range(3), ACTIONS)
        axes[0, 1].set(xlabel="cell", title="policy of GAIL")
        return figure

    return Shown(
        f"After {amount(rounds, 'round')} GAIL is at cell {goal} in {100 * shares['GAIL']:.0f} % of the time steps, "
        "the expert "
        f"in {100 * shares['expert']:.0f} %, a random walker in {100 * shares['random']:.0f} %.",
        [
            Table("share of time steps at the goal, from every start", ("policy", "share"),
                  [[name, share] for name, share in shares.items()]),
            Table("policy of GAIL", ("cell", *ACTIONS, "D of going right"), [
                [cell, *row, float(score[cell, 2].detach().sigmoid())]
                for cell, row in enumerate(policy.detach().softmax(-1).tolist())
            ]),
        ],
        draw,
    )  # fmt: skip


def roll(logits: torch.Tensor, walks: int, draws: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample walks from random cells; return cells and actions, (walks, STEPS) each."""
    cell, cells, actions = torch.randint(CELLS, (walks,), generator=draws), [], []
    for _ in range(STEPS):
        action = torch.multinomial(logits.softmax(-1)[cell], 1, generator=draws)[:, 0]
        cells.append(cell)
        actions.append(action)
        cell = (cell + action - 1).clamp(0, CELLS - 1)
    return torch.stack(cells, 1), torch.stack(actions, 1)


def success(logits: torch.Tensor, goal: int) -> float:
    """Return the expected share of 2 * STEPS time steps at the goal, over all starts, computed exactly."""
    P, chance, total = logits.softmax(-1), torch.full((CELLS,), 1 / CELLS), 0.0
    for _ in range(2 * STEPS):
        new = torch.zeros(CELLS)
        for move in range(3):
            new.index_add_(0, (torch.arange(CELLS) + move - 1).clamp(0, CELLS - 1), chance * P[:, move])
        chance, total = new, total + float(new[goal])
    return total / (2 * STEPS)
