"""Initialisation as data: patterns of addresses, and the initializers of the parameters that match them.

The first of these applies to a parameter: `starts` of its module (name -> value or Initializer: ReZero's 0, RWKV's
ramps), unless a pattern ends with the names of that module and parameter ("*.residual.weight"); the first pattern of
the description that matches its address; the default for norms and biases; the pattern "*". Every parameter draws from
its own generator, seeded by the seed and its address, so adding a layer or changing the order of construction changes
no other weight. A tied parameter is filled once, under the address that owns it.
"""

from __future__ import annotations

import fnmatch
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from anyformer.parts.base import HasDepth
from anyformer.parts.computed import ComputesTensors
from anyformer.specs.field_types import NonNegative
from anyformer.specs.part import Part, walk


class Initializer(Part, sees="itself", abstract=True):
    """Fills a tensor in place. `depth` is the number of layers of the deepest stack."""

    def fill(self, tensor: Tensor, generator: torch.Generator, depth: int) -> None:
        raise NotImplementedError


class Normal(Initializer, called=("Gaussian",)):
    """A normal distribution."""

    std: NonNegative
    mean: float = 0.0
    residual: bool = False  # divide std by sqrt(2 depth), because 2 depth branches add their variances (GPT-2)

    def fill(self, tensor: Tensor, generator: torch.Generator, depth: int) -> None:
        std = self.std / math.sqrt(2 * depth) if self.residual else self.std
        tensor.normal_(self.mean, std, generator=generator)


class Uniform(Initializer):
    """A uniform distribution between `low` and `high`."""

    low: float
    high: float

    def fill(self, tensor: Tensor, generator: torch.Generator, depth: int) -> None:
        tensor.uniform_(self.low, self.high, generator=generator)


class Value(Initializer, called=("zeros (value=0)", "ones (value=1)")):
    """The same value everywhere."""

    value: float

    def fill(self, tensor: Tensor, generator: torch.Generator, depth: int) -> None:
        tensor.fill_(self.value)


class Xavier(Initializer, called=("Glorot",)):
    """Variance from the number of inputs and outputs [Glorot and Bengio 2010]; DeepNorm sets the gain."""

    gain: float = 1.0
    normal: bool = False

    def fill(self, tensor: Tensor, generator: torch.Generator, depth: int) -> None:
        (nn.init.xavier_normal_ if self.normal else nn.init.xavier_uniform_)(tensor, self.gain, generator=generator)


class Kaiming(Initializer, called=("He", "He initialization")):
    """Standard deviation gain / sqrt(inputs) [He et al. 2015]."""

    gain: float = math.sqrt(2.0)
    normal: bool = True
    branches: int | None = None  # residual branches per layer; std is divided by sqrt(branches * depth) (GPT-2)

    def fill(self, tensor: Tensor, generator: torch.Generator, depth: int) -> None:
        inputs = tensor[0].numel() if tensor.dim() > 1 else tensor.numel()
        std = self.gain / math.sqrt(inputs * (1 if self.branches is None else self.branches * depth))
        if self.normal:
            tensor.normal_(0, std, generator=generator)
        else:
            tensor.uniform_(-math.sqrt(3) * std, math.sqrt(3) * std, generator=generator)


# rules of every architecture, unless its description has a matching pattern
DEFAULTS: Mapping[str, Initializer] = {
    "*norm.weight": Value(value=1.0),
    "*norm.running_mean": Value(value=0.0),
    "*norm.running_var": Value(value=1.0),
    "*norm.num_batches_tracked": Value(value=0.0),
    "*.bias": Value(value=0.0),
}


def computed_tensors(model: nn.Module) -> dict[str, Callable[[], Tensor]]:
    """Return address -> function that computes a saved tensor from the description; checkpoints may omit these."""
    functions: dict[str, Callable[[], Tensor]] = {}
    for path, module in model.named_modules():
        if isinstance(module, ComputesTensors):
            functions |= {f"{path}.{name}": value for name, value in module.computed_tensors().items()}
    return functions


def is_within(name: str, address: str) -> bool:
    """Whether `name` is `address` or lies below it."""
    return name == address or name.startswith(f"{address}.")


def owner_of(ties: Sequence[tuple[str, str]], name: str) -> str | None:
    """Return the address of the parameter that `name` is tied to; None: it is not tied."""
    return next((f"{owner}{name[len(tied) :]}" for tied, owner in ties if is_within(name, tied)), None)


@torch.no_grad()
def initialise(model: Any, rules: Mapping[str, Initializer], seed: int, only: set[str] | None = None) -> None:
    """Fill every parameter and saved buffer of `model` (or only those in `only`) by its rule. A tower uses the rules of
    its own description."""
    towers = {f"{name}.": tower for name, tower in model.named_modules() if name and hasattr(tower, "spec")}
    fixed = computed_tensors(model)
    depths, starts = {}, {}
    for prefix, tower in {"": model, **towers}.items():
        depths[prefix] = max((part.depth for _, part in walk(tower.spec) if isinstance(part, HasDepth)), default=1)
        modules = tower.named_modules(remove_duplicate=False)
        starts[prefix] = {path: module.starts for path, module in modules if hasattr(module, "starts")}
    for address, tensor in model.state_dict(keep_vars=True).items():
        if only is not None and address not in only:
            continue
        if (owner := owner_of(model.spec.ties, address)) is not None and (only is None or owner in only):
            continue
        if address in fixed:
            tensor.copy_(fixed[address]())
            continue
        prefix = next((prefix for prefix in towers if address.startswith(prefix)), "")
        tower = towers.get(prefix, model)
        rule = _rule(starts[prefix], tower.spec.init if prefix else rules, address.removeprefix(prefix))
        digest = hashlib.blake2b(f"{seed} {address}".encode(), digest_size=8).digest()
        generator = torch.Generator(tensor.device).manual_seed(int.from_bytes(digest, "little") >> 1)
        try:
            rule.fill(tensor, generator, depths[prefix])
        except ValueError as error:  # Xavier is not defined for a vector
            raise ValueError(f"{address}: {error}") from None
    for name, module in model.named_modules():
        fresh = only is None or f"{name}.weight" in only
        if isinstance(module, nn.Embedding) and module.padding_idx is not None and fresh:
            module.weight[module.padding_idx].zero_()


def _rule(starts: Mapping[str, Mapping[str, Any]], rules: Mapping[str, Initializer], address: str) -> Initializer:
    """Return the initializer of the parameter at `address`; the top of this file lists the order of rules."""
    named = {pattern: rule for pattern, rule in rules.items() if pattern != "*"}
    path, leaf = address, ""
    while path:
        path, _, name = path.rpartition(".")
        leaf = f"{name}.{leaf}" if leaf else name
        start = starts.get(path, {}).get(leaf)
        if start is not None:
            initializer = start if isinstance(start, Initializer) else Value(value=start)
            suffix = f"{path.rpartition('.')[2]}.{leaf}"
            overriding = (rule for p, rule in named.items() if p.endswith(suffix) and fnmatch.fnmatchcase(address, p))
            return next(overriding, initializer)
    for pattern, rule in [*named.items(), *DEFAULTS.items(), *rules.items()]:
        if fnmatch.fnmatchcase(address, pattern):
            return rule
    raise ValueError(
        f"{address}: no initialisation rule matches; add a default rule to the description: "
        'init={"*": Normal(std=0.02)}'
    )


# -- published schemes for residual connections ------------------------------------------------------------------------


def deepnorm(**betas: float) -> dict[str, Initializer]:
    """Return rules for stacks with these betas (see `residual.deepnorm`), e.g. `deepnorm(decoder=0.3)`: beta scales
    values, outputs and feed-forwards, but not queries and keys [Wang et al. 2022]."""
    rules: dict[str, Initializer] = {}
    for stack, beta in betas.items():
        for name in ("v", "o", "gate", "up", "down"):
            rules[f"{stack}.layers.*.{name}.weight"] = Xavier(gain=beta, normal=True)
        for name in ("q", "k"):
            rules[f"{stack}.layers.*.{name}.weight"] = Xavier(normal=True)
    return rules


def fixup(stack: str, branches: int, layers: int = 2) -> dict[str, Initializer]:
    """Return rules for a stack of `branches` residual branches with `layers` matrices each: the last matrix of a branch
    starts at 0, the others are scaled by branches^(-1 / (2 layers - 2)) [Zhang et al. 2019]."""
    if branches < 1 or layers < 2:
        raise ValueError(f"fixup needs branches >= 1 and layers >= 2, got {branches} and {layers}")
    scaled = Kaiming(gain=math.sqrt(2) * branches ** (-1 / (2 * layers - 2)))
    rules: dict[str, Initializer] = {f"{stack}.layers.*.{name}.weight": scaled for name in ("v", "gate", "up")}
    return {**rules, **{f"{stack}.layers.*.{name}.weight": Value(value=0.0) for name in ("o", "down")}}
