"""Initialisation as data: address patterns and what fills the parameters they name.

The first pattern that matches an address wins; norms and biases have defaults, and `*` takes what is left. Every parameter draws from its own generator, seeded by the seed and its
address, so adding a layer or changing the order of construction changes no other weight.
"""

from __future__ import annotations

import fnmatch
import hashlib
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from anyformer.spec import Part, walk


class Initializer(Part):
    """Fills a tensor in place; `depth` is that of the deepest stack."""

    def fill(self, tensor: Tensor, generator: torch.Generator, depth: int) -> None:
        raise NotImplementedError


class Normal(Initializer):
    std: float
    mean: float = 0.0
    residual: bool = False  # divided by sqrt(2 depth), since each of 2 depth branches adds its variance (GPT-2)

    def fill(self, tensor: Tensor, generator: torch.Generator, depth: int) -> None:
        std = self.std / math.sqrt(2 * depth) if self.residual else self.std
        tensor.normal_(self.mean, std, generator=generator)


class Uniform(Initializer):
    low: float
    high: float

    def fill(self, tensor: Tensor, generator: torch.Generator, depth: int) -> None:
        tensor.uniform_(self.low, self.high, generator=generator)


class Value(Initializer):
    value: float

    def fill(self, tensor: Tensor, generator: torch.Generator, depth: int) -> None:
        tensor.fill_(self.value)


class Xavier(Initializer):
    """[Glorot and Bengio 2010]; DeepNorm's scale is the gain."""

    gain: float = 1.0
    normal: bool = False

    def fill(self, tensor: Tensor, generator: torch.Generator, depth: int) -> None:
        (nn.init.xavier_normal_ if self.normal else nn.init.xavier_uniform_)(tensor, self.gain, generator=generator)


class Kaiming(Initializer):
    """[He et al. 2015]: variance 1 / inputs, times a gain."""

    gain: float = math.sqrt(2.0)
    normal: bool = True

    def fill(self, tensor: Tensor, generator: torch.Generator, depth: int) -> None:
        inputs = tensor[0].numel() if tensor.dim() > 1 else tensor.numel()
        std = self.gain / math.sqrt(inputs)
        if self.normal:
            tensor.normal_(0, std, generator=generator)
        else:
            tensor.uniform_(-math.sqrt(3) * std, math.sqrt(3) * std, generator=generator)


# what holds for every architecture unless its description says otherwise
DEFAULTS: Mapping[str, Initializer] = {
    "*norm.weight": Value(value=1.0),
    "*norm.running_mean": Value(value=0.0),
    "*norm.running_var": Value(value=1.0),
    "*norm.num_batches_tracked": Value(value=0.0),
    "*residual.weight": Value(value=0.0),
    "*.bias": Value(value=0.0),
}


@torch.no_grad()
def initialise(model: Any, rules: Mapping[str, Initializer], seed: int, only: set[str] | None = None) -> None:
    """Fills every parameter and saved buffer of `model` (or those in `only`) by the first rule that names it."""
    rules = {**{p: r for p, r in rules.items() if p != "*"}, **{p: r for p, r in DEFAULTS.items() if p not in rules},
             **{p: r for p, r in rules.items() if p == "*"}}  # fmt: skip
    depth = max((part.depth for _, part in walk(model.spec) if hasattr(part, "depth")), default=1)
    for address, tensor in model.state_dict(keep_vars=True).items():
        if only is not None and address not in only:
            continue
        for pattern, rule in rules.items():
            if fnmatch.fnmatchcase(address, pattern):
                break
        else:
            raise ValueError(f"no initialisation rule names {address}")
        digest = hashlib.blake2b(f"{seed} {address}".encode(), digest_size=8).digest()
        generator = torch.Generator(tensor.device).manual_seed(int.from_bytes(digest, "little") >> 1)
        rule.fill(tensor, generator, depth)
    for name, module in model.named_modules():
        fresh = only is None or f"{name}.weight" in only
        if isinstance(module, nn.Embedding) and module.padding_idx is not None and fresh:
            module.weight[module.padding_idx].zero_()
