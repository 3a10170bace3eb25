"""Images to a grid of codes and back: every kind of latent, its loss, and the features of all models."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

import anyformer as af
from anyformer.models import AutoencoderModel
from anyformer.parts.embedding.autoencoder import ConvEmbedding
from anyformer.parts.grid.dvae import ConvDecoder, GaussianLatent, GumbelCodes, Latent, RoundedCodes
from anyformer.parts.init import Normal

LATENTS: dict[str, Latent] = {
    "gumbel": GumbelCodes(codes=12, width=6), "soft": GumbelCodes(codes=12, width=6, soft=True, temperature=0.5),
    "rounded": RoundedCodes(levels=(4, 3), width=6), "gaussian": GaussianLatent(width=3),
}  # fmt: skip
over_latents = pytest.mark.parametrize("latent", LATENTS.values(), ids=list(LATENTS))


def spec(latent: Latent = LATENTS["gumbel"], **changes: Any) -> AutoencoderModel:
    fields: dict[str, Any] = {
        "width": 10, "latent": latent, "init": {"*": Normal(std=0.1)},
        "embedding": ConvEmbedding(image_size=(8, 12), channels=2, widths=(8, 12), blocks=2, kernel=3),
        "image_decoder": ConvDecoder(channels=2, widths=(12, 8), blocks=1), **changes,
    }  # fmt: skip
    return AutoencoderModel(**fields)


def pictures(batch: int = 3, seed: int = 0) -> Tensor:
    return torch.randn(batch, 2, 8, 12, generator=torch.Generator().manual_seed(seed))


@over_latents
@torch.no_grad()
def test_what_is_drawn_is_drawn_of_the_codes(latent: Latent) -> None:
    model, x = af.build(spec(latent)).eval(), pictures()
    out, codes = model(pixel_values=x), model.codes(x)
    assert out.reconstruction.shape == x.shape and out.price.shape == (3, 24)
    assert codes.shape == ((3, 4, 6) if latent.discrete else (3, 3, 4, 6))
    assert torch.allclose(model.picture(codes), out.reconstruction, atol=1e-6)
    # rows are independent of the batch, and a different code gives a different image
    assert torch.allclose(model.codes(x[1:2])[0].float(), codes[1].float(), atol=1e-6)
    other = codes.clone()
    other[0, ..., 0, 0] = (other[0, ..., 0, 0] + 1) % 12 if latent.discrete else other[0, ..., 0, 0] + 1
    assert not torch.allclose(model.picture(other)[0], out.reconstruction[0], atol=1e-4)
    assert torch.allclose(model.picture(other)[1:], model.picture(codes)[1:], atol=1e-6)


def test_files_of_earlier_versions(tmp_path: Path) -> None:
    """The image decoder was called `painter`, and the names of input and output `reads` and `says`."""
    model = af.build(spec(input_name="sample", output_name="image"), seed=3).eval()
    af.save(model, tmp_path)
    description, weights = tmp_path / "spec.json", tmp_path / "model.safetensors"
    text = description.read_text().replace("image_decoder", "painter")
    description.write_text(text.replace("input_name", "reads").replace("output_name", "says"))
    tensors = {name.replace("image_decoder", "painter"): tensor for name, tensor in model.state_dict().items()}
    save_file(tensors, weights, metadata={"format": "pt"})
    again, x = af.load(tmp_path), pictures()
    assert torch.equal(again(sample=x).image, model(sample=x).image)


@over_latents
def test_saved_and_loaded_it_is_the_same(latent: Latent, tmp_path: Path) -> None:
    model = af.build(spec(latent), seed=3).eval()
    af.save(model, tmp_path)
    again, x = af.load(tmp_path), pictures()
    assert again.spec.replace(source={}) == model.spec
    with torch.no_grad():
        assert torch.equal(again(pixel_values=x).reconstruction, model(pixel_values=x).reconstruction)
    with pytest.raises(ValueError, match="not of a published family"):
        af.save(model, tmp_path / "hf", format="hf")


@over_latents
def test_every_parameter_learns_and_one_batch_is_learnt(latent: Latent) -> None:
    torch.manual_seed(0)
    model, x = af.build(spec(latent)).train(), F.interpolate(torch.randn(4, 2, 2, 3), scale_factor=4)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    errors = []
    for _ in range(40):
        out = model(pixel_values=x)
        errors.append((out.reconstruction - x).square().mean())
        (errors[-1] + 1e-3 * out.price.mean()).backward()
        if len(errors) == 1:
            assert all(p.grad is not None and bool(p.grad.any()) for p in model.parameters())
        optimizer.step()
        optimizer.zero_grad()
    assert errors[-1] < 0.5 * errors[0]


def test_prices() -> None:
    """The price is the KL divergence from a uniform distribution (codes) or a standard normal one (numbers), as torch
    computes it. Rounding has no price."""
    for scale in (0.0, 1.0, 8.0):
        gumbel = af.build(spec()).latent
        x = scale * torch.randn(2, 5, 10)
        chances = torch.distributions.Categorical(logits=gumbel.choose(x))
        equal = torch.distributions.Categorical(logits=torch.zeros(12))
        assert torch.allclose(gumbel(x)[1], torch.distributions.kl_divergence(chances, equal), atol=1e-5)
        gaussian = af.build(spec(LATENTS["gaussian"])).latent
        mean, log = gaussian.say(x).chunk(2, -1)
        found = torch.distributions.kl_divergence(
            torch.distributions.Normal(mean, (log / 2).exp()), torch.distributions.Normal(0.0, 1.0)
        ).sum(-1)
        assert torch.allclose(gaussian(x)[1], found, rtol=1e-4, atol=1e-5)
        assert not af.build(spec(LATENTS["rounded"])).latent(x)[1].any()


def test_latents_start_with_chances_and_vectors_of_their_size() -> None:
    """For standard normal inputs, scores are standard normal too, and so are the vectors of codes."""
    latent = af.build(spec(GumbelCodes(codes=300, width=40), width=64, init={}), seed=0).latent
    assert float(latent.choose.weight.detach().std()) == pytest.approx(64**-0.5, rel=0.03)
    assert float(latent.table.detach().std()) == pytest.approx(1.0, rel=0.03)
    say = af.build(spec(GaussianLatent(width=150), width=64, init={}), seed=0).latent.say
    assert float(say.weight.detach().std()) == pytest.approx(64**-0.5, rel=0.03)


def test_draws_while_it_learns_and_none_after() -> None:
    for name, latent in LATENTS.items():
        model, x = af.build(spec(latent)), pictures()
        with torch.no_grad():
            torch.manual_seed(0)
            first = model.train()(pixel_values=x).reconstruction
            same = torch.equal(first, model(pixel_values=x).reconstruction)
            assert same == (name == "rounded")
            model.eval()
            assert torch.equal(model(pixel_values=x).reconstruction, model(pixel_values=x).reconstruction)
    hard, soft = (af.build(spec(LATENTS[name])).train().latent for name in ("gumbel", "soft"))
    for module, exact in ((hard, True), (soft, False)):
        z, _ = module(torch.randn(2, 7, 10))
        nearest = (z[..., None, :] - module.table).square().sum(-1).amin(-1)
        assert bool((nearest < 1e-9).all()) == exact


def test_the_scale_follows_a_running_mean_of_squares() -> None:
    """The first training batch sets the mean square; each later one moves it by a hundredth of the difference."""
    latent = af.build(spec(GaussianLatent(width=3, scale=None))).latent.train()
    assert latent.scale() == 1.0  # no batch was measured yet
    batches = [factor * torch.randn(2, 7, 10) for factor in (0.1, 5.0, 0.2)]
    first, second, third = (float(latent.say(x)[..., :3].detach().square().mean()) for x in batches)
    expected = [first, 0.99 * first + 0.01 * second, 0.99 * (0.99 * first + 0.01 * second) + 0.01 * third]
    for x, square in zip(batches, expected, strict=True):
        latent(x)
        assert float(latent.square) == pytest.approx(square, rel=1e-5)
        assert float(latent.scale()) == pytest.approx(square**-0.5, rel=1e-5)
    latent.eval()(batches[1])
    assert float(latent.square) == pytest.approx(expected[-1], rel=1e-5)


def test_every_code_of_rounded_numbers_has_its_own_vector() -> None:
    latent = af.build(spec(LATENTS["rounded"])).latent
    steps = latent.vectors(torch.arange(12))
    assert len({tuple(row.tolist()) for row in steps}) == 12
    wide = torch.linalg.lstsq(latent.wide.weight, (steps - latent.wide.bias).t()).solution.t()  # inverts `wide`
    assert torch.allclose(wide[:4, 0], torch.tensor([-1, -1 / 3, 1 / 3, 1]), atol=1e-5)
    assert torch.allclose(wide[::4, 1], torch.tensor([-1.0, 0.0, 1.0]), atol=1e-5)


def test_it_is_counted_drawn_traced_and_changed_like_any_model() -> None:
    model = af.build(spec())
    count = af.count(spec())
    assert count.parameters == sum(p.numel() for p in model.parameters())
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.eval()(pixel_values=pictures(1))
    assert count.flops(1) == counter.get_total_flops()
    svg = af.draw(spec()).svg
    assert all(text in svg for text in ("Gumbel Codes", "codes 12", ">24 × 6<", "Conv Decoder", ">96 × 2<"))
    kept = af.trace(model, keep=["embedding", "latent", "image_decoder"], pixel_values=pictures(1))
    assert kept["image_decoder"].shape == (1, 2, 8, 12)
    wider = af.override(spec(), {"width": 14, "latent": {"kind": "GaussianLatent", "width": 2}})
    assert af.build(wider).codes(pictures()).shape == (3, 2, 4, 6)
    assert math.prod(spec().grid) == 24


@pytest.mark.parametrize(("change", "message"), [
    (lambda: ConvEmbedding(image_size=(8, 9), widths=(8, 8)), "2 stages need sides divisible by 2, got 8 x 9"),
    (lambda: ConvEmbedding(image_size=(8, 8), widths=()), "ConvEmbedding.widths are ()"),
    (lambda: ConvEmbedding(image_size=(8, 8), widths=(4,), kernel=4), "kernel is 4; it must be odd"),
    (lambda: ConvDecoder(widths=(4, 0)), "ConvDecoder.widths are"),
    (lambda: GumbelCodes(codes=1), "GumbelCodes.codes is 1"),
    (lambda: GumbelCodes(temperature=0.0), "GumbelCodes.temperature is 0.0"),
    (lambda: RoundedCodes(levels=(4, 1)), "levels are (4, 1); use at least 2"),
    (lambda: RoundedCodes(levels=(2,) * 32), "product at most 2^31"),
    (lambda: ConvDecoder(blocks=10**9), "4 stages of 1,000,000,000 blocks; the limit is 20"),
    (lambda: spec(image_decoder=ConvDecoder(channels=1, widths=(12, 8))),
     "image_decoder.channels is 1, but embedding.channels is 2"),
    (lambda: spec(image_decoder=ConvDecoder(channels=2, widths=(12,))),
     "1 stages, which decode images of 4 x 6 pixels"),
    (lambda: af.build(spec())(pixel_values=torch.zeros(1, 2, 8, 8)), "(batch, 2 channels, 8, 12), got (1, 2, 8, 8)"),
    (lambda: af.build(spec())(), "pixel_values must be (batch, 2 channels, 8, 12), got None"),
    (lambda: af.build(spec()).picture(torch.zeros(1, 4, 5).long()), "codes must be (batch, 4, 6), got (1, 4, 5)"),
    (lambda: af.build(spec()).picture(torch.full((1, 4, 6), 12)), "from 0 to 11, got 12 to 12"),
])  # fmt: skip
def test_mistakes(change: Any, message: str) -> None:
    with pytest.raises(ValueError) as error:
        change()
    assert message in str(error.value)
