"""Episodes that agents lived through, for learning what to do."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from anyformer.data.source import Files, Row

NAMES = ("obs", "actions", "rewards")


class Episodes(Files):
    """NumPy's .npz with "obs" (M, S), "actions" (M,) or (M, A) and "rewards" (M,) of all episodes one after another;
    where each begins is in "episode_offsets" (episodes + 1,) or marked in "episode_starts" (M,). Each episode is an
    example: {"states": (N, S), "actions": (N,) or (N, A), "rewards": (N,)}."""

    def endings(self) -> tuple[str, ...]:
        return (".npz",)

    def raw(self) -> Iterator[Row]:
        for file in self.files():
            try:
                with np.load(file, allow_pickle=False) as stored:
                    lacks = [name for name in NAMES if name not in stored.files]
                    if lacks:
                        raise ValueError(f"no array {lacks[0]!r}, of {', '.join(NAMES)}")
                    arrays = {name: stored[name] for name in NAMES}
                    offsets = offsets_of({name: stored[name] for name in stored.files if name.startswith("episode_")},
                                         len(arrays["rewards"]))  # fmt: skip
            except (OSError, ValueError, EOFError) as error:
                raise ValueError(f"{file}: {error}") from None
            if len({len(array) for array in arrays.values()}) != 1:
                shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
                raise ValueError(f"{file}: arrays of unequal length ({shapes})")
            for i, (start, stop) in enumerate(itertools.pairwise(offsets)):
                states, actions, rewards = (arrays[name][start:stop] for name in NAMES)
                yield Row(f"{file}: episode {i + 1}", {"states": states, "actions": actions, "rewards": rewards})


def offsets_of(given: dict[str, np.ndarray], steps: int) -> np.ndarray:
    """(episodes + 1,) where each begins, and the end of the last."""
    if "episode_offsets" in given:
        offsets = given["episode_offsets"].astype(np.int64)
    elif "episode_starts" in given:
        offsets = np.append(np.flatnonzero(given["episode_starts"]), steps)
    else:
        raise ValueError("nothing says where episodes begin: no array 'episode_offsets' or 'episode_starts'")
    if len(offsets) < 2 or offsets[0] != 0 or offsets[-1] != steps or (np.diff(offsets) < 1).any():
        raise ValueError(f"the episodes do not follow each other from 0 to {steps}")
    return offsets
