"""The average of the weights, swapped in and out."""

from __future__ import annotations

import torch

from anyformer.train.average import Average
from small import close
from tiny import model_of


def test_tied_weights_are_averaged_once() -> None:
    """While swapped in, both names of a tied weight show the average; afterwards the weights are restored."""
    model = model_of("gpt2")
    assert model.head.out.weight is model.embedding.tokens.weight
    average = Average(model, decay=0.5)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    average.update(100)
    with average.swap_in():
        for name, tensor in model.state_dict().items():
            close(tensor, before[name] + 0.5)
    for name, tensor in model.state_dict().items():
        close(tensor, before[name] + 1.0)
