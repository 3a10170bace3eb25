"""Old pickled weights (pytorch_model.bin, one or in shards) as safetensors, read by a process of its own.

`torch.load(weights_only=True)` calls nothing that a file names, but it makes whatever size the file claims and takes as
long as the file likes. So it runs in a process that has little more memory and time than an honest file of that size
needs, that may write its results and nothing else, and that is ended when it does not end. What comes back is a
safetensors file, which is judged like any other.

>>> with unpickled(Path("a/model/folder")) as folder:  # doctest: +SKIP
...     model = af.load("a/model/folder", weights=folder)
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anyformer.runtime.processes import end_with_parent
from anyformer.specs.messages import quote
from anyformer.weights.io import DTYPE_NAMES, PICKLES, read_weight_map, write_file, write_json

SECONDS = 10.0  # of the processor, for a file of no size; twice that on the clock, once torch is there
BYTES_A_SECOND = 50e6  # a slow disk
SPARE_BYTES = 256 * 2**20  # beyond twice the file
COPIES = 8  # names that share a tensor in a pickle have a copy each in safetensors
STARTING = 120.0  # seconds to import torch, on a machine that is busy
REFUSED = 3  # the exit code that comes with a reason

# what the reading process asks Python to do, and may not
FORBIDDEN = re.compile(
    r"(subprocess|socket|shutil|pty|ctypes|ftplib|urllib|http|webbrowser|winreg|mmap\.shared)\..*|"
    r"os\.(system|exec|fork|forkpty|posix_spawn|spawn|startfile|kill|remove|rename|rmdir|mkdir|link|symlink|chmod|"
    r"chown|chflags|lchmod|lchown|truncate|utime|putenv|unsetenv|setxattr|removexattr|chdir|fchdir)"
)


@contextlib.contextmanager
def unpickle_folder(folder: Path, workplace: Path | None = None) -> Iterator[Path]:
    """A temporary folder in `workplace` with the pickled weights of `folder` as safetensors."""
    files, promised = pickles(folder)
    with tempfile.TemporaryDirectory(prefix=".unpickling-", dir=workplace) as place:
        target = Path(place)
        made = [f"model-{i:05}-of-{len(files):05}.safetensors" for i in range(1, len(files) + 1)]
        made = made if promised else ["model.safetensors"]
        extract(files, [target / name for name in made])
        if promised:
            homes = dict(zip((file.name for file in files), made, strict=True))
            weight_map = {tensor: homes[file] for tensor, file in promised.items()}
            write_json(target / "model.safetensors.index.json", {"weight_map": weight_map})
        yield target


def pickles(folder: Path) -> tuple[list[Path], dict[str, str]]:
    """The pickled weights of a folder, and which of them an index promises each tensor in (none where there is one)."""
    if any(folder.glob("*.safetensors")):
        raise ValueError(f"{folder}: its weights are safetensors; nothing needs to be unpickled")
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
    """Each pickle as a safetensors file of its own, by another process; one line of ValueError if it is anything else
    than tensors by name."""
    size = sum(path.stat().st_size for path in files)
    seconds = SECONDS + size / BYTES_A_SECOND
    pairs = [str(path.absolute()) for pair in zip(files, targets, strict=True) for path in pair]
    command = [sys.executable, "-P", "-m", "anyformer.weights.pickled_weights", str(os.getpid()), str(seconds), *pairs]
    # found where this process found it, and on one thread: each more takes address space
    paths = os.pathsep.join(os.path.abspath(path) for path in sys.path if path)
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    child = subprocess.Popen(
        command,
        cwd=targets[0].parent,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    where = files[0] if len(files) == 1 else files[0].parent
    try:
        said, _ = child.communicate(timeout=STARTING + 2 * seconds)
    except subprocess.TimeoutExpired:
        raise ValueError(f"{where}: reading it took longer than {STARTING + 2 * seconds:.0f} seconds") from None
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()
    if child.returncode == REFUSED:
        raise ValueError(said.strip())
    if child.returncode == -signal.SIGXCPU:
        raise ValueError(f"{where}: reading it took longer than {seconds:.0f} seconds of the processor")
    if child.returncode:
        raise ValueError(f"{where}: not a whole pickle of tensors (reading it ended with code {child.returncode})")


# -- in the other process ----------------------------------------------------------------------------------------------


def main(parent: str, seconds: str, *pairs: str) -> int:
    end_with_parent(int(parent))  # before the limits, which count from the memory that is in use then
    files = list(zip(pairs[::2], pairs[1::2], strict=True))
    torch.set_num_threads(1)
    limit(max(os.path.getsize(source) for source, _ in files), float(seconds))
    confine({target for _, target in files})
    for source, target in files:
        try:
            write_file(Path(target), tensors_in(source), {"format": "pt"})
        except Exception as error:
            print(f"{source}: {reason(error)}")
            return REFUSED
    return 0


def limit(size: int, seconds: float) -> None:
    """Memory, time and disk for reading a file of `size` bytes, on top of what was used up to here."""
    try:
        import resource
    except ImportError:  # Windows: the clock alone
        return

    def at_most(kind: int, value: float) -> None:
        _, hard = resource.getrlimit(kind)
        with contextlib.suppress(ValueError, OSError):  # a system that has no such limit, or a lower one
            resource.setrlimit(kind, (int(value), hard))

    memory = Path("/proc/self/statm")
    if memory.is_file():
        mapped = int(memory.read_text().split()[0]) * resource.getpagesize()
        at_most(resource.RLIMIT_AS, mapped + 2 * size + SPARE_BYTES)
    used = resource.getrusage(resource.RUSAGE_SELF)
    at_most(resource.RLIMIT_CPU, used.ru_utime + used.ru_stime + seconds + 1)
    at_most(resource.RLIMIT_FSIZE, COPIES * size + 2**20)
    at_most(resource.RLIMIT_CORE, 0)


def confine(targets: set[str]) -> None:
    """From here on Python opens nothing for writing but `targets`, starts no program and no connection."""

    def judge(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            refused = flags & (os.O_WRONLY | os.O_RDWR) and str(path) not in targets
        else:
            refused = FORBIDDEN.fullmatch(event) is not None
        if refused:
            raise PermissionError(f"it wants {event}")

    sys.addaudithook(judge)


def tensors_in(source: str) -> dict[str, Tensor]:
    """The tensors of a pickle by name, none of them larger than what is stored for it."""
    size, zipped = os.path.getsize(source), zipfile.is_zipfile(source)
    if zipped:
        with zipfile.ZipFile(source) as archive:
            entries = archive.infolist()
        if sum(entry.file_size for entry in entries) > size or any(entry.compress_type for entry in entries):
            raise ValueError("compressed, which torch.save does not do")
    found = state_dict(torch.load(source, weights_only=True, map_location="cpu", mmap=zipped))
    for name, tensor in found.items():
        known = tensor.layout is torch.strided and not tensor.is_meta and tensor.dtype in DTYPE_NAMES
        if not known or tensor.nbytes > tensor.untyped_storage().nbytes():
            raise ValueError(f"tensor {quote(name[:200])} is not a plain tensor stored in the file")
    if sum(tensor.nbytes for tensor in found.values()) > COPIES * size:
        raise ValueError(f"its tensors are more than {COPIES} times as large as the file")
    return found


def state_dict(stored: Any) -> dict[str, Tensor]:
    """The weights in an unpickled object: the object itself, or its only entry that is a mapping of tensors."""
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
    """Why a file was refused, in one line: torch explains at length how to trust it."""
    text = str(error)
    # allocators differ by machine: "can't allocate memory", "not enough memory: you tried to allocate", "bad_alloc"
    if isinstance(error, MemoryError) or re.search(r"(?i)alloc|(enough|out of) memory", text):
        return "it claims more memory than a file of its size holds"
    if found := re.search(r"(?i)unsupported global:? (?:GLOBAL )?(\S+)", text):
        return f"its pickle names {found[1][:200]}, which is not a tensor; nothing was run"
    text = text.rpartition("WeightsUnpickler error:")[2].strip() or type(error).__name__
    return f"not a whole pickle of tensors ({' '.join(text.splitlines()[0].split())[:200]})"


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
