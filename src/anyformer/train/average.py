"""A moving average of the weights, which often generalises better than any of them [Polyak and Juditsky 1992]."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from anyformer.train.parallel import own


class Average:
    """average = decay average + (1 - decay) weights after every step. At first the decay is only (1 + n) / (10 + n), so
    that the untrained weights are soon forgotten."""

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay = decay
        saved = module.state_dict(keep_vars=True)  # running statistics go with the weights that made them
        moving = (name for name, t in saved.items() if t.requires_grad or not isinstance(t, nn.Parameter))
        self.weights = {name: saved[name] for name in moving if saved[name].is_floating_point()}
        self.shadow = {name: p.detach().clone() for name, p in self.weights.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_([own(t) for t in self.shadow.values()], [own(t) for t in self.weights.values()], 1 - decay)

    @contextlib.contextmanager
    def swapped(self) -> Iterator[None]:
        """The average stands in the module's place."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for name, weight in self.weights.items():
            kept = weight.clone()
            weight.copy_(self.shadow[name])
            self.shadow[name].copy_(kept)

    @torch.no_grad()
    def load(self, shadow: Mapping[str, Tensor]) -> None:
        for name, tensor in self.shadow.items():
            tensor.copy_(shadow[name])
