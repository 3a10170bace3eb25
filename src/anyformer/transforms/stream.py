"""Half-precision residual stream under autocast.

Autocast computes products in half precision, but the stream stays in fp32 because embeddings are fp32 and a sum has the
dtype of its widest term. In half precision, norms read and write half as many bytes. They still compute in fp32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from anyformer.stacks.stack import StackModule


def narrow_stream(model: nn.Module) -> nn.Module:
    """Cast the input of each stack to autocast's dtype, if autocast is on. Changes the model and returns it."""
    for module in model.modules():
        if isinstance(module, StackModule):
            module.register_forward_pre_hook(_cast)
    return model


def _cast(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    x, *rest = args
    kind = x.device.type
    return (x.to(torch.get_autocast_dtype(kind)), *rest) if torch.is_autocast_enabled(kind) else args
