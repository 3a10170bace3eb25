"""Swin V2 in addition to the checks of every family: windows of fixed size, bounded scores, computed bias."""

from __future__ import annotations

import math
import shutil

import pytest
import torch
from cases.swinv2 import CASES, SMALL
from catalogue import close, folder, ours, published, shared
from safetensors.torch import load_file, save_file
from torch import nn

import anyformer as af
from anyformer.parts.position.grid import ContinuousGridBias, logarithms

PLAIN = next(case for case in CASES if case.id == "Swinv2Model")


def picture(height: int, width: int) -> torch.Tensor:
    return torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
@pytest.mark.parametrize("size", [(48, 48), (33, 57), (8, 12), (64, 5)], ids=str)
def test_images_of_any_size_have_windows_of_one(size: tuple[int, int]) -> None:
    """Windows follow from the config's image_size; smaller grids are padded with zeros that are visible."""
    pixels, more = picture(*size), {"output_hidden_states": True, "output_attentions": True}
    theirs, mine = published(PLAIN)[0](pixels, **more), shared(PLAIN)(pixels, **more)
    for name, value in theirs.items():
        for a, b in zip(mine[name], value, strict=True) if isinstance(value, tuple) else [(mine[name], value)]:
            close(a, b)


@torch.no_grad()
def test_scores_are_bounded() -> None:
    """The learned scale is a logarithm, and no head multiplies cosines by more than 100."""
    pixels, mine = picture(32, 32).double(), ours(PLAIN).double()  # with scores up to 100, fp32 has few digits left
    theirs = type(published(PLAIN)[0]).from_pretrained(folder(PLAIN)).eval().double()
    for value in (math.log(99.0), 7.0):
        for name, parameter in theirs.named_parameters():
            if name.endswith("logit_scale"):
                parameter.fill_(value)
        for name, parameter in mine.named_parameters():
            if "scores.0.weight" in name:
                parameter.fill_(value)
        close(mine(pixels)[0], theirs(pixels)[0])
    scale = mine.encoder.stages[0].layers[0].attention.op.mixer.scores[0]
    assert scale(torch.ones(1)).max().item() == pytest.approx(100)
    fresh = af.build(mine.spec)
    scales = [p for name, p in fresh.named_parameters() if "scores.0.weight" in name]
    assert scales and all(torch.allclose(p, torch.tensor(math.log(10.0))) for p in scales)


def test_offsets_of_larger_windows_lie_on_the_same_line() -> None:
    """Offsets in windows of 3 are scaled by the size of the windows used in pretraining."""
    small, large = logarithms(3, 3), logarithms(5, 3)
    assert small.shape == (25, 2) and large.shape == (81, 2)
    known = {tuple(row) for row in large.tolist()}
    assert all(tuple(row) in known for row in small.tolist())
    assert small.abs().max() == pytest.approx(math.log2(9) / 3) and large.abs().max() > small.abs().max()
    with pytest.raises(ValueError, match="ContinuousGridBias.learned is 1"):
        ContinuousGridBias(num_heads=2, size=4, learned=1)


def test_branches_are_normed_last() -> None:
    model = af.build(shared(PLAIN).spec)
    layer = model.encoder.stages[0].layers[1]
    for step in layer.children():
        assert step.pre_norm is None and isinstance(step.post_norm, nn.LayerNorm)
        assert step.keep_path().item() < 1
    assert layer.attention.op.mixer.k.bias is None and layer.attention.op.mixer.q.bias is not None


def test_dropout_comes_before_the_norm_of_a_branch() -> None:
    """Dropped values are not zero: the norm moves every vector to a mean of 0."""
    model = af.build(af.override(shared(PLAIN).spec, {"encoder.stages.0.layers.plain.attention.dropout": 0.5})).train()
    step = model.encoder.stages[0].layers[0].attention
    step.keep_path = None
    kept = af.trace(model, keep="encoder.stages.0.layers.0.attention.branch", pixel_values=picture(32, 32))
    branch = kept["encoder.stages.0.layers.0.attention.branch"]
    assert (branch != 0).all() and branch.mean(-1).abs().max() < 1e-5


def test_old_checkpoints_and_what_cannot_run(tmp_path) -> None:
    shutil.copytree(folder(PLAIN), tmp_path / "m")
    tensors = load_file(tmp_path / "m" / "model.safetensors")
    kinds = ("relative_coords_table", "relative_position_index")
    names = [f"encoder.layers.1.blocks.0.attention.self.{kind}" for kind in kinds]
    extra = {names[0]: torch.zeros(1, 5, 5, 2), names[1]: torch.zeros(9, 9, dtype=torch.long)}
    save_file({**tensors, **extra}, tmp_path / "m" / "model.safetensors")
    assert sorted(af.load(tmp_path / "m", strict=False)[1].dropped) == names
    read = af.families.find("swinv2").read
    for change, match in (
        ({"use_absolute_embeddings": True}, "use_absolute_embeddings"),
        ({"pretrained_window_sizes": [0]}, "pretrained_window_sizes.*depths"),
        ({"image_size": 7}, "image_size 7 .*stage 1"), ({"num_heads": [2, 5]}, "multiple of 5 heads"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=match):
            read({**SMALL, **change})
