"""Activation checkpointing by address: a block's activations are computed again in the backward pass, not kept."""

from __future__ import annotations

import fnmatch
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from anyformer.runtime.context import Context
from anyformer.specs.messages import nearest, quote


def recompute(model: nn.Module, pattern: str = "*.layers.*") -> nn.Module:
    """Every outermost module whose address matches `pattern` forgets its activations. Gradients stay the same."""
    chosen: list[str] = []
    for address, module in model.named_modules():
        if fnmatch.fnmatchcase(address, pattern) and not any(address.startswith(f"{c}.") for c in chosen):
            chosen.append(address)
            module.forward = _checkpoint_forward(module.forward)
    if not chosen:
        raise ValueError(f"no module matches {quote(pattern)}; {nearest(pattern, dict(model.named_modules()))}")
    return model


def _checkpoint_forward(forward: Any) -> Any:
    def run(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return checkpoint(forward, *args, use_reentrant=False, **kwargs)
        begun = False

        def rerun(*args: Any, **kwargs: Any) -> Any:
            nonlocal begun
            if begun:  # what a router says again goes nowhere: it would hold on to all that led to it
                args = tuple(each.replace(losses={}) if isinstance(each, Context) else each for each in args)
            begun = True
            return forward(*args, **kwargs)

        return checkpoint(rerun, *args, use_reentrant=False, **kwargs)

    return run
