"""Episodes of an agent: states, actions and rewards, for learning a policy."""

from __future__ import annotations

import itertools
import math
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.lib import format as npy

from anyformer.data.source import Files, Row
from anyformer.specs.messages import quote

NAMES = ("obs", "actions", "rewards")
LEAST, DENSEST = 2**26, 200  # maximum size of the arrays: LEAST bytes, or DENSEST times the file's size if that is more


class Episodes(Files):
    """Read NumPy's .npz with the concatenated episodes: "obs" (M, S), "actions" (M,) or (M, A), "rewards" (M,), and
    their boundaries: "episode_offsets" (episodes + 1,) or "episode_starts" (M,), nonzero at first steps. Each episode
    is an example: {"states": (N, S), "actions": (N,) or (N, A), "rewards": (N,)}."""

    def endings(self) -> tuple[str, ...]:
        return (".npz",)

    def raw(self) -> Iterator[Row]:
        for file in self.files():
            try:
                stored = read_arrays(file, *NAMES, "episode_offsets", "episode_starts")
                lacks = [name for name in NAMES if name not in stored]
                if lacks:
                    raise ValueError(f"no array {quote(lacks[0])}; needed: {', '.join(NAMES)}")
                if flat := [name for name, array in stored.items() if not array.ndim or array.dtype.kind not in "biuf"]:
                    raise ValueError(
                        f"{flat[0]} is {stored[flat[0]].dtype} {stored[flat[0]].shape}, not an array of numbers"
                    )
                arrays = {name: stored[name] for name in NAMES}
                offsets = episode_offsets(stored, len(arrays["rewards"]))
            except ValueError as error:
                raise ValueError(f"{file}: {error}") from None
            if len({len(array) for array in arrays.values()}) != 1:
                shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
                raise ValueError(f"{file}: arrays of unequal length ({shapes})")
            for i, (start, stop) in enumerate(itertools.pairwise(offsets)):
                states, actions, rewards = (arrays[name][start:stop] for name in NAMES)
                yield Row(f"{file}: episode {i + 1}", {"states": states, "actions": actions, "rewards": rewards})


def read_arrays(file: Path, *names: str) -> dict[str, np.ndarray]:
    """Return the named arrays that an .npz contains. The size in each header is checked before the array is read."""
    wanted = {f"{name}.npy": name for name in names}
    most = max(LEAST, DENSEST * file.stat().st_size)
    arrays = {}
    try:
        with zipfile.ZipFile(file) as archive:
            members = [member for member in archive.infolist() if member.filename in wanted]
            if sum(member.file_size for member in members) > most:
                raise ValueError(f"its arrays are larger than {most:,} bytes")
            for member in members:
                with archive.open(member) as stream:
                    header = npy.read_array_header_1_0 if npy.read_magic(stream)[0] == 1 else npy.read_array_header_2_0
                    shape, _, dtype = header(stream)
                if math.prod(shape) * dtype.itemsize > member.file_size:
                    raise ValueError(f"{member.filename} has too few bytes for {dtype} {shape}")
                with archive.open(member) as stream:
                    arrays[wanted[member.filename]] = npy.read_array(stream, allow_pickle=False)
    except OSError:
        raise
    except Exception as error:  # for damaged archives, zipfile and numpy raise errors of many types
        raise ValueError(" ".join(str(error).split()) or "not a readable .npz") from None
    return arrays


def episode_offsets(given: dict[str, np.ndarray], steps: int) -> np.ndarray:
    """Return (episodes + 1,): the first step of each episode, and the end of the last episode."""
    if "episode_offsets" in given:
        offsets = given["episode_offsets"].astype(np.int64)
    elif "episode_starts" in given:
        offsets = np.append(np.flatnonzero(given["episode_starts"]), steps)
    else:
        raise ValueError("no array 'episode_offsets' or 'episode_starts'; one of them must mark where episodes begin")
    if not are_consecutive(offsets, steps):
        raise ValueError(f"the episode offsets must rise from 0 to {steps}")
    return offsets


def are_consecutive(offsets: np.ndarray, total: int) -> bool:
    """Whether `offsets` cut [0, total) into non-empty, consecutive pieces."""
    return (
        offsets.ndim == 1
        and len(offsets) > 1
        and offsets[0] == 0
        and offsets[-1] == total
        and bool((np.diff(offsets) > 0).all())
    )
