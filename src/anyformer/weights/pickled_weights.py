"""Convert old pickled weights (pytorch_model.bin, one file or shards) to safetensors, in a guarded process.

`torch.load(weights_only=True)` runs no code of the file, but it allocates whatever size the file claims and can take
forever. So it runs in a process (`runtime/guarded_process.py`) with little more memory and time than a normal file of
that size needs. The process may write only its results, safetensors files, which are checked like any others.

>>> with unpickle_folder(Path("a/model/folder")) as folder:  # doctest: +SKIP
...     model = af.load("a/model/folder", weights=folder)
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anyformer.runtime.guarded_process import ChildFailed, GuardedProcess, LimitExceeded, Limits, Refused, serve
from anyformer.specs.messages import quote
from anyformer.weights.io import DTYPE_NAMES, PICKLES, read_weight_map, write_file, write_json

SECONDS = 10.0  # CPU time for an empty file
BYTES_A_SECOND = 50e6  # speed of a slow disk
SPARE_BYTES = 256 * 2**20  # memory in addition to twice the file size
COPIES = 8  # most copies per tensor: names that share a tensor in a pickle get one copy each in safetensors
START_SECONDS = 120.0  # time to import torch on a busy machine


@contextlib.contextmanager
def unpickle_folder(folder: Path, workplace: Path | None = None) -> Iterator[Path]:
    """Yield a temporary folder in `workplace` with the pickled weights of `folder` as safetensors."""
    files, promised = pickles(folder)
    with tempfile.TemporaryDirectory(prefix=".unpickling-", dir=workplace) as place:
        target = Path(place)
        names = [f"model-{i:05}-of-{len(files):05}.safetensors" for i in range(1, len(files) + 1)]
        names = names if promised else ["model.safetensors"]
        extract(files, [target / name for name in names])
        if promised:
            homes = dict(zip((file.name for file in files), names, strict=True))
            weight_map = {tensor: homes[file] for tensor, file in promised.items()}
            write_json(target / "model.safetensors.index.json", {"weight_map": weight_map})
        yield target


def pickles(folder: Path) -> tuple[list[Path], dict[str, str]]:
    """Return the pickled weights of a folder, and the file of each tensor according to the index ({} if one file)."""
    if any(folder.glob("*.safetensors")):
        raise ValueError(f"{folder}: its weights are already safetensors; use the folder without --unpickle")
    index, single = folder / "pytorch_model.bin.index.json", folder / "pytorch_model.bin"
    if index.is_file() and not single.is_file():
        promised = read_weight_map(index, "bin")
        return [folder / name for name in dict.fromkeys(promised.values())], promised
    found = [single] if single.is_file() else sorted(p for p in folder.iterdir() if p.suffix in PICKLES and p.is_file())
    if len(found) == 1:
        return found, {}
    what = f"several pickles ({', '.join(path.name for path in found)[:200]})" if found else "no pickled weights"
    raise ValueError(f"{folder}: {what} and no pytorch_model.bin")


def extract(files: list[Path], targets: list[Path]) -> None:
    """Write each pickle as a safetensors file, in another process; raise a one-line ValueError if a pickle is not a
    mapping of names to tensors."""
    sizes = [path.stat().st_size for path in files]
    limits = Limits(
        memory_bytes=2 * max(sizes) + SPARE_BYTES,
        cpu_seconds=SECONDS + sum(sizes) / BYTES_A_SECOND,
        file_bytes=COPIES * max(sizes) + 2**20,
    )
    targets = [path.absolute() for path in targets]
    pairs = [(str(source.absolute()), str(target)) for source, target in zip(files, targets, strict=True)]
    where = files[0] if len(files) == 1 else files[0].parent
    reader = GuardedProcess("anyformer.weights.pickled_weights", writable=targets, start_seconds=START_SECONDS)
    try:
        reader.ask(pairs, limits)
    except Refused as error:
        raise ValueError(str(error)) from None
    except LimitExceeded as error:
        raise ValueError(f"{where}: reading it takes {error}") from None
    except ChildFailed as error:
        raise ValueError(f"{where}: not a complete pickle of tensors ({error})") from None
    finally:
        reader.close()


# -- in the other process ----------------------------------------------------------------------------------------------


def convert(pairs: list[list[str]]) -> None:
    """Write the tensors of each source file to its target file."""
    for source, target in pairs:
        try:
            write_file(Path(target), tensors_in(source), {"format": "pt"})
        except Exception as error:
            raise Refused(f"{source}: {reason(error)}") from None


def tensors_in(source: str) -> dict[str, Tensor]:
    """Return the tensors of a pickle by name; raise if one is larger than its data in the file."""
    size, zipped = os.path.getsize(source), zipfile.is_zipfile(source)
    if zipped:
        with zipfile.ZipFile(source) as archive:
            entries = archive.infolist()
        if sum(entry.file_size for entry in entries) > size or any(entry.compress_type for entry in entries):
            raise ValueError("it is compressed, which torch.save never does")
    found = state_dict(torch.load(source, weights_only=True, map_location="cpu", mmap=zipped))
    for name, tensor in found.items():
        known = tensor.layout is torch.strided and not tensor.is_meta and tensor.dtype in DTYPE_NAMES
        if not known or tensor.nbytes > tensor.untyped_storage().nbytes():
            raise ValueError(f"tensor {quote(name[:200])} is not a plain tensor stored in the file")
    if sum(tensor.nbytes for tensor in found.values()) > COPIES * size:
        raise ValueError(f"its tensors are more than {COPIES} times as large as the file")
    return found


def state_dict(stored: Any) -> dict[str, Tensor]:
    """Return the weights in an unpickled object: the object itself, or its only entry that is a mapping of tensors."""
    sets = [("", stored)] if is_weights(stored) else []
    if not sets and isinstance(stored, Mapping):
        sets = [(str(name), value) for name, value in stored.items() if is_weights(value)]
    if len(sets) == 1:
        return {name: tensor.detach() for name, tensor in sets[0][1].items()}
    several = ", ".join(name for name, _ in sets)[:200]
    raise ValueError(
        f"it has several sets of weights: {several}" if sets else "it has no mapping from names to tensors"
    )


def is_weights(value: object) -> bool:
    plain = (Tensor, torch.nn.Parameter)
    return (
        isinstance(value, Mapping)
        and bool(value)
        and all(isinstance(name, str) and type(tensor) in plain for name, tensor in value.items())
    )


def reason(error: Exception) -> str:
    """Return in one line why a file was refused; torch's messages are long and suggest trusting the file."""
    text = str(error)
    # messages of allocators: "can't allocate memory", "not enough memory: you tried to allocate", "bad_alloc"
    if isinstance(error, MemoryError) or re.search(r"(?i)alloc|(enough|out of) memory", text):
        return "it claims more memory than a file of its size holds"
    if found := re.search(r"(?i)unsupported global:? (?:GLOBAL )?(\S+)", text):
        return f"its pickle names {found[1][:200]}, which is not a tensor; nothing was run"
    text = text.rpartition("WeightsUnpickler error:")[2].strip() or type(error).__name__
    return f"not a complete pickle of tensors ({' '.join(text.splitlines()[0].split())[:200]})"


if __name__ == "__main__":
    torch.set_num_threads(1)
    serve(convert)
