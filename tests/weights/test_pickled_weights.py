"""`anyformer convert --unpickle`: honest pickles are converted completely, hostile ones give a one-line error."""

from __future__ import annotations

import builtins
import errno
import io
import json
import os
import pickle
import struct
import subprocess
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from prisoner import MeasuredPopen
from torch import Tensor

import anyformer as af
from anyformer import cli, families
from anyformer.runtime import guarded_process
from anyformer.weights import pickled_weights
from anyformer.weights.io import Checkpoint
from anyformer.weights.pickled_weights import unpickle_folder

CONFIG = {"n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 20, "n_positions": 8}
NAME = "pytorch_model.bin"


def weights() -> dict[str, Tensor]:
    """Tensors of every kind in state dicts: shared, transposed, slices of larger ones, scalars."""
    table, whole = torch.randn(7, 5), torch.arange(40.0)
    return {
        "table": table, "tied": table, "turned": torch.randn(3, 4).t(), "cut": whole[8:12], "one": torch.tensor(3),
        "half": torch.randn(4).half(), "brain": torch.randn(4).bfloat16(), "mask": torch.ones(2, 3).bool(),
        "bytes": torch.arange(5, dtype=torch.uint8), "parameter": torch.nn.Parameter(torch.randn(2)),
        "empty": torch.zeros(0, 3), "double": torch.randn(2).double(),
    }  # fmt: skip


# -- honest ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "before 1.6"])
def test_every_tensor_is_found(tmp_path: Path, zipped: bool) -> None:
    held = weights()
    wrapped = {"epoch": 3, "model": OrderedDict(held), "optimizer": {"state": {0: {"step": torch.tensor(1.0)}}}}
    torch.save(wrapped, tmp_path / NAME, _use_new_zipfile_serialization=zipped)
    found = pickled_weights.tensors_in(str(tmp_path / NAME))
    assert list(found) == list(held)
    assert all(torch.equal(found[name], tensor) and found[name].dtype == tensor.dtype for name, tensor in held.items())


def sharded(folder: Path, held: dict[str, Tensor]) -> None:
    names = list(held)
    parts = [names[::2], names[1::2]]
    weight_map = {}
    for number, part in enumerate(parts, 1):
        file = f"pytorch_model-{number:05}-of-00002.bin"
        torch.save({name: held[name] for name in part}, folder / file, _use_new_zipfile_serialization=number == 1)
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))


def test_shards_with_an_index(tmp_path: Path) -> None:
    held = weights()
    sharded(tmp_path, held)
    before = sorted(tmp_path.iterdir())
    with unpickle_folder(tmp_path, tmp_path) as folder, Checkpoint(folder) as found:
        assert len(list(folder.glob("*.safetensors"))) == 2 and sorted(found.names) == sorted(held)
        for name, tensor in held.items():
            assert torch.equal(found.read(name), tensor) and found.dtype(name) == tensor.dtype, name
    assert sorted(tmp_path.iterdir()) == before


def test_which_pickle_is_meant(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no pickled weights"):
        pickled_weights.pickles(tmp_path)
    for name in ("a.pt", "b.pt"):
        (tmp_path / name).touch()
    with pytest.raises(ValueError, match=r"several pickles \(a.pt, b.pt\)"):
        pickled_weights.pickles(tmp_path)
    (tmp_path / NAME).touch()
    assert pickled_weights.pickles(tmp_path) == ([tmp_path / NAME], {})
    (tmp_path / NAME).unlink()
    (tmp_path / "b.pt").unlink()
    assert pickled_weights.pickles(tmp_path) == ([tmp_path / "a.pt"], {})
    index = tmp_path / "pytorch_model.bin.index.json"
    index.write_text('{"weight_map": {"a": "../a.bin"}}')
    with pytest.raises(ValueError, match="is not a plain .bin name"):
        pickled_weights.pickles(tmp_path)
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(ValueError, match="already safetensors"):
        pickled_weights.pickles(tmp_path)


# -- hostile -----------------------------------------------------------------------------------------------------------


class Call:
    """An object that calls `function(*arguments)` when it is unpickled."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def plain(value: Any) -> bytes:
    return pickle.dumps(value, protocol=2)


def legacy(value: Any) -> bytes:
    out = io.BytesIO()
    torch.save(value, out, _use_new_zipfile_serialization=False)
    return out.getvalue()


def archive(value: Any, change: Callable[[bytes], bytes] = bytes, compress: int = zipfile.ZIP_STORED) -> bytes:
    """Return torch.save's zip of `value` with a changed data.pkl."""
    made, out = io.BytesIO(), io.BytesIO()
    torch.save(value, made)
    with zipfile.ZipFile(made) as old, zipfile.ZipFile(out, "w", compress) as new:
        for entry in old.infolist():
            content = old.read(entry)
            new.writestr(entry.filename, change(content) if entry.filename.endswith("data.pkl") else content)
    return out.getvalue()


def inflated(raw: bytes) -> bytes:
    """Change the size 123,457 to two billion."""
    old, new = (b"J" + struct.pack("<i", count) for count in (123_457, 2_000_000_000))
    assert old in raw
    return raw.replace(old, new)


def doubled(depth: int) -> bytes:
    """A dictionary whose key is a pair of pairs of pairs ...: a few bytes per level, 2**depth steps to hash."""
    body = b"".join(b"q" + bytes([i]) + b"h" + bytes([i]) + b"\x86" for i in range(depth))
    return b"\x80\x02}" + b")" + body + b"K\x01s."


def nested(depth: int) -> bytes:
    return b"\x80\x02})" + b"\x85" * depth + b"K\x01s."


def itself() -> bytes:
    """{"state_dict": the same dictionary}."""
    return b"\x80\x02}q\x00X\x0a\x00\x00\x00state_dicth\x00s."


def strided(values: int) -> dict[str, Tensor]:
    return {"w": torch.zeros(1).expand(values, values)}


def meta() -> dict[str, Tensor]:
    return {"w": torch.empty(10**9, 10**9, device="meta")}


wide = {"w": torch.zeros(123_457, dtype=torch.float64)}
HOSTILE: dict[str, tuple[Callable[[Path], bytes], str]] = {
    "os.system": (lambda mark: plain(Call(os.system, f"touch {mark}")), "posix.system, which is not a tensor"),
    "os.system in a zip": (
        lambda mark: archive({}, lambda _: plain({"w": Call(os.system, f"touch {mark}")})), "posix.system"
    ),
    "os.system in a file of 2019": (
        lambda mark: legacy({"w": Call(os.system, f"touch {mark}")}), "nothing was run"
    ),
    "eval": (lambda mark: plain(Call(builtins.eval, f"open({str(mark)!r}, 'w')")), "names eval, which is not a tensor"),
    "16 GB in a zip": (lambda _: archive(wide, inflated), "not a complete pickle of tensors"),
    "16 GB in a file of 2019": (lambda _: inflated(legacy(wide)), "more memory than a file of its size holds"),
    "100 GB of bytes": (lambda _: plain({"w": Call(bytearray, 10**11)}), "more memory than a file of its size holds"),
    "40 GB of one number": (lambda _: archive(strided(10**5)), "is not a plain tensor stored in the file"),
    "no storage at all": (lambda _: archive(meta()), "is not a plain tensor stored in the file"),
    "a key that never ends": (lambda _: doubled(120), "seconds of processor time"),
    "200,000 levels": (lambda _: nested(200_000), ""),
    "itself in itself": (lambda _: archive({}, lambda _: itself()), "it has no mapping from names to tensors"),
    "a memo that is not there": (lambda _: b"\x80\x02r\xff\xff\xff\x7fj\xff\xff\xff\x6f.", "not a complete pickle"),
    "a zip bomb": (lambda _: archive({"w": torch.zeros(5_000_000)}, compress=zipfile.ZIP_DEFLATED), "compressed"),
    "half a zip": (lambda _: archive(weights())[:-3000], "not a complete pickle of tensors"),
    "half a file of 2019": (lambda _: legacy(weights())[:-100], "not a complete pickle of tensors"),
    "no bytes": (lambda _: b"", "not a complete pickle of tensors"),
    "other bytes": (lambda _: bytes(range(256)) * 40, "not a complete pickle of tensors"),
    "no tensors": (lambda _: archive({"a": 1}), "it has no mapping from names to tensors"),
    "two sets of weights": (lambda _: archive({"model": weights(), "ema": weights()}), "several sets of weights"),
    "sparse": (lambda _: archive({"w": torch.eye(4).to_sparse()}), "is not a plain tensor stored in the file"),
}  # fmt: skip


# attacks that would harm the process that reads the file
ALONE = ["16 GB in a file of 2019", "100 GB of bytes", "a key that never ends", "200,000 levels"]
EVERYDAY = ["200,000 levels"]  # some seconds each


@pytest.mark.parametrize("kind", [kind for kind in HOSTILE if kind not in ALONE])
def test_hostile_pickles_are_refused(kind: str, tmp_path: Path) -> None:
    make, words = HOSTILE[kind]
    (tmp_path / NAME).write_bytes(make(tmp_path / "ran"))
    with pytest.raises(Exception) as error:
        pickled_weights.tensors_in(str(tmp_path / NAME))
    line = pickled_weights.reason(error.value)
    assert words in line and "\n" not in line and len(line) < 300
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


@pytest.mark.parametrize("error", [
    MemoryError(), RuntimeError("std::bad_alloc"), OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 17179869184 bytes."),
    RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 17179869184 bytes."),
], ids=str)  # fmt: skip
def test_every_allocator_is_understood(error: Exception) -> None:
    assert pickled_weights.reason(error) == "it claims more memory than a file of its size holds"


@pytest.fixture(scope="module")
def usual() -> int:
    """The memory, in bytes, of a process that only imports torch."""
    done = subprocess.run(
        [sys.executable, "-c", "import torch, resource as r; print(r.getrusage(r.RUSAGE_SELF).ru_maxrss)"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return int(done.stdout) * 1024


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind in EVERYDAY else pytest.mark.slow) for kind in HOSTILE]
)
def test_hostile_pickles_end_a_process_alone(kind: str, tmp_path: Path, capsys, monkeypatch, usual: int) -> None:
    make, words = HOSTILE[kind]
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", **CONFIG}))
    (folder / NAME).write_bytes(make(tmp_path / "ran"))
    assert (folder / NAME).stat().st_size < 2_000_000
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setattr(pickled_weights, "SECONDS", 2.0)
    monkeypatch.setattr(guarded_process.subprocess, "Popen", MeasuredPopen)
    monkeypatch.setattr(MeasuredPopen, "peak", 0)
    code = cli.main(["convert", str(folder), str(tmp_path / "out"), "--unpickle"])
    out, err = capsys.readouterr()
    assert (code, out, err.count("\n")) == (2, "", 1) and words in err and NAME in err, err
    assert "bug" not in err and "Traceback" not in err
    assert sorted(tmp_path.rglob("*")) == before
    assert 0 < MeasuredPopen.peak < usual + 300 * 2**20, f"{(MeasuredPopen.peak - usual) / 2**20:.0f} MB beyond torch"
    assert MeasuredPopen.seconds < 30


def test_the_reader_may_write_its_results_and_nothing_else(tmp_path: Path) -> None:
    code = f"""
import os, shutil, socket, subprocess
from anyformer.runtime.guarded_process import confine
confine({{{str(tmp_path / "result")!r}}})
open({str(tmp_path / "result")!r}, "wb").write(b"1")
tried = [
    lambda: open({str(tmp_path / "other")!r}, "w"), lambda: os.system("touch {tmp_path}/other"),
    lambda: os.open({str(tmp_path / "other")!r}, os.O_WRONLY | os.O_CREAT), lambda: os.mkdir({str(tmp_path / "d")!r}),
    lambda: subprocess.run(["touch", "{tmp_path}/other"]), lambda: os.remove({str(tmp_path / "result")!r}),
    lambda: os.rename({str(tmp_path / "result")!r}, {str(tmp_path / "other")!r}), lambda: os.fork(),
    lambda: shutil.rmtree({str(tmp_path)!r}), lambda: os.execv("/bin/true", ["true"]), lambda: socket.socket(),
    lambda: os.kill(os.getppid(), 9), lambda: os.symlink("/", {str(tmp_path / "other")!r}),
]
for attempt in tried:
    try:
        attempt()
    except PermissionError:
        continue
    raise SystemExit("not refused")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert [path.name for path in tmp_path.iterdir()] == ["result"]


def test_a_guarded_process_writes_only_what_it_was_told_before(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(2)}, tmp_path / NAME)
    reader = guarded_process.GuardedProcess("anyformer.weights.pickled_weights")
    with pytest.raises(guarded_process.Refused, match="open is not allowed here"):
        reader.ask([(str(tmp_path / NAME), str(tmp_path / "out"))], guarded_process.Limits(2**33, 60))
    reader.close()
    assert not (tmp_path / "out").exists()


def test_a_reader_that_waits_is_ended(tmp_path: Path, monkeypatch) -> None:
    os.mkfifo(tmp_path / "waits")  # nobody ever writes into it
    monkeypatch.setattr(pickled_weights, "SECONDS", 0.2)
    with pytest.raises(ValueError, match="waits: reading it takes more than 0.4 seconds"):
        pickled_weights.extract([tmp_path / "waits"], [tmp_path / "out"])


# -- the suggested command ---------------------------------------------------------------------------------------------


def test_load_says_what_to_type_and_that_works(tmp_path: Path, capsys, monkeypatch) -> None:
    spec = families.find("gpt2").read(CONFIG)
    af.save(af.build(spec, seed=3), tmp_path / "gpt", format="hf")
    with Checkpoint(tmp_path / "gpt") as found:
        held = {name: found.read(name).clone() for name in found.names}
    (tmp_path / "gpt" / "model.safetensors").unlink()
    torch.save(held, tmp_path / "gpt" / NAME)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError) as error:
        af.load("gpt")
    line = str(error.value)
    assert line.endswith("anyformer convert gpt gpt-safe --unpickle") and "\n" not in line
    assert cli.main(line.rpartition("anyformer ")[2].split()) == 0
    assert capsys.readouterr().out.startswith("gpt-safe: GPT2LMHeadModel")
    for name, tensor in af.build(spec, seed=3).state_dict().items():
        assert torch.equal(af.load("gpt-safe").state_dict()[name], tensor)
