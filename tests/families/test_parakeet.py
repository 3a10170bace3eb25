"""Tests of Parakeet in addition to the catalogue-wide suite: the content of padding, and training."""

from __future__ import annotations

import copy
import dataclasses

import torch
from catalogue import close, every_case, make_inputs, ours, published, shared

CASES = {case.id: case for case in every_case() if case.model_type == "parakeet_encoder"}
QUIET = {"dropout": 0.0, "layerdrop": 0.0, "activation_dropout": 0.0, "attention_dropout": 0.0}


def test_what_stands_in_pads_is_not_heard() -> None:
    """The published extractor sets padding to zero. The published model hears anything else through its first
    convolution; ours does not."""
    model, inputs = shared(CASES["ParakeetEncoder"]), make_inputs(CASES["ParakeetEncoder"])
    mask = torch.ones(2, 61, dtype=torch.long)
    mask[1, 41:] = 0  # odd: the convolution of the last frame reaches the padding
    loud = inputs["input_features"] + 9 * (1 - mask[..., None])
    with torch.no_grad():
        plain, other = (model(input_features=x, attention_mask=mask) for x in (inputs["input_features"], loud))
        silence = inputs["input_features"] * mask[..., None]
        theirs = published(CASES["ParakeetEncoder"])[0](input_features=silence, attention_mask=mask)
    assert plain.attention_mask.sum(-1).tolist() == [16, 11]
    close(other[0], plain[0])
    real = theirs.attention_mask.bool()
    close(other[0][real], theirs[0][real])


def test_training_equals_published() -> None:
    """Batch statistics and gradients, with every drop probability at 0."""
    case = CASES["ParakeetEncoder"]
    case = dataclasses.replace(case, config={**case.config, **QUIET}, name="quiet")
    theirs, mine, inputs = copy.deepcopy(published(case)[0]).train(), ours(case).train(), make_inputs(case)
    expected, found = theirs(**{name: value.clone() for name, value in inputs.items()})[0], mine(**inputs)[0]
    close(found, expected)
    for out in (expected, found):
        out.pow(2).mean().backward()
    close(mine.embedding.first.weight.grad, theirs.subsampling.layers[0].weight.grad)
    norms = mine.encoder.layers[1].convolution.op.norm, theirs.layers[1].conv.norm
    close(norms[0].running_var, norms[1].running_var, 1e-6)
