"""Opening any file works or is refused in one line, within 10 s of processor time and 2 GB of memory."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from prisoner import results
from targets import Target, targets

WEEKLY, CHUNKS = 3600, 24
# files of the families: every eighth family is tested daily
OF_FAMILIES = [target for target in targets() if target.name.startswith(("config-", "spec-", "weights-"))]
LATER = {target.name for i, target in enumerate(OF_FAMILIES) if i // 3 % 8}
DAILY = [(target, 0) for target in targets() if target.name not in LATER]


@pytest.fixture(scope="session")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("good")


def good(target: Target, stock: Path) -> Path:
    folder = stock / target.name
    if not folder.exists():
        target.make(folder)
    return folder


def attacked(chosen: list[tuple[Target, int]], stock: Path, folder: Path) -> None:
    attacks = []
    for target, seed in chosen:
        place = folder / f"{target.name}-{seed}"
        target.damaged(good(target, stock), place, random.Random(f"{target.name} {seed}"))
        attacks.append(lambda target=target, place=place: target.open(place))
    found = list(zip(chosen, results(attacks)))
    works = sum(result.what == "works" for _, result in found)
    print(f"{len(found)} mutants: {works} work, {len(found) - works} are refused")
    wrong = [
        f"{target.name}, seed {seed}: {result.what}: {result.line}\n{result.where}"
        for (target, seed), result in found if not result.good
    ]  # fmt: skip
    assert not wrong, "\n".join([f"{len(wrong)} of {len(found)} files were not handled correctly", *wrong])


def drawn(first: int, number: int) -> list[tuple[Target, int]]:
    """Return `number` (target, seed) pairs from `first` on: all targets with one seed, then with the next."""
    every = targets()
    return [(every[i % len(every)], i // len(every)) for i in range(first, first + number)]


@pytest.mark.parametrize("target", [
    pytest.param(target, id=target.name, marks=[pytest.mark.slow] * (target.name in LATER)) for target in targets()
])  # fmt: skip
def test_the_undamaged_file_opens(target: Target, stock: Path) -> None:
    target.open(good(target, stock))


@pytest.mark.parametrize("part", range(2))
def test_damaged_files_are_answered(part: int, stock: Path, tmp_path: Path) -> None:
    attacked(DAILY[part::2], stock, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_many_damaged_files_are_answered(chunk: int, stock: Path, tmp_path: Path) -> None:
    size = WEEKLY // CHUNKS
    attacked(drawn(chunk * size, size), stock, tmp_path)
