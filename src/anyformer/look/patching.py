"""Activation patching: change values inside a run and compare the prediction.

patch(run, at="decoder.layers.3.attention", heads=[2])   # without head 2
patch(run, other, at="decoder.layers.3", positions=[4])  # with the other run's stream at position 4
patch_table(run, other, by="position").values            # every layer and position, one at a time
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from anyformer.look.roles import attention_mixers, body, num_heads, short, steps
from anyformer.look.trace import Change, ChangeByPass, Trace, addresses, main_tensor, matches, trace
from anyformer.specs.messages import nearest, quote

ROWS = 16  # patches per batch, one per row


def patch(
    run: Trace,
    other: Trace | None = None,
    *,
    at: str | Sequence[str],
    positions: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    scale: float = 0.0,
) -> Trace:
    """Run the model again with the values of the `other` run at the addresses `at`; without `other`, with this run's
    values times `scale`. `positions` and `heads` limit the change (default: all). The address of a sublayer means its
    branch; if `heads` is given, the outputs of its heads."""
    targets = [
        address for name in ((at,) if isinstance(at, str) else at) for address in resolve_addresses(run, name, heads)
    ]
    theirs = None if other is None else other.keeping(*targets)
    changes: dict[str, Change] = {}
    for address in targets:
        number = None if heads is None else heads_at(run, address.removesuffix(".mixed"))
        changes[address] = paste_change(
            address, None if theirs is None else theirs.kept.get(address), positions, heads, number, scale
        )
    with torch.no_grad():
        return trace(run.model, keep=tuple(run.kept), change={**run.change, **changes}, **run.inputs)


def resolve_addresses(run: Trace, name: str, heads: Sequence[int] | None) -> list[str]:
    """Return the addresses to change for a name or pattern."""
    known = addresses(run.model)
    targets = [address for address in known if matches(name, address)]
    if heads is not None:
        targets = [f"{a}.mixed" for a in attention_mixers(run.model) if matches(name, a) or matches(name, short(a))]
    elif branches := [f"{address}.branch" for address in targets if f"{address}.branch" in run.model.shows]:
        targets = branches
    if not targets:
        names = [short(a) for a in attention_mixers(run.model)] if heads is not None else known
        raise ValueError(f"no address matches {quote(name)}; {nearest(name, names)}")
    return targets


def heads_at(run: Trace, mixer: str) -> int:
    number = num_heads(run.model.get_submodule(mixer))
    if number is None:
        raise ValueError(f"{mixer}: this mixer does not declare its number of heads, so heads cannot be patched")
    return number


def paste_change(
    address: str,
    theirs: list[Tensor] | None,
    positions: Sequence[int] | None,
    heads: Sequence[int] | None,
    number: int | None,
    scale: float,
) -> Change:
    def change(value: Tensor, _: str, index: int) -> Tensor:
        if theirs is None:
            source = value * scale
        elif index >= len(theirs):
            raise ValueError(f"{address}: the other run has no value here for pass {index + 1}")
        else:
            source = theirs[index]
        if positions is None and source.shape != value.shape:
            raise ValueError(
                f"{address}: the shape is {tuple(source.shape)} in the other run and {tuple(value.shape)} in this run: "
                "the texts have different lengths; give positions"
            )
        if positions is None and heads is None:
            return source
        indices = [*range(value.shape[1])] if positions is None else [*positions]
        most = min(value.shape[1], source.shape[1])
        for i in indices:
            if not -most <= i < most:
                raise ValueError(f"no position {i} at {address}; there are {most}")
        columns = head_columns(value.shape[-1], number, heads)
        new = value.clone()
        for i in indices:
            new[:, i, columns] = source[:, i, columns]
        return new

    return ChangeByPass(change)


def head_columns(width: int, number: int | None, heads: Sequence[int] | None) -> Tensor:
    if heads is None or number is None:
        return torch.arange(width)
    for head in heads:
        if not 0 <= head < number:
            raise ValueError(f"no head {head}; there are {number}")
    return torch.cat([torch.arange(width).chunk(number)[head] for head in heads])


# -- many changes, one at a time --------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class PatchTable:
    """`values[i, j]` is the change of the token's log-probability by the patch in row i and column j."""

    rows: tuple[str, ...]
    columns: tuple[int, ...]
    values: Tensor
    token: int
    position: int
    before: float  # log-probability without a patch

    def figure(self) -> Any:
        from anyformer.look.figures import table

        return table(self.values, None, list(self.rows), [str(column) for column in self.columns], diverging=True)


@dataclasses.dataclass(frozen=True)
class _Cell:
    address: str
    positions: Sequence[int] | None
    columns: Tensor | None


def patch_table(
    run: Trace,
    other: Trace | None = None,
    *,
    by: Literal["position", "head", "sublayer"] = "position",
    token: int | None = None,
    position: int = -1,
    scale: float = 0.0,
    positions: Sequence[int] | None = None,
) -> PatchTable:
    """Patch every layer and position, every head, or every sublayer, one at a time. The default of `token` is the most
    likely token at `position`."""
    logits = last_scores(run, position)
    token = int(logits.argmax()) if token is None else token
    before = float(logits.log_softmax(-1)[token])
    names, columns, cells = grid(run, by, positions)
    targets = sorted({cell.address for line in cells for cell in line if cell is not None})
    theirs = None if other is None else other.keeping(*targets)
    values = torch.full((len(names), len(columns)), float("nan"))
    flat = [(i, j, cell) for i, line in enumerate(cells) for j, cell in enumerate(line) if cell is not None]
    for start in range(0, len(flat), ROWS):
        some = flat[start : start + ROWS]
        out = _try_changes(run, theirs, [cell for _, _, cell in some], scale, position)
        for (i, j, _), scores in zip(some, out):
            values[i, j] = scores.log_softmax(-1)[token] - before
    return PatchTable(tuple(names), tuple(columns), values, token, position, before)


def last_scores(run: Trace, position: int) -> Tensor:
    """Return the scores (V,) of the first row at `position`, or of the whole row if the head pools it."""
    scores = main_tensor(dict(run.output))[0]
    if scores is None or not scores.is_floating_point() or scores.dim() not in (2, 3):
        raise ValueError("this model has no scores, so no change can be measured")
    return (scores[0] if scores.dim() == 2 else scores[0, position]).float()


def grid(run: Trace, by: str, positions: Sequence[int] | None) -> tuple[list[str], list[int], list[list[_Cell | None]]]:
    stack = body(run.model).last_stack
    if by == "position":
        names = [f"{stack.address}.input", *(f"{stack.address}.layers.{i}" for i in range(stack.part.depth))]
        length = run.keeping(names[0]).kept[names[0]][0].shape[1]
        columns = list(range(length)) if positions is None else list(positions)
        return names, columns, [[_Cell(name, [column], None) for column in columns] for name in names]
    if by == "sublayer":
        names = list(dict.fromkeys(step.sublayer.address for step in steps(stack)))
        return names, [0], [[_Cell(resolve_addresses(run, name, None)[0], None, None)] for name in names]
    if by != "head":
        raise ValueError(f"by={quote(by)}; {nearest(by, ('position', 'head', 'sublayer'))}")
    mixers = [address for address in attention_mixers(run.model) if f"{address}.mixed" in run.model.shows]
    if not mixers:
        raise ValueError("this model has no heads to change")
    numbers = [heads_at(run, address) for address in mixers]
    traced = run.keeping(*(f"{address}.mixed" for address in mixers))
    lines: list[list[_Cell | None]] = []
    for address, number in zip(mixers, numbers):
        width = traced.kept[f"{address}.mixed"][0].shape[-1]
        cells = [_Cell(f"{address}.mixed", None, head_columns(width, number, [head])) for head in range(number)]
        lines.append([*cells, *[None] * (max(numbers) - number)])
    return [short(address) for address in mixers], list(range(max(numbers))), lines


def _try_changes(run: Trace, theirs: Trace | None, cells: Sequence[_Cell], scale: float, position: int) -> list[Tensor]:
    """Return the scores after each of these changes, computed in one batch."""
    number = len(cells)
    inputs = {name: repeated_rows(value, number) for name, value in run.inputs.items()}
    changes: dict[str, Change] = {}
    for address in {cell.address for cell in cells}:

        def change(value: Tensor, name: str, index: int) -> Tensor:
            new = value.clone()
            for row, cell in enumerate(cells):
                if cell.address == name:
                    source = value[row] * scale if theirs is None else theirs.kept[name][index][0]
                    if source.shape[-2] != value.shape[-2] and cell.positions is None:
                        raise ValueError(
                            "the two texts have different lengths, so heads and sublayers cannot be patched"
                        )
                    columns = torch.arange(value.shape[-1]) if cell.columns is None else cell.columns
                    for i in range(value.shape[1]) if cell.positions is None else cell.positions:
                        if i >= source.shape[-2]:
                            raise ValueError(f"no position {i} in the other text, which has {source.shape[-2]} tokens")
                        new[row, i, columns] = source[i, columns]
            return new

        changes[address] = ChangeByPass(change)
    with torch.no_grad():
        out = trace(run.model, change={**run.change, **changes}, **inputs).output
    scores = main_tensor(dict(out))[0]
    assert scores is not None
    return [(line if line.dim() == 1 else line[position]).float() for line in scores]


def repeated_rows(value: Any, number: int) -> Any:
    if not isinstance(value, Tensor) or not value.dim():
        return value
    if value.shape[0] != 1:
        raise ValueError(f"a patch table needs a run of one text; this run has {value.shape[0]}")
    return value.repeat(number, *[1] * (value.dim() - 1))
