"""The table of configurations: every cell builds, and a sample with every value passes all checks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from anyformer.models.construct import skeleton
from anyformer.parts.activation import ACTIVATIONS as FUNCTIONS
from anyformer.parts.norm import RMSNorm
from anyformer.parts.residual import Scaled
from anyformer_course.lab.configurations import ACTIVATIONS, NORMS, PLACEMENTS, POSITIONS, cell, cells
from architectures.lines import broken

SMALL = {"width": 16, "heads": 2, "vocabulary": 40, "length": 96}
SAMPLE = [  # each activation once, cycling through the other columns
    (list(PLACEMENTS)[i % 3], list(NORMS)[(i + i // 3) % 3], activation, POSITIONS[(i + i // 4) % 4])
    for i, activation in enumerate(ACTIVATIONS)
]


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_every_cell_builds(placement: str) -> None:
    specs = [cell(*each, **SMALL, depth=1) for each in cells() if each[0] == placement]
    assert len(set(specs)) == len(specs) == 3 * 12 * 4
    for spec in specs:
        skeleton(spec)


def test_the_sample_has_every_value() -> None:
    for column, known in zip(zip(*SAMPLE), (PLACEMENTS, NORMS, ACTIVATIONS, POSITIONS), strict=True):
        assert set(column) == set(known)


@pytest.mark.parametrize("each", SAMPLE, ids="-".join)
def test_cells_train_and_keep_the_lines(each: tuple[str, str, str, str], tmp_path: Path) -> None:
    assert broken(cell(*each, **SMALL, depth=1), tmp_path) is None


def test_gelu_is_the_tanh_form() -> None:
    """As on the slide: x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))."""
    x = torch.linspace(-4, 4, 33, dtype=torch.float64)
    slide = x / 2 * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))
    for name in ("GeLU", "GeGLU"):
        feedforward = cell("pre", "LayerNorm", name, "RoPE").decoder.layers.steps["feedforward"].op
        assert torch.allclose(FUNCTIONS[feedforward.activation](x), slide, atol=1e-12, rtol=0)


def test_norms_stand_where_they_are_said_to() -> None:
    step = cell("sandwich", "RMSNorm", "ReLU", "ALiBi").decoder.layers.steps["feedforward"]
    assert (step.pre_norm, step.post_norm, step.out_norm) == (RMSNorm(), RMSNorm(), None)
    deep = cell("post", "DeepNorm", "ReLU", "RoPE", depth=8)
    assert deep.decoder.layers.steps["attention"].residual == Scaled(skip=2.0) and deep.decoder.norm is None
    with pytest.raises(ValueError, match="no norm 'RMS'"):
        cell("pre", "RMS", "ReLU", "RoPE")
