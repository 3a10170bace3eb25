"""A moving average of the weights, which often generalises better than the weights [Polyak and Juditsky 1992]."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from anyformer.train.parallel import local_tensor


class Average:
    """average = decay * average + (1 - decay) * weights after every step n. The decay is at most (1 + n) / (10 + n), so
    that the untrained weights are soon forgotten."""

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay = decay
        # tied weights only once: swapping twice would undo the swap
        self.weights: dict[str, Tensor] = {name: p for name, p in module.named_parameters() if p.requires_grad}
        saved = module.state_dict().keys()
        for name, buffer in module.named_buffers():  # running statistics belong to the weights
            if name in saved and buffer.is_floating_point():
                self.weights[name] = buffer
        self.shadow = {name: p.detach().clone() for name, p in self.weights.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        decay = min(self.decay, (1 + step) / (10 + step))
        shadow, weights = ([local_tensor(t) for t in named.values()] for named in (self.shadow, self.weights))
        torch._foreach_lerp_(shadow, weights, 1 - decay)

    @contextlib.contextmanager
    def swap_in(self) -> Iterator[None]:
        """Swap the average into the module; restore the weights at the end."""
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
