"""Write a model to another folder, in our layout (spec.json) or Hugging Face's (config.json), in any dtype. An adapter
(PEFT's layout) is merged into its base model; --format peft writes only the adapter. --unpickle reads an old
pytorch_model.bin in a restricted process. --quantize rounds the weights of linear layers to 8 or 4 bits, for inference;
only our layout stores them.

DST must be new or empty. If anything fails, nothing is written. With --overwrite DST may hold a model, which is
replaced; other files are kept."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from anyformer.cli.settings import MODEL

FORMATS = ("anyformer", "hf", "peft")
BITS = ("int8", "fp8", "int4")


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("source", metavar="SRC", help=MODEL)
    add("target", metavar="DST", help="the folder to write")
    add("--format", metavar="NAME", default="anyformer", help="anyformer, hf or peft (default: anyformer)")
    add("--base", metavar="MODEL", help="base model of an adapter, if it is not the one the adapter names")
    add("--dtype", metavar="NAME", default="auto", help="float32, bfloat16, float16, or auto: as stored")
    add("--quantize", metavar="NAME", help=f"round the weights: {', '.join(BITS)} (only our layout)")
    add("--architecture", metavar="CLASS", help="the published class, such as BertForMaskedLM")
    add(
        "--unpickle",
        action="store_true",
        help="read weights from a pickle (pytorch_model.bin), in a restricted process",
    )
    add("--overwrite", action="store_true", help="replace the model that DST holds")
    add("--offline", action="store_true", help="do not use the network; read only local folders and the cache")


def run(options: argparse.Namespace) -> None:
    from anyformer.specs.messages import nearest

    if options.format not in FORMATS:
        raise ValueError(f"no format {options.format!r}; {nearest(options.format, FORMATS)}")
    if options.quantize is not None and options.quantize not in BITS:
        raise ValueError(f"no quantized format {options.quantize!r}; {nearest(options.quantize, BITS)}")
    if options.quantize is not None and options.format != "anyformer":
        raise ValueError("--quantize: only our layout stores quantized weights; leave out --format")
    target = Path(options.target).expanduser().absolute()
    if target.exists() and not target.is_dir():
        raise ValueError(f"{options.target} is a file; DST is a folder to write")
    filled = target.is_dir() and any(target.iterdir())
    if filled and not options.overwrite:
        raise ValueError(f"{options.target} is not empty; give a new folder, or --overwrite to replace the model in it")

    from anyformer.cli.terminal import spinner

    local = os.path.isdir(os.path.expanduser(options.source))  # a download shows its own progress
    with spinner(f"reading {options.source}") if local else contextlib.nullcontext():
        from anyformer.checkpoint import load, save
        from anyformer.transforms.lora import adapted_layers, merge
        from anyformer.transforms.quantize import quantize
        from anyformer.weights import hub
        from anyformer.weights.pickled_weights import unpickle_folder

        source = hub.resolve(options.source, offline=options.offline, pickles=options.unpickle)
        home = next(parent for parent in target.parents if parent.exists())
        with unpickle_folder(source, home) if options.unpickle else contextlib.nullcontext() as weights:
            settings = {"dtype": options.dtype, "architecture": options.architecture, "base": options.base}
            model = load(source, weights=weights, **settings)
            if options.format != "peft" and adapted_layers(model):
                merge(model)
            written = [each for each in model.parameters() if each.requires_grad or options.format != "peft"]
            parameters = sum(each.numel() for each in written)  # quantized weights are buffers
            if options.quantize is not None:
                quantize(model, format=options.quantize)
    with (
        spinner(f"writing {options.target}"),
        contextlib.nullcontext(target) if filled else atomic_folder(target) as folder,
    ):
        save(model, folder, format=options.format, overwrite=options.overwrite)
    name, dtype = model.spec.architecture or type(model.spec).__name__, str(model.dtype).removeprefix("torch.")
    what = f"an adapter of {name}" if options.format == "peft" else name
    rounded = f", linear layers in {options.quantize}" if options.quantize else ""
    print(f"{options.target}: {what}, {parameters:,} parameters, {dtype}{rounded}")


@contextlib.contextmanager
def atomic_folder(target: Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes `target`; if an error is raised, it is deleted."""
    if target.is_dir():  # empty, and maybe not ours to replace (a mount)
        folder = target
    else:
        home = next(parent for parent in target.parents if parent.exists())
        folder = home / f".{target.name}.{os.getpid()}.tmp"
        folder.mkdir()
    try:
        yield folder
        if folder != target:
            target.parent.mkdir(parents=True, exist_ok=True)
            os.rename(folder, target)
    except BaseException:
        for path in folder.iterdir():
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()
        if folder != target:
            folder.rmdir()
        raise
