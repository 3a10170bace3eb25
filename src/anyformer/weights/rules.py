"""Rules that map published tensors to ours. Each rule has an inverse, so that export follows from import.

A rule pairs full-name templates: `Rename("~h.{i}.ln_1.{p}", "decoder.layers.{i}.attention.pre_norm.{p}")`. Placeholders
such as `{i}` match one name between dots; `~` is the prefix of the base model in a published class, which is absent in
checkpoints of only the base model.

>>> rule = Split("h.{i}.qkv.weight", ("layers.{i}.q.weight", "layers.{i}.k.weight"))
>>> fill(rule.sources[0], match(rule.targets[1], "layers.7.k.weight"))
'h.7.qkv.weight'
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable, Sequence
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
    """Return the values of the placeholders of `template` in `name`, or None if it does not match. `*` matches
    anything."""
    matched = _regex(template).fullmatch(name)
    return None if matched is None else matched.groupdict()


def fill(template: str, values: dict[str, str]) -> str:
    return re.sub(r"\{(\w+)\}", lambda m: values[m[1]], template)


def join(tensors: list[Tensor], dim: int) -> Tensor:
    """torch.cat, except on meta, for which torch would import its whole compiler (seconds)."""
    if not tensors[0].is_meta:
        return torch.cat(tensors, dim=dim)
    shape = list(tensors[0].shape)
    shape[dim] = sum(tensor.shape[dim] for tensor in tensors)
    return tensors[0].new_empty(shape)


class Rule:
    """Maps the published tensors `sources` to our tensors `targets`."""

    written = True  # whether an export writes the sources

    def __init__(self, sources: Sequence[str], targets: Sequence[str]) -> None:
        self.sources, self.targets = tuple(sources), tuple(targets)
        self.needed = len(self.sources)  # number of sources that must be stored

    def load(self, tensors: list[Tensor], shapes: list[torch.Size]) -> list[Tensor]:
        """Convert published tensors to ours; `shapes` are the shapes of the targets."""
        return tensors

    def save(self, tensors: list[Tensor]) -> list[Tensor]:
        """Convert our tensors to published ones."""
        return tensors

    def misfits(self, tensors: list[Tensor], shapes: list[torch.Size]) -> list[str]:
        """Return for each published tensor why it does not fit targets of these shapes; "" if it does."""
        whole = self.save([torch.empty(shape, device="meta") for shape in shapes])
        pairs = [(tuple(found.shape), tuple(needed.shape)) for found, needed in zip(tensors, whole)]
        reason = "the checkpoint has {}, the model needs {}"
        return ["" if has == needs else reason.format(quote(has, 80), needs) for has, needs in pairs]

    def bind(self, name: str) -> tuple[list[str], list[str]] | None:
        """Return (sources, targets) with the placeholders filled so that our tensor `name` is a target; or None."""
        for target in self.targets:
            values = match(target, name)
            if values is not None:
                return [fill(s, values) for s in self.sources], [fill(t, values) for t in self.targets]
        return None


class Rename(Rule):
    def __init__(self, source: str, target: str) -> None:
        super().__init__([source], [target])


class Transpose(Rename):
    """A matrix that is stored transposed (GPT-2's Conv1D)."""

    def load(self, tensors: list[Tensor], shapes: list[torch.Size]) -> list[Tensor]:
        return [tensors[0].t()]

    def save(self, tensors: list[Tensor]) -> list[Tensor]:
        return [tensors[0].t()]


class Flip(Rename):
    """A table whose rows are stored in reverse order."""

    def load(self, tensors: list[Tensor], shapes: list[torch.Size]) -> list[Tensor]:
        return [tensors[0].flip(0)]

    def save(self, tensors: list[Tensor]) -> list[Tensor]:
        return [tensors[0].flip(0)]


class Reshape(Rename):
    """The same numbers in a different shape; `shape` is the published one and may contain -1."""

    def __init__(self, source: str, target: str, shape: tuple[int, ...]) -> None:
        super().__init__(source, target)
        self.shape = shape

    def load(self, tensors: list[Tensor], shapes: list[torch.Size]) -> list[Tensor]:
        return [tensors[0].reshape(shapes[0])]

    def save(self, tensors: list[Tensor]) -> list[Tensor]:
        return [tensors[0].reshape(self.shape)]


class ChannelsLast(Rename):
    """The weight of a 2D convolution, (outputs, inputs, rows, columns), which has the inputs last in our layout."""

    def load(self, tensors: list[Tensor], shapes: list[torch.Size]) -> list[Tensor]:
        return [tensors[0].movedim(1, -1)]

    def save(self, tensors: list[Tensor]) -> list[Tensor]:
        return [tensors[0].movedim(-1, 1)]


class Heads(Reshape):
    """A matrix that is stored transposed and per head: (inputs, heads, head width); `shape` has the last two."""

    def load(self, tensors: list[Tensor], shapes: list[torch.Size]) -> list[Tensor]:
        return [tensors[0].flatten(1).t()]

    def save(self, tensors: list[Tensor]) -> list[Tensor]:
        return [tensors[0].t().unflatten(1, self.shape)]


class Split(Rule):
    """One published tensor is the concatenation of several of ours along `dim`; stored transposed if `transpose`."""

    def __init__(self, source: str, targets: Sequence[str], dim: int = 0, transpose: bool = False) -> None:
        super().__init__([source], targets)
        self.dim, self.transpose = dim, transpose

    def load(self, tensors: list[Tensor], shapes: list[torch.Size]) -> list[Tensor]:
        # transposed as a whole: torch has a fast path for that, and the pieces are then contiguous views
        whole = tensors[0].t().contiguous() if self.transpose else tensors[0]
        return list(whole.split([shape[self.dim] for shape in shapes], dim=self.dim))

    def save(self, tensors: list[Tensor]) -> list[Tensor]:
        whole = join(tensors, self.dim)
        return [whole.t() if self.transpose else whole]


class Interleave(Rule):
    """One published tensor has several of ours interleaved: a piece of each, for each of `groups` heads (GPT-NeoX)."""

    def __init__(self, source: str, targets: Sequence[str], groups: int) -> None:
        super().__init__([source], targets)
        self.groups = groups

    def load(self, tensors: list[Tensor], shapes: list[torch.Size]) -> list[Tensor]:
        pieces = tensors[0].unflatten(0, (self.groups, len(self.targets), -1))
        return [piece.flatten(0, 1) for piece in pieces.unbind(1)]

    def save(self, tensors: list[Tensor]) -> list[Tensor]:
        return [join([tensor.unflatten(0, (self.groups, 1, -1)) for tensor in tensors], 1).flatten(0, 2)]


class Alternate(Rename):
    """The two halves of our last dimension (gates and values) are stored alternately: gate, value, gate, ..."""

    def load(self, tensors: list[Tensor], shapes: list[torch.Size]) -> list[Tensor]:
        return [tensors[0].unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)]

    def save(self, tensors: list[Tensor]) -> list[Tensor]:
        return [tensors[0].unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2)]


class Concat(Rule):
    """Several published tensors, concatenated along `dim`, are one of ours."""

    def __init__(self, sources: Sequence[str], target: str, sizes: Sequence[int], dim: int = 0) -> None:
        super().__init__(sources, [target])
        self.sizes, self.dim = tuple(sizes), dim

    def load(self, tensors: list[Tensor], shapes: list[torch.Size]) -> list[Tensor]:
        return [torch.cat(tensors, dim=self.dim)]

    def save(self, tensors: list[Tensor]) -> list[Tensor]:
        return list(tensors[0].split(self.sizes, dim=self.dim))


class Stack(Rule):
    """`count` published tensors, numbered by `{e}`, are one of ours with a leading dimension (experts). Several sources
    with the same number are concatenated (gate and up). With `transpose` they are stored transposed."""

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
    """One tensor of ours that is published under one or more of several names (a tied bias). The first name that is
    stored is read; only the first name is written."""

    def __init__(self, sources: Sequence[str], target: str) -> None:
        super().__init__(sources, [target])
        self.needed = 1


class Spread(Copies):
    """Like `Copies`, but all names are written (a tensor that files repeat in each layer)."""

    def save(self, tensors: list[Tensor]) -> list[Tensor]:
        return [tensors[0].clone() for _ in self.sources]


class Unwritten(Rename):
    """A tensor that is read if stored but never written: published classes compute it (Marian's sinusoids)."""

    written = False


class Repeat(Rule):
    """One published tensor is copied to several addresses of ours (a table that each layer reads)."""

    def __init__(self, source: str, targets: Sequence[str]) -> None:
        super().__init__([source], targets)

    def load(self, tensors: list[Tensor], shapes: list[torch.Size]) -> list[Tensor]:
        return [tensors[0].clone() for _ in self.targets]

    def save(self, tensors: list[Tensor]) -> list[Tensor]:
        return tensors[:1]


class RuleStep:
    """A rule applied to actual names: read `sources`, get `targets`."""

    def __init__(self, rule: Rule, sources: list[str], targets: list[str]) -> None:
        self.rule, self.sources, self.targets = rule, sources, targets


class Matched(NamedTuple):
    """How the tensors of a checkpoint map to the parameters of a model."""

    names: dict[str, str]  # current published name of a tensor -> the name it is stored under
    steps: list[RuleStep]
    dropped: list[str]  # templates of tensors that may be unused, because they have no learned values


EARLIER = (  # parts of our names in earlier versions -> the present ones
    (".learned_scale.", ".scores.{i}."),
    (".talk.", ".scores.{i}."),
    ("embedding.prefix", "embedding.prefix.0.weight"),
    (".pool.seeds.", ".pool.take.seeds."),
    (".pool.norm.", ".pool.norm.part."),
    (".project.", ".neck.project."),
    ("image.up.", "image.projector.up."),
    ("image.down.", "image.projector.down."),
    ("audio.up.", "audio.projector.up."),
    ("audio.down.", "audio.projector.down."),
    ("painter.", "image_decoder."),
)


def same_names(spec: object, stored: list[str], targets: list[str]) -> Matched:
    """Match a checkpoint that uses our names, of this or an earlier version."""
    known = {*targets}
    names = {name if name in known else _present_name(name, known): name for name in stored}
    return Matched(names, [RuleStep(Rename(n, n), [n], [n]) for n in targets], [])


def _present_name(name: str, known: set[str]) -> str:
    renamed = (name.replace(old, new.format(i=i)) for old, new in EARLIER if old in name for i in range(4))
    return next((new for new in renamed if new in known), name)


def plan(
    rules: Iterable[Rule], targets: Iterable[str], prefix: str = "", stored: Collection[str] | None = None
) -> tuple[list[RuleStep], list[str]]:
    """Return the steps that fill `targets` (our names), and the targets without a rule. `~` becomes `prefix`. If a
    target has several rules, the first one whose sources are all `stored` is used, or else the first one."""
    rules, wanted = list(rules), dict.fromkeys(targets)
    steps, orphans, done = [], [], set()
    for name in wanted:
        if name in done:
            continue
        chosen: RuleStep | None = None
        for rule in rules:
            bound = rule.bind(name)
            if bound is not None and all(t in wanted for t in bound[1]):
                step = RuleStep(rule, [s.replace("~", prefix) for s in bound[0]], bound[1])
                complete = stored is None or all(source in stored for source in step.sources)
                chosen = step if complete or chosen is None else chosen
                if complete:
                    break
        if chosen is None:
            orphans.append(name)
        else:
            steps.append(chosen)
            done.update(chosen.targets)
    return steps, orphans
