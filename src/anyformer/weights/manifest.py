"""Folders that are whole or not there: a list of checksums, written last, under a name that one rename gives.

A run keeps such folders in `checkpoints/step-00001000`; whatever else lies there is not one.
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
STATE = "state.json"  # of a checkpoint: its counters, and its "score" where it was evaluated
STEP = re.compile(r"step-(\d{8,})")


@contextlib.contextmanager
def atomic_folder(target: Path) -> Iterator[Path]:
    """A temporary folder to write into, which becomes `target` at the end, all of it on disk; if anything fails,
    nothing is left. Until the one rename an earlier folder of that name is untouched."""
    target.parent.mkdir(parents=True, exist_ok=True)
    for abandoned in target.parent.glob(".saving-*"):  # by a process that was killed
        shutil.rmtree(abandoned, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=".saving-", dir=target.parent))
    try:
        folder.chmod(0o755)  # mkdtemp's is for its owner alone
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
    """Under another name first: half a folder must not look like one."""
    doomed = Path(tempfile.mkdtemp(prefix=".saving-", dir=folder.parent))
    os.rename(folder, doomed / folder.name)
    shutil.rmtree(doomed, ignore_errors=True)


def fault(folder: Path) -> str | None:
    """What is wrong with a folder: a file that is missing, or not what was written. None if it is whole."""
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
            return f"{path}: not as long as it was written"
        if _digest(path) != promised.get("sha256"):
            return f"{path}: not what was written (checksum)"
    return None


def steps(run: Path) -> dict[int, Path]:
    """{steps done: folder} of a run's checkpoints, the oldest first; nothing is said about what is in them."""
    home = run / "checkpoints"
    found = {int(m[1]): p for p in home.iterdir() if (m := STEP.fullmatch(p.name))} if home.is_dir() else {}
    return dict(sorted(found.items()))


def newest(run: Path) -> tuple[Path | None, list[str]]:
    """The last whole checkpoint of a run, and what was wrong with those after it."""
    faults: list[str] = []
    for folder in reversed(steps(run).values()):
        wrong = fault(folder)
        if wrong is None:
            return folder, faults
        faults.append(wrong)
    return None, faults


def best_steps(run: Path) -> list[int]:
    """The evaluated checkpoints of a run by their score: the best first, and the first of equals."""
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
    """The folder of a model: `folder` itself or, of a run, the checkpoint that is best by validation. A run without
    validation, or one that keeps no best (keep.best=false), has its newest. `which` asks for one: "best" or "last"."""
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
        raise FileNotFoundError(f"{folder}: a run without a whole checkpoint" + "".join(f"; {f}" for f in faults))
    return last


def _summary(path: Path) -> dict[str, object]:
    _sync(path)
    return {"bytes": path.stat().st_size, "sha256": _digest(path)}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    """On disk, not in a cache: a file, or the names in a folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
