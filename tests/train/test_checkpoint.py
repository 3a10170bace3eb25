"""T3: a checkpoint is complete or absent, whatever happens while it is written."""

from __future__ import annotations

import json
import os
import random
import signal
import stat
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer as af
from anyformer.train.resume import Checkpoints, fill, read
from anyformer.weights import hub, manifest
from tiny import model_of

sys.path.insert(0, str(Path(__file__).parent))
import runs

pytestmark = pytest.mark.xdist_group("nursery")  # one worker starts one process for all of them


def moments(model: Any) -> dict[str, torch.Tensor]:
    return {f"{name}/exp_avg": p.detach() * 2 for name, p in model.named_parameters()}


@pytest.fixture
def model() -> Any:
    return model_of("gpt2")


def test_what_is_saved_is_read_back_to_the_bit(tmp_path: Path, model: Any) -> None:
    kept = Checkpoints(tmp_path)
    values = {"score": 0.1 + 0.2, "tokens": 12, "scaler": {"scale": 65536.0}}
    folder = kept.save(7, model, values, optimizer=moments(model))
    assert folder.name == "step-00000007"
    saved, faults = kept.newest()
    assert saved is not None and not faults and saved.values == {**values, "step": 7}
    other = af.build(model.spec, seed=5)
    fill(other, saved.tensors["weights"])
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), other.state_dict().values()))
    assert other.head.out.weight is other.embedding.tokens.weight
    assert saved.tensors["optimizer"].keys() == moments(model).keys()
    assert all(torch.equal(saved.tensors["optimizer"][name], tensor) for name, tensor in moments(model).items())
    # the folder of the run opens as a model
    (tmp_path / "run.json").write_text("{}")
    assert hub.resolve(tmp_path) == folder
    loaded = af.load(tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), loaded.state_dict().values()))


def test_own_weights_are_kept_beside_the_model(tmp_path: Path, model: Any) -> None:
    """The average is saved as the model; training continues from the weights."""
    own = {name: tensor * 3 for name, tensor in model.state_dict().items()}
    saved = read(Checkpoints(tmp_path).save(1, model, {}, weights=own))
    assert all(torch.equal(saved.tensors["weights"][name], tensor) for name, tensor in own.items())
    assert torch.equal(af.load(saved.folder).embedding.tokens.weight, model.embedding.tokens.weight)


def test_weights_of_another_model_are_refused(model: Any) -> None:
    with pytest.raises(ValueError, match="belongs to another model: .* is missing"):
        fill(model, {})
    with pytest.raises(ValueError, match=r"embedding.tokens.weight has shape \(3, 24\) instead of \(50, 24\)"):
        fill(model, {**model.state_dict(), "embedding.tokens.weight": torch.zeros(3, 24)})


def test_the_last_and_the_best_are_kept(tmp_path: Path, model: Any) -> None:
    kept = Checkpoints(tmp_path, last=2)
    for step, score in enumerate((5.0, 1.0, 3.0, None, float("nan"), 2.0), 1):
        kept.save(step, model, {"score": score})
    assert list(manifest.steps(tmp_path)) == [2, 5, 6] and kept.best_step() == 2
    Checkpoints(tmp_path, last=1, best=False).prune()
    assert list(manifest.steps(tmp_path)) == [6]
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-00000006"]


def test_the_first_of_equals_is_the_best(tmp_path: Path, model: Any) -> None:
    kept = Checkpoints(tmp_path, last=1)
    for step, score in enumerate((4.0, 2.0, 2.0, 2.0, 3.0), 1):
        kept.save(step, model, {"score": score})
        assert kept.best_step() == min(step, 2)
    assert list(manifest.steps(tmp_path)) == [2, 5]


def test_a_run_opens_as_its_best_checkpoint(tmp_path: Path, model: Any) -> None:
    """@last opens the newest checkpoint; a damaged one is never used, and a warning names it."""
    (tmp_path / "run.json").write_text("{}")
    kept = Checkpoints(tmp_path, last=9)
    kept.save(1, model, {"score": None})
    assert hub.resolve(tmp_path).name == "step-00000001"  # nothing was evaluated
    with pytest.raises(FileNotFoundError, match="no checkpoint of this run was evaluated"):
        hub.resolve(f"{tmp_path}@best")
    for step, score in ((2, 3.0), (3, 1.0), (4, 2.0), (5, None)):
        kept.save(step, model, {"score": score})
    names = [hub.resolve(f"{tmp_path}{which}").name for which in ("", "@best", "@last")]
    assert names == ["step-00000003", "step-00000003", "step-00000005"]
    assert af.load(f"{tmp_path}@last").folder.name == "step-00000005"
    (tmp_path / "checkpoints" / "step-00000003" / "model.safetensors").unlink()
    with pytest.warns(UserWarning, match="best checkpoint is damaged.*step-00000003/model.safetensors: missing"):
        assert hub.resolve(tmp_path).name == "step-00000004"
    with pytest.raises(FileNotFoundError):
        hub.resolve(f"{tmp_path}@first")


def test_all_of_it_is_on_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """fsync order: every complete file, the folder, the rename, then the parent folder."""
    events: list[tuple[str, int, int]] = []  # (operation, file, bytes)
    sync, rename = os.fsync, os.rename

    def note(what: str, found: os.stat_result) -> None:
        events.append((what, found.st_ino, found.st_size if stat.S_ISREG(found.st_mode) else 0))

    monkeypatch.setattr(os, "fsync", lambda handle: (note("sync", os.fstat(handle)), sync(handle)))
    monkeypatch.setattr(os, "rename", lambda old, new: (note("rename", os.stat(old)), rename(old, new)))
    for _ in range(2):  # the second time replaces the first
        events.clear()
        folder = tmp_path / "checkpoints" / "step-00000001"
        with manifest.atomic_folder(folder) as half:
            for name in "ab":
                (half / name).write_text(name * 9)
        own, parent = folder.stat().st_ino, folder.parent.stat().st_ino
        named = events.index(("rename", own, 0))
        listed = max(i for i, event in enumerate(events[:named]) if event == ("sync", own, 0))
        for path in folder.iterdir():
            assert ("sync", path.stat().st_ino, path.stat().st_size) in events[:listed], path.name
        assert events[named + 1 :] == [("sync", parent, 0)]


@pytest.mark.parametrize("damage", ["flip", "cut", "gone", "manifest", "empty"])
def test_a_damaged_one_is_never_chosen(tmp_path: Path, model: Any, damage: str) -> None:
    kept = Checkpoints(tmp_path, last=3)
    for step in (1, 2):
        folder = kept.save(step, model, {}, optimizer=moments(model))
    path = folder / "training.safetensors"
    raw = path.read_bytes()
    if damage == "flip":
        path.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    elif damage == "cut":
        path.write_bytes(raw[:-1])
    elif damage == "gone":
        path.unlink()
    elif damage == "manifest":
        (folder / manifest.NAME).write_text("{")
    else:
        (folder / manifest.NAME).write_text(json.dumps({"files": {}}))
    saved, faults = kept.newest()
    assert saved is not None and saved.values["step"] == 1
    assert len(faults) == 1 and "step-00000002" in faults[0]
    (tmp_path / "run.json").write_text("{}")
    assert hub.resolve(tmp_path).name == "step-00000001"
    manifest.remove(tmp_path / "checkpoints" / "step-00000001")
    assert kept.newest()[0] is None
    with pytest.raises(FileNotFoundError, match="this run has no complete checkpoint.*step-00000002"):
        hub.resolve(tmp_path)


def test_an_error_while_saving_leaves_nothing(tmp_path: Path, model: Any) -> None:
    kept = Checkpoints(tmp_path)
    kept.save(1, model, {})
    with pytest.raises(TypeError):
        kept.save(2, model, {"score": object()})  # not JSON
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-00000001"]
    assert kept.newest()[0].values["step"] == 1  # type: ignore[union-attr]


# -- real processes


def test_t3_killed_while_saving(tmp_path: Path, nursery: runs.Nursery) -> None:
    """kill -9 at random moments of a process that only saves: the newest checkpoint is always complete."""
    draw, first, halves = random.Random(0), 1, 0
    for _ in range(8):
        child = nursery.start("save", tmp_path, first, 0)
        # a slow test may miss `first`: only two are kept
        nursery.wait_until(lambda least=first: max(manifest.steps(tmp_path), default=0) >= least)
        time.sleep(draw.uniform(0.02, 0.2))
        os.kill(child, signal.SIGKILL)
        assert nursery.wait() == -signal.SIGKILL
        halves += any(path.name.startswith(".saving-") for path in (tmp_path / "checkpoints").iterdir())
        saved, faults = Checkpoints(tmp_path).newest()
        assert saved is not None and not faults
        step = saved.values["step"]
        assert saved.values["value"] == step >= first
        assert set(saved.tensors["weights"]["decoder.norm.bias"].tolist()) == {step}
        assert set(saved.tensors["optimizer"]["a"].tolist()) == {step}
        first = step + 1
    assert halves, "no kill fell into a save: the test shows nothing"


@pytest.mark.slow
def test_t3_disk_full(tmp_path: Path, nursery: runs.Nursery) -> None:
    nursery.start("save", tmp_path, 1, 100_000)  # the model's file is longer than the limit
    assert nursery.wait() == 1
    saved, faults = Checkpoints(tmp_path).newest()
    assert saved is not None and saved.values["step"] == 1 and not faults
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000001"]
