"""Values that can be looked at or changed while a model runs, each under its address.

A module says in `tapped` which named values pass through `ctx.tap`, and under what name published classes show them
(None: not at all). The tuples that Hugging Face returns are made from these, and `af.trace` listens to any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from typing import Protocol, runtime_checkable

from torch import Tensor, nn

Declared = Mapping[str, str | None]

ROUTER: Declared = {"logits": "router_logits", "weights": None}
MIXER: Declared = {"q": None, "k": None, "v": None, "weights": "attentions", "mixed": None}

# what a caller asks for -> the outputs that show it
OUTPUTS = {
    "output_attentions": ("attentions", "cross_attentions", "global_attentions"),
    "output_hidden_states": ("hidden_states", "reshaped_hidden_states"),
    "output_router_logits": ("router_logits",),
}


class Taps(Protocol):
    """Who listens while a model runs."""

    def wants(self, address: str) -> bool:
        """Whether a value is asked for: some are made only then."""

    def __call__(self, address: str, value: Tensor) -> Tensor:
        """The value, or what stands in its place from here on."""


@runtime_checkable
class Tapped(Protocol):
    """A module with named values: `tapped` maps each name to the output that shows it."""

    tapped: Declared
    address: str


def declared_taps(model: nn.Module) -> dict[str, str | None]:
    """Every tapped address of a model, with the output that shows it."""
    found: dict[str, str | None] = {}
    for module in model.modules():
        if isinstance(module, Tapped):
            found |= {f"{module.address}.{name}": output for name, output in module.tapped.items()}
    return found


Listener = Callable[[Tensor], Tensor]


def through(listen: Listener, there: Listener, back: Listener) -> Listener:
    """Listens to a value in another form: `there` makes it, `back` undoes it where it was changed."""

    def listener(value: Tensor) -> Tensor:
        shown = there(value)
        used = listen(shown)
        return value if used is shown else back(used)

    return listener


class Watched:
    """A listener that remembers whether it changed anything, where a result is computed in a faster way already."""

    def __init__(self, listen: Listener) -> None:
        self.listen, self.changed = listen, False

    def __call__(self, value: Tensor) -> Tensor:
        used = self.listen(value)
        self.changed = self.changed or used is not value
        return used


class OutputCollector:
    """Gathers what published classes return beside their results, in the order it is computed."""

    def __init__(self, outputs: Mapping[str, str | None], asked: Iterable[str], then: Taps | None) -> None:
        kinds = {kind for name in asked for kind in OUTPUTS[name]}
        self.outputs = {address: kind for address, kind in outputs.items() if kind is not None and kind in kinds}
        self.then = then  # another listener: what it changes is shown as changed
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
        """Output -> the values seen at addresses below `prefix`, of these names alone where they are given."""
        found: dict[str, list[Tensor]] = {}
        for address, value in self.seen:
            name = address.removeprefix(f"{prefix}.")
            if name != address and (names is None or name in names):
                found.setdefault(self.outputs[address], []).append(value)
        return found
