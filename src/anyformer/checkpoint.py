"""Load models from folders and save them, with weight rules that map published tensors to ours."""

from __future__ import annotations

import contextlib
import os
import shutil
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, overload

import torch
from torch import Tensor

from anyformer import families
from anyformer.families.base import class_detection
from anyformer.families.base.family import Family
from anyformer.families.base.layouts import LAYOUTS, find_layout
from anyformer.kernels import hardware
from anyformer.models import DecoderModel, EncoderDecoderModel, EncoderModel, Model, TransformerModule
from anyformer.models.construct import skeleton
from anyformer.parts.base import HasDepth
from anyformer.parts.fused_linear import Concatenable, added_weights
from anyformer.parts.head.classify import ClassifyHead
from anyformer.parts.init import initialise
from anyformer.specs.codec import FORMAT, encode, from_json
from anyformer.specs.messages import nearest, quote, shorten
from anyformer.specs.part import thaw, walk
from anyformer.specs.services import service
from anyformer.weights import hub
from anyformer.weights.filling import Report, ShapeCheckpoint, fill
from anyformer.weights.io import Checkpoint, read_json, write_checkpoint, write_json
from anyformer.weights.pieces import STEMS, Pieces, has_weights, open_weights
from anyformer.weights.rules import plan, same_names

if TYPE_CHECKING:
    from anyformer.known_names import DecoderName, EncoderDecoderName, EncoderName

ADAPTER = "adapter_config.json"  # PEFT's name
FORMATS = ("anyformer", "hf", "peft")
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt", "vocab.txt", "tokenizer.model", "spiece.model",
    "sentencepiece.bpe.model", "source.spm", "target.spm", "vocab-src.json",
    "vocab-tgt.json", "chat_template.jinja", "chat_template.json", "generation_config.json", "preprocessor_config.json",
)  # fmt: skip
LARGE = 2**24  # parameters; smaller models get no warning about slow bf16
COMPANION = "vae"  # subfolder with the autoencoder of a text-to-image model


def read_spec(folder: Path, architecture: str | None = None, weights: Path | None = None) -> Model:
    """Read the description of a model folder: spec.json, or a published config. If the config fits several classes, the
    names and shapes of the weights decide."""
    if (folder / "spec.json").is_file():
        spec = read_spec_file(folder / "spec.json")
        if architecture not in (None, spec.architecture):
            raise ValueError(f"{folder}: spec.json describes {spec.architecture or 'no published class'}")
        return spec
    if (layout := find_layout(folder)) is None:
        raise FileNotFoundError(f"{folder}: no spec.json and no config.json in this folder")
    path, weights = folder / layout.config, weights or weights_folder(folder)
    config = layout.read(path)
    with error_context(path):
        config = config if "architecture" not in config else class_detection.written_out(config)
        candidates = class_detection.choices(config, architecture)
    if len(candidates) == 1 or (config.get("model_type") and not has_weights(weights)):
        family, chosen = candidates[0]
    else:
        with open_weights(weights) as checkpoint, error_context(path):

            def load(family: Family, spec: Model) -> Report:
                return fill(skeleton(spec), ShapeCheckpoint(checkpoint), family.match, torch.float32)

            family, chosen = class_detection.choose(candidates, config, checkpoint.names, load)
    with error_context(path):
        spec = family.read(config, chosen)
    if not family.absent or not has_weights(weights):
        return spec
    with open_weights(weights) as checkpoint:
        fields = family.fields_from_weights(checkpoint.names, spec.architecture)
    if not fields:
        return spec
    other = class_detection.try_describe(family, chosen, {**config, **fields}) or spec
    return spec if other.replace(source={}) == spec.replace(source={}) else other


def weights_folder(folder: Path) -> Path:
    """Return the folder with the weights of the model in `folder`."""
    layout = None if (folder / "spec.json").is_file() else find_layout(folder)
    return folder if layout is None else folder / layout.weights


def read_spec_file(path: Path) -> Model:
    content = read_json(path)
    with error_context(path):
        spec = from_json(content)
        if not isinstance(spec, Model):
            raise ValueError(f"describes a {type(spec).__name__}, not a model")
        return spec


@contextlib.contextmanager
def error_context(path: Path) -> Iterator[None]:
    """Turn errors about the content of a file into a one-line ValueError that names the file."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{path}: {shorten(str(error), 1000)}") from None
    except RecursionError:
        raise ValueError(f"{path}: nested too deeply") from None
    except (TypeError, AttributeError, LookupError, ArithmeticError) as error:
        raise ValueError(f"{path}: a value has the wrong type or size (ANYFORMER_DEBUG=1 shows where)") from error


class LoadOptions(TypedDict, total=False):
    """Options of `load`, for type checkers; see `load`."""

    dtype: str | torch.dtype
    device: str | torch.device
    offline: bool
    revision: str | None
    architecture: str | None
    weights: Path | None
    base: str | Path | None
    num_labels: int | None
    labels: Sequence[str] | None


@overload
def load(
    name: str | Path, *, strict: Literal[True] = True, **options: Unpack[LoadOptions]
) -> TransformerModule[Model]: ...


@overload
def load(
    name: str | Path, *, strict: bool, **options: Unpack[LoadOptions]
) -> TransformerModule[Model] | tuple[TransformerModule[Model], Report]: ...


def load(
    name: str | Path,
    *,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device = "cpu",
    strict: bool = True,
    offline: bool = False,
    revision: str | None = None,
    architecture: str | None = None,
    weights: Path | None = None,
    base: str | Path | None = None,
    num_labels: int | None = None,
    labels: Sequence[str] | None = None,
) -> TransformerModule | tuple[TransformerModule, Report]:
    """Load a model from a folder or hub id, in eval mode. With strict=False, return (model, Report) even if
    tensors do not fit.

    dtype "auto" is the dtype in the config, or else the checkpoint's; device "auto" is a GPU if there is one.
    `architecture` overrides the published class in the config; `weights` is the folder of the weights, if they
    are not in the model's. An adapter folder is loaded on top of its base model: `base`, or the model that it names.

    `labels`, or their number, gives the model a new classification head with random weights, which `model.fresh` lists.
    Its class is `architecture`, or the family's class for texts, images or recordings. A trained head of the same class
    and number of labels keeps its weights.

    >>> af.load("google-bert/bert-base-uncased", labels=["good", "bad"])  # doctest: +SKIP
    """
    where = hardware.device(device)
    folder = hub.resolve(name, offline=offline, revision=revision)
    if (folder / ADAPTER).is_file() and not any(folder.glob("model*.safetensors*")):
        options = {"dtype": dtype, "device": where, "offline": offline, "architecture": architecture}
        model, report = service("load_adapted")(folder, base, **options)
        return model if strict else (model, report)
    if base is not None:
        raise ValueError(f"base= is only for adapters, but {folder} is a whole model")
    if labels is not None or num_labels is not None:
        names = label_names(labels, num_labels)
        spec = with_new_head(read_spec(folder, None, weights), architecture, names)
        model, report = load_with_head(spec, folder, dtype=dtype, device=where, weights=weights)
        model.origin = str(name)
        return model if strict else (model, report)
    spec = read_spec(folder, architecture, weights)
    model, report = load_as(spec, folder, dtype=dtype, device=where, strict=strict, weights=weights)
    model.origin = str(name)
    return model if strict else (model, report)


CLASSIFIERS = ("ForSequenceClassification", "ForImageClassification", "ForAudioClassification")


def label_names(labels: Sequence[str] | None, num_labels: int | None) -> tuple[str, ...]:
    """Return the names of labels; by default LABEL_0, LABEL_1, ..., as in transformers."""
    if labels is None:
        names = tuple(f"LABEL_{i}" for i in range(num_labels or 0))
    elif isinstance(labels, str):
        raise ValueError(f"labels is a text; write labels=[{labels!r}, ...]")
    else:
        names = tuple(map(str, labels))
    if not names or len(set(names)) < len(names) or num_labels not in (None, len(names)):
        raise ValueError(f"labels: {len(names)} names, num_labels={num_labels}; give one or more different names")
    return names


def with_new_head(spec: Model, architecture: str | None, labels: tuple[str, ...]) -> Model:
    """Return the description of another class of the family, with these labels if there are any."""
    if not spec.family:
        raise ValueError("this model does not belong to a published family, so it has no other heads")
    family = families.find(spec.family)
    if architecture is None and spec.labels and isinstance(spec.head, ClassifyHead):
        architecture = spec.architecture
    if architecture is None:
        found = (name for ending in CLASSIFIERS for name in family.architectures if name.endswith(ending))
        architecture = next(found, None)
    if architecture is None:
        raise ValueError(f"{spec.family} has no class that classifies; name one: architecture=...")
    config = {**family.write(spec), "architectures": [architecture]}
    if labels:
        config.pop("num_labels", None)
        config |= {name: thaw(spec.with_labels(labels).source[name]) for name in ("id2label", "label2id")}
    return family.read(config)


def load_with_head(spec: Model, folder: Path, **options: Any) -> tuple[TransformerModule, Report]:
    """Load weights into a description with another head. Raise ValueError if anything but the head is missing."""
    model, report = load_as(spec, folder, strict=False, **options)
    missing = sorted(name for name in model.fresh if not name.startswith("head."))
    if missing:
        raise ValueError(f"{folder} lacks weights that {spec.architecture} needs: {', '.join(missing[:5])}")
    if report.nonfinite:
        raise ValueError(f"{folder} has NaN or infinity in {', '.join(report.nonfinite[:5])}")
    return model, report


def load_as(
    spec: Model,
    folder: Path,
    *,
    dtype: str | torch.dtype = "auto",
    device: torch.device | str = "cpu",
    strict: bool = True,
    seed: int = 0,
    weights: Path | None = None,
) -> tuple[TransformerModule, Report]:
    """Build a model of this description with the weights of a folder, which may be from a different class of its
    family. Parameters that are not stored are initialised and listed in `model.fresh`. All loads call this function."""
    with open_weights(weights or weights_folder(folder)) as checkpoint:
        check_affordable(spec, checkpoint)
        ours = (folder / "spec.json").is_file()
        match = same_names if ours else families.find(spec.family).match
        model = skeleton(spec)
        if ours and any(name.endswith(".scale") for name in checkpoint.names):
            service("place_quantized")(model, checkpoint)
        report = fill(model, checkpoint, match, choose_dtype(dtype, spec, checkpoint, folder), strict)
    model.to(device)
    warn_if_slow(model, folder)
    model.fresh = frozenset((*report.missing, *report.mismatched))
    if model.fresh:
        initialise(model, spec.init, seed, only={*model.fresh})
    model.folder = folder
    return model.eval(), report


def warn_if_slow(model: TransformerModule, folder: Path) -> None:
    """Warn about bf16 on a CPU without bf16 instructions: 125 times slower than fp32 on an ARM Neoverse-N1 (128
    tokens)."""
    if model.dtype != torch.bfloat16 or model.device.type != "cpu" or hardware.has("bf16"):
        return
    if sum(parameter.numel() for parameter in model.parameters()) >= LARGE:
        why = "bf16 weights on a CPU without bf16 instructions are up to a hundred times slower than fp32"
        warnings.warn(f"{folder}: {why}; dtype float32 is faster and takes twice the memory", stacklevel=4)


def check_affordable(spec: Model, checkpoint: Checkpoint | Pieces) -> None:
    """Raise ValueError if a description has more layers than its checkpoint has tensors, before building it."""
    layers = sum(part.depth for _, part in walk(spec) if isinstance(part, HasDepth))
    if layers > len(checkpoint.names):
        stored = f"the checkpoint has only {len(checkpoint.names):,} tensors"
        raise ValueError(f"{checkpoint.folder}: the description has {layers:,} layers, but {stored}")


def choose_dtype(dtype: str | torch.dtype, spec: Model, checkpoint: Checkpoint | Pieces, folder: Path) -> torch.dtype:
    if isinstance(dtype, torch.dtype) and dtype.is_floating_point:
        return dtype
    named: Any = dtype
    where = ""
    if isinstance(dtype, str) and dtype == "auto":
        where = f"{folder / ('spec.json' if (folder / 'spec.json').is_file() else 'config.json')}: "
        named = spec.source.get("dtype") or spec.source.get("torch_dtype")
        if named is None:
            floats = (checkpoint.dtype(name) for name in checkpoint.names)
            return next((d for d in floats if d.is_floating_point), torch.float32)
    valid = {"float32", "float16", "bfloat16", "float64"}
    if str(named).removeprefix("torch.") not in valid:
        raise ValueError(f"{where}dtype {quote(thaw(named))} is not supported; {nearest(str(named), valid)}")
    return getattr(torch, str(named).removeprefix("torch."))


def save(model: TransformerModule, folder: str | Path, *, format: str = "anyformer", overwrite: bool = False) -> None:
    """Save a model to a folder: in our layout (spec.json), or with `format="hf"` in the layout of transformers.
    Adapters are merged into the weights; `format="peft"` writes only the adapters.

    The folder must be new, empty, or contain a model in our layout, which is replaced. With `overwrite=True` it may be
    any folder: a model in it is replaced, and files that do not belong to a model are kept."""
    if format not in FORMATS:
        raise ValueError(f"unknown format {quote(format)}; {nearest(format, FORMATS)}")
    if not isinstance(model, TransformerModule):
        raise ValueError(f"expected a model from af.build or af.load, got {type(model).__name__}")
    if not isinstance(folder, (str, Path)):
        raise ValueError(f"expected the path of a folder, got {quote(folder)}")
    folder, spec = Path(folder), model.spec
    if not overwrite and not in_our_layout(folder):
        has_no_tokenizer = model.folder is None  # then saving overwrites no tokenizer files
        allowed = TOKENIZER_FILES if has_no_tokenizer else ()
        check_free(folder, "overwrite=True replaces the model in it", allowed=allowed)
    if format == "peft":
        return service("save_adapter")(model, folder)
    state = plain_state(model, quantized=format == "anyformer")
    ours = {name: tensor.detach() for name, tensor in state.items() if not is_tied(spec, state, name)}
    dtype = str(model.dtype).removeprefix("torch.")
    if format == "anyformer":
        text, content = "spec.json", {"anyformer": FORMAT, **encode(_with_dtype(spec, dtype))}
        tensors, stem = iter(ours.items()), STEMS[0]
    else:
        if not spec.family:
            raise ValueError("this description is not of a published family; save it with format='anyformer'")
        family = families.find(spec.family)
        text, content = "config.json", {**family.write(spec), "dtype": dtype}
        for name in ("torch_dtype", *family.unwritten):
            content.pop(name, None)
        tensors, stem = published_tensors(ours, family, spec), family.stem
    folder.mkdir(parents=True, exist_ok=True)
    write_checkpoint(folder, tensors, stem=stem)
    for stale in (path for other in STEMS if other != stem for path in folder.glob(f"{other}*.safetensors*")):
        stale.unlink()
    write_json(folder / text, content)
    (folder / ("config.json" if text == "spec.json" else "spec.json")).unlink(missing_ok=True)
    copy_tokenizer(model, folder)


def in_our_layout(folder: Path) -> bool:
    """Whether a folder contains a model in our layout, and no published config."""
    if not (folder / "spec.json").is_file() or any((folder / layout.config).is_file() for layout in LAYOUTS):
        return False
    try:
        return "anyformer" in read_json(folder / "spec.json")
    except ValueError:
        return False


def check_free(folder: Path, fix: str, marks: Sequence[str] = (), allowed: Sequence[str] = ()) -> None:
    """Raise ValueError if a folder contains other files than `allowed`, unless one of them is in `marks`: these names
    identify an earlier output of the same command. `fix` ends the message."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file, not a folder")
    names = sorted({path.name for path in folder.iterdir()} - {*allowed}) if folder.is_dir() else []
    if names and not {*names} & {*marks}:
        files = f"{', '.join(names[:3])}{', ...' if len(names) > 3 else ''}"
        raise ValueError(f"{folder} holds other files ({files}): give a new folder; {fix}")


def save_description(model: TransformerModule, folder: Path) -> None:
    """Write the files of `save` except the weights: spec.json and tokenizer files."""
    dtype = str(model.dtype).removeprefix("torch.")
    write_json(folder / "spec.json", {"anyformer": FORMAT, **encode(_with_dtype(model.spec, dtype))})
    copy_tokenizer(model, folder)


def copy_tokenizer(model: TransformerModule, folder: Path) -> None:
    source = model.folder
    if source is not None and source.resolve() != folder.resolve():
        for name in TOKENIZER_FILES:
            if (source / name).is_file():
                shutil.copyfile(source / name, folder / name)
        if (source / COMPANION).is_dir():
            shutil.copytree(source / COMPANION, folder / COMPANION, dirs_exist_ok=True)


def plain_state(model: TransformerModule, quantized: bool = False) -> dict[str, Tensor]:
    """Return the weights by address. Adapters are merged into their layers; quantised layers are dequantised unless
    `quantized`."""
    state = {name: tensor.detach() for name, tensor in model.state_dict(keep_vars=True).items()}
    for address, module in model.named_modules():
        if isinstance(module, Concatenable) and not quantized:
            for name in module.exact:
                del state[f"{address}.{name}"]
            state[f"{address}.weight"] = module.dequantize().to(model.dtype)
        if (added := added_weights(module)) is not None:
            state[f"{address}.weight"] = added.effective()
            for name in added.parameters:
                del state[f"{address}.{name}"]
    return state


def is_tied(spec: Model, state: dict[str, Tensor], name: str) -> bool:
    """Whether a parameter is tied to one that is saved; a quantised head is not, because its dtype differs."""
    owner = spec.owner_of(name)
    return owner is not None and owner in state and state[owner].dtype == state[name].dtype


def _with_dtype(spec: Model, dtype: str) -> Model:
    return spec.replace(source={**{k: v for k, v in spec.source.items() if k != "torch_dtype"}, "dtype": dtype})


def published_tensors(ours: dict[str, Tensor], family: Family, spec: Model) -> Iterator[tuple[str, Tensor]]:
    """Yield (published name, tensor), one rule at a time."""
    steps, orphans = plan(family.rules(spec), ours, family.prefix_of(spec.architecture))
    assert not orphans, f"{family.name} has no rule for {orphans}"
    for step in (step for step in steps if step.rule.written):
        yield from zip(step.sources, step.rule.save([ours[target] for target in step.targets]), strict=False)


@overload
def spec(name: DecoderName) -> DecoderModel: ...
@overload
def spec(name: EncoderName) -> EncoderModel: ...
@overload
def spec(name: EncoderDecoderName) -> EncoderDecoderModel: ...
@overload
def spec(name: str | Path) -> Model: ...
def spec(name: str | Path) -> Model:
    """Return a description by its name in the catalogue, or from a spec.json, a model folder or a run folder."""
    if not isinstance(name, (str, Path)):
        raise ValueError(f"expected the name or path of a description, got {type(name).__name__}")
    path, is_folder = Path(name), os.path.isdir(name)  # Path.is_dir raises if a name is too long
    if is_folder or path.suffix == ".json":
        return read_spec(hub.resolve(path)) if is_folder else read_spec_file(path)
    if "/" in str(name):
        raise FileNotFoundError(hub.no_such_folder(str(name)))
    return families.find_description(str(name))
