"""The residual stream in half precision: what passes from layer to layer under autocast is kept in its type.

Autocast computes products in half precision and leaves sums as wide as their widest term, and embeddings are fp32: so
the stream is, and every norm reads and writes twice as much. Norms still compute in fp32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from anyformer.stacks.stack import StackModule


def narrow_stream(model: nn.Module) -> nn.Module:
    """What enters each stack is cast to autocast's type, where that is on; the model is changed and returned."""
    for module in model.modules():
        if isinstance(module, StackModule):
            module.register_forward_pre_hook(_cast)
    return model


def _cast(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    x, *rest = args
    kind = x.device.type
    return (x.to(torch.get_autocast_dtype(kind)), *rest) if torch.is_autocast_enabled(kind) else args
