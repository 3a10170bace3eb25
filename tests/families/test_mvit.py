"""MViT against recorded outputs of torchvision and timm (`reference/`) and, if installed, against the libraries."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
import torch
from catalogue import Case, close, every_case, folder, make_inputs, ours, over, recorded, shared
from safetensors.torch import load_file

import anyformer as af
from anyformer import families
from anyformer.checkpoint import read_spec

CASES = [case for case in every_case() if case.library in ("torchvision", "timm")]
REFERENCE = Path(__file__).parent / "reference"
MADE = json.loads((REFERENCE / "mvit.json").read_text())


@over(CASES)
def test_l1_outputs_equal_published(case: Case) -> None:
    """Logits, and the stream after each block except the last, which is compared after its norm."""
    expected = recorded(case)
    with torch.no_grad():
        out = shared(case)(pixel_values=expected["input"], output_hidden_states=True)
        close(shared(case)(pixel_values=expected["input"]).logits, expected["logits"])
    close(out.logits, expected["logits"])
    depth = shared(case).spec.encoder.depth
    assert f"block.{depth - 1}" in expected and len(out.hidden_states) == depth + 1
    for i in range(depth - 1):
        close(out.hidden_states[i + 1], expected[f"block.{i}"])


@over(CASES)
def test_l5_round_trips(case: Case, tmp_path: Path) -> None:
    """Saving writes the published tensors again, and an equal config."""
    model = shared(case)
    af.save(model, tmp_path / "ours")
    af.save(af.load(tmp_path / "ours"), tmp_path / "hf", format="hf")
    before, after = (load_file(place / "model.safetensors") for place in (folder(case), tmp_path / "hf"))
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    assert af.load(tmp_path / "hf").spec.replace(source={}) == model.spec.replace(source={})


@pytest.mark.parametrize("name", sorted(MADE["parameters"]))
def test_parameters_are_those_that_the_libraries_build(name: str) -> None:
    ours = {each.replace("-", "_"): each for each, _ in families.names()}
    if name not in ours:
        assert name == "mvitv2_small_cls"  # without published weights
        return
    assert af.count(af.spec(ours[name])).parameters == MADE["parameters"][name]


@pytest.mark.parametrize(("name", "channels"), [("mvit-v1-b", "input_channels"), ("mvit-v2-s", "output_channels")])
def test_heads_and_strides_of_the_paper(name: str, channels: str) -> None:
    """Heads are 96 channels wide, and keys are pooled to a 7 x 7 grid."""
    config = families.find("mvit").sizes[name].config
    assert [96 * heads for heads in config["num_heads"]] == config[channels] and config["num_heads"][-1] == 8
    side = 56
    for step, (frames, *strides) in zip(config["stride_q"], config["stride_kv"], strict=True):
        side //= step[-1] if step else 1
        assert frames == 1 and strides == [side // 7] * 2
    assert side == 7


def test_a_block_of_which_nothing_is_said_keeps_its_channels() -> None:
    config = families.find("mvit").write(families.find("mvit").read({}))
    assert list(config["output_channels"]) == list(config["input_channels"]) and len(config["num_heads"]) == 1


def test_a_config_as_timm_writes_it(tmp_path: Path) -> None:
    """A timm config names a size and little else."""
    config = {
        "architecture": "mvitv2_small", "num_classes": 7, "num_features": 768, "global_pool": "avg",
        "model_args": {"img_size": [64, 64]}, "pretrained_cfg": {"tag": "fb_in1k", "input_size": [3, 224, 224]},
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    spec = read_spec(tmp_path)
    assert families.find("mvitv2").read({}).embedding.image_size == (224, 224)
    small = families.find("mvitv2").read({**families.find("mvitv2").sizes["mvitv2-small"].config, "img_size": (64, 64)})
    assert spec.replace(source={}) == af.override(small, {"head.num_labels": 7}).replace(source={})


@over(CASES)
def test_against_the_library_itself(case: Case) -> None:
    """Another input than the recorded one, forward and backward."""
    if importlib.util.find_spec(case.library) is None:
        pytest.skip(f"{case.library} is not installed")
    from reference import make_mvit  # type: ignore[import-not-found]

    if case.library == "timm":
        theirs, _ = make_mvit.image(make_mvit.IMAGE[case.name])
    else:
        theirs, _ = make_mvit.video(make_mvit.VIDEO[case.name])
    theirs.load_state_dict(load_file(folder(case) / "model.safetensors"))
    pixels, mine = make_inputs(case)["pixel_values"].requires_grad_(), ours(case)
    expected = theirs.eval()(pixels)
    close(mine(pixel_values=pixels).logits, expected)
    (wanted,) = torch.autograd.grad(expected.square().sum(), pixels)
    (found,) = torch.autograd.grad(mine(pixel_values=pixels).logits.square().sum(), pixels)
    close(found, wanted)
