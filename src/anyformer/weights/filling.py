"""Fill the parameters of a model from stored tensors, one rule at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from anyformer.models import Model, TransformerModule
from anyformer.parts.base import KeepsDtype
from anyformer.parts.init import computed_tensors, is_within
from anyformer.specs.messages import shorten
from anyformer.weights.io import Checkpoint
from anyformer.weights.pieces import Pieces
from anyformer.weights.rules import Matched
from anyformer.weights.rules import match as fits

Match = Callable[[Model, list[str], list[str]], Matched]  # (description, stored names, our addresses) -> Matched

SHOWN = 4  # most tensors per kind of problem that a report names
ABSENT = 2**28  # most missing numbers that are initialised, in addition to as many as the checkpoint has


@dataclasses.dataclass(frozen=True)
class Report:
    """The result of a load with strict=False: every tensor that does not fit, and what was done about it."""

    missing: dict[str, str]  # our address -> how it was initialised, if it was
    unexpected: tuple[str, ...]  # published tensors that the model does not use
    mismatched: dict[str, str]  # our address -> the two published shapes
    dropped: tuple[str, ...]  # published tensors without learned values
    published: dict[str, str]  # our address -> its published tensors that are missing or mismatched
    nonfinite: tuple[str, ...] = ()  # our addresses of weights with NaN or infinity

    @property
    def clean(self) -> bool:
        return not (self.missing or self.unexpected or self.mismatched or self.nonfinite)

    def __str__(self) -> str:
        kinds = {
            "missing": self._by_published_name(self.missing),
            "unexpected": self.unexpected,
            "wrong shape": self._by_published_name(self.mismatched),
            "NaN or infinity in": self.nonfinite,
        }
        lines = []
        for kind, found in kinds.items():
            lines += [f"{kind} {shorten(line, 600)}" for line in found[:SHOWN]]
            lines += [f"{kind} {len(found) - SHOWN:,} more"] * (len(found) > SHOWN)
        return "; ".join(lines) or "every tensor fits"

    def _by_published_name(self, found: dict[str, str]) -> list[str]:
        """One line per published name, with our addresses if they differ: one tensor may become several of ours."""
        addresses: dict[tuple[str, str], list[str]] = {}
        for address, text in found.items():
            addresses.setdefault((self.published[address], text), []).append(address)
        lines = []
        for (name, text), ours in addresses.items():
            notes = [f"here {', '.join(ours)}"] * (ours != [name]) + [text] * bool(text)
            lines.append(f"{name} ({'; '.join(notes)})" if notes else name)
        return lines


class StoredTensors(Protocol):
    """A checkpoint of any file layout."""

    folder: Any  # for messages
    names: list[str]

    def shape(self, name: str) -> tuple[int, ...]: ...

    def read(self, name: str) -> Tensor: ...


class ShapeCheckpoint:
    """A checkpoint that returns shapes without reading data."""

    def __init__(self, checkpoint: Checkpoint | Pieces) -> None:
        self.names, self.folder, self._of = checkpoint.names, checkpoint.folder, checkpoint
        self.shape = checkpoint.shape

    def read(self, name: str) -> Tensor:
        return torch.empty(self._of.shape(name), dtype=self._of.dtype(name), device="meta")


def fill(
    model: TransformerModule, stored: StoredTensors, match: Match, dtype: torch.dtype, strict: bool = False
) -> Report:
    """Load stored tensors into a model on meta, one rule at a time. Tensors that do not fit are reported or, if
    `strict`, refused before memory is allocated for them.

    Tied addresses are one tensor: any of them that is stored fills it. If several are stored and differ, their tie is
    removed from the description: published configs cannot always express this (T5 1.1), and transformers decides by the
    tensors too.
    """
    spec, targets = model.spec, model.state_dict(keep_vars=True)
    groups: dict[int, list[str]] = {}  # tensor -> the addresses that share it
    for name, tensor in targets.items():
        groups.setdefault(id(tensor), []).append(name)
    names, steps, dropped = match(spec, stored.names, list(targets))
    keeping = {path: module for path, module in model.named_modules() if isinstance(module, KeepsDtype)}
    exact = {f"{path}.{leaf}" for path, module in keeping.items() for leaf in module.exact}
    dtypes = {name: tensor.dtype if name in exact else dtype for name, tensor in targets.items()}
    tied = {name for name in targets if name not in exact and spec.owner_of(name)}  # a quantised head is not tied
    used: set[str] = set()
    filled: dict[str, Tensor] = {}
    mismatched: dict[str, str] = {}
    published: dict[str, str] = {}
    nonfinite: list[str] = []
    for step in sorted(steps, key=lambda step: any(name in tied for name in step.targets)):  # owners first
        present = [source for source in step.sources if source in names]
        used.update(present)
        if len(present) < step.rule.needed:
            absent = [source for source in step.sources if source not in names]
            absent = absent[:1] if step.rule.needed == 1 else absent
            published.update(dict.fromkeys(step.targets, " and ".join(absent)))
            continue
        shapes = [targets[target].shape for target in step.targets]
        sources = [stored.read(names[source]) for source in present[: step.rule.needed]]
        if wrong := {n: why for n, why in zip(present, step.rule.misfits(sources, shapes), strict=False) if why}:
            unfilled = [target for target in step.targets if target not in filled]
            mismatched.update(dict.fromkeys(unfilled, " and ".join(dict.fromkeys(wrong.values()))))
            published.update(dict.fromkeys(unfilled, " and ".join(names[source] for source in wrong)))
            continue
        for target, tensor in zip(step.targets, step.rule.load(sources, shapes), strict=True):
            if tensor.is_floating_point() != targets[target].is_floating_point():
                mismatched[target] = f"the checkpoint has {tensor.dtype}, the model needs {targets[target].dtype}"
                published[target] = " and ".join(names[source] for source in present)
                continue
            if not tensor.is_meta and not finite(tensor):
                nonfinite.append(target)
            tensor = (tensor.to(dtypes[target]) if tensor.is_floating_point() else tensor).contiguous()
            if target not in filled:
                filled |= dict.fromkeys(groups[id(targets[target])], tensor)
            elif not tensor.is_meta and not torch.equal(tensor, filled[target]):
                filled[target] = tensor
    apart = [name for name in tied if filled.get(name) is not filled.get(str(spec.owner_of(name)))]
    ties = tuple(tie for tie in spec.ties if not any(is_within(name, tie[0]) for name in apart))
    if ties != spec.ties:
        model.spec = spec.replace(ties=ties)
    tables = {n: f for n, f in computed_tensors(model).items() if n not in filled and n not in mismatched}
    missing = [name for name in targets if name not in filled and name not in mismatched and name not in tables]
    unused = [name for name in names if name not in used]
    # an empty tensor (zero shared experts) has no learned values either
    full = [name for name in unused if 0 not in stored.shape(names[name])]
    unexpected = dict.fromkeys(name for name in full if all(fits(template, name) is None for template in dropped))
    how = "" if strict else "initialised as its description says"
    known = tuple(name for name in unused if name not in unexpected)
    published = {name: published[name] for name in (*missing, *mismatched)}
    report = Report(dict.fromkeys(missing, how), tuple(unexpected), mismatched, known, published, tuple(nonfinite))
    if strict and not report.clean:
        raise ValueError(f"{stored.folder}: the checkpoint does not fit its description: {report}")
    lacking = {id(targets[name]): name for name in (*missing, *mismatched, *tables)}.values()
    loaded = sum({id(tensor): tensor.numel() for tensor in filled.values()}.values())
    if sum(targets[name].numel() for name in lacking) > ABSENT + loaded:
        most = max(lacking, key=lambda name: targets[name].numel())
        lack = f"{loaded:,} numbers, without {most} of shape {tuple(targets[most].shape)}"
        raise ValueError(f"{stored.folder}: the checkpoint has {lack}: too many to initialise")
    filled |= {name: make().to(dtypes[name]) for name, make in tables.items()}
    device = "meta" if isinstance(stored, ShapeCheckpoint) else "cpu"
    for name in (*missing, *mismatched):
        if name not in filled:
            old = targets[name]
            kind = dtypes[name] if old.is_floating_point() else old.dtype
            filled |= dict.fromkeys(groups[id(old)], torch.empty(old.shape, dtype=kind, device=device))
    place(model, filled)
    return report


def place(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Replace the tensors on meta by these, by address; one tensor at several addresses becomes one parameter."""
    parameters: dict[int, nn.Parameter] = {}
    for address, module in model.named_modules():
        for leaf, old in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
            tensor = tensors.get(f"{address}.{leaf}" if address else leaf)
            if tensor is not None and isinstance(old, nn.Parameter):
                parameter = parameters.setdefault(id(tensor), nn.Parameter(tensor, requires_grad=old.requires_grad))
                setattr(module, leaf, parameter)
            elif tensor is not None:
                setattr(module, leaf, tensor)


def finite(tensor: Tensor) -> bool:
    """Whether all values are finite. Values are checked one by one only if their sum is not finite."""
    if not tensor.is_floating_point():
        return True
    return bool(tensor.sum(dtype=torch.float32).isfinite()) or bool(tensor.isfinite().all())
