"""How published tensors map to ours. Each rule knows its inverse, so import is written once and export is derived.

A rule pairs full-name templates: `Rename("~h.{i}.ln_1.{p}", "decoder.layers.{i}.attention.pre_norm.{p}")`. `{i}` and
the like stand for one name between dots; `~` stands for the prefix a published class puts before its base model, which
checkpoints of the base model alone leave out.

>>> rule = Split("h.{i}.qkv.weight", ("layers.{i}.q.weight", "layers.{i}.k.weight"))
>>> fill(rule.sources[0], match(rule.targets[1], "layers.7.k.weight"))
'h.7.qkv.weight'
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from anyformer.specs.messages import quote


@functools.cache
def _regex(template: str) -> re.Pattern[str]:
    parts = re.split(r"\{(\w+)\}", template)
    seen: set[str] = set()
    out = ""
    for n, part in enumerate(parts):
        if n % 2 == 0:
            out += re.escape(part).replace(r"\*", ".*")
        else:
            out += f"(?P={part})" if part in seen else f"(?P<{part}>[^.]+)"
            seen.add(part)
    return re.compile(out)


def match(template: str, name: str) -> dict[str, str] | None:
    """What the placeholders of `template` stand for in `name`, or None. A `*` stands for anything."""
    found = _regex(template).fullmatch(name)
    return None if found is None else found.groupdict()


def fill(template: str, values: dict[str, str]) -> str:
    return re.sub(r"\{(\w+)\}", lambda m: values[m[1]], template)


def join(tensors: list[Tensor], dim: int) -> Tensor:
    """torch.cat; on meta by hand, since torch imports its whole compiler (seconds) to work out a shape there."""
    if not tensors[0].is_meta:
        return torch.cat(tensors, dim=dim)
    shape = list(tensors[0].shape)
    shape[dim] = sum(tensor.shape[dim] for tensor in tensors)
    return tensors[0].new_empty(shape)


class Rule:
    """Published tensors named by `sources` become ours named by `targets`."""

    written = True  # whether an export has them

    def __init__(self, sources: Sequence[str], targets: Sequence[str]) -> None:
        self.sources, self.targets = tuple(sources), tuple(targets)
        self.needed = len(self.sources)  # how many of the sources must be stored

    def load(self, tensors: list[Tensor], shapes: list[torch.Size]) -> list[Tensor]:
        """Published -> ours; `shapes` are those of the targets."""
        return tensors

    def save(self, tensors: list[Tensor]) -> list[Tensor]:
        """Ours -> published."""
        return tensors

    def misfits(self, tensors: list[Tensor], shapes: list[torch.Size]) -> list[str]:
        """For each of these published tensors why it does not help to make targets of these shapes; empty where it
        does."""
        whole = self.save([torch.empty(shape, device="meta") for shape in shapes])
        pairs = [(tuple(found.shape), tuple(needed.shape)) for found, needed in zip(tensors, whole)]
        reason = "the checkpoint has {}, the model needs {}"
        return ["" if has == needs else reason.format(quote(has, 80), needs) for has, needs in pairs]

    def bind(self, name: str) -> tuple[list[str], list[str]] | None:
        """(sources, targets) of the instance of this rule that makes our tensor `name`."""
        for target in self.targets:
            values = match(target, name)
            if values is not None:
                return [fill(s, values) for s in self.sources], [fill(t, values) for t in self.targets]
        return None


class Rename(Rule):
    def __init__(self, source: str, target: str) -> None:
        super().__init__([source], [target])


class Transpose(Rename):
    """A matrix stored the other way round (GPT-2's Conv1D)."""

    def load(self, tensors: list[Tensor], shapes: list[torch.Size]) -> list[Tensor]:
        return [tensors[0].t()]

    def save(self, tensors: list[Tensor]) -> list[Tensor]:
        return [tensors[0].t()]


class Flip(Rename):
    """The rows of a table in the other order."""

    def load(self, tensors: list[Tensor], shapes: list[torch.Size]) -> list[Tensor]:
        return [tensors[0].flip(0)]

    def save(self, tensors: list[Tensor]) -> list[Tensor]:
        return [tensors[0].flip(0)]


class Reshape(Rename):
    """The same numbers under another shape; `shape` is the published one, with -1 for what follows from the size."""

    def __init__(self, source: str, target: str, shape: tuple[int, ...]) -> None:
        super().__init__(source, target)
        self.shape = shape

    def load(self, tensors: list[Tensor], shapes: list[torch.Size]) -> list[Tensor]:
        return [tensors[0].reshape(shapes[0])]

    def save(self, tensors: list[Tensor]) -> list[Tensor]:
        return [tensors[0].reshape(self.shape)]


class ChannelsLast(Rename):
    """The taps of a convolution over images, (outputs, inputs, rows, columns), as ours: the inputs last."""

    def load(self, tensors: list[Tensor], shapes: list[torch.Size]) -> list[Tensor]:
        return [tensors[0].movedim(1, -1)]

    def save(self, tensors: list[Tensor]) -> list[Tensor]:
        return [tensors[0].movedim(-1, 1)]


class Heads(Reshape):
    """A matrix stored the other way round and head by head: (inputs, heads, head width), the last two in `shape`."""

    def load(self, tensors: list[Tensor], shapes: list[torch.Size]) -> list[Tensor]:
        return [tensors[0].flatten(1).t()]

    def save(self, tensors: list[Tensor]) -> list[Tensor]:
        return [tensors[0].t().unflatten(1, self.shape)]


class Split(Rule):
    """One published tensor holds several of ours side by side along `dim`; with `transpose`, the other way round."""

    def __init__(self, source: str, targets: Sequence[str], dim: int = 0, transpose: bool = False) -> None:
        super().__init__([source], targets)
        self.dim, self.transpose = dim, transpose

    def load(self, tensors: list[Tensor], shapes: list[torch.Size]) -> list[Tensor]:
        # turned as a whole: torch has a fast path for that, and the pieces are then contiguous views
        whole = tensors[0].t().contiguous() if self.transpose else tensors[0]
        return list(whole.split([shape[self.dim] for shape in shapes], dim=self.dim))

    def save(self, tensors: list[Tensor]) -> list[Tensor]:
        whole = join(tensors, self.dim)
        return [whole.t() if self.transpose else whole]


class Interleave(Rule):
    """One published tensor holds several of ours in turn, a piece of each for each of `groups` heads (GPT-NeoX)."""

    def __init__(self, source: str, targets: Sequence[str], groups: int) -> None:
        super().__init__([source], targets)
        self.groups = groups

    def load(self, tensors: list[Tensor], shapes: list[torch.Size]) -> list[Tensor]:
        pieces = tensors[0].unflatten(0, (self.groups, len(self.targets), -1))
        return [piece.flatten(0, 1) for piece in pieces.unbind(1)]

    def save(self, tensors: list[Tensor]) -> list[Tensor]:
        return [join([tensor.unflatten(0, (self.groups, 1, -1)) for tensor in tensors], 1).flatten(0, 2)]


class Concat(Rule):
    """Several published tensors are one of ours, side by side along `dim`."""

    def __init__(self, sources: Sequence[str], target: str, sizes: Sequence[int], dim: int = 0) -> None:
        super().__init__(sources, [target])
        self.sizes, self.dim = tuple(sizes), dim

    def load(self, tensors: list[Tensor], shapes: list[torch.Size]) -> list[Tensor]:
        return [torch.cat(tensors, dim=self.dim)]

    def save(self, tensors: list[Tensor]) -> list[Tensor]:
        return list(tensors[0].split(self.sizes, dim=self.dim))


class Stack(Rule):
    """`count` published tensors, numbered by `{e}`, are one of ours with a leading dimension (experts); where there are
    several sources, those of one number stand side by side (gate and up); with `transpose`, the other way round."""

    def __init__(self, source: str | Sequence[str], target: str, count: int, transpose: bool = False) -> None:
        self.transpose = transpose
        self.each = (source,) if isinstance(source, str) else tuple(source)
        super().__init__([name.replace("{e}", str(e)) for e in range(count) for name in self.each], [target])

    def load(self, tensors: list[Tensor], shapes: list[torch.Size]) -> list[Tensor]:
        if not self.transpose:
            return [torch.stack(tensors).reshape(shapes[0])]
        whole, n = tensors[0].new_empty(shapes[0]), len(self.each)
        for i, tensor in enumerate(tensors):
            whole[i // n].unflatten(-1, (n, -1))[:, i % n] = tensor.t()
        return [whole]

    def save(self, tensors: list[Tensor]) -> list[Tensor]:
        whole = tensors[0].transpose(1, 2) if self.transpose else tensors[0]
        return [piece for one in whole.unbind(0) for piece in one.chunk(len(self.each))]


class Copies(Rule):
    """One tensor of ours that files hold under one or more of several names (a tied bias): the first that is stored
    is read, and the first is the one written."""

    def __init__(self, sources: Sequence[str], target: str) -> None:
        super().__init__(sources, [target])
        self.needed = 1


class Spread(Copies):
    """The same where every one of the names is written (what each layer of a file holds, and ours once)."""

    def save(self, tensors: list[Tensor]) -> list[Tensor]:
        return [tensors[0].clone() for _ in self.sources]


class Unwritten(Rename):
    """Read where it is stored, never written: published classes compute it again (Marian's sinusoids)."""

    written = False


class Repeat(Rule):
    """One published tensor stands at several places of ours, which all hold the same (a table each layer reads)."""

    def __init__(self, source: str, targets: Sequence[str]) -> None:
        super().__init__([source], targets)

    def load(self, tensors: list[Tensor], shapes: list[torch.Size]) -> list[Tensor]:
        return [tensors[0].clone() for _ in self.targets]

    def save(self, tensors: list[Tensor]) -> list[Tensor]:
        return tensors[:1]


class RuleStep:
    """One rule met with real names: read `sources`, get `targets`."""

    def __init__(self, rule: Rule, sources: list[str], targets: list[str]) -> None:
        self.rule, self.sources, self.targets = rule, sources, targets


class Matched(NamedTuple):
    """How the tensors of a checkpoint and the parameters of a model find each other."""

    names: dict[str, str]  # today's name of a tensor -> the name it is stored under
    steps: list[RuleStep]
    dropped: list[str]  # templates of what may be left over, as it holds nothing to learn


def same_names(spec: object, stored: list[str], targets: list[str]) -> Matched:
    """Of a checkpoint that has our own names."""
    return Matched({name: name for name in stored}, [RuleStep(Rename(n, n), [n], [n]) for n in targets], [])


def plan(rules: Iterable[Rule], targets: Iterable[str], prefix: str = "") -> tuple[list[RuleStep], list[str]]:
    """The steps that fill `targets` (our names), and the targets that no rule makes. `~` becomes `prefix`."""
    rules, wanted = list(rules), dict.fromkeys(targets)
    steps, orphans, done = [], [], set()
    for name in wanted:
        if name in done:
            continue
        for rule in rules:
            bound = rule.bind(name)
            if bound is not None and all(t in wanted for t in bound[1]):
                steps.append(RuleStep(rule, [s.replace("~", prefix) for s in bound[0]], bound[1]))
                done.update(bound[1])
                break
        else:
            orphans.append(name)
    return steps, orphans
