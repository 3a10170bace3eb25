"""Sampling of diffusion models: single steps equal the schedulers of diffusers; seeds, guidance and mistakes."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

import anyformer as af
import small
from anyformer import families
from anyformer.generation.diffusion import denoise, remove_noise
from anyformer.parts.diffusion import NoiseSchedule

close = functools.partial(small.close, tolerance=1e-5)

CONFIG = {
    "num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 1, "in_channels": 1, "sample_size": 4,
    "num_embeds_ada_norm": 3, "per_layer": False,
}  # fmt: skip
CURVES = {"linear": "linear", "scaled_linear": "scaled_linear", "cosine": "squaredcos_cap_v2"}


@pytest.mark.parametrize("clip", [None, 1.0])
@pytest.mark.parametrize("curve", CURVES)
def test_schedules_and_steps_equal_published(curve: str, clip: float | None) -> None:
    """The noise curve, the selected steps and the result of each step are equal: DDPM, DDIM and mixtures."""
    diffusers = pytest.importorskip("diffusers")
    options = {"beta_schedule": CURVES[curve], "clip_sample": clip is not None, "timestep_spacing": "trailing"}
    schedule: Any = NoiseSchedule(curve=curve)  # type: ignore[arg-type]
    left, places = schedule.alphas_cumprod(), schedule.sampling_steps(25)
    ddpm, ddim = diffusers.DDPMScheduler(**options), diffusers.DDIMScheduler(**options)
    close(schedule.betas(), ddpm.betas.double())
    close(left, ddpm.alphas_cumprod.double())
    if curve == "cosine":  # the last value is 2e-9, and 1 - beta in fp32 has only four digits of it
        ddpm.alphas_cumprod = ddim.alphas_cumprod = left
    random = torch.Generator().manual_seed(0)
    target = 2 * torch.rand(2, 1, 4, 4, generator=random) - 1
    picture, noise = target, torch.randn(2, 1, 4, 4, generator=random)
    close(ddpm.add_noise(picture, noise, torch.tensor([3, 700])),
          head(curve).add_noise(picture, noise, torch.tensor([3, 700])))  # fmt: skip
    for eta in (0.0, 0.5, 1.0, None):  # None: DDPM, which equals eta = 1
        theirs = ddpm if eta is None else ddim
        theirs.set_timesteps(25)
        assert theirs.timesteps.tolist() == places
        x = torch.randn(2, 1, 4, 4, generator=random).double()
        for i, place in enumerate(places):
            now, then = float(left[place]), float(left[places[i + 1]]) if i < 24 else 1.0
            found = (x - now**0.5 * target) / (1 - now) ** 0.5 + 0.1 * torch.randn(2, 1, 4, 4, generator=random)
            chance = torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(place))
            same = torch.Generator().manual_seed(place)
            more = {"generator": same if eta != 0.0 else None}
            more |= {} if eta is None else {"eta": eta, "use_clipped_model_output": clip is not None}
            expected = theirs.step(found, place, x, **more).prev_sample
            x = remove_noise(x, found, now, then, eta=1.0 if eta is None else eta, clip=clip, chance=chance)
            close(x, expected)


@pytest.mark.parametrize(("steps", "wanted", "offset"), [(1000, 7, 1), (1000, 1000, 0), (10, 4, 0), (10, 3, 1)])
def test_leading_steps_equal_published(steps: int, wanted: int, offset: int) -> None:
    diffusers = pytest.importorskip("diffusers")
    theirs = diffusers.DDIMScheduler(num_train_timesteps=steps, timestep_spacing="leading", steps_offset=offset)
    theirs.set_timesteps(wanted)
    assert (
        NoiseSchedule(steps=steps, spacing="leading", offset=offset).sampling_steps(wanted) == theirs.timesteps.tolist()
    )


def test_leading_steps_end_with_the_last_there_is() -> None:
    """The published code would read beyond the end of its table."""
    assert NoiseSchedule(steps=10, spacing="leading", offset=1).sampling_steps(10) == [9, 9, 8, 7, 6, 5, 4, 3, 2, 1]
    assert NoiseSchedule(steps=10, spacing="leading", offset=4).sampling_steps(5) == [9, 9, 8, 6, 4]


def head(curve: str = "linear") -> Any:
    return model(beta_schedule=CURVES[curve]).head


def model(**changes: Any) -> Any:
    found = af.build(families.find("dit").read({**CONFIG, **changes}), seed=0).eval()
    with torch.no_grad():
        for i, tensor in enumerate(found.parameters()):
            tensor.normal_(0, 0.3, generator=torch.Generator().manual_seed(i))
    return found


@pytest.mark.parametrize("eta", [0.0, 1.0])
def test_a_picture_is_its_seeds_whatever_else_is_drawn(eta: float) -> None:
    labels = torch.tensor([0, 1, 2])
    how: dict[str, Any] = {"steps": 4, "guidance": 3.0, "eta": eta, "clip": 1.0}
    nothing = torch.full((3,), 3)
    together = denoise(model(), {"class_labels": labels}, {"class_labels": nothing}, seeds=[5, 6, 7], **how)
    assert together.shape == (3, 1, 4, 4) and together.abs().max() <= 1
    alone = denoise(model(), {"class_labels": labels[1:2]}, {"class_labels": nothing[:1]}, seeds=[6], **how)
    close(alone, together[1:2])
    other = denoise(model(), {"class_labels": labels[1:2]}, {"class_labels": nothing[:1]}, seeds=[8], **how)
    assert not torch.allclose(other, alone, atol=1e-3)


def test_guidance_is_a_step_away_from_what_would_be_drawn_otherwise() -> None:
    """One step by hand: noise without a label + guidance * (noise with the label - noise without)."""
    drawer, label = model(), torch.tensor([1])
    label_inputs, nothing = {"class_labels": label}, {"class_labels": torch.tensor([3])}
    found = denoise(drawer, label_inputs, nothing, seeds=[2], steps=1, guidance=2.5)
    x = torch.randn((1, 4, 4), generator=torch.Generator().manual_seed(2))[None]
    with torch.no_grad():
        step = torch.tensor([999])
        wanted, plain = (drawer(hidden_states=x, timestep=step, **each).sample for each in (label_inputs, nothing))
    left = float(NoiseSchedule().alphas_cumprod()[999])
    noise = plain + 2.5 * (wanted - plain)
    close(found, (x - (1 - left) ** 0.5 * noise) / left**0.5)
    with torch.no_grad():
        close(denoise(drawer, label_inputs, seeds=[2], steps=1), (x - (1 - left) ** 0.5 * wanted) / left**0.5)


def test_channels_of_variance_are_not_drawn() -> None:
    drawer = model(out_channels=2)
    assert denoise(drawer, {"class_labels": torch.tensor([0])}, seeds=[0], steps=2).shape == (1, 1, 4, 4)


def test_what_cannot_be_drawn_is_told() -> None:
    label_inputs = {"class_labels": torch.tensor([0])}
    for steps in (0, 1001):
        with pytest.raises(ValueError, match=f"steps is {steps};.* 1 to 1000"):
            denoise(model(), label_inputs, seeds=[0], steps=steps)
    for wrong in ({"eta": 1.5}, {"eta": -0.1}, {"guidance": -1.0}):
        with pytest.raises(ValueError, match="eta is"):
            denoise(model(), label_inputs, seeds=[0], steps=1, **wrong)
    other = af.build(af.override(af.spec("gpt2"), {"decoder.depth": 0, "width": 12}), device="meta")
    with pytest.raises(ValueError, match="NoiseHead"):
        denoise(other, label_inputs, seeds=[0])
    for wrong_schedule in ({"start": 0.0}, {"start": 0.5, "end": 0.1}, {"steps": 0}, {"curve": "bent"}):
        with pytest.raises(ValueError, match="NoiseSchedule"):
            NoiseSchedule(**wrong_schedule)  # type: ignore[arg-type]
