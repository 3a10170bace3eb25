"""Activation checkpointing by address: the backward pass recomputes a block's activations instead of storing them."""

from __future__ import annotations

import fnmatch
from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from anyformer.runtime.context import Context
from anyformer.specs.messages import nearest, quote

M = TypeVar("M", bound=nn.Module)


def recompute(model: M, pattern: str = "*.layers.*") -> M:
    """Recompute the activations of every outermost module whose address matches `pattern`. Gradients do not change. A
    second call changes nothing; `keep_activations` undoes it."""
    chosen: list[str] = []
    for address, module in model.named_modules():
        if fnmatch.fnmatchcase(address, pattern) and not any(address.startswith(f"{c}.") for c in chosen):
            chosen.append(address)
            if not isinstance(module.forward, Recomputed):
                module.forward = Recomputed(module)
    if not chosen:
        raise ValueError(f"no module matches {quote(pattern)}; {nearest(pattern, dict(model.named_modules()))}")
    return model


def keep_activations(model: M) -> M:
    """Undo `recompute`."""
    for module in model.modules():
        if isinstance(changed := module.forward, Recomputed):
            del module.forward
            vars(module).update(changed.replaced)
    return model


class Recomputed:
    """A module's `forward` under `torch.utils.checkpoint`."""

    def __init__(self, module: nn.Module) -> None:
        self.forward = module.forward
        self.replaced = {"forward": self.forward} if "forward" in vars(module) else {}  # compiled

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return checkpoint(self.forward, *args, use_reentrant=False, **kwargs)
        begun = False
        shared = {id(each): {**each.shared} for each in args if isinstance(each, Context)}  # before the first run

        def rerun(*args: Any, **kwargs: Any) -> Any:
            nonlocal begun
            if begun:  # compute (and draw) again what the first run shared; drop the router losses, which keep a graph
                args = tuple(
                    each.replace(losses={}, shared={**shared[id(each)]}) if isinstance(each, Context) else each
                    for each in args
                )
            begun = True
            return self.forward(*args, **kwargs)

        return checkpoint(rerun, *args, use_reentrant=False, **kwargs)
