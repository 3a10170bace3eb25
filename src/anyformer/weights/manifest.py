"""Folders that are written atomically: a list of checksums is written last, and one rename gives the folder its name.

The checkpoints of a run are such folders, named `checkpoints/step-00001000`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

from anyformer.weights.io import read_json, write_json

NAME = "manifest.json"
STATE = "state.json"  # the counters of a checkpoint, and its "score" if it was evaluated
STEP = re.compile(r"step-(\d{8,})")


@contextlib.contextmanager
def atomic_folder(target: Path) -> Iterator[Path]:
    """Yield a temporary folder that is flushed to disk and renamed to `target` at the end. If anything fails, it is
    removed. An earlier folder of that name is unchanged until the rename."""
    target.parent.mkdir(parents=True, exist_ok=True)
    for abandoned in target.parent.glob(".saving-*"):  # left by a process that was killed
        shutil.rmtree(abandoned, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=".saving-", dir=target.parent))
    try:
        folder.chmod(0o755)  # mkdtemp gives access only to the owner
        yield folder
        inside = sorted(folder.rglob("*"))
        files = {path.relative_to(folder).as_posix(): _summary(path) for path in inside if path.is_file()}
        write_json(folder / NAME, {"files": files})
        for each in (*(path for path in inside if path.is_dir()), folder):
            _sync(each)
        if target.exists():
            remove(target)
        os.rename(folder, target)
        _sync(target.parent)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def remove(folder: Path) -> None:
    """Remove a folder. It is renamed first, so that a half-removed folder does not look complete."""
    doomed = Path(tempfile.mkdtemp(prefix=".saving-", dir=folder.parent))
    os.rename(folder, doomed / folder.name)
    shutil.rmtree(doomed, ignore_errors=True)


def fault(folder: Path) -> str | None:
    """Return what is wrong with a folder: a missing or changed file. None if it is complete."""
    try:
        files = read_json(folder / NAME).get("files")
    except (OSError, ValueError) as error:
        return str(error)
    if not isinstance(files, dict) or not files:
        return f"{folder / NAME}: lists no files"
    for name, promised in files.items():
        path = folder / name
        if ".." in Path(name).parts or Path(name).is_absolute() or not path.is_file():
            return f"{path}: missing"
        if not isinstance(promised, dict) or path.stat().st_size != promised.get("bytes"):
            return f"{path}: wrong size"
        if _digest(path) != promised.get("sha256"):
            return f"{path}: wrong checksum"
    return None


def steps(run: Path) -> dict[int, Path]:
    """Return {number of steps: folder} of a run's checkpoints, oldest first, without checking their content."""
    home = run / "checkpoints"
    found = {int(m[1]): p for p in home.iterdir() if (m := STEP.fullmatch(p.name))} if home.is_dir() else {}
    return dict(sorted(found.items()))


def newest(run: Path) -> tuple[Path | None, list[str]]:
    """Return the newest complete checkpoint of a run, and what is wrong with those after it."""
    faults: list[str] = []
    for folder in reversed(steps(run).values()):
        wrong = fault(folder)
        if wrong is None:
            return folder, faults
        faults.append(wrong)
    return None, faults


def best_steps(run: Path) -> list[int]:
    """Return the steps of a run's evaluated checkpoints, the best score first; of equal scores, the earlier first."""
    scores = {}
    for step, folder in steps(run).items():
        try:
            score = read_json(folder / STATE).get("score")
        except (OSError, ValueError):
            continue
        if isinstance(score, (int, float)) and score == score:
            scores[step] = score
    return sorted(scores, key=lambda step: (scores[step], step))


def model_folder(folder: Path, which: str | None = None) -> Path:
    """Return the folder of a model: `folder` itself or, for a run, the checkpoint that is best by validation. For a run
    without validation or with keep.best=false it is the newest. `which` selects one: "best" or "last"."""
    if (folder / "spec.json").is_file() or (folder / "config.json").is_file():
        return folder
    ranked = [] if which == "last" else best_steps(folder)
    if which == "best" and not ranked:
        raise FileNotFoundError(f"{folder}@best: no checkpoint of this run was evaluated; {folder}@last is the newest")
    for step in ranked:
        found = steps(folder)[step]
        wrong = fault(found)
        if wrong is None:
            return found
        warnings.warn(f"the best checkpoint is damaged and is not used: {wrong}", stacklevel=2)
    last, faults = newest(folder)
    if last is None:
        raise FileNotFoundError(f"{folder}: this run has no complete checkpoint" + "".join(f"; {f}" for f in faults))
    return last


def _summary(path: Path) -> dict[str, object]:
    _sync(path)
    return {"bytes": path.stat().st_size, "sha256": _digest(path)}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
