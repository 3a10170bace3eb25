"""Counts parameters and the memory of the weights, by part, from a description alone: nothing is allocated."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyformer.cli.settings import setting
from anyformer.cli.texts import as_json

if TYPE_CHECKING:
    from anyformer.model import Model

BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}


def arguments(parser: argparse.ArgumentParser) -> None:
    what = "a name from `anyformer zoo`, a spec.json or run.json, or the folder of a model or a run"
    parser.add_argument("name", metavar="NAME", help=what)
    parser.add_argument("--set", metavar="PATH=VALUE", action="append", default=[], help="another value, by address")
    parser.add_argument("--depth", type=int, default=3, metavar="N", help="how many names of an address make a row (3)")
    parser.add_argument("--dtype", metavar="NAME", help=f"of the weights: {', '.join(BYTES)}; as stored, else float32")
    parser.add_argument("--json", action="store_true", help="a JSON object on stdout")


def run(options: argparse.Namespace) -> None:
    from anyformer.part import nearest

    if options.dtype not in (None, *BYTES):
        raise ValueError(f"no dtype {options.dtype!r}; {nearest(options.dtype, BYTES)}")
    if options.depth < 1:
        raise ValueError(f"--depth is at least 1, got {options.depth}")
    changes = dict(map(setting, options.set))
    path = Path(options.name).expanduser()
    if not path.exists() and (path.suffix == ".json" or options.name.startswith((".", "~")) or "/" in options.name):
        raise FileNotFoundError(f"{options.name}: no such file or folder")

    from anyformer.cli.terminal import bytes_of, table, working

    with working(f"counting {options.name}"):
        from anyformer.codec import override
        from anyformer.counting import count
        from anyformer.names import spec as find

        spec = override(described(path) if path.exists() else find(options.name), changes)
        counted = count(spec)
    stored = str(spec.source.get("dtype") or spec.source.get("torch_dtype") or "float32").removeprefix("torch.")
    dtype = options.dtype or (stored if stored in BYTES else "float32")
    parts = counted.table(options.depth)
    total = counted.parameters
    if options.json:
        result: dict[str, Any] = {
            "name": options.name, "family": spec.family, "architecture": spec.architecture, "parameters": total,
            "active": counted.active, "dtype": dtype, "bytes": counted.memory(BYTES[dtype]), "parts": parts,
            "tied": dict(spec.ties), "note": spec.note,
        }  # fmt: skip
        print(as_json(result, indent=1))
        return
    each = BYTES[dtype]
    rows = [(part, f"{size:,}", f"{size / max(total, 1):.1%}", bytes_of(size * each)) for part, size in parts.items()]
    rows.append(("total", f"{total:,}", "", bytes_of(total * each)))
    table(("part", "parameters", "share", dtype), rows, right=(1, 2, 3), total=True)
    if counted.active < total:
        print(f"{counted.active:,} of them are active a token: the rest are experts it does not go to")
    for name, owner in spec.ties:
        print(f"{name} is {owner}: counted once")
    if spec.note:
        print(f"note: {spec.note}")


def described(path: Path) -> Model:
    """The model that a file or a folder describes; of a run the one that it trains, also before it has begun."""
    from anyformer.checkpoint import read_spec
    from anyformer.names import spec as find
    from anyformer.train.run import Pretrained, read_run
    from anyformer.weights import hub, manifest
    from anyformer.weights.io import read_json

    folder = path.is_dir()
    file = path / "run.json" if folder else path
    if not file.is_file() or (folder and manifest.steps(path)) or read_json(file).get("kind") != "Run":
        return find(path)
    model = read_run(file).model
    return read_spec(hub.resolve(model.path)) if isinstance(model, Pretrained) else model
