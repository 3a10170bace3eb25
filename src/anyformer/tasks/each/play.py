"""Play a gymnasium environment with a Decision Transformer, which is conditioned on a target return."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from anyformer.checkpoint import load
from anyformer.models import TransformerModule
from anyformer.parts.head.trajectory import TrajectoryModule
from anyformer.tasks.results import Episode


def play(
    model: str | Path | TransformerModule,
    environment: str,
    *,
    returns: Sequence[float],
    episodes: int = 1,
    scale: float = 1.0,
    steps: int = 20,
    seed: int = 0,
    device: str | torch.device = "cpu",
) -> list[Episode]:
    """Play `episodes` episodes for each target in `returns`; each result is {"asked", "return", "steps"}. Use the same
    `scale` and `steps` (how many past steps the model sees) as the training objective."""
    player: TransformerModule = model if isinstance(model, TransformerModule) else load(model, device=device)
    head = player.head
    if not isinstance(head, TrajectoryModule):
        raise ValueError("play needs a model that predicts actions: DecisionTransformerModel")
    if not returns or episodes < 1 or steps < 1 or not scale > 0:
        raise ValueError("play needs target returns, at least one episode and one step, and a scale above 0")
    worlds = [open_environment(environment, player) for _ in range(len(returns) * episodes)]
    request = np.repeat(np.asarray(returns, dtype=np.float64), episodes)
    won, lasted = np.zeros(len(worlds)), np.zeros(len(worlds), dtype=int)
    first = [np.ravel(world.reset(seed=seed + i % episodes)[0]) for i, world in enumerate(worlds)]
    seen = {
        "states": [np.stack(first)],
        "actions": [np.zeros((len(worlds), head.action.out_features))],
        "returns_to_go": [request[:, None] / scale],
    }
    running = np.ones(len(worlds), dtype=bool)
    most = player.spec.embedding.steps
    for now in range(most):
        predicted = answer(player, {name: values[-steps:] for name, values in seen.items()}, now)
        chosen = choices(predicted, worlds[0])
        seen["actions"][-1] = chosen if not discrete(worlds[0]) else np.eye(predicted.shape[-1])[chosen]
        states = seen["states"][-1].copy()
        for i in np.flatnonzero(running):
            state, reward, ended, cut, _ = worlds[i].step(chosen[i])
            states[i], won[i], lasted[i] = np.ravel(state), won[i] + float(reward), now + 1
            running[i] = not (ended or cut)
        if not running.any():
            break
        seen["states"].append(states)
        seen["actions"].append(np.zeros_like(seen["actions"][-1]))
        seen["returns_to_go"].append((request - won)[:, None] / scale)
    for world in worlds:
        world.close()
    results = zip(request.tolist(), won.tolist(), lasted.tolist(), strict=True)
    return [{"asked": wanted, "return": total, "steps": count} for wanted, total, count in results]


@torch.inference_mode()
def answer(player: TransformerModule, seen: dict[str, list[np.ndarray]], now: int) -> np.ndarray:
    """Return the actions (worlds, A) that the model predicts for the last state, at time step `now`."""
    device, dtype = player.device, next(player.parameters()).dtype
    inputs = {n: torch.from_numpy(np.stack(each, 1)).to(device, dtype) for n, each in seen.items()}
    N = inputs["states"].shape[1]
    out = player(**inputs, timesteps=torch.arange(now + 1 - N, now + 1, device=device)[None])
    return out.action_preds[:, -1].float().cpu().numpy()


def discrete(world: Any) -> bool:
    return hasattr(world.action_space, "n")


def choices(predicted: np.ndarray, world: Any) -> np.ndarray:
    if discrete(world):
        return predicted.argmax(-1)
    return np.clip(predicted, world.action_space.low, world.action_space.high).astype(world.action_space.dtype)


def open_environment(environment: str, player: TransformerModule) -> Any:
    """Open the environment; ValueError if its spaces do not fit the model."""
    try:
        import gymnasium
    except ImportError:
        raise ValueError("play needs gymnasium: pip install 'anyformer[games]'") from None
    try:
        world = gymnasium.make(environment)
    except (gymnasium.error.Error, ImportError) as error:
        raise ValueError(f"{environment}: {' '.join(str(error).split())}") from None
    states = int(np.prod(world.observation_space.shape or (0,)))
    space: Any = world.action_space
    actions = int(space.n) if discrete(world) else int(np.prod(space.shape or (0,)))
    part = player.spec.embedding
    if (states, actions) != (part.state_width, part.action_width):
        raise ValueError(
            f"{environment} has states of {states} numbers and {actions} actions; the model has"
            f" {part.state_width} and {part.action_width}"
        )
    return world
