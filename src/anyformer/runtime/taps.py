"""Named values inside a model that can be read or changed while it runs, each by its address.

A module lists in `tapped` the values that it passes to `ctx.tap`, with the output field under which published classes
return them (None: they do not). Hugging Face's output tuples are built from these, and `af.trace` can use all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from typing import Protocol, runtime_checkable

from torch import Tensor, nn

TapNames = Mapping[str, str | None]

ROUTER: TapNames = {"logits": "router_logits", "weights": None}
MIXER: TapNames = {"q": None, "k": None, "v": None, "weights": "attentions", "mixed": None}

# flag of a call -> the output fields that it adds
OUTPUTS = {
    "output_attentions": ("attentions", "cross_attentions", "global_attentions"),
    "output_hidden_states": ("hidden_states", "reshaped_hidden_states"),
    "output_router_logits": ("router_logits",),
}


class Taps(Protocol):
    """A listener: it receives tapped values while a model runs."""

    def wants(self, address: str) -> bool:
        """Whether the listener wants this value; some values are computed only then."""

    def __call__(self, address: str, value: Tensor) -> Tensor:
        """Return the value, or a replacement for it."""


@runtime_checkable
class Tapped(Protocol):
    """A module with named values: `tapped` maps each name to its output field."""

    tapped: TapNames
    address: str


def declared_taps(model: nn.Module) -> dict[str, str | None]:
    """Every tapped address of a model, with its output field."""
    found: dict[str, str | None] = {}
    for module in model.modules():
        if isinstance(module, Tapped):
            found |= {f"{module.address}.{name}": output for name, output in module.tapped.items()}
    return found


Listener = Callable[[Tensor], Tensor]


def convert_listener(listen: Listener, there: Listener, back: Listener) -> Listener:
    """Return a listener that receives `there(value)`; `back` converts its replacement, if any."""

    def listener(value: Tensor) -> Tensor:
        shown = there(value)
        used = listen(shown)
        return value if used is shown else back(used)

    return listener


class Watched:
    """A listener that records in `changed` whether it has changed a value."""

    def __init__(self, listen: Listener) -> None:
        self.listen, self.changed = listen, False

    def __call__(self, value: Tensor) -> Tensor:
        used = self.listen(value)
        self.changed = self.changed or used is not value
        return used


class OutputCollector:
    """Collects the values that published classes return in addition to their results, in the order of computation."""

    def __init__(self, outputs: Mapping[str, str | None], names: Iterable[str], then: Taps | None) -> None:
        kinds = {kind for name in names for kind in OUTPUTS[name]}
        self.outputs = {address: kind for address, kind in outputs.items() if kind is not None and kind in kinds}
        self.then = then  # another listener, called first: its changes are collected
        self.seen: list[tuple[str, Tensor]] = []

    def wants(self, address: str) -> bool:
        return address in self.outputs or (self.then is not None and self.then.wants(address))

    def __call__(self, address: str, value: Tensor) -> Tensor:
        if self.then is not None:
            value = self.then(address, value)
        if address in self.outputs:
            self.seen.append((address, value))
        return value

    def values_below(self, prefix: str, names: Container[str] | None = None) -> dict[str, list[Tensor]]:
        """Return output field -> values at addresses below `prefix`, only of these `names` if given."""
        found: dict[str, list[Tensor]] = {}
        for address, value in self.seen:
            name = address.removeprefix(f"{prefix}.")
            if name != address and (names is None or name in names):
                found.setdefault(self.outputs[address], []).append(value)
        return found
