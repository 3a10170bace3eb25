"""Keep or change any value inside a model during a run, by address.

    run = trace(model, keep=["decoder.layers.*.attention.op.weights"], input_ids=ids)
    run["decoder.layers.0.attention.op.weights"]                    # (B, H, T, S)
    trace(model, change={"decoder.layers.3": lambda x, address: x + direction}, input_ids=ids).output.logits

The address of a module means its output. A mixer has named values: `q`, `k`, `v`, `weights` after the softmax, `mixed`
before the output projection. A sublayer adds its `branch` to the stream. `decoder.layers.3` is the stream after layer
3. In a pattern `*` matches one name and `**` any number of names; the pattern `*` matches everything.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from anyformer.models import Output, TransformerModule
from anyformer.models.published import call_published
from anyformer.parts.feedforward.routers import Routing
from anyformer.specs.messages import nearest, quote
from anyformer.specs.part_errors import name_own_parts


@dataclasses.dataclass(frozen=True)
class ChangeByPass:
    """A change for layers that run several times: function(value, address, index of the pass in this run)."""

    function: Callable[[Tensor, str, int], Tensor]


Change = Callable[[Tensor, str], Tensor] | ChangeByPass


@dataclasses.dataclass(frozen=True)
class Trace(Mapping[str, Tensor]):
    """A run: its `output`, and the kept values by address. If a value was computed several times (in a layer that runs
    several times), it is a tuple."""

    output: Output
    kept: dict[str, list[Tensor]]
    model: TransformerModule
    inputs: dict[str, Any]
    change: Mapping[str, Change]

    def __getitem__(self, address: str) -> Tensor:
        if address not in self.kept:
            raise KeyError(f"nothing was kept at {quote(address)}; {nearest(address, self.kept)}")
        values = self.kept[address]
        several: Any = tuple(values)
        return values[0] if len(values) == 1 else several

    def __iter__(self) -> Iterator[str]:
        return iter(self.kept)

    def __len__(self) -> int:
        return len(self.kept)

    def keeping(self, *patterns: str) -> Trace:
        """Return this run if it kept these addresses; otherwise run the model again and keep them too."""
        wanted = [a for a in addresses(self.model) if any(matches(pattern, a) for pattern in patterns)]
        if all(address in self.kept for address in wanted):
            return self
        with torch.no_grad():
            return trace(self.model, keep=(*self.kept, *patterns), change=self.change, **self.inputs)

    def __repr__(self) -> str:
        return f"Trace({', '.join(f'{address}: {tuple(values[0].shape)}' for address, values in self.kept.items())})"


def trace(
    model: TransformerModule,
    *,
    keep: str | Sequence[str] = (),
    change: Mapping[str, Change] | None = None,
    **inputs: Any,
) -> Trace:
    """Run the model on `inputs`. Values whose addresses match a pattern in `keep` are kept; values that match a pattern
    in `change` are replaced by function(value, address). Without changes the output equals model(**inputs) exactly."""
    if not isinstance(model, TransformerModule):
        raise ValueError(f"cannot trace {type(model).__name__}; give a model from af.build or af.load")
    listener = Tracer(model, (keep,) if isinstance(keep, str) else tuple(keep), change or {})
    handles = [
        module.register_forward_hook(listener.hook(address))
        for address, module in model.named_modules()
        if address not in model.shows and listener.wants(address)
    ]
    try:
        with name_own_parts():
            output = call_published(model, inputs, taps=listener)
    finally:
        for handle in handles:
            handle.remove()
    if missing := listener.missing_addresses:
        warnings.warn(f"{', '.join(missing)}: not reached in this run; nothing was kept or changed", stacklevel=2)
    return Trace(output, listener.kept, model, inputs, change or {})


@runtime_checkable
class MayBeSilent(Protocol):
    """A module that declares whether it has no output to trace, such as one that only stores a table."""

    @property
    def silent(self) -> bool: ...


def addresses(model: TransformerModule) -> list[str]:
    """Return every address that can be traced."""
    names: dict[str, None] = {}
    skipped: tuple[str, ...] = ()  # prefixes of modules that only store weights and tables
    for address, module in model.named_modules():
        if isinstance(module, MayBeSilent) and module.silent:
            skipped = (*skipped, f"{address}.")
        elif address and not address.startswith(skipped) and type(module).forward is not nn.Module.forward:
            names[address] = None  # modules without a forward pass, such as a ModuleList, have no output
    return list(names | dict.fromkeys(name for name in model.shows if not name.startswith(skipped)))


class Tracer:
    """Keeps and changes values during one run."""

    def __init__(self, model: TransformerModule, keep: Sequence[str], change: Mapping[str, Change]) -> None:
        known = addresses(model)
        for pattern in (*keep, *change):
            if not any(matches(pattern, address) for address in known):
                raise ValueError(f"no address matches {quote(pattern)}; {nearest(pattern, known)}")
        self.by_name = [address for address in known if address in {*keep, *change}]
        self.keeping = {address for address in known if any(matches(pattern, address) for pattern in keep)}
        self.changes = {
            address: [function for pattern, function in change.items() if matches(pattern, address)]
            for address in known
        }
        self.kept: dict[str, list[Tensor]] = {}
        self.passes: Counter[str] = Counter()

    @property
    def missing_addresses(self) -> list[str]:
        """Addresses given in full that the run never reached."""
        return [address for address in self.by_name if not self.passes[address]]

    def wants(self, address: str) -> bool:
        return address in self.keeping or bool(self.changes.get(address))

    def __call__(self, address: str, value: Tensor) -> Tensor:
        for function in self.changes.get(address, ()):
            value = apply_change(function, value, address, self.passes[address])
        self.passes[address] += 1
        if address in self.keeping:
            self.kept.setdefault(address, []).append(value)
        return value

    def hook(self, address: str) -> Callable[..., Any]:
        def listen(module: nn.Module, args: Any, output: Any) -> Any:
            value, put_back = main_tensor(output)
            if value is None:
                return None
            used = self(address, value)
            return None if used is value else put_back(used)

        return listen


def apply_change(change: Change, value: Tensor, address: str, index: int) -> Tensor:
    new = change.function(value, address, index) if isinstance(change, ChangeByPass) else change(value, address)
    if not isinstance(new, Tensor) or new.shape != value.shape:
        result = f"a tensor of shape {tuple(new.shape)}" if isinstance(new, Tensor) else repr(new)
        raise ValueError(f"{address}: the change must return a tensor of shape {tuple(value.shape)}, not {result}")
    return new.to(value.dtype)


def main_tensor(output: Any) -> tuple[Tensor | None, Callable[[Tensor], Any]]:
    """Return the main tensor of a module's output, and a function that replaces it."""
    if isinstance(output, Tensor):
        return output, lambda new: new
    if isinstance(output, tuple) and output and isinstance(output[0], Tensor):  # an embedding also returns its context
        return output[0], lambda new: (new, *output[1:])
    if isinstance(output, dict):  # a head: its logits, the last of its feature maps, or the first of its outputs
        if maps := output.get("feature_maps"):
            return maps[-1], lambda new: {**output, "feature_maps": (*maps[:-1], new)}
        names = [name for name, value in output.items() if isinstance(value, Tensor) and value.dim()]
        name = "logits" if "logits" in names else next(iter(names), None)
        return (None if name is None else output[name]), lambda new: {**output, name: new}
    if isinstance(output, Routing):
        return output.weights, lambda new: dataclasses.replace(output, weights=new)
    return None, lambda new: new


def matches(pattern: str, address: str) -> bool:
    return pattern == "*" or _names_match(tuple(pattern.split(".")), tuple(address.split(".")))


def _names_match(pattern: tuple[str, ...], names: tuple[str, ...]) -> bool:
    if not pattern:
        return not names
    if pattern[0] == "**":
        return any(_names_match(pattern[1:], names[i:]) for i in range(len(names) + 1))
    return bool(names) and fnmatch.fnmatchcase(names[0], pattern[0]) and _names_match(pattern[1:], names[1:])
