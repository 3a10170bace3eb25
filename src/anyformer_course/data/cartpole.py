"""Episodes of CartPole [Barto, Sutton and Anderson 1983] by three policies: random, medium and expert.

The constants and the integration step are the same as in gymnasium's CartPole-v1, so a model trained on these episodes
can play it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

GRAVITY, CART, POLE, HALF, FORCE, STEP = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02  # m/s2, kg, kg, m (half the pole), N, s
TRACK, ANGLE = 2.4, np.deg2rad(12.0)  # an episode ends if the position (m) or angle is beyond these
LONGEST = 500  # steps
LEVELS = {"random": 1.0, "medium": 0.45, "expert": 0.02}  # probability of a random action
GAINS = np.array([0.05, 0.2, 1.0, 0.5])  # controller: gains of position, velocity, angle and angular velocity

Progress = Callable[[int, int], object]


def push(states: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """Return the states (N, 4) after one Euler step; actions (N,) are 0 (left) or 1 (right)."""
    x, velocity, angle, spin = states.T
    force = np.where(actions == 1, FORCE, -FORCE)
    sine, cosine, mass = np.sin(angle), np.cos(angle), CART + POLE
    thrust = (force + POLE * HALF * spin**2 * sine) / mass
    spin_rate = (GRAVITY * sine - cosine * thrust) / (HALF * (4.0 / 3.0 - POLE * cosine**2 / mass))
    accel = thrust - POLE * HALF * spin_rate * cosine / mass
    return np.stack([x + STEP * velocity, velocity + STEP * accel, angle + STEP * spin, spin + STEP * spin_rate], 1)


def has_fallen(states: np.ndarray) -> np.ndarray:
    return (np.abs(states[:, 0]) > TRACK) | (np.abs(states[:, 2]) > ANGLE)


def play_episodes(count: int = 600, seed: int = 0) -> dict[str, np.ndarray]:
    """Return the arrays that `Episodes` reads, and "level" (count,): the index of the episode's policy in LEVELS."""
    random = np.random.default_rng(seed)
    level = np.arange(count) % len(LEVELS)
    chance = np.array(list(LEVELS.values()))[level]
    states = random.uniform(-0.05, 0.05, (count, 4))
    all_states = np.zeros((count, LONGEST, 4), np.float32)
    all_actions = np.zeros((count, LONGEST), np.int8)
    lengths, running = np.zeros(count, np.int64), np.ones(count, bool)
    for step in range(LONGEST):
        best = states @ GAINS > 0
        actions = np.where(random.random(count) < chance, random.integers(2, size=count), best)
        all_states[:, step], all_actions[:, step] = states, actions
        lengths += running
        states = push(states, actions)
        running &= ~has_fallen(states)
        states[~running] = 0.0  # so that ended episodes do not overflow
    is_step = np.arange(LONGEST) < lengths[:, None]
    return {
        "obs": all_states[is_step],
        "actions": all_actions[is_step],
        "rewards": np.ones(int(lengths.sum()), np.float32),
        "episode_offsets": np.append(0, np.cumsum(lengths)),
        "level": level.astype(np.int8),
    }


def write_episodes(folder: Path, seed: int, progress: Progress, count: int = 600) -> None:
    arrays: Any = play_episodes(count, seed)
    np.savez_compressed(folder / "cartpole_mixed.npz", **arrays)
    progress(count, count)
