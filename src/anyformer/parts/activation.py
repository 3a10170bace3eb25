"""Activation functions by name, and the names that published configs use for them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.kernels.gelu import gelu_tanh
from anyformer.specs.messages import nearest, quote


def _quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


def _laplace(x: Tensor) -> Tensor:
    """A smooth, bounded approximation of relu2: the CDF of a normal variable [Ma et al. 2022]."""
    return 0.5 * (1 + torch.erf((x - 0.707107) / (0.282095 * math.sqrt(2))))


def _identity(x: Tensor) -> Tensor:
    return x


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
    "relu6": F.relu6,
    "gelu": F.gelu,
    "gelu_tanh": gelu_tanh,
    "gelu_10": lambda x: F.gelu(x).clamp(-10, 10),
    "quick_gelu": _quick_gelu,
    "silu": F.silu,
    "elu": F.elu,
    "selu": F.selu,
    "leaky_relu": F.leaky_relu,
    "hardswish": F.hardswish,
    "mish": F.mish,
    "sigmoid": torch.sigmoid,
    "softplus": F.softplus,
    "sqrtsoftplus": lambda x: F.softplus(x).sqrt(),
    "laplace": _laplace,
    "tanh": torch.tanh,
    "identity": _identity,  # the bilinear gate, LiGLU [Shazeer 2020]
}

Activation = Literal[
    "relu", "relu2", "relu6", "gelu", "gelu_tanh", "gelu_10", "quick_gelu", "silu", "elu", "selu", "leaky_relu",
    "hardswish", "mish", "sigmoid", "softplus", "sqrtsoftplus", "laplace", "tanh", "identity",
]  # fmt: skip

# names in published configs -> our names
ALIASES = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_python": "gelu",
    "gelu_python_tanh": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "swish": "silu",
    "linear": "identity",
}
ACTIVATION_NAMES = tuple(sorted({*ACTIVATIONS, *ALIASES}))  # valid in published configs


def activation_named(name: str) -> Activation:
    """Return our name of an activation in a published config; raise ValueError if it is unknown."""
    ours = ALIASES.get(name, name)
    if ours not in ACTIVATIONS:
        raise ValueError(f"unknown activation {quote(name)}; {nearest(name, ACTIVATION_NAMES)}")
    return cast(Activation, ours)


def published_name(activation: str) -> str:
    """Return the name of our activation in published configs."""
    return {"gelu_tanh": "gelu_new", "identity": "linear"}.get(activation, activation)
