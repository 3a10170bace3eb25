"""Swin in addition to the checks of every family: other grid sizes, positions, stages."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import torch
from cases.swin import CASES
from catalogue import Case, close, folder, make_inputs, ours, published, shared
from safetensors.torch import load_file, save_file

import anyformer as af
from anyformer.parts.attention.attention import Attention
from anyformer.specs.part import walk

PLAIN, ABSOLUTE = (next(c for c in CASES if c.id == name) for name in ("SwinModel", "SwinModel-absolute"))
MASKED = next(c for c in CASES if c.id == "SwinForMaskedImageModeling-absolute")


def picture(height: int, width: int, channels: int = 3) -> torch.Tensor:
    return torch.randn(2, channels, height, width, generator=torch.Generator().manual_seed(1))


def built(config: dict[str, Any]) -> Any:
    return af.build(af.families.find("swin").read(config, "SwinModel")).eval()


def fresh(case: Case) -> Any:
    """Return a published model as saved: after a small image it would keep smaller windows."""
    return type(published(case)[0]).from_pretrained(folder(case), attn_implementation="eager").eval()


def same(theirs: Any, mine: Any) -> None:
    for name, value in theirs.items():
        for a, b in zip(mine[name], value, strict=True) if isinstance(value, tuple) else [(mine[name], value)]:
            close(a, b)


@torch.no_grad()
@pytest.mark.parametrize("size", [(48, 48), (33, 57), (64, 26), (24, 32)], ids=str)
def test_images_of_any_size(size: tuple[int, int]) -> None:
    pixels, more = picture(*size), {"output_hidden_states": True, "output_attentions": True}
    same(fresh(PLAIN)(pixels, **more), shared(PLAIN)(pixels, **more))


@torch.no_grad()
@pytest.mark.parametrize("size", [(32, 32), (48, 48), (40, 64), (16, 64)], ids=str)
def test_positions_are_interpolated(size: tuple[int, int]) -> None:
    theirs, mine, pixels = fresh(ABSOLUTE), ours(ABSOLUTE), picture(*size)
    same(theirs(pixels, interpolate_pos_encoding=True), mine(pixels, interpolate_pos_encoding=True))
    if size in ((32, 32), (16, 64)):  # as many patches as positions: used in order
        same(theirs(pixels), mine(pixels))
    else:
        with pytest.raises(ValueError, match="interpolate_pos_encoding=True"):
            mine(pixels)


@torch.no_grad()
def test_positions_of_a_grid_that_is_not_square() -> None:
    config = {**ABSOLUTE.config, "image_size": [32, 48]}  # published: sqrt of the number of patches
    mine = built(config)
    mine.embedding.position.weight.normal_()
    pixels = picture(32, 48)
    close(mine(pixels, interpolate_pos_encoding=True)[0], mine(pixels)[0])
    assert mine(picture(40, 48), interpolate_pos_encoding=True)[0].isfinite().all()


@torch.no_grad()
def test_a_grid_smaller_than_a_window_is_one_window() -> None:
    """Offsets mean the same in a smaller window: it equals a model with that window and the middle of the table."""
    config = {**PLAIN.config, "depths": [2], "num_heads": [2]}
    large, small = (built({**config, "window_size": size}) for size in (5, 3))
    weights = large.state_dict()
    for tensor in weights.values():
        tensor.normal_(0, 0.3)
    middle = {n: v.view(9, 9, -1)[2:7, 2:7].reshape(25, -1) if v.shape[0] == 81 else v for n, v in weights.items()}
    small.load_state_dict(middle)
    for size in ((12, 12), (12, 26)):
        close(large(picture(*size))[0], small(picture(*size))[0])
    assert large(picture(32, 32))[0].shape[1] == 64, "the larger grid still has windows of 5"


def test_masks_are_made_once_a_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    from anyformer.parts.grid import windows

    made = []
    real = windows.window_context
    monkeypatch.setattr(windows, "window_context", lambda *a: made.append(a[2:]) or real(*a))
    spec = af.override(shared(PLAIN).spec, {"encoder.stages.0.depth": 6})
    af.build(spec)(picture(32, 32))
    assert made == [(9, 9, 3, 0), (9, 9, 3, 1), (6, 6, 3, 0), (6, 6, 3, 1)]


def test_windows_cost_what_the_lectures_say() -> None:
    """M^2 H W products of a query with a key, instead of (H W)^2 with full attention: M = 7 on 56 x 56."""
    config = {"image_size": 224, "embed_dim": 16, "depths": [1], "num_heads": [2], "window_size": 7}
    swin = af.families.find("swin").read(config, "SwinModel")
    plain = af.override(swin, {"encoder.stages.0.layers.attention.op": Attention(num_heads=2)})
    found = [sum(af.count(spec).work(1).pairs.values()) // (4 * 16) for spec in (swin, plain)]
    assert found == [7**2 * 56 * 56, (56 * 56) ** 2] == [153_664, 9_834_496]


def test_depth_grows_through_the_stages() -> None:
    model = built({**PLAIN.config, "drop_path_rate": 0.4, "hidden_dropout_prob": 0.15})
    layers = [layer for stage in model.encoder.stages for layer in stage.layers]
    assert [round(1 - layer.attention.keep_path().item(), 6) for layer in layers] == [0.0, 0.1, 0.2, 0.3, 0.4]
    assert all(layer.feedforward.keep_path is None for layer in layers)  # as published
    assert all(step.dropout == 0.15 for layer in layers for step in layer.children())


def test_addresses_are_paths() -> None:
    model = af.build(shared(PLAIN).spec)
    changes = {"encoder.stages.1.layers.2.feedforward.op.width": 50, "encoder.down.0.pre_norm.eps": 0.1}
    changed = af.override(model.spec, changes)
    assert af.build(changed).get_parameter("encoder.stages.1.layers.2.feedforward.op.up.weight").shape[0] == 50
    assert af.build(changed).get_submodule("encoder.down.0.pre_norm").eps == 0.1
    modules = dict(model.named_modules())
    for path, part in walk(model.spec):
        if path.startswith("encoder.down") and part is not None:
            assert path in modules, path
    with pytest.raises(ValueError, match="swin .*format='anyformer'"):
        af.families.find("swin").write(changed)


def test_old_checkpoints_load(tmp_path) -> None:
    """Files of the hub also store the index of the bias table; their configs have fields that nothing reads."""
    shutil.copytree(folder(PLAIN), tmp_path / "m")
    tensors = load_file(tmp_path / "m" / "model.safetensors")
    name = "encoder.layers.1.blocks.0.attention.self.relative_position_index"
    save_file({**tensors, name: torch.zeros(9, 9, dtype=torch.long)}, tmp_path / "m" / "model.safetensors")
    assert af.load(tmp_path / "m", strict=False)[1].dropped == (name,)
    family = af.families.find("swin")
    config = {**PLAIN.config, "hidden_size": 24, "num_layers": 2, "path_norm": True, "architectures": ["SwinModel"]}
    assert family.write(family.read(config))["path_norm"] is True
    config["architectures"] = ["SwinForMaskedImageModeling"]  # the only class that counts stages by num_layers
    for field, wrong in (("num_layers", 3), ("num_heads", [2]), ("embed_dim", 15)):
        with pytest.raises(ValueError, match=field):
            family.read({**config, field: wrong})


def test_clear_errors() -> None:
    inputs = make_inputs(MASKED, labels=True)
    with pytest.raises(ValueError, match="no mask token"):
        shared(PLAIN)(picture(32, 32), bool_masked_pos=inputs["bool_masked_pos"])
    with pytest.raises(ValueError, match="3 channels"):
        shared(PLAIN)(picture(32, 32, 4))
    with pytest.raises(ValueError, match="no loss"):
        mask = torch.ones(2, 70, dtype=torch.bool)
        ours(MASKED)(picture(40, 28, 1), bool_masked_pos=mask, interpolate_pos_encoding=True)
    assert shared(MASKED)(inputs["pixel_values"]).loss is None
