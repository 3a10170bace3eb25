"""Checkpoint folders: safetensors and JSON, read lazily and without trust, written atomically.

The header of a file is checked in bounded time and memory before any weight is read. Tensors are then views of
copy-on-write maps: loading copies nothing, and editing a weight never changes the file.
"""

import json
import math
import mmap
import os
import re
import shlex
import shutil
import tempfile
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Self
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from anyformer.specs.messages import quote

JSON_BYTES = 64 * 2**20  # the largest tokenizer.json in use is about 35 MB
JSON_VALUES = 4_000_000  # limits memory, since a parsed value takes up to about 100 bytes
HEADER_BYTES = 32 * 2**20
MAX_TENSORS = 100_000  # a file with this many or more is refused
WINDOW_BYTES = 64 * 2**20
DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8, "U16": torch.uint16, "U32": torch.uint32, "U64": torch.uint64,
    "I8": torch.int8, "I16": torch.int16, "I32": torch.int32, "I64": torch.int64,
    "F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "C64": torch.complex64,
}  # fmt: skip
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
PICKLES = {".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"}

Source = Tensor | Callable[[], Tensor]


def read_json(path: Path, limit_bytes: int = JSON_BYTES) -> dict[str, Any]:
    """Return the JSON object in `path`; raise a one-line ValueError if it is not one, too large or ambiguous."""
    if not path.is_file():  # never wait for a pipe or read a device forever
        raise FileNotFoundError(f"{path}: no such file")
    with path.open("rb") as file:
        raw = file.read(limit_bytes + 1)
    if len(raw) > limit_bytes:
        raise ValueError(f"{path}: larger than the {limit_bytes:,} bytes allowed here")
    return _parse_json(raw, str(path))


def write_json(path: Path, obj: object) -> None:
    """Write `obj` to `path` atomically."""
    raw = (json.dumps(obj, indent=2) + "\n").encode()  # may fail: do it before opening the file
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with name_in_errors(path), temporary.open("wb") as file:
            file.write(raw)
            _to_disk(file)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def name_in_errors(path: Path) -> Iterator[None]:
    """Add the file name to OSErrors; unlike a failed open, a failed write does not include it."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def _to_disk(file: BinaryIO) -> None:
    """Flush a file to disk, so that after a power cut a renamed file has its data."""
    file.flush()
    os.fsync(file.fileno())


def _parse_json(raw: bytes, where: str) -> dict[str, Any]:
    # An upper bound, since it also counts punctuation inside strings; much cheaper than parsing.
    if sum(map(raw.count, (b",", b"[", b"{"))) > JSON_VALUES:
        raise ValueError(f"{where}: JSON with more than {JSON_VALUES:,} values")
    try:
        value = json.loads(raw.decode(), object_pairs_hook=_unique)
    except RecursionError:
        raise ValueError(f"{where}: JSON nested too deeply") from None
    except ValueError as error:  # not UTF-8, not JSON, a number of thousands of digits, a key given twice
        raise ValueError(f"{where}: not valid JSON ({error})") from None
    if not isinstance(value, dict):
        raise ValueError(f"{where}: expected a JSON object, found {type(value).__name__}")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a dict of the pairs; raise on duplicate keys, which different JSON readers treat differently."""
    if len(result := dict(pairs)) < len(pairs):
        raise ValueError(f"key {quote(Counter(key for key, _ in pairs).most_common(1)[0][0])} given twice")
    return result


class _Slot(NamedTuple):
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int  # bytes from the beginning of the file
    stop: int


def _read_header(file: BinaryIO, path: Path) -> tuple[dict[str, _Slot], dict[str, str]]:
    """Return the checked table of contents: tensors must cover the data without overlaps or holes."""
    size, length = os.fstat(file.fileno()).st_size, int.from_bytes(file.read(8), "little")
    if size < 8 or length > size - 8:
        raise ValueError(f"{path}: not a safetensors file, or truncated ({size:,} bytes)")
    if length > HEADER_BYTES:
        raise ValueError(f"{path}: header of {length:,} bytes; at most {HEADER_BYTES:,} are allowed")
    header = _parse_json(file.read(length), f"{path}: header")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError(f"{path}: __metadata__ must map text to text")
    if len(header) >= MAX_TENSORS:
        raise ValueError(f"{path}: {len(header):,} tensors; a file may hold fewer than {MAX_TENSORS:,}")
    slots = {
        name: _read_slot(f"{path}: tensor {quote(name)}", entry, 8 + length, size - 8 - length)
        for name, entry in header.items()
    }
    reached = 8 + length
    for name, slot in sorted(slots.items(), key=lambda item: item[1][2:]):
        if slot.start != reached:
            fault = "overlaps the tensor before it" if slot.start < reached else "has a hole before it"
            raise ValueError(f"{path}: tensor {quote(name)} {fault}")
        reached = slot.stop
    if reached != size:
        raise ValueError(f"{path}: the last {size - reached:,} bytes belong to no tensor")
    return slots, metadata


def _read_slot(where: str, entry: object, base: int, size: int) -> _Slot:
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"{where} needs exactly dtype, shape and data_offsets")
    kind, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(kind, str) or kind not in DTYPES:
        raise ValueError(f"{where} has unknown dtype {quote(kind)}; known are {', '.join(DTYPES)}")
    if not _are_sizes(shape) or len(shape) > 64:
        raise ValueError(f"{where} has shape {quote(shape)}, not a list of at most 64 sizes")
    if not _are_sizes(offsets) or len(offsets) != 2 or not offsets[0] <= offsets[1] <= size:
        raise ValueError(f"{where} has data_offsets {quote(offsets)} outside the {size:,} bytes of data")
    # The second product skips zeros: the strides of [0, 2**62, 2**62] would overflow in torch.
    dtype, elements = DTYPES[kind], math.prod(shape)
    if elements * dtype.itemsize != offsets[1] - offsets[0] or math.prod(n or 1 for n in shape) >= 2**60:
        raise ValueError(f"{where} of shape {quote(shape)}, {kind}, does not fit data_offsets {offsets}")
    return _Slot(dtype, tuple(shape), base + offsets[0], base + offsets[1])


def _are_sizes(value: object) -> bool:
    """Whether a value is a list of sizes. `type() is int`, because `True` is an instance of int."""
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 2**63 for n in value)


class _Shard:
    """One open file, mapped in windows of neighbouring tensors.

    A map of the whole file would keep all pages read so far, and a map per tensor would need one file descriptor each.
    A window is freed with the last tensor that views it, so a load that converts while reading needs memory for the
    model and about one tensor (or a sixteenth of the file if tensors are small).
    """

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file = file
        self.slots, self.metadata = _read_header(file, path)
        spans = sorted((slot.start, slot.stop) for slot in self.slots.values()) or [(0, 0)]
        limit = max(WINDOW_BYTES, spans[-1][1] // 16, *(stop - start for start, stop in spans))
        self._cuts = [spans[0][0]]
        for start, stop in spans:
            if stop - self._cuts[-1] > limit:
                self._cuts.append(start)
        self._cuts.append(spans[-1][1])
        self._windows: WeakValueDictionary[int, mmap.mmap] = WeakValueDictionary()
        self.latest: mmap.mmap | None = None  # keeps the window alive between tensors read in file order

    def read(self, name: str) -> Tensor:
        dtype, shape, start, stop = self.slots[name]
        if start == stop:
            return torch.empty(shape, dtype=dtype)
        index = bisect_right(self._cuts, start) - 1
        origin = self._cuts[index] // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
        window = self._windows.get(index)
        if window is None:
            length = self._cuts[index + 1] - origin
            window = mmap.mmap(self._file.fileno(), length, access=mmap.ACCESS_COPY, offset=origin)
            if hasattr(mmap, "MADV_WILLNEED"):
                window.madvise(mmap.MADV_WILLNEED)  # one large read from disk instead of many small ones
            self._windows[index] = window
        self.latest = window
        raw = torch.frombuffer(window, dtype=torch.uint8, count=stop - start, offset=start - origin)
        if start % dtype.itemsize:  # the format allows unaligned tensors, but kernels may not
            raw = raw.clone()
        return raw.view(dtype).view(shape)


class Checkpoint:
    """The tensors of a folder with `model.safetensors`, or with shards and `model.safetensors.index.json`.

    Headers are checked on opening; tensors are read on demand and stay valid after the checkpoint is closed.
    """

    def __init__(self, folder: str | Path, *, stem: str = "model") -> None:
        self.folder = Path(folder)
        self.metadata: dict[str, str] = {}
        self._homes: dict[str, _Shard] = {}
        with ExitStack() as files:
            for path, promised in _find_files(self.folder, stem).items():
                shard = _Shard(files.enter_context(path.open("rb")), path)
                if promised is not None and (wrong := promised ^ shard.slots.keys()):
                    fault = "is missing" if min(wrong) in promised else "is in the file, but not in the index"
                    raise ValueError(f"{path}: tensor {quote(min(wrong))} {fault}")
                self._homes |= dict.fromkeys(shard.slots, shard)
                self.metadata |= shard.metadata
            self._files = files.pop_all()
        self.names = list(self._homes)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._home(name).slots[name].shape

    def dtype(self, name: str) -> torch.dtype:
        return self._home(name).slots[name].dtype

    def read(self, name: str) -> Tensor:
        """Return a tensor: writable, private to this process, and not a copy unless its address is unaligned."""
        return self._home(name).read(name)

    def close(self) -> None:
        for shard in self._homes.values():
            shard.latest = None  # not .close(), which would invalidate the memory of tensors
        self._files.close()

    def __contains__(self, name: object) -> bool:
        return name in self._homes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _home(self, name: str) -> _Shard:
        if name not in self._homes:
            raise ValueError(f"{self.folder}: no tensor {quote(name)}")
        return self._homes[name]


def _find_files(folder: Path, stem: str) -> dict[Path, set[str] | None]:
    """Return each weights file with the tensors that the index lists for it; None without an index."""
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder")
    single, index = folder / f"{stem}.safetensors", folder / f"{stem}.safetensors.index.json"
    if single.is_file():
        return {single: None}
    if not index.is_file():
        pickles = sorted(path for path in folder.iterdir() if path.suffix in PICKLES)
        if not pickles:
            raise FileNotFoundError(f"{folder}: no {single.name} and no {index.name} in this folder")
        worst = next((path for path in pickles if "model" in path.name), pickles[0])
        where, safe = shlex.quote(str(folder)), shlex.quote(f"{folder.resolve().name}-safe")
        raise ValueError(
            f"{worst}: pickled weights can run code and are refused; convert them in a guarded process: "
            f"anyformer convert {where} {safe} --unpickle"
        )
    promised: dict[str, set[str]] = {}
    for name, file in read_weight_map(index, "safetensors").items():
        promised.setdefault(file, set()).add(name)
    return {folder / file: names for file, names in promised.items()}


def read_weight_map(index: Path, ending: str) -> dict[str, str]:
    """Return {tensor: file next to the index}; every file must exist and be named *.`ending`."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ValueError(f"{index}: weight_map is missing, empty or not an object")
    for name, file in weight_map.items():
        # Without separator, drive or NUL, a name cannot refer to a file outside the folder.
        if not isinstance(file, str) or not re.fullmatch(rf"[^/\\:\0]{{1,240}}\.{ending}", file):
            raise ValueError(f"{index}: {quote(file)} of {quote(name)} is not a plain .{ending} name")
    for file in set(weight_map.values()):
        if not (index.parent / file).is_file():
            raise FileNotFoundError(f"{index.parent / file}: listed in the index, but missing")
    return weight_map


def write_checkpoint(
    folder: str | Path,
    tensors: Mapping[str, Source] | Iterable[tuple[str, Source]],
    *,
    shard_bytes: int = 5 * 10**9,
    metadata: Mapping[str, str] = {"format": "pt"},  # transformers requires this entry
    stem: str = "model",
) -> None:
    """Write `model.safetensors`, or shards and an index if there are more than `shard_bytes`.

    Atomic: files are completed in a temporary folder inside `folder`, shards move to unused names, and one rename, of
    the single file or of the index, makes them the checkpoint. Until then the earlier checkpoint is intact. Callables
    are called once; the results of one shard are in memory at a time.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder}: is a file, not a folder")
    folder.mkdir(parents=True, exist_ok=True)
    for abandoned in folder.glob(f".saving-{stem}-*"):  # left by a save that was killed
        shutil.rmtree(abandoned, ignore_errors=True)
    workplace = Path(tempfile.mkdtemp(prefix=f".saving-{stem}-", dir=folder))
    single, index = folder / f"{stem}.safetensors", folder / f"{stem}.safetensors.index.json"
    moved: list[Path] = []
    try:
        contents: list[list[str]] = []
        total = 0
        for shard in _group(tensors, shard_bytes):
            with name_in_errors(single):
                total += write_file(workplace / str(len(contents)), shard, metadata)
            contents.append(list(shard))
        if len(contents) == 1:
            os.replace(workplace / "0", single)
            keep = {single}
        else:
            names = _free_names(folder, stem, len(contents))
            for number, name in enumerate(names):
                os.rename(workplace / str(number), folder / name)
                moved.append(folder / name)
            weight_map = {tensor: name for name, held in zip(names, contents, strict=True) for tensor in held}
            write_json(workplace / "index", {"metadata": {"total_size": total}, "weight_map": weight_map})
            os.replace(workplace / "index", index)
            keep, moved = {index, *moved}, []
        earlier = re.compile(re.escape(stem) + r"(-\d+-of-\d+)?\.safetensors(\.index\.json)?")
        for path in folder.iterdir():
            if earlier.fullmatch(path.name) and path not in keep:
                path.unlink()
    finally:
        for path in moved:
            path.unlink(missing_ok=True)
        shutil.rmtree(workplace, ignore_errors=True)


def _free_names(folder: Path, stem: str, number: int) -> list[str]:
    """Return unused shard names: with five digits, or with more if such files exist. Overwriting a shard of the earlier
    checkpoint would mix two checkpoints if the process is killed. Readers take the names from the index."""
    for width in count(5):
        names = [f"{stem}-{i:0{width}}-of-{number:0{width}}.safetensors" for i in range(1, number + 1)]
        if not any((folder / name).exists() for name in names):
            break
    return names


def _group(tensors: Mapping[str, Source] | Iterable[tuple[str, Source]], limit: int) -> Iterator[dict[str, Tensor]]:
    """Yield groups of consecutive tensors that fit one shard; at least one group. Each group is cleared after use."""
    seen: set[str] = set()
    group: dict[str, Tensor] = {}
    size = 0
    for name, source in tensors.items() if isinstance(tensors, Mapping) else tensors:
        if name in seen or name == "__metadata__":
            raise ValueError(f"tensor name {quote(name)} is {'given twice' if name in seen else 'reserved'}")
        seen.add(name)
        tensor = (source if isinstance(source, Tensor) else source()).detach()
        if tensor.dtype not in DTYPE_NAMES or tensor.is_meta or tensor.layout is not torch.strided:
            raise ValueError(
                f"tensor {quote(name)} cannot be saved: {tensor.dtype}, {tensor.layout}, on {tensor.device}"
            )
        if group and (size + tensor.nbytes > limit or len(group) == MAX_TENSORS - 1):
            yield group
            group.clear()
            size = 0
        group[name] = tensor
        size += tensor.nbytes
    if group or not seen:
        yield group


def write_file(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> int:
    """Write tensors to a safetensors file; return their total bytes. Tensors are ordered by item size, the largest
    first, so that each is aligned and can be mapped."""
    ordered = sorted(tensors.items(), key=lambda item: -item[1].itemsize)
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    end = 0
    for name, tensor in ordered:
        begin, end = end, end + tensor.nbytes
        dtype = DTYPE_NAMES[tensor.dtype]
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [begin, end]}
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-(8 + len(raw)) % 64)  # the data begin at a cache line
    with path.open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        for _, tensor in ordered:
            file.write(tensor.cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        _to_disk(file)
    return end
