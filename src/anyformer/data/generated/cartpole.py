"""Episodes of CartPole [Barto, Sutton and Anderson 1983] by three policies: random, medium and expert.

The constants and the integration step are those of gymnasium's CartPole-v1, so a model that learnt from these episodes
can play there.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

GRAVITY, CART, POLE, HALF, FORCE, STEP = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02  # m/s2, kg, kg, m (half the pole), N, s
TRACK, ANGLE = 2.4, np.deg2rad(12.0)  # an episode ends beyond these
LONGEST = 500
LEVELS = {"random": 1.0, "medium": 0.45, "expert": 0.02}  # the share of random actions
GAINS = np.array([0.05, 0.2, 1.0, 0.5])  # of the controller, for position, velocity, angle and angular velocity

Progress = Callable[[int, int], object]


def push(states: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """(N, 4) states, (N,) actions of 0 (left) or 1 (right) -> (N, 4) after one Euler step."""
    x, velocity, angle, turning = states.T
    force = np.where(actions == 1, FORCE, -FORCE)
    sine, cosine, mass = np.sin(angle), np.cos(angle), CART + POLE
    share = (force + POLE * HALF * turning**2 * sine) / mass
    turns = (GRAVITY * sine - cosine * share) / (HALF * (4.0 / 3.0 - POLE * cosine**2 / mass))
    moves = share - POLE * HALF * turns * cosine / mass
    return np.stack([x + STEP * velocity, velocity + STEP * moves, angle + STEP * turning, turning + STEP * turns], 1)


def has_fallen(states: np.ndarray) -> np.ndarray:
    return (np.abs(states[:, 0]) > TRACK) | (np.abs(states[:, 2]) > ANGLE)


def play_episodes(count: int = 600, seed: int = 0) -> dict[str, np.ndarray]:
    """The arrays that `Episodes` reads, and "level" (count,): episode i is by policy i % 3, in the order of LEVELS."""
    random = np.random.default_rng(seed)
    level = np.arange(count) % len(LEVELS)
    chance = np.array(list(LEVELS.values()))[level]
    states = random.uniform(-0.05, 0.05, (count, 4))
    seen = np.zeros((count, LONGEST, 4), np.float32)
    taken = np.zeros((count, LONGEST), np.int8)
    lengths, going = np.zeros(count, np.int64), np.ones(count, bool)
    for now in range(LONGEST):
        best = states @ GAINS > 0
        actions = np.where(random.random(count) < chance, random.integers(2, size=count), best)
        seen[:, now], taken[:, now] = states, actions
        lengths += going
        states = push(states, actions)
        going &= ~has_fallen(states)
        states[~going] = 0.0  # an ended episode stands still: nothing overflows
    steps = np.arange(LONGEST) < lengths[:, None]
    return {
        "obs": seen[steps],
        "actions": taken[steps],
        "rewards": np.ones(int(lengths.sum()), np.float32),
        "episode_offsets": np.append(0, np.cumsum(lengths)),
        "level": level.astype(np.int8),
    }


def write_episodes(folder: Path, seed: int, progress: Progress, count: int = 600) -> None:
    arrays: Any = play_episodes(count, seed)
    np.savez_compressed(folder / "cartpole_mixed.npz", **arrays)
    progress(count, count)
