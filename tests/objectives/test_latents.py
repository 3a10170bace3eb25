"""Latent diffusion: train an autoencoder and a DiT on its latents, and generate labelled images from one folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import anyformer as af
from anyformer import cli, families
from anyformer.data import Arrays, Data
from anyformer.evaluate import Evaluation
from anyformer.evaluate.split import evaluate
from anyformer.generation.diffusion import denoise
from anyformer.models import AutoencoderModel, Call
from anyformer.objectives.diffuse import Diffuse
from anyformer.objectives.draw import Reconstruct
from anyformer.parts.embedding.autoencoder import ConvEmbedding
from anyformer.parts.grid.dvae import ConvDecoder, GaussianLatent, Latent, RoundedCodes
from anyformer.parts.init import Normal
from anyformer.train.optim import AdamW, Constant
from anyformer.train.run import Batch, Run
from anyformer.train.start import setup

LABELS = ("left", "top")
SIZE: dict[str, Any] = {"image_size": (8, 8), "mean": (0.5,), "std": (0.5,)}
CONFIG: dict[str, Any] = {
    "num_attention_heads": 2, "attention_head_dim": 16, "num_layers": 2, "in_channels": 3, "sample_size": 2,
    "patch_size": 1, "num_embeds_ada_norm": 2, "per_layer": False,
}  # fmt: skip


def halves(labels: np.ndarray) -> np.ndarray:
    """Return bytes (N, 8, 8) with a bright left or upper half."""
    pictures = np.zeros((len(labels), 8, 8), np.uint8)
    pictures[labels == 0, :, :4] = 255
    pictures[labels == 1, :4] = 255
    return pictures


def autoencoder(latent: Latent) -> AutoencoderModel:
    return AutoencoderModel(
        width=8, embedding=ConvEmbedding(image_size=(8, 8), channels=1, widths=(8, 8, 8), blocks=1, kernel=3),
        latent=latent, image_decoder=ConvDecoder(channels=1, widths=(8, 8, 8), blocks=1), init={"*": Normal(std=0.1)},
    )  # fmt: skip


def dit(**changes: Any) -> Any:
    return families.find("dit").read({**CONFIG, **changes})


def run(source: Arrays, **changes: Any) -> Run:
    fixed: dict[str, Any] = {"batch": Batch(examples=16), "schedule": Constant(), "data": Data(train=source)}
    return Run(**{**fixed, "name": "some", **changes})


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Arrays:
    labels, path = np.arange(16, dtype=np.uint8) % 2, tmp_path_factory.mktemp("pictures") / "some.npz"
    np.savez(path, image=halves(labels), label=labels)
    return Arrays(path=str(path))


@pytest.fixture(scope="module")
def vae(source: Arrays, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An autoencoder trained on these images."""
    folder, model = tmp_path_factory.mktemp("vae"), autoencoder(GaussianLatent(width=3, scale=None))
    torch.manual_seed(0)
    again = Reconstruct(**SIZE, price=1e-3)
    setup(run(source, model=model, objective=again, steps=60, optimizer=AdamW(lr=1e-2)), folder, device="cpu").fit()
    return folder


def diffuse(vae: Path, **changes: Any) -> Diffuse:
    return Diffuse(**{"labels": LABELS, **SIZE, "vae": str(vae), **changes})


def drawing(source: Arrays, vae: Path, steps: int = 4) -> Run:
    return run(source, model=dit(), objective=diffuse(vae), steps=steps, optimizer=AdamW(lr=5e-3, weight_decay=0.0))


@pytest.fixture(scope="module")
def folder(source: Arrays, vae: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A DiT after a short training on their latents."""
    folder = tmp_path_factory.mktemp("dit")
    setup(drawing(source, vae), folder, device="cpu").fit()
    return folder


def pixels() -> torch.Tensor:
    return torch.from_numpy(halves(np.arange(16) % 2)).float().div(127.5).sub(1)[:, None]


@torch.no_grad()
def test_numbers_are_measured_while_they_are_learnt(vae: Path) -> None:
    """Scaled latents have a mean square of 1; the scale does not change reconstructions."""
    model, x = af.load(vae), pixels()
    mean = model.latent.say(model.hidden_states(Call({"pixel_values": x})).x).chunk(2, -1)[0]
    assert not 0.9 < float(mean.square().mean()) < 1.1, "the numbers need no scale, and this shows nothing"
    assert float(model.codes(x).square().mean()) == pytest.approx(1.0, abs=0.25)
    assert torch.allclose(model.codes(x).flatten(2).transpose(1, 2) * model.latent.square.sqrt(), mean, atol=1e-5)
    assert torch.allclose(model.picture(model.codes(x)), model(pixel_values=x).reconstruction, atol=1e-5)
    given = af.build(autoencoder(GaussianLatent(width=3, scale=0.5)))
    given.load_state_dict({k: v for k, v in model.state_dict().items() if k != "latent.square"})
    assert torch.allclose(given.codes(x).flatten(2).transpose(1, 2), mean / 2, atol=1e-5)
    assert torch.allclose(given.picture(given.codes(x)), model(pixel_values=x).reconstruction, atol=1e-5)
    fresh = af.build(autoencoder(GaussianLatent(width=3, scale=None)))
    assert float(fresh.latent.scale()) == 1.0, "nothing is measured yet"


def test_the_loss_is_that_of_noise_in_the_numbers(source: Arrays, vae: Path, tmp_path: Path) -> None:
    trainer = setup(drawing(source, vae), tmp_path, device="cpu")
    objective, trained = trainer.objective, trainer.module.eval()
    random = np.random.default_rng(0)
    records = [objective.vary(objective.encode(row.example, None), random) for row in source.rows(("image", "label"))]
    batch = objective.collate(records, 0)
    assert batch["noise"].shape == (16, 3, 2, 2) and batch["pixel_values"].shape == (16, 1, 8, 8)
    with torch.no_grad():
        trained.model.head.out.weight.normal_(0, 0.1)
        step = (batch["moment"] * 1000).long()
        left = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64), 0)[step][:, None, None, None]
        numbers = af.load(vae).codes(batch["pixel_values"])
        mixed = (left.sqrt() * numbers + (1 - left).sqrt() * batch["noise"]).float()
        predicted = trained.model(hidden_states=mixed, timestep=step, class_labels=batch["class_labels"]).sample
        found = objective.losses(trained, batch)["loss"]
    assert float(found) == pytest.approx(16 * float((predicted - batch["noise"]).square().mean()), rel=1e-5)


def test_the_folder_is_evaluated(source: Arrays, vae: Path, folder: Path) -> None:
    """Evaluation uses the autoencoder, as training does; an untrained model predicts zero noise."""
    evaluation = Evaluation(source, diffuse(vae).ready(None), None, ())
    fresh = af.build(dit(), seed=0)
    scores = [evaluate(model, "train", evaluation)["loss"] for model in (fresh, af.load(folder))]
    assert scores[0] == pytest.approx(1.0, abs=0.2) and 0 < scores[1] != scores[0]


def test_the_folder_draws_by_itself(
    vae: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    af.save(af.load(folder), tmp_path / "copy")  # the autoencoder is saved with it
    rows = af.tasks.draw(tmp_path / "copy", [*LABELS], out=None, count=2, steps=5, guidance=3.0)
    model, squeezes = af.load(folder), af.load(vae)
    asked, nothing = ({"class_labels": torch.tensor(labels)} for labels in ([0, 0, 1, 1], [2] * 4))
    numbers = denoise(model, asked, nothing, seeds=[0, 1, 0, 1], steps=5, guidance=3.0)
    with torch.no_grad():
        wanted = squeezes.picture(numbers).mul(127.5).add(127.5).round().clamp(0, 255)
    assert np.array_equal(np.concatenate([row["pictures"][..., 0] for row in rows]), wanted[:, 0].numpy())
    out = tmp_path / "top.png"
    line = ["run", "draw", str(folder), "top", "-o", str(out), "--count", "2", "--steps", "4", "--json"]
    assert cli.main(line) == 0
    assert json.loads(capsys.readouterr().out)["file"] == str(out) and out.stat().st_size > 50


@pytest.mark.slow
def test_what_is_asked_for_is_drawn(source: Arrays, vae: Path, tmp_path: Path) -> None:
    setup(drawing(source, vae, steps=800), tmp_path, device="cpu").fit()
    rows = af.tasks.draw(tmp_path, [*LABELS], out=None, count=6, steps=20)
    drawn = np.stack([row["pictures"][..., 0] for row in rows])  # (2, 6, 8, 8)
    wanted = halves(np.arange(2))[:, None].astype(float)
    right, wrong = (np.square(drawn / 255 - each / 255).mean((2, 3)) for each in (wanted, wanted[::-1]))
    assert (right < wrong).all() and np.median(right) < 0.1, (right, wrong)


@torch.no_grad()
def test_a_text_asks_for_numbers_too(vae: Path) -> None:
    """A DiT with cross-attention to a text encoder generates the same latents."""
    config = {**CONFIG, "num_embeds_ada_norm": None, "text_width": 6}
    model, squeezes = af.build(families.find("dit_text").read(config)).eval(), af.load(vae)
    for i, parameter in enumerate(model.parameters()):
        parameter.normal_(0, 0.2, generator=torch.Generator().manual_seed(i))
    assert squeezes.spec.numbers == (model.spec.embedding.channels, *model.spec.embedding.image_size)
    texts = torch.randn(2, 2, 5, 6, generator=torch.Generator().manual_seed(0))
    otherwise = {"encoder_hidden_states": torch.zeros(2, 5, 6)}
    first, other = (
        squeezes.picture(denoise(model, {"encoder_hidden_states": text}, otherwise, seeds=[1, 2], steps=3, guidance=2))
        for text in texts
    )
    assert first.shape == (2, 1, 8, 8) and not torch.allclose(first, other, atol=1e-3)


def test_mistakes(source: Arrays, vae: Path, folder: Path, tmp_path: Path) -> None:
    objective, discrete = diffuse(vae), tmp_path / "discrete"
    af.save(af.build(autoencoder(RoundedCodes(levels=(3, 3)))), discrete)
    broken = tmp_path / "broken"
    af.save(af.load(folder), broken)
    af.save(af.build(autoencoder(RoundedCodes(levels=(3, 3)))), broken / "vae")
    other = tmp_path / "other"
    af.save(af.load(folder), other)
    af.save(af.build(autoencoder(GaussianLatent(width=2))), other / "vae")
    for change, message in (
        (lambda: diffuse(vae / "x").ready(None), "Diffuse.vae: train an autoencoder first: "),
        (lambda: diffuse(folder).ready(None), "not an autoencoder with continuous latents"),
        (lambda: diffuse(discrete).ready(None), "not an autoencoder with continuous latents"),
        (lambda: objective.module(af.build(dit(in_channels=1))), "latents are (3, 2, 2) (channels, rows, col"),
        (lambda: objective.module(af.build(dit(sample_size=4))), "(3, 4, 4) in the model"),
        (lambda: diffuse(vae, image_size=(8, 4)).module(af.build(dit())), "Diffuse.image_size is (8, 4), but"),
        (lambda: diffuse(vae, mean=(0.5,) * 3, std=(0.5,) * 3).module(af.build(dit())), "images with 3 channels"),
        (lambda: af.tasks.draw(broken, "top", out=None), "but its autoencoder produces codes"),
        (lambda: af.tasks.draw(other, "top", out=None), "draws (3, 2, 2), but its autoencoder produces (2, 2, 2)"),
        (lambda: af.tasks.draw(folder, "topp", out=None), "the model has no label 'topp'; did you mean 'top'"),
        (lambda: af.tasks.draw(folder, "top", out=None, temperature=1.0), "temperature is not an option of this kind"),
        (lambda: diffuse(vae, labels=LABELS[::-1]).module(af.load(folder)), "top, left, but the model knows left, top"),
        (lambda: GaussianLatent(scale=0.0), "GaussianLatent.scale is 0.0"),
    ):  # fmt: skip
        with pytest.raises(ValueError) as error:
            change()
        assert message in str(error.value) and "\n" not in str(error.value)
