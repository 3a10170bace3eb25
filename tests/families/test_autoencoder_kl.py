"""The autoencoder of latent diffusion and complete diffusers pipelines, in addition to the checks of every family."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from catalogue import Case, close, every_case, folder, make_inputs, over, published, randomise, shared
from diffusing import WEIGHTS, diffusers, round_trips
from safetensors.torch import load_file, save_file

import anyformer as af
from anyformer import families
from anyformer.families.base.fields import Entry
from anyformer.generation.diffusion import denoise
from anyformer.models import Call

FAMILY = families.find("autoencoder_kl")
CASES = [case for case in every_case() if case.model_type == "autoencoder_kl"]


@torch.no_grad()
@over(CASES)
def test_both_halves_equal_published(case: Case) -> None:
    """Means and variances of an image, the latents, and the decoded image; also for other image sizes."""
    theirs, mine = published(case)[0], shared(case)
    for sides in (case.inputs["sample"][1:], (20, 12), (21, 13)):
        x = torch.randn(2, case.inputs["sample"][0], *sides, generator=torch.Generator().manual_seed(0))
        latent = theirs.encode(x).latent_dist
        grid = latent.mean.shape[2:]
        found = mine.latent.say(mine.hidden_states(Call({"sample": x})).x).transpose(1, 2).unflatten(2, grid)
        close(found, latent.parameters)
        codes, shift = mine.codes(x), theirs.config.shift_factor or 0.0
        close(codes, (latent.mean - shift) * theirs.config.scaling_factor)
        close(mine.picture(codes), theirs.decode(latent.mean).sample)
        close(mine.picture(codes), theirs.decode(codes / theirs.config.scaling_factor + shift).sample)


@over(CASES)
def test_l5_round_trips(case: Case, tmp_path: Path) -> None:
    round_trips(case, diffusers.AutoencoderKL, tmp_path)


def test_every_config_field_is_accounted_for() -> None:
    fields = [*inspect.signature(diffusers.AutoencoderKL.__init__).parameters][1:]
    assert {*fields} <= FAMILY.fields.keys()
    other: dict[str, Any] = {
        "latent_channels": 5, "layers_per_block": 3, "act_fn": "relu", "norm_num_groups": 2, "sample_size": [16, 32],
        "block_out_channels": [8, 8, 4], "scaling_factor": 0.5, "shift_factor": 0.1, "use_quant_conv": False,
        "use_post_quant_conv": False, "mid_block_add_attention": False,
    }  # fmt: skip
    plain = FAMILY.read(CASES[0].config).replace(source={})
    for name, value in other.items():
        changed = FAMILY.read({**CASES[0].config, name: value})
        assert changed.replace(source={}) != plain and FAMILY.write(changed)[name] == value, name
    kinds = {"in_channels", "out_channels", "down_block_types", "up_block_types"}  # the others must match each other
    assert {name for name, field in FAMILY.fields.items() if isinstance(field, Entry)} == {*other} | kinds
    for wrong, message in (
        ({"act_fn": "sylu"}, "did you mean 'silu'"), ({"latents_mean": [0.0]}, "latents_mean"),
        ({"down_block_types": ["AttnDownBlock2D"] * 3}, "down_block_types.*DownEncoderBlock2D"),
        ({"out_channels": 4}, r"out_channels.*4.*embedding\.channels.*3"),
        ({"norm_num_groups": 5}, "norm_num_groups.*5 groups"), ({"block_out_channels": []}, "down_block_types"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            FAMILY.read({**CASES[0].config, **wrong})


@torch.no_grad()
def test_files_with_the_older_names_of_attention_open(tmp_path: Path) -> None:
    case, new = CASES[0], {"to_q": "query", "to_k": "key", "to_v": "value", "to_out.0": "proj_attn"}
    tensors = load_file(folder(case) / WEIGHTS)
    for today, old in new.items():
        tensors = {name.replace(f".{today}.", f".{old}."): tensor for name, tensor in tensors.items()}
    save_file(tensors, tmp_path / WEIGHTS)
    (tmp_path / "config.json").write_text((folder(case) / "config.json").read_text())
    close(af.load(tmp_path)(**make_inputs(case)).sample, published(case)[0](**make_inputs(case)).sample)


# -- pipelines --------------------------------------------------------------------------------------------------------

NOISE = {"clip_sample": False, "beta_start": 2e-4, "beta_end": 0.03}
LABELS = {i: f"label {i}" for i in range(1000)} | {3: "hen, Gallus gallus", 7: "cock"}


def pipeline(path: Path, **noise: Any) -> Any:
    transformer = diffusers.DiTTransformer2DModel(
        num_attention_heads=2, attention_head_dim=8, num_layers=2, in_channels=3, out_channels=6, sample_size=4,
        num_embeds_ada_norm=1000,
    ).eval()  # fmt: skip
    randomise(transformer)
    scheduler = diffusers.DDIMScheduler(**{**NOISE, **noise})
    made = diffusers.DiTPipeline(transformer, published(CASES[0])[0], scheduler, id2label=LABELS)
    made.register_to_config(id2label={str(i): name for i, name in LABELS.items()})  # as in the published index
    made.save_pretrained(path)
    made.set_progress_bar_config(disable=True)
    return made


OTHERS: list[dict[str, Any]] = [
    {}, {"timestep_spacing": "trailing"}, {"steps_offset": 1, "beta_schedule": "scaled_linear"}
]  # fmt: skip


@pytest.mark.parametrize("noise", OTHERS)
def test_a_whole_pipeline_draws_what_diffusers_draws(noise: dict[str, Any], tmp_path: Path) -> None:
    """Same noise, DDIM and guidance: equal latents, and equal bytes after the autoencoder."""
    theirs, mine = pipeline(tmp_path, **noise), af.load(tmp_path)
    seeds, labels = [5, 6], [3, 7]
    asked, nothing = ({"class_labels": torch.tensor(each)} for each in (labels, [1000, 1000]))
    numbers = denoise(mine, asked, nothing, seeds=seeds, steps=8, guidance=3.0)
    with torch.no_grad():
        found = af.load(tmp_path / "vae").picture(numbers).div(2).add(0.5).clamp(0, 1)
    random = [torch.Generator().manual_seed(seed) for seed in seeds]
    expected = theirs(labels, guidance_scale=3.0, generator=random, num_inference_steps=8, output_type="np").images
    assert expected.std() > 0.02 and np.abs(found.permute(0, 2, 3, 1).numpy() - expected).max() < 1e-4
    first = af.tasks.draw(tmp_path, "gallus gallus", out=None, seed=5, steps=8, guidance=3.0)["pictures"][0]
    assert np.abs(first / 255 - expected[0]).max() < 0.5 / 255 + 1e-4
    af.save(mine, tmp_path / "ours")  # the autoencoder is copied too
    again = af.tasks.draw(tmp_path / "ours", ["cock"], out=None, seed=6, steps=8, guidance=3.0)[0]["pictures"][0]
    assert np.abs(again / 255 - expected[1]).max() < 0.5 / 255 + 1e-4


def test_pipelines_that_do_otherwise_are_told(tmp_path: Path) -> None:
    pipeline(tmp_path)
    index, scheduler = tmp_path / "model_index.json", tmp_path / "scheduler" / "scheduler_config.json"
    for path, change, message in (
        (index, {"_class_name": "StableDiffusionPipeline"}, "StableDiffusionPipeline.*valid: DiT"),
        (scheduler, {"clip_sample": True}, "clip_sample=True.*valid"),
        (scheduler, {"prediction_type": "v_prediction"}, "prediction_type='v_prediction'.*epsilon"),
        (scheduler, {"timestep_spacing": "linspace"}, "spacing"),
        (scheduler, {"set_alpha_to_one": False}, "set_alpha_to_one=False.*valid"),
    ):
        before = path.read_text()
        path.write_text(json.dumps({**json.loads(before), **change}))
        with pytest.raises(ValueError, match=message):
            af.load(tmp_path)
        path.write_text(before)
    old = json.loads(scheduler.read_text())
    del old["timestep_spacing"]  # written before this field existed
    scheduler.write_text(json.dumps(old))
    assert af.load(tmp_path).spec.head.schedule.spacing == "leading"
