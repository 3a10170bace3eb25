"""Image encoders in addition to the checks of every family: other sizes, masked patches, no pooler."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import torch
from catalogue import Case, close, every_case, folder, make_inputs, ours, published, shared
from safetensors.torch import load_file, save_file
from torch import Tensor

import anyformer as af

PLAIN = {"vit": "ViTModel", "deit": "DeiTModel"}
MASKED = {"vit": "ViTForMaskedImageModeling", "deit": "DeiTForMaskedImageModeling"}


def each(ids: dict[str, str]) -> Any:
    found = [case for case in every_case() if case.id in ids.values()]
    return pytest.mark.parametrize("case", found, ids=lambda case: case.model_type)


def picture(height: int, width: int, channels: int = 3) -> Tensor:
    return torch.randn(2, channels, height, width, generator=torch.Generator().manual_seed(1))


def same(theirs: Any, mine: Any) -> None:
    for name, value in theirs.items():
        for a, b in zip(mine[name], value, strict=True) if isinstance(value, tuple) else [(mine[name], value)]:
            close(a, b)


@torch.no_grad()
@each(PLAIN)
@pytest.mark.parametrize("size", [(32, 32), (48, 48), (37, 61), (16, 64)], ids=str)
def test_positions_are_interpolated(case: Case, size: tuple[int, int]) -> None:
    theirs, mine, pixels = published(case)[0], shared(case), picture(*size)
    asked = {"interpolate_pos_encoding": True, "output_hidden_states": True}
    same(theirs(pixels, **asked), mine(pixels, **asked))
    for model in (theirs, mine) if size != (32, 32) else ():  # the number of patches is not enough: the size must match
        with pytest.raises(ValueError, match="interpolate_pos_encoding=True" if model is mine else "doesn't match"):
            model(pixels)


@torch.no_grad()
@each(PLAIN)
def test_positions_of_a_grid_that_is_not_square(case: Case) -> None:
    config = {**case.config, "image_size": [32, 48]}  # published classes take the square root of the number of patches
    mine = af.build(af.families.find(case.model_type).read(config, case.architecture)).eval()
    mine.embedding.position.weight.normal_()
    pixels = picture(32, 48)
    assert torch.equal(mine(pixels, interpolate_pos_encoding=True)[0], mine(pixels)[0])
    assert mine(picture(40, 48), interpolate_pos_encoding=True)[0].isfinite().all()


@torch.no_grad()
@each(PLAIN)
def test_hidden_patches_change_nothing(case: Case) -> None:
    """A token that attention_mask hides has no effect; a row that sees nothing gives finite values."""
    model, pixels = shared(case), picture(32, 32)
    before = model.spec.embedding.num_prefix
    mask = torch.ones(2, before + 16, dtype=torch.long)
    mask[0, before + 3] = 0  # rows 0 to 7, columns 24 to 31
    other = pixels.clone()
    other[0, :, :8, 24:] += 1.0
    for kernel in ("eager", "sdpa"):
        model.kernel = kernel
        one, two = model(pixels, attention_mask=mask)[0], model(other, attention_mask=mask)[0]
        shown = mask.bool()
        close(one[shown], two[shown], 1e-6)
        assert not torch.allclose(one[~shown], two[~shown]) and not torch.allclose(model(other)[0][shown], one[shown])
        assert model(pixels, attention_mask=torch.zeros_like(mask))[0].isfinite().all()
    model.kernel = "auto"
    with pytest.raises(ValueError, match=r"attention_mask.*shape \(2, 1[78]\).*got \(2, 16\)"):
        model(pixels, attention_mask=mask[:, before:])


@torch.no_grad()
@each(MASKED)
def test_pixels_are_drawn_from_patches_alone(case: Case) -> None:
    theirs, mine, inputs = published(case)[0], shared(case), make_inputs(case, labels=True)
    assert mine(inputs["pixel_values"]).loss is None and theirs(inputs["pixel_values"]).loss is None
    hidden = inputs["bool_masked_pos"]
    for each in (hidden.long(), hidden.float()):
        close(mine(inputs["pixel_values"], bool_masked_pos=each).loss, theirs(**inputs).loss)
    with pytest.raises(ValueError, match=r"bool_masked_pos.*shape \(2, 16\).*got \(2, 17\)"):
        mine(inputs["pixel_values"], bool_masked_pos=torch.ones(2, 17, dtype=torch.bool))
    spec = mine.spec.replace(head=mine.spec.head.replace(stride=4))
    with pytest.raises(ValueError, match="no loss"):
        af.build(spec)(**inputs)


@torch.no_grad()
@each(PLAIN)
def test_a_checkpoint_without_its_pooler(case: Case, tmp_path) -> None:
    """Published classes have an argument for it (add_pooling_layer=False); ours check whether it is stored."""
    whole, file = shared(case), tmp_path / "m" / "model.safetensors"
    shutil.copytree(folder(case), tmp_path / "m")
    tensors = load_file(file)
    save_file({n: t for n, t in tensors.items() if not n.startswith("pooler")}, file, metadata={"format": "pt"})
    model, pixels = af.load(tmp_path / "m"), picture(32, 32)
    assert list(model(pixels)) == ["last_hidden_state"] and model.spec.head is None
    assert torch.equal(model(pixels)[0], whole(pixels)[0])
    af.save(model, tmp_path / "hf", format="hf")
    assert load_file(tmp_path / "hf" / "model.safetensors").keys() == load_file(file).keys()
    kind = type(published(case)[0])
    theirs, info = kind.from_pretrained(tmp_path / "hf", add_pooling_layer=False, output_loading_info=True)
    assert not any(info.values())
    close(model(pixels)[0], theirs.eval()(pixels)[0])
    assert af.load(tmp_path / "hf").spec.replace(source={}) == model.spec.replace(source={})
    save_file({n: t for n, t in tensors.items() if n != "pooler.dense.bias"}, file, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"missing pooler.dense.bias"):
        af.load(tmp_path / "m")


@each(PLAIN)
def test_clear_errors(case: Case) -> None:
    model = ours(case)
    for pixels, more, match in (
        (picture(32, 32, 4), {}, "3 channels"),
        (picture(7, 32), {"interpolate_pos_encoding": True}, "patch"),
        (picture(32, 32), {"bool_masked_pos": torch.ones(2, 16)}, "no mask token"),
    ):
        with pytest.raises(ValueError, match=match):
            model(pixels, **more)
    read = af.families.find(case.model_type).read
    with pytest.raises(ValueError, match="hidden_size 12 .*13"):
        read({"hidden_size": 12, "num_attention_heads": 13})
    with pytest.raises(ValueError, match=r"no patch of size \(16, 16\) fits an image of size \(8, 8\)"):
        read({"image_size": 8, "patch_size": 16})


def test_what_needs_a_grid_takes_no_tokens_before_it() -> None:
    with pytest.raises(ValueError, match=r"Stages .*grid.*PatchEmbedding.*prefix=\(\)"):
        af.override(af.spec("swin-tiny"), {"embedding.prefix": [{"kind": "PrefixTokens"}]})
    with pytest.raises(ValueError, match="Windows needs the whole grid: give no attention_mask"):
        swin = next(case for case in every_case() if case.id == "SwinModel")
        spec = shared(swin).spec
        af.build(spec.replace(encoder=spec.encoder.stages[0]))(picture(32, 32), attention_mask=torch.eye(2, 64))
    with pytest.raises(ValueError, match="attention_mask cannot be used"):
        shared(swin)(picture(32, 32), attention_mask=torch.eye(2, 64))
