"""io.py: round trips are bit-identical, hostile files are refused in one line, and a failed save changes nothing."""

import json
import os
import shutil
import time
import weakref
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import psutil
import pytest
import safetensors.torch
import torch
from torch import Tensor

from anyformer.weights import io
from anyformer.weights.io import Checkpoint, read_json, write_checkpoint, write_json

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool]


def sample(seed: int = 0, number: int = 6) -> dict[str, Tensor]:
    """A mix of shapes and dtypes: a scalar, an empty tensor, odd byte counts."""
    torch.manual_seed(seed)
    tensors = {f"layer.{i}.weight": torch.randn(7, 5 + i) for i in range(number)}
    tensors |= {f"as.{dtype}": torch.randn(3, 3).to(dtype) for dtype in DTYPES}
    return tensors | {"scalar": torch.tensor(1.5), "empty": torch.empty(0, 4), "odd": torch.ones(3, dtype=torch.int8)}


def read_all(folder: Path) -> dict[str, Tensor]:
    with Checkpoint(folder) as checkpoint:
        return {name: checkpoint.read(name) for name in checkpoint.names}


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype and found[name].shape == tensor.shape, name
        assert torch.equal(found[name], tensor), name


def entry(begin: int, end: int, dtype: str = "F32", shape: list[Any] | None = None) -> dict[str, Any]:
    return {"dtype": dtype, "shape": [(end - begin) // 4] if shape is None else shape, "data_offsets": [begin, end]}


def write_raw(folder: Path, header: object, data: bytes = b"", length: int | None = None) -> Path:
    """Write `model.safetensors` with any header and header length."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path = folder / "model.safetensors"
    path.write_bytes((len(raw) if length is None else length).to_bytes(8, "little") + raw + data)
    return path


def refusal(call: Callable[[], object], kind: type[Exception] = ValueError) -> str:
    """Return the error message; the error must have exactly this class, one line and no chained traceback."""
    with pytest.raises(kind) as caught:
        call()
    assert caught.type is kind
    message = str(caught.value)
    assert message and "\n" not in message and len(message) < 1500
    assert caught.value.__cause__ is None and (caught.value.__context__ is None or caught.value.__suppress_context__)
    return message


# Round trips


@pytest.mark.parametrize("dtype", io.DTYPES.values(), ids=str)
def test_every_dtype_comes_back_bit_identical(tmp_path: Path, dtype: torch.dtype) -> None:
    raw = torch.randint(0, 2 if dtype is torch.bool else 256, (6, 4, dtype.itemsize), dtype=torch.uint8)
    write_checkpoint(tmp_path, {"x": raw.view(dtype)})
    with Checkpoint(tmp_path) as checkpoint:
        assert checkpoint.dtype("x") == dtype and checkpoint.shape("x") == (6, 4, 1)
        assert torch.equal(checkpoint.read("x").view(torch.uint8), raw)
        assert checkpoint.metadata == {"format": "pt"}
    library = safetensors.torch.load_file(tmp_path / "model.safetensors")["x"]
    assert library.dtype == dtype and torch.equal(library.view(torch.uint8), raw)


@pytest.mark.parametrize("shard_bytes", [10**9, 300, 1])
def test_round_trip_single_and_sharded(tmp_path: Path, shard_bytes: int) -> None:
    tensors = sample()
    write_checkpoint(tmp_path, tensors, shard_bytes=shard_bytes)
    assert_same(read_all(tmp_path), tensors)
    files = sorted(path.name for path in tmp_path.iterdir())
    if shard_bytes == 10**9:
        assert files == ["model.safetensors"]
        return
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in tensors.values())
    shards = sorted(set(index["weight_map"].values()))
    assert files == [*shards, "model.safetensors.index.json"]
    assert shards[0] == f"model-00001-of-{len(shards):05}.safetensors"
    merged = {name: t for shard in shards for name, t in safetensors.torch.load_file(tmp_path / shard).items()}
    assert_same(merged, tensors)
    for shard in shards:  # one tensor may be larger than the limit, several may not
        held = [name for name, file in index["weight_map"].items() if file == shard]
        assert len(held) == 1 or sum(tensors[name].nbytes for name in held) <= shard_bytes


def test_the_librarys_own_files_are_read(tmp_path: Path) -> None:
    tensors = sample()
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors", metadata={"a": "b"})
    assert_same(read_all(tmp_path), tensors)
    with Checkpoint(tmp_path) as checkpoint:
        assert checkpoint.metadata == {"a": "b"}
        assert "scalar" in checkpoint and "nothing" not in checkpoint
        assert "'nothing'" in refusal(lambda: checkpoint.read("nothing"))


def test_no_tensors_and_no_metadata(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, {}, metadata={})
    assert read_all(tmp_path) == {}


def test_sources_may_be_pairs_callables_views_and_parameters(tmp_path: Path) -> None:
    weight = torch.randn(4, 6)
    calls: list[str] = []

    def source() -> Tensor:
        calls.append("called")
        return weight[:, ::2]

    pairs = [("turned", weight.T), ("lazy", source), ("parameter", torch.nn.Parameter(weight))]
    write_checkpoint(tmp_path, iter(pairs))  # type: ignore[arg-type]
    assert calls == ["called"]
    assert_same(read_all(tmp_path), {"turned": weight.T, "lazy": weight[:, ::2], "parameter": weight})


def test_unaligned_tensors_are_read(tmp_path: Path) -> None:
    values = torch.arange(4, dtype=torch.float32)
    header = json.dumps({"byte": entry(0, 1, "U8", [1]), "x": entry(1, 17)}).encode()
    for padding in range(8):
        write_raw(tmp_path, header + b" " * padding, b"\7" + values.numpy().tobytes())
        loaded = read_all(tmp_path)
        assert_same(loaded, {"byte": torch.tensor([7], dtype=torch.uint8), "x": values})
        assert loaded["x"].data_ptr() % 4 == 0  # kernels may require this


def test_written_tensors_are_aligned(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, sample())
    raw = (tmp_path / "model.safetensors").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    assert (8 + length) % 64 == 0
    for name, tensor in sample().items():
        assert header[name]["data_offsets"][0] % tensor.itemsize == 0


# Reading: lazy, zero-copy, private


def test_tensors_are_private_and_outlive_the_checkpoint_and_the_file(tmp_path: Path) -> None:
    tensors = sample()
    write_checkpoint(tmp_path, tensors)
    before = (tmp_path / "model.safetensors").read_bytes()
    loaded = read_all(tmp_path)
    # Separate storages: copying or saving one tensor must not include the others.
    assert all(tensor.untyped_storage().nbytes() == tensor.nbytes for tensor in loaded.values())
    loaded["layer.0.weight"].zero_()
    assert (tmp_path / "model.safetensors").read_bytes() == before
    write_checkpoint(tmp_path, sample(seed=1))  # replaces the file that `loaded` is mapped from
    shutil.rmtree(tmp_path)
    loaded["layer.0.weight"].copy_(tensors["layer.0.weight"])
    assert_same(loaded, tensors)


def test_tensors_are_read_only_when_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_checkpoint(tmp_path, {name: torch.ones(1000) for name in "abcd"}, shard_bytes=8000)
    mapped: list[int] = []
    real = io.mmap.mmap
    monkeypatch.setattr(io.mmap, "mmap", lambda fd, size, **more: mapped.append(size) or real(fd, size, **more))
    with Checkpoint(tmp_path) as checkpoint:
        assert {checkpoint.shape(name) for name in checkpoint.names} == {(1000,)}
        assert mapped == []
        checkpoint.read("c")
        assert len(mapped) == 1 and mapped[0] < 10_000
        checkpoint.read("d")  # its neighbour: the same window
        assert len(mapped) == 1


@pytest.mark.parametrize("shard_bytes", [10**9, 16 * 2**20])
def test_streaming_holds_one_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shard_bytes: int) -> None:
    """L6: reading the tensors one by one never keeps the whole file in memory."""
    monkeypatch.setattr(io, "WINDOW_BYTES", 2**20)
    number, size = 16, 4 * 2**20
    write_checkpoint(tmp_path, ((str(i), torch.ones(size // 4)) for i in range(number)), shard_bytes=shard_bytes)
    process = psutil.Process()
    with Checkpoint(tmp_path) as checkpoint:
        checkpoint.read("0").sum()
        start = process.memory_info().rss
        peak = 0
        for name in checkpoint.names:
            assert checkpoint.read(name).sum() == size // 4
            peak = max(peak, process.memory_info().rss - start)
    assert peak < 4 * size  # of 16: one or two windows, and noise


def test_any_order_of_reading_uses_few_descriptors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(io, "WINDOW_BYTES", 40_000)
    write_checkpoint(tmp_path, {str(i): torch.full((1000,), i) for i in range(100)})
    process = psutil.Process()
    before = process.num_fds()
    with Checkpoint(tmp_path) as checkpoint:
        order = sorted(checkpoint.names, key=lambda name: (int(name) % 10, name))  # a jump at every step
        held = {name: checkpoint.read(name) for name in order}
        assert process.num_fds() - before < 25
    assert all(torch.equal(tensor, torch.full((1000,), int(name))) for name, tensor in held.items())
    del held
    assert process.num_fds() == before


# Hostile safetensors

DATA = bytes(32)
HOSTILE: dict[str, tuple[object, bytes, int | None, str]] = {
    "header longer than the file": ({}, b"", 10_000, "truncated"),
    "header of 2**64 - 1": ({}, b"", 2**64 - 1, "truncated"),
    "header not JSON": (b"\x80\x04pickle", b"", None, "not valid JSON"),
    "header not UTF-8": (b'{"\xff": 1}', b"", None, "not valid JSON"),
    "header empty": (b"", b"", None, "not valid JSON"),
    "header is a list": ([], b"", None, "expected a JSON object"),
    "nesting bomb": (b'{"a":' + b"[" * 200_000, b"", None, "nested too deeply"),
    "a number of a million digits": (b'{"a":' + b"9" * 10**6 + b"}", b"", None, "not valid JSON"),
    "too many values": (b'{"a":[' + b"0," * (io.JSON_VALUES + 1) + b"0]}", b"", None, "values"),
    "name given twice": (b'{"x\\ny": 1, "x\\ny": 2}', b"", None, r"'x\ny' given twice"),
    "metadata not text": ({"__metadata__": {"a": 1}}, b"", None, "__metadata__"),
    "metadata not an object": ({"__metadata__": []}, b"", None, "__metadata__"),
    "entry not an object": ({"x": 1}, b"", None, "'x'"),
    "entry without dtype": ({"x": {"shape": [], "data_offsets": [0, 4]}}, DATA[:4], None, "'x'"),
    "overlap": ({"x": entry(0, 20), "y": entry(16, 32)}, DATA, None, "'y' overlaps"),
    "same bytes twice": ({"x": entry(0, 32), "y": entry(0, 32)}, DATA, None, "'y' overlaps"),
    "hole": ({"x": entry(0, 8), "y": entry(16, 32)}, DATA, None, "'y' has a hole"),
    "hole at the start": ({"x": entry(8, 32)}, DATA, None, "'x' has a hole"),
    "bytes at the end": ({"x": entry(0, 16)}, DATA, None, "last 16 bytes"),
    "out of bounds": ({"x": entry(0, 64)}, DATA, None, "'x' has data_offsets"),
    "offsets backwards": ({"x": entry(32, 0, shape=[])}, DATA, None, "'x' has data_offsets"),
    "offset negative": ({"x": entry(-32, 0)}, DATA, None, "'x' has data_offsets"),
    "offset of a thousand digits": ({"x": entry(0, 10**1000, shape=[8])}, DATA, None, "'x' has data_offsets"),
    "three offsets": ({"x": entry(0, 32) | {"data_offsets": [0, 16, 32]}}, DATA, None, "'x' has data_offsets"),
    "offsets fractional": ({"x": entry(0, 32) | {"data_offsets": [0, 32.0]}}, DATA, None, "'x' has data_offsets"),
    "size disagrees with shape": ({"x": entry(0, 32, shape=[9])}, DATA, None, "'x' of shape [9]"),
    "shape negative": ({"x": entry(0, 32, shape=[-2, -4])}, DATA, None, "'x' has shape [-2, -4]"),
    "shape boolean": ({"x": entry(0, 32, shape=[True, 8])}, DATA, None, "'x' has shape [True, 8]"),
    "shape text": ({"x": entry(0, 32, shape=["8"])}, DATA, None, "'x' has shape"),
    "shape fractional": ({"x": entry(0, 32, shape=[8.0])}, DATA, None, "'x' has shape"),
    "shape wraps 64 bits": ({"x": entry(0, 0, shape=[2**62, 4])}, b"", None, "'x' of shape"),
    "strides overflow": ({"x": entry(0, 0, shape=[0, 2**40, 2**40])}, b"", None, "'x' of shape"),
    "a million dimensions": ({"x": entry(0, 4, shape=[1] * 10**6)}, DATA[:4], None, "at most 64 sizes"),
    "dtype unknown": ({"x": entry(0, 32, "F128")}, DATA, None, "unknown dtype 'F128'"),
    "dtype not text": ({"x": entry(0, 32) | {"dtype": ["F32"]}}, DATA, None, "unknown dtype"),
    "a name of a million letters": ({"x" * 10**6: 1}, b"", None, "xxx..."),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_file_is_refused(tmp_path: Path, case: str) -> None:
    header, data, length, expected = HOSTILE[case]
    path = write_raw(tmp_path, header, data, length)
    started = time.process_time()
    message = refusal(lambda: Checkpoint(tmp_path))
    assert time.process_time() - started < 10
    assert message.startswith(str(path)) and expected in message


@pytest.mark.parametrize("number", [100_000])
def test_a_hundred_thousand_tensors_are_refused(tmp_path: Path, number: int) -> None:
    write_raw(tmp_path, {str(i): entry(0, 0) for i in range(number)} | {"__metadata__": {}})
    started = time.process_time()
    assert f"{number:,} tensors" in refusal(lambda: Checkpoint(tmp_path))
    assert time.process_time() - started < 10  # seconds; the limit for every hostile file


def test_header_above_the_cap_is_not_even_read(tmp_path: Path) -> None:
    path = write_raw(tmp_path, {}, length=io.HEADER_BYTES + 1)
    os.truncate(path, 2 * io.HEADER_BYTES)  # sparse
    assert "header of" in refusal(lambda: Checkpoint(tmp_path))


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, {"x": torch.ones(3), "y": torch.ones(2)})
    path = tmp_path / "model.safetensors"
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        refusal(lambda: Checkpoint(tmp_path))


def test_a_refused_file_is_closed(tmp_path: Path) -> None:
    before = psutil.Process().num_fds()
    write_raw(tmp_path, {"x": 1})
    refusal(lambda: Checkpoint(tmp_path))
    assert psutil.Process().num_fds() == before


# Folders and indices


@pytest.mark.parametrize("file", ["pytorch_model.bin", "model.pt", "last.ckpt", "weights.pth", "model.pkl"])
def test_pickles_are_refused(tmp_path: Path, file: str) -> None:
    (tmp_path / file).write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    (tmp_path / "a.bin").touch()
    message = refusal(lambda: Checkpoint(tmp_path))
    assert (
        ("a.bin" if "model" not in file else file) in message
        and "refused" in message
        and "anyformer convert" in message
        and "--unpickle" in message
    )
    write_checkpoint(tmp_path, {"x": torch.ones(1)})  # after a conversion, the pickle is ignored
    assert read_all(tmp_path).keys() == {"x"}


def test_nothing_there(tmp_path: Path) -> None:
    assert "no such folder" in refusal(lambda: Checkpoint(tmp_path / "gone"), FileNotFoundError)
    (tmp_path / "config.json").write_text("{}")
    assert "model.safetensors" in refusal(lambda: Checkpoint(tmp_path), FileNotFoundError)


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    write_checkpoint(tmp_path, {"a": torch.ones(2), "b": torch.zeros(2)}, shard_bytes=8)
    return tmp_path


def reindex(folder: Path, weight_map: object) -> None:
    write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})


SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
ESCAPES = [
    "../x.safetensors", "/etc/x.safetensors", "sub/x.safetensors", "..\\x.safetensors", "C:x.safetensors",
    ".safetensors", "x\0.safetensors", "x.safetensors\n", "x" * 300 + ".safetensors", "model.bin", "..", "",
    3, None, ["a"],
]  # fmt: skip


@pytest.mark.parametrize("file", ESCAPES, ids=lambda file: repr(file)[:30])
def test_an_index_cannot_leave_the_folder(sharded: Path, file: object) -> None:
    inner = sharded / "inner"
    (inner / "sub").mkdir(parents=True)
    for place in (sharded, inner / "sub"):  # the target files exist, so only the name check can refuse them
        shutil.copy(sharded / SHARDS[0], place / "x.safetensors")
    reindex(inner, {"a": file})
    assert "'a'" in refusal(lambda: Checkpoint(inner))


@pytest.mark.parametrize("weight_map", [None, [], {}, "model", 1])
def test_a_weight_map_must_be_an_object(sharded: Path, weight_map: object) -> None:
    reindex(sharded, weight_map)
    assert "weight_map" in refusal(lambda: Checkpoint(sharded))


def test_a_shard_is_missing(sharded: Path) -> None:
    (sharded / SHARDS[1]).unlink()
    assert f"{SHARDS[1]}: listed in the index" in refusal(lambda: Checkpoint(sharded), FileNotFoundError)
    os.mkfifo(sharded / SHARDS[1])  # opening it would wait for ever
    assert f"{SHARDS[1]}: listed in the index" in refusal(lambda: Checkpoint(sharded), FileNotFoundError)


@pytest.mark.parametrize(
    "weight_map, expected",
    [
        ({"a": SHARDS[0], "b": SHARDS[1], "c": SHARDS[1]}, "'c' is missing"),
        ({"a": SHARDS[1], "b": SHARDS[0]}, "'a'"),
        ({"a": SHARDS[0], "b": SHARDS[0]}, "'b' is missing"),
        ({"a": SHARDS[0], "c": SHARDS[1]}, "'b' is in the file, but not in the index"),
    ],
)
def test_index_and_shards_must_agree(sharded: Path, weight_map: dict[str, str], expected: str) -> None:
    reindex(sharded, weight_map)
    assert expected in refusal(lambda: Checkpoint(sharded))


def test_symlinks_as_in_the_hub_cache(sharded: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    snapshot = tmp_path_factory.mktemp("snapshot")
    for path in sharded.iterdir():
        (snapshot / path.name).symlink_to(path)
    assert read_all(snapshot).keys() == {"a", "b"}


# Saves that fail

SMALL, LARGE = 10**9, 200  # shard_bytes: one file, several shards


@pytest.mark.parametrize("new", [SMALL, LARGE], ids=["to single", "to shards"])
@pytest.mark.parametrize("old", [SMALL, LARGE], ids=["from single", "from shards"])
class TestOverwriting:
    def test_leaves_exactly_the_new_checkpoint(self, tmp_path: Path, old: int, new: int) -> None:
        write_checkpoint(tmp_path, sample(0), shard_bytes=old)
        (tmp_path / "config.json").write_text("{}")
        (tmp_path / "model-card.safetensors").touch()
        for seed, number in ((1, 3), (2, 6), (3, 6)):  # fewer shards, more, and equally many
            tensors = sample(seed, number)
            write_checkpoint(tmp_path, tensors, shard_bytes=new)
            assert_same(read_all(tmp_path), tensors)
            kept = {"config.json", "model-card.safetensors", "model.safetensors"}
            if new == LARGE:
                index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
                kept = (kept - {"model.safetensors"}) | {"model.safetensors.index.json", *index["weight_map"].values()}
            assert {path.name for path in tmp_path.iterdir()} == kept

    @pytest.mark.parametrize("killed", [False, True], ids=["error", "killed"])
    @pytest.mark.parametrize("function", ["fsync", "rename", "replace"])
    def test_failing_at_any_step_keeps_the_earlier_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: int, new: int, function: str, killed: bool
    ) -> None:
        real = getattr(os, function)
        for step in count():  # the step-th call fails, until no call fails
            folder = tmp_path / str(step)
            write_checkpoint(folder, sample(0), shard_bytes=old)
            before = {path.name: path.read_bytes() for path in folder.iterdir()}
            made: list[object] = []

            def failing(*args: Any, made: list[object] = made, step: int = step) -> Any:
                if len(made) == step:
                    raise OSError(28, "No space left on device")
                made.append(args)
                return real(*args)

            with monkeypatch.context() as patch:
                patch.setattr(os, function, failing)
                if killed:  # a killed process does not clean up
                    patch.setattr(shutil, "rmtree", lambda *_, **__: None)
                    patch.setattr(Path, "unlink", lambda *_, **__: None)
                try:
                    write_checkpoint(folder, sample(1), shard_bytes=new)
                except OSError:
                    assert_same(read_all(folder), sample(0))
                    if not killed:
                        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
                else:
                    break
            write_checkpoint(folder, sample(1), shard_bytes=new)  # the next save succeeds and cleans up
            assert_same(read_all(folder), sample(1))
            assert not list(folder.glob(".saving-*"))
        assert step >= (function != "rename" or new == LARGE)  # something did fail
        # killed after the rename but before the cleanup: either checkpoint, complete
        assert_same(read_all(folder), sample(0 if killed and old == SMALL and new == LARGE else 1))


def test_a_source_that_fails_half_way(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, sample(0))

    def pairs() -> Any:
        yield from sample(1).items()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_checkpoint(tmp_path, pairs(), shard_bytes=100)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]
    assert_same(read_all(tmp_path), sample(0))


@pytest.mark.parametrize(
    "pairs, expected",
    [
        ([("x", torch.ones(1)), ("x", torch.ones(1))], "'x' is given twice"),
        ([("__metadata__", torch.ones(1))], "reserved"),
        ([("x", torch.ones(1, device="meta"))], "meta"),
        ([("x", torch.ones(1, dtype=torch.complex128))], "complex128"),
        ([("x", torch.eye(2).to_sparse())], "sparse"),
    ],
)
def test_what_cannot_be_saved(tmp_path: Path, pairs: Any, expected: str) -> None:
    assert expected in refusal(lambda: write_checkpoint(tmp_path, pairs))
    assert list(tmp_path.iterdir()) == []


def test_the_folder_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    assert "is a file" in refusal(lambda: write_checkpoint(tmp_path / "x", {}))


def test_at_most_one_shard_of_results_is_held(tmp_path: Path) -> None:
    class Memory(bytearray):  # a plain bytearray takes no weak references
        pass

    made: list[weakref.ref[Memory]] = []
    peak = 0

    def source() -> Tensor:
        nonlocal peak
        memory = Memory(400)
        made.append(weakref.ref(memory))
        peak = max(peak, sum(reference() is not None for reference in made))
        return torch.frombuffer(memory, dtype=torch.float32)

    write_checkpoint(tmp_path, {str(i): source for i in range(40)}, shard_bytes=4 * 400)
    assert len(read_all(tmp_path)) == 40
    assert peak == 5  # the shard, and the first tensor of the next one


def test_no_shard_reaches_the_cap_that_readers_enforce(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(io, "MAX_TENSORS", 3)
    write_checkpoint(tmp_path, {str(i): torch.ones(1) for i in range(5)})
    assert len(read_all(tmp_path)) == 5


# JSON


def test_json_round_trip_keeps_the_order(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    value = {"b": [1, 2.5, None, True], "a": {"é": "\u2028"}, "c": float("inf")}
    write_json(path, value)
    assert read_json(path) == value and list(read_json(path)) == ["b", "a", "c"]
    assert path.read_text().startswith('{\n  "b"') and path.read_text().endswith("}\n")


@pytest.mark.parametrize(
    "raw",
    [b"", b"[]", b"3", b'"text"', b"null", b"{", b"{'a': 1}", b"{} x", b"\xff\xfe{}", b'{"a": 1,"a": 1}',
     b'{"a": {"b": 1, "b": 2}}', b"[" * 10**6, b'{"a":' * 10**5, b'{"a": ' + b"1" * 5000 + b"}", b" " * 1001],
    ids=lambda raw: repr(raw)[:20],
)  # fmt: skip
def test_hostile_json_is_refused(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(raw)
    assert str(path) in refusal(lambda: read_json(path, limit_bytes=1000 if raw.isspace() else 10**7))


def test_json_that_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")  # opening it would wait for ever
    assert "pipe.json" in refusal(lambda: read_json(tmp_path / "pipe.json"), FileNotFoundError)
    assert "gone.json" in refusal(lambda: read_json(tmp_path / "gone.json"), FileNotFoundError)


@pytest.mark.parametrize("broken", ["object", "disk"])
def test_a_failed_json_write_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    path = tmp_path / "config.json"
    write_json(path, {"old": 1})

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    if broken == "disk":
        monkeypatch.setattr(os, "fsync", full)
    with pytest.raises((TypeError, OSError)):
        write_json(path, {"new": object() if broken == "object" else 2})
    assert read_json(path) == {"old": 1} and list(tmp_path.iterdir()) == [path]
