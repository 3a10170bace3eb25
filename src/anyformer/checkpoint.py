"""Loading and saving: a folder on one side, a model on the other, a plan of weight rules between."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, overload

import torch
from torch import Tensor, nn

from anyformer import families, machine
from anyformer.codec import FORMAT, encode, from_json
from anyformer.construct import skeleton
from anyformer.families import recognise
from anyformer.families.family import Family
from anyformer.model import Model, TransformerModule
from anyformer.part import nearest, walk
from anyformer.parts.init import computed, initialise
from anyformer.weights import hub
from anyformer.weights.io import Checkpoint, read_json, write_checkpoint, write_json
from anyformer.weights.pieces import Pieces, has_weights, opened
from anyformer.weights.rules import Rename, Step, match, plan

CONFIGS = ("config.json", "bert_config.json")  # the second is Google's name
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt", "vocab.txt", "tokenizer.model", "spiece.model",
    "sentencepiece.bpe.model", "source.spm", "target.spm", "vocab-src.json",
    "vocab-tgt.json", "chat_template.jinja", "chat_template.json", "generation_config.json", "preprocessor_config.json",
)  # fmt: skip


SHOWN = 100  # tensors that a report tells by name
TABLE = 2**28  # numbers of a tensor that is computed, and stored nowhere: the file's size does not bound it


@dataclasses.dataclass(frozen=True)
class Report:
    """What a load with strict=False met: every tensor that did not fit, and what was done about it."""

    missing: dict[str, str]  # our address -> how it was initialised
    unexpected: tuple[str, ...]  # published tensors that nothing takes
    mismatched: dict[str, str]  # our address -> the two shapes, as published
    dropped: tuple[str, ...]  # published tensors that hold nothing to learn
    published: dict[str, str]  # our address -> the published tensors that are missing or mismatched for it
    nonfinite: tuple[str, ...] = ()  # our addresses of weights with NaN or infinity in them

    @property
    def clean(self) -> bool:
        return not (self.missing or self.unexpected or self.mismatched or self.nonfinite)

    def __str__(self) -> str:
        lines = [f"missing {line}" for line in self._by_published_name(self.missing)]
        lines += [f"unexpected {name}" for name in self.unexpected]
        lines += [f"wrong shape {line}" for line in self._by_published_name(self.mismatched)]
        lines += [f"NaN or infinity in {name}" for name in self.nonfinite]
        more = [f"and {len(lines) - SHOWN:,} more"] if len(lines) > SHOWN else []
        return "; ".join(lines[:SHOWN] + more) or "every tensor fits"

    def _by_published_name(self, found: dict[str, str]) -> list[str]:
        """A line for each published name, with our addresses where they differ: one tensor may be several of ours."""
        addresses: dict[tuple[str, str], list[str]] = {}
        for address, text in found.items():
            addresses.setdefault((self.published[address], text), []).append(address)
        return [
            f"{name} ({'' if ours == [name] else 'here ' + ', '.join(ours) + '; '}{text})"
            for (name, text), ours in addresses.items()
        ]


def read_spec(folder: Path, architecture: str | None = None, weights: Path | None = None) -> Model:
    """The description of a model folder, ours or Hugging Face's; what its config leaves open, the weights tell."""
    if (folder / "spec.json").is_file():
        spec = read_spec_file(folder / "spec.json")
        if architecture not in (None, spec.architecture):
            raise ValueError(f"{folder}: spec.json describes {spec.architecture or 'no published class'}")
        return spec
    path = next((folder / name for name in CONFIGS if (folder / name).is_file()), None)
    if path is None:
        raise FileNotFoundError(f"{folder}: no spec.json and no config.json in this folder")
    config = read_json(path)
    with blaming(path):
        left = recognise.choices(config, architecture)
    if len(left) == 1 or (config.get("model_type") and not has_weights(weights or folder)):
        family, found = left[0]
    else:
        with opened(weights or folder) as checkpoint, blaming(path):

            def load(family: Family, spec: Model) -> Report:
                return fill(skeleton(spec), Outline(checkpoint), family, torch.float32)

            family, found = recognise.choose(left, config, checkpoint.names, load)
    with blaming(path):
        spec = family.read(config, found)
    if not family.absent or not has_weights(weights or folder):
        return spec
    with opened(weights or folder) as checkpoint:
        told = family.told_by(checkpoint.names, spec.architecture)
    other = recognise.described(family, found, {**config, **told}) or spec
    return spec if other.replace(source={}) == spec.replace(source={}) else other


class Outline:
    """A checkpoint of which only the shapes are read."""

    def __init__(self, checkpoint: Checkpoint | Pieces) -> None:
        self.names, self.dtype, self._shape = checkpoint.names, checkpoint.dtype, checkpoint.shape
        self.folder = checkpoint.folder

    def read(self, name: str) -> Tensor:
        return torch.empty(self._shape(name), dtype=self.dtype(name), device="meta")


def read_spec_file(path: Path) -> Model:
    content = read_json(path)
    with blaming(path):
        spec = from_json(content)
        if not isinstance(spec, Model):
            raise ValueError(f"describes a {type(spec).__name__}, not a whole model")
        return spec


@contextlib.contextmanager
def blaming(path: Path) -> Iterator[None]:
    """Whatever goes wrong while the content of a file is understood is one line that names the file."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    except RecursionError:
        raise ValueError(f"{path}: nested too deeply") from None
    except (TypeError, AttributeError, LookupError, ArithmeticError) as error:
        raise ValueError(f"{path}: a value of the wrong kind or size ({type(error).__name__}: {error})") from error


@overload
def load(
    name: str | Path, *, dtype: str | torch.dtype = "auto", device: str | torch.device = "cpu",
    strict: Literal[True] = True, offline: bool = False, revision: str | None = None, architecture: str | None = None,
    weights: Path | None = None,
) -> TransformerModule: ...  # fmt: skip


@overload
def load(
    name: str | Path, *, dtype: str | torch.dtype = "auto", device: str | torch.device = "cpu",
    strict: Literal[False], offline: bool = False, revision: str | None = None, architecture: str | None = None,
    weights: Path | None = None,
) -> tuple[TransformerModule, Report]: ...  # fmt: skip


@overload
def load(
    name: str | Path, *, dtype: str | torch.dtype = "auto", device: str | torch.device = "cpu", strict: bool,
    offline: bool = False, revision: str | None = None, architecture: str | None = None, weights: Path | None = None,
) -> TransformerModule | tuple[TransformerModule, Report]: ...  # fmt: skip


def load(
    name: str | Path, *, dtype: str | torch.dtype = "auto", device: str | torch.device = "cpu", strict: bool = True,
    offline: bool = False, revision: str | None = None, architecture: str | None = None, weights: Path | None = None,
) -> TransformerModule | tuple[TransformerModule, Report]:  # fmt: skip
    """The model in a folder or behind a hub id, in eval mode. With strict=False, (model, Report) instead of an error.

    dtype "auto" is the one the config names, or else the checkpoint's own; device "auto" a GPU where there is one.
    `architecture` is the published class to open it as, where the config names none or another one; `weights` the
    folder of the weights, where that is another.
    """
    where = machine.device(device)
    folder = hub.resolve(name, offline=offline, revision=revision)
    spec = read_spec(folder, architecture, weights)
    ours = (folder / "spec.json").is_file()
    with opened(weights or folder) as checkpoint:
        family = None if ours else families.find(spec.family)
        affordable(spec, checkpoint)
        model = skeleton(spec)
        spec = untied(model, checkpoint, family)
        if spec is not model.spec:
            model = skeleton(spec)
        chosen = choose_dtype(dtype, spec, checkpoint)
        report = fill(model, checkpoint, family, chosen, strict)
    model.tie()
    model.to(where)
    if report.missing or report.mismatched:
        initialise(model, spec.init, seed=0, only={*report.missing, *report.mismatched})
        model.fresh = frozenset((*report.missing, *report.mismatched))
    model.folder = folder
    model.eval()
    return model if strict else (model, report)


def affordable(spec: Model, checkpoint: Checkpoint | Pieces) -> None:
    """ValueError where a description asks for more than its file can hold, before anything of it is built."""
    layers = sum(part.depth for _, part in walk(spec) if hasattr(part, "depth"))
    if layers > len(checkpoint.names):
        found = f"the checkpoint has {len(checkpoint.names):,} tensors"
        raise ValueError(f"{checkpoint.folder}: {layers:,} layers are described, and {found}")


def untied(model: TransformerModule, checkpoint: Checkpoint | Pieces, family: Family | None) -> Model:
    """The description without the ties that the checkpoint contradicts: both tensors are stored, and they differ.
    Published configs cannot always say so (T5 1.1), and transformers decides by the tensors too."""
    spec = model.spec
    if not spec.ties:
        return spec
    targets = model.state_dict()
    names, _, steps = _match_names(checkpoint.names, family, spec, list(targets))
    makers = {step.targets[0]: step for step in steps if len(step.targets) == step.rule.needed == 1}

    def read(target: str) -> Tensor | None:
        step = makers.get(target)
        source = next((s for s in step.sources if s in names), None) if step else None
        if step is None or source is None:
            return None
        tensor, shapes = checkpoint.read(names[source]), [targets[target].shape]
        return None if any(step.rule.misfits([tensor], shapes)) else step.rule.load([tensor], shapes)[0]

    def holds(name: str, owner: str) -> bool:
        stored = read(name)
        other = None if stored is None else read(owner)
        return stored is None or other is None or torch.equal(stored, other)

    ties = tuple(tie for tie in spec.ties if holds(*tie))
    return spec if ties == spec.ties else spec.replace(ties=ties)


def choose_dtype(dtype: str | torch.dtype, spec: Model, checkpoint: Checkpoint | Pieces) -> torch.dtype:
    if isinstance(dtype, torch.dtype) and dtype.is_floating_point:
        return dtype
    named: Any = dtype
    if dtype == "auto":
        named = spec.source.get("dtype") or spec.source.get("torch_dtype")
        if named is None:
            floats = (checkpoint.dtype(name) for name in checkpoint.names)
            return next((d for d in floats if d.is_floating_point), torch.float32)
    valid = {"float32", "float16", "bfloat16", "float64"}
    if str(named).removeprefix("torch.") not in valid:
        raise ValueError(f"dtype {named!r} is not supported; {nearest(str(named), valid)}")
    return getattr(torch, str(named).removeprefix("torch."))


def fill(
    model: TransformerModule, checkpoint: Checkpoint | Pieces | Outline, family: Family | None, dtype: torch.dtype,
    strict: bool = False,
) -> Report:  # fmt: skip
    """Streams the checkpoint into a model on meta, one rule at a time; what fits nowhere is reported, or refused before
    memory is taken for it.

    Tied names stand for one tensor: whichever of them the checkpoint has fills it.
    """
    targets = model.state_dict(keep_vars=True)
    groups: dict[int, list[str]] = {}  # tensor -> the addresses that share it
    for name, tensor in targets.items():
        groups.setdefault(id(tensor), []).append(name)
    names, dropped, steps = _match_names(checkpoint.names, family, model.spec, list(targets))
    exact = {f"{path}.{leaf}" for path, module in model.named_modules() for leaf in getattr(module, "exact", ())}
    dtypes = {name: torch.float32 if name in exact else dtype for name in targets}
    used: set[str] = set()
    filled: dict[str, Tensor] = {}
    mismatched: dict[str, str] = {}
    published: dict[str, str] = {}
    nonfinite: list[str] = []
    for step in steps:
        present = [source for source in step.sources if source in names]
        used.update(present)
        if len(present) < step.rule.needed:
            absent = [source for source in step.sources if source not in names]
            absent = absent[:1] if step.rule.needed == 1 else absent
            published.update(dict.fromkeys(step.targets, " and ".join(absent)))
        if len(present) < step.rule.needed or all(target in filled for target in step.targets):
            continue
        shapes = [targets[target].shape for target in step.targets]
        sources = [checkpoint.read(names[source]) for source in present[: step.rule.needed]]
        if wrong := {n: why for n, why in zip(present, step.rule.misfits(sources, shapes), strict=False) if why}:
            mismatched.update(dict.fromkeys(step.targets, " and ".join(dict.fromkeys(wrong.values()))))
            published.update(dict.fromkeys(step.targets, " and ".join(names[source] for source in wrong)))
            continue
        for target, tensor in zip(step.targets, step.rule.load(sources, shapes), strict=True):
            if tensor.is_floating_point() != targets[target].is_floating_point():
                mismatched[target] = f"the checkpoint has {tensor.dtype}, the model needs {targets[target].dtype}"
                published[target] = " and ".join(names[source] for source in present)
                continue
            if not tensor.is_meta and not finite(tensor):
                nonfinite.append(target)
            tensor = tensor.to(dtypes[target]) if tensor.is_floating_point() else tensor
            for name in groups[id(targets[target])]:
                filled[name] = tensor.contiguous()
    tables = {n: f for n, f in computed(model).items() if n not in filled and n not in mismatched}
    missing = [name for name in targets if name not in filled and name not in mismatched and name not in tables]
    left = [name for name in names if name not in used]
    unexpected = dict.fromkeys(name for name in left if all(match(template, name) is None for template in dropped))
    how = "initialised as its description says"
    known = tuple(name for name in left if name not in unexpected)
    published = {name: published[name] for name in (*missing, *mismatched)}
    report = Report(
        dict.fromkeys(missing, how), tuple(unexpected), mismatched, known, published, tuple(nonfinite)
    )
    if strict and not report.clean:
        raise ValueError(f"{checkpoint.folder}: the checkpoint does not fit its description: {report}")
    for name in tables:
        if targets[name].numel() > TABLE:
            raise ValueError(f"{checkpoint.folder}: {name} would have {targets[name].numel():,} numbers")
    filled |= {name: make().to(dtypes[name]) for name, make in tables.items()}
    for address, module in model.named_modules():
        for leaf, old in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
            name = f"{address}.{leaf}" if address else leaf
            if name not in targets:
                continue
            tensor = filled.get(name)
            if tensor is None:
                tensor = torch.empty(old.shape, dtype=dtype if old.is_floating_point() else old.dtype)
            parameter = isinstance(old, nn.Parameter)
            setattr(module, leaf, nn.Parameter(tensor, requires_grad=old.requires_grad) if parameter else tensor)
    return report


def finite(tensor: Tensor) -> bool:
    """One pass over the numbers: their sum tells, unless it is too large itself."""
    if not tensor.is_floating_point():
        return True
    return bool(tensor.sum(dtype=torch.float32).isfinite()) or bool(tensor.isfinite().all())


def _match_names(
    stored: list[str], family: Family | None, spec: Model, targets: list[str]
) -> tuple[dict[str, str], list[str], list[Step]]:
    """({today's name: stored name}, templates of what may be dropped, steps that fill `targets`)."""
    if family is None:
        return {n: n for n in stored}, [], [Step(Rename(n, n), [n], [n]) for n in targets]
    names = family.today(stored)
    prefix = family.prefix_in(names, spec.architecture)
    steps, orphans = plan(family.rules(spec), targets, prefix)
    assert not orphans, f"{family.name} has no rule for {orphans}"
    return names, [template.replace("~", prefix) for template in family.dropped], steps


def save(model: TransformerModule, folder: str | Path, *, format: str = "anyformer") -> None:
    """Writes the model to a folder: ours (spec.json), or `format="hf"` for what reads transformers' layout."""
    if format not in ("anyformer", "hf"):
        raise ValueError(f"unknown format {format!r}; {nearest(format, ('anyformer', 'hf'))}")
    if not isinstance(model, TransformerModule):
        raise ValueError(f"only a model can be saved, as af.build and af.load give it, got {type(model).__name__}")
    if not isinstance(folder, (str, Path)):
        raise ValueError(f"a model is saved to a folder, got {folder!r}")
    folder, spec = Path(folder), model.spec
    tied = {name for name, _ in spec.ties}
    ours = {name: tensor.detach() for name, tensor in plain_state(model).items() if name not in tied}
    dtype = str(model.dtype).removeprefix("torch.")
    if format == "anyformer":
        text, content = "spec.json", {"anyformer": FORMAT, **encode(_with_dtype(spec, dtype))}
        tensors = iter(ours.items())
    else:
        if not spec.family:
            raise ValueError("this description belongs to no published family; save it with format='anyformer'")
        family = families.find(spec.family)
        text, content = "config.json", {**family.write(spec), "dtype": dtype}
        content.pop("torch_dtype", None)
        tensors = _exported(ours, family, spec)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file, not a folder")
    folder.mkdir(parents=True, exist_ok=True)
    write_checkpoint(folder, tensors)
    write_json(folder / text, content)
    (folder / ("config.json" if text == "spec.json" else "spec.json")).unlink(missing_ok=True)
    copy_tokenizer(model, folder)


def save_description(model: TransformerModule, folder: Path) -> None:
    """What `save` writes beside the weights."""
    dtype = str(model.dtype).removeprefix("torch.")
    write_json(folder / "spec.json", {"anyformer": FORMAT, **encode(_with_dtype(model.spec, dtype))})
    copy_tokenizer(model, folder)


def copy_tokenizer(model: TransformerModule, folder: Path) -> None:
    source = getattr(model, "folder", None)
    if source is not None and source.resolve() != folder.resolve():
        for name in TOKENIZER_FILES:
            if (source / name).is_file():
                shutil.copyfile(source / name, folder / name)


def plain_state(model: nn.Module) -> dict[str, Tensor]:
    """The weights by address; a layer with an adapter counts as the plain layer that does the same."""
    state = dict(model.state_dict())
    for address, module in model.named_modules():
        if hasattr(module, "effective"):
            state[f"{address}.weight"] = module.effective()
            for name in module.extras:
                del state[f"{address}.{name}"]
    return state


def _with_dtype(spec: Model, dtype: str) -> Model:
    return spec.replace(source={**{k: v for k, v in spec.source.items() if k != "torch_dtype"}, "dtype": dtype})


def _exported(ours: dict[str, Tensor], family: Family, spec: Model) -> Iterator[tuple[str, Tensor]]:
    """(published name, tensor), made one rule at a time."""
    steps, orphans = plan(family.rules(spec), ours, family.prefix_of(spec.architecture))
    assert not orphans, f"{family.name} has no rule for {orphans}"
    for step in (step for step in steps if step.rule.written):
        yield from zip(step.sources, step.rule.save([ours[target] for target in step.targets]), strict=False)
