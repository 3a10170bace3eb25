"""Count parameters and the memory of the weights from a description, by part. Nothing is allocated.

With --length, also show FLOPs per token and text, training and its memory, the decoding state, and common approximate
formulas next to the exact figures. Image models need no --length and have no formulas. A multiply-add is 2 FLOPs.
Both products of attention are counted, over the whole square, or with --causal only under a causal mask. The column
"the masks need" leaves out every pair of tokens that a mask hides, also outside a sliding window.

`anyformer count --by size` shows where the FLOPs of GPT-3's eight sizes go."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyformer.cli.settings import setting
from anyformer.cli.texts import as_json

if TYPE_CHECKING:
    from anyformer.models import Model

BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    what = "a name from `anyformer zoo`, a spec.json or run.json, or the folder of a model or a run"
    add("name", metavar="NAME", nargs="?", help=what)
    add("--set", metavar="PATH=VALUE", action="append", default=[], help="set a value by its address; can be repeated")
    add("--depth", type=int, default=3, metavar="N", help="rows by the first N steps of an address (default: 3)")
    add("--dtype", metavar="NAME", help=f"dtype of the weights: {', '.join(BYTES)} (default: as stored, else float32)")
    what = "tokens of a text, or samples or frames of sound: adds FLOPs and memory"
    add("--length", type=int, metavar="N", help=what)
    add("--source-length", type=int, metavar="N", help="tokens that the encoder reads (default: the same)")
    add("--batch", type=int, default=1, metavar="N", help="texts per batch (default: 1)")
    add("--causal", action="store_true", help="count only the attention that a causal mask lets through")
    add("--by", metavar="size", help="show where FLOPs go, for all names that begin with NAME (default: gpt3)")
    add("--picture", metavar="FILE", help="write a plot as .png, .svg or .pdf (needs matplotlib)")
    add("--json", action="store_true", help="print a JSON object")


def run(options: argparse.Namespace) -> None:
    from anyformer.specs.messages import nearest

    if options.dtype not in (None, *BYTES):
        raise ValueError(f"no dtype {options.dtype!r}; {nearest(options.dtype, BYTES)}")
    for name in ("depth", "length", "batch", "source_length"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ValueError(f"--{name.replace('_', '-')} is {value}; it must be at least 1")
    if options.by not in (None, "size"):
        raise ValueError(f"--by {options.by}; {nearest(options.by, ['size'])}")
    if options.picture is not None:
        check_picture(options.picture)
    if options.by is not None:
        check_by(options)
        by_size(options)
        return
    if options.name is None:
        raise ValueError("give a NAME (`anyformer zoo` lists them), a model folder or a spec.json")
    changes = dict(map(setting, options.set))
    check_exists(options.name)

    from anyformer.cli.terminal import spinner

    with spinner(f"counting {options.name}"):
        from anyformer.counting import count
        from anyformer.specs.codec import override

        spec = override(find_model(options.name), changes)
        length = length_of(spec, options.length)
        if length is None:
            needs_length(options)
        check_source(spec, options.source_length)
        counted = count(spec)
        stored = str(spec.source.get("dtype") or spec.source.get("torch_dtype") or "float32").removeprefix("torch.")
        dtype = options.dtype or (stored if stored in BYTES else "float32")
        used = at_length(counted, length, options, dtype) if length is not None else {}
    parts = counted.table(options.depth)
    if options.picture is not None:
        from anyformer.counting.picture import by_part

        by_part(Path(options.picture), options.name, parts, used.get("flops_parts", {}))
    if options.json:
        result: dict[str, Any] = {
            "name": options.name,
            "family": spec.family,
            "architecture": spec.architecture,
            "parameters": counted.parameters,
            "active": counted.active,
            "dtype": dtype,
            "fixed": counted.fixed,
            "bytes": (counted.parameters + counted.fixed) * BYTES[dtype],
            "parts": parts,
            "tied": dict(spec.ties),
            "note": spec.note,
            **used,
        }
        print(as_json(result, indent=1))
        return
    show(counted, parts, used, options, dtype)


def at_length(counted: Any, length: int, options: argparse.Namespace, dtype: str) -> dict[str, Any]:
    """Return FLOPs and memory for inputs of this length, in the form of the JSON output."""
    import torch

    batch, causal, source = options.batch, options.causal, options.source_length
    kind = getattr(torch, dtype)
    trained = kind if kind.is_floating_point else torch.bfloat16
    positions = counted.positions(length)
    passes_of = {
        "flops": counted.flops(length, 1, causal, source),
        "flops_needed": counted.needed_flops(length, 1, source),
    }
    memory = {
        "training": counted.memory(trained, batch, length, source, training=True),
        "training, recomputed": counted.memory(trained, batch, length, source, training=True, recompute=True),
        "writing": counted.memory(kind, batch, length, source),
    }
    passes = {"prefill": counted.prefill(length, batch, kind, source)}
    if counted.spec.writes and counted.remembered and length > 1:
        passes["decode"] = counted.decode(length, batch, kind, source)
    return {
        "length": length,
        "positions": positions,
        "source_length": source,
        "batch": batch,
        "causal": causal,
        **{name: by_pass(counted.spec, forward, positions, batch) for name, forward in passes_of.items()},
        "flops_parts": counted.flops_table(length, options.depth, causal, source),
        "memory": {name: {**dataclasses.asdict(each), "total": each.total} for name, each in memory.items()},
        "passes": {name: {**dataclasses.asdict(each), "intensity": each.intensity} for name, each in passes.items()},
    }


def by_pass(spec: Model, forward: int, positions: int, batch: int) -> dict[str, int]:
    """Return FLOPs per position, input, batch and training step, if the forward pass of one input takes `forward`."""
    position, whole = units(spec)
    return {
        position: forward // positions,
        whole: forward,
        "batch": batch * forward,
        "training": 3 * batch * forward,
        "training, recomputed": 4 * batch * forward,
    }


def units(spec: Model) -> tuple[str, str]:
    """Return the names of one position and of one input, such as "token" and "text"."""
    reader = spec.readers[0]
    first = next(iter(dict(reader.items())["embedding"].row(1, reader.width)))
    if spec.pair or first == "input_ids":
        return "token", "text"
    inputs = {"pixel_values": "image", "input_values": "recording", "input_features": "recording"}
    return "position", inputs.get(first, "input")


def show(counted: Any, parts: dict[str, int], used: dict[str, Any], options: argparse.Namespace, dtype: str) -> None:
    from anyformer.cli.terminal import bytes_of, short_number, table

    spec, total, each = counted.spec, counted.parameters, BYTES[dtype]
    flops, (unit, whole) = used.get("flops_parts", {}), units(spec)
    header, right = ["part", "parameters", "share", dtype], [1, 2, 3]
    if used:
        header, right = [*header, f"FLOPs per {unit}", "share"], [*right, 4, 5]
    rows = []
    for part in dict.fromkeys((*parts, *flops)):
        size = parts.get(part, 0)
        row = [part, f"{size:,}", f"{size / max(total, 1):.1%}", bytes_of(size * each)]
        done = flops.get(part, 0)
        rows.append(
            [*row, short_number(done // used["positions"]), f"{done / used['flops'][whole]:.1%}"] if used else row
        )
    last = ["total", f"{total:,}", "", bytes_of(total * each)]
    rows.append([*last, short_number(used["flops"][unit]), ""] if used else last)
    table(header, rows, right=right, total=True)
    if counted.active < total:
        print(f"{counted.active:,} of them are active per token: the rest are experts that the token is not routed to")
    for name, owner in spec.ties:
        print(f"{name} is {owner}: counted once")
    if counted.fixed:
        print(f"{counted.fixed:,} numbers of fixed position tables, {bytes_of(counted.fixed * each)}: not parameters")
    if spec.note:
        print(f"note: {spec.note}")
    if not used:
        return
    square = "attention only to the past" if options.causal else "attention over the whole square"
    many = f" ({used['positions']:,} positions)" if unit == "position" else ""
    print(f"\nFLOPs of {options.batch:,} x {amount(spec, used['length'], options.source_length)}{many}, {square}")
    figures = [(name, f"{value:.4g}", f"{used['flops_needed'][name]:.4g}") for name, value in used["flops"].items()]
    table(("pass", "FLOPs", "the masks need"), figures, right=(1, 2))
    print(f"\nmemory, {dtype}; in training, fp32 weights, gradients and two moments (AdamW); peak: the most at once")
    names = ("weights", "gradients", "optimizer", "activations", "state", "total", "peak")
    kinds = [(kind, *(bytes_of(value[name]) for name in names)) for kind, value in used["memory"].items()]
    table(("for", *names), kinds, right=range(1, 8))
    print("\nFLOPs per byte of weights and state that is read or written")
    busy = [
        (kind, f"{each['flops']:.4g}", bytes_of(each["bytes"]), f"{each['intensity']:.1f}")
        for kind, each in used["passes"].items()
    ]
    table(("pass", "FLOPs", "bytes", "FLOPs per byte"), busy, right=(1, 2, 3))


def amount(spec: Any, length: int, source_length: int | None = None) -> str:
    """Describe one row of a batch by the first input of each embedding, such as "2,048 tokens"."""
    read = source_length if spec.pair and source_length is not None else length
    parts = [(dict(part.items())["embedding"], part.width) for part in spec.readers]
    first = [next(iter(embedding.row(read, width).items())) for embedding, width in parts]
    inputs = [
        f"{shape[-1]:,} tokens" if name == "input_ids" else f"{name} of {' x '.join(map(str, shape))}"
        for name, shape in first
    ]
    return (f"{length:,} tokens from " if spec.pair else "") + " and ".join(dict.fromkeys(inputs))


def by_size(options: argparse.Namespace) -> None:
    """Show the shares of FLOPs for all sizes of a family."""
    from anyformer.cli.terminal import short_number, spinner, table
    from anyformer.specs.messages import nearest

    prefix = options.name or "gpt3"
    with spinner("counting"):
        from anyformer import families
        from anyformer.checkpoint import spec as find
        from anyformer.counting import count
        from anyformer.counting.flops import fixed_input
        from anyformer.counting.shares import shares
        from anyformer.models import position_limit

        known = [name for name, _ in families.names()]
        names = [name for name in known if name.startswith(prefix)]
        if not names:
            raise ValueError(f"no description begins with {prefix!r}; {nearest(prefix, known)}")
        counts = sorted(((name, count(find(name))) for name in names), key=lambda pair: pair[1].parameters)
        if options.length is not None and all(fixed_input(find(name)) for name in names):
            length_of(find(names[0]), options.length)
        length = options.length or min(2048, *(position_limit(each.spec) or 2048 for _, each in counts))
        source, found = options.source_length, []
        for name, each in counts:
            check_source(each.spec, source)
            found.append((name, each.parameters, shares(each, length, options.causal, source)))
    read = [amount(each.spec, length, source) for _, each in counts]
    same_input = len({*read}) == 1
    if options.picture is not None:
        from anyformer.counting.picture import by_size as draw

        draw(Path(options.picture), [(size, flops) for _, size, flops in found], read[0] if same_input else "")
    sizes: list[dict[str, Any]] = [
        {
            "name": name,
            "parameters": size,
            "reads": reads,
            "flops": sum(flops.values()),
            "shares": {kind: value / sum(flops.values()) for kind, value in flops.items()},
            "outside": 1 - flops["products"] / sum(flops.values()),
        }
        for (name, size, flops), reads in zip(found, read, strict=True)
    ]
    if options.json:
        print(as_json({"length": length, "causal": options.causal, "sizes": sizes}, indent=1))
        return
    kinds = list(found[0][2])
    rows = [
        (
            each["name"],
            short_number(each["parameters"]),
            *(f"{each['shares'][kind]:.1%}" for kind in kinds),
            f"{each['outside']:.1%}",
            *([] if same_input else [each["reads"]]),
        )
        for each in sizes
    ]
    print(f"FLOPs of {read[0] if same_input else 'the input of each'}; the products are q k^T and weights v")
    header = ("name", "parameters", *kinds, "outside the products", *(() if same_input else ("reads",)))
    table(header, rows, right=range(1, len(kinds) + 3))


def check_by(options: argparse.Namespace) -> None:
    """Raise ValueError for a flag that does not apply to several descriptions."""
    unused = {"set": bool(options.set), "dtype": options.dtype is not None, "batch": options.batch != 1}
    for name in (name for name, given in unused.items() if given):
        raise ValueError(f"--{name} applies to one description, but --by size shows several")


def needs_length(options: argparse.Namespace) -> None:
    """Raise ValueError for a flag that has no effect without --length."""
    unused = {"source-length": options.source_length is not None, "causal": options.causal, "batch": options.batch != 1}
    for name in (name for name, given in unused.items() if given):
        raise ValueError(f"--{name} needs --length")


def length_of(spec: Any, given: int | None, usual: int | None = None) -> int | None:
    """Return the given length, otherwise `usual`. For a model with inputs of a fixed size (an image), return its number
    of positions; ValueError if a length is given."""
    from anyformer.counting.flops import fixed_input

    fixed = fixed_input(spec)
    if fixed is None:
        return usual if given is None else given
    name, shape = fixed
    positions = spec.embedding.vectors(1)
    if given is not None:
        sides = " x ".join(map(str, shape))
        raise ValueError(f"--length: this model reads only {name} of {sides}; leave it out")
    return positions


def check_source(spec: Any, source_length: int | None) -> None:
    """Raise ValueError if the model has no encoder that reads `source_length` tokens."""
    if source_length is None:
        return

    from anyformer.specs.part import walk

    has_memory = spec.pair or any(part.reads_memory for _, part in walk(spec))
    if not has_memory:
        raise ValueError("--source-length: this model has no encoder whose tokens a decoder attends to")
    shapes = [spec.embedding.row(length, spec.width) for length in (source_length, source_length + 1)]
    if spec.pair and shapes[0] == shapes[1]:
        name, shape = next(iter(shapes[0].items()))
        raise ValueError(f"--source-length: this encoder reads only {name} of {' x '.join(map(str, shape))}")


def check_picture(name: str) -> None:
    if Path(name).suffix not in (".png", ".svg", ".pdf"):
        raise ValueError(f"--picture {name}: a picture is a .png, .svg or .pdf")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ValueError("--picture needs matplotlib: pip install 'anyformer[train]'") from None


def check_exists(name: str) -> None:
    """Raise FileNotFoundError if `name` looks like a path but does not exist, before anything is imported."""
    path = Path(name).expanduser()
    if not path.exists() and (path.suffix == ".json" or name.startswith((".", "~")) or "/" in name):
        from anyformer.weights.hub import no_such_folder

        raise FileNotFoundError(no_such_folder(name).replace("no such folder", "no such file or folder", 1))


def find_model(name: str) -> Model:
    """Return the description of a model by name, file or folder; for a run, of the model that it trains, even if it has
    not begun."""
    if not Path(name).expanduser().exists():
        from anyformer.checkpoint import spec

        return spec(name)

    from anyformer.train.run import description_of, model_of

    return description_of(model_of(name))
