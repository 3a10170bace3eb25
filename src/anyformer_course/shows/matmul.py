"""One linear layer: parameters, and the FLOPs of reading and of training, measured.

Every matrix product of the forward pass needs two more in the backward pass: for the gradient of the weights and for
the gradient of the input. Recomputed activations need a fourth.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop
from torch.utils.flop_counter import FlopCounterMode

from anyformer.look import figures
from anyformer.specs.messages import quote
from anyformer_course.shown import Shown, Table


def example(sizes: str = "512 2048", *, tokens: int = 64, bias: bool = True) -> Shown:
    """Run a layer of "inputs outputs" numbers on `tokens` tokens, and count the FLOPs of its matrix products."""
    try:
        inputs, outputs = (int(each) for each in str(sizes).split())
    except ValueError:
        raise ValueError(
            f"sizes is {quote(sizes)}; give the numbers of inputs and outputs, such as '512 2048'"
        ) from None
    if not (0 < inputs <= 65536 and 0 < outputs <= 65536 and 0 < tokens <= 1024):
        raise ValueError("inputs and outputs must be from 1 to 65536, tokens from 1 to 1024")
    layer = torch.nn.Linear(inputs, outputs, bias=bias, device="meta")  # shapes only
    one = 2 * tokens * inputs * outputs
    measured = {
        "inference": flops(layer, tokens, train=False), "training": flops(layer, tokens),
        "training, recomputed": flops(layer, tokens, recompute=True),
    }  # fmt: skip
    rows = [
        [name, times * one, value, value / one]
        for (name, value), times in zip(measured.items(), (1, 3, 4), strict=True)
    ]
    parameters = sum(each.numel() for each in layer.parameters())

    def draw() -> Any:
        return figures.bars([(name, value / one) for name, value in measured.items()], "matrix products of one layer")

    return Shown(
        f"{parameters:,} parameters. Reading {tokens} tokens takes {measured['inference']:,} FLOPs, training "
        f"{measured['training'] / one:g} times, training with recomputed activations "
        f"{measured['training, recomputed'] / one:g} times as many.",
        [
            Table("FLOPs", ("mode", "formula", "measured", "matrix products"), rows),
            Table("parameters", ("tensor", "shape", "numbers", "bytes in float32", "bytes in bfloat16"), [
                [name, " x ".join(map(str, each.shape)), each.numel(), 4 * each.numel(), 2 * each.numel()]
                for name, each in layer.named_parameters()
            ]),
        ],
        draw,
    )  # fmt: skip


def flops(layer: Any, tokens: int, train: bool = True, recompute: bool = False) -> int:
    """Return the FLOPs of matrix products, 2 per multiply-add."""
    x = torch.empty(tokens, layer.in_features, device="meta", requires_grad=train)
    # PyTorch would skip the recomputation of the last layer, whose result the backward pass does not need
    with FlopCounterMode(display=False) as counter, set_checkpoint_early_stop(False):
        y = checkpoint(layer, x, use_reentrant=False) if recompute else layer(x)
        if train:
            y.sum().backward()
    return counter.get_total_flops()
