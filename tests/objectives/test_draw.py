"""Text to image with codes: train an autoencoder, train a decoder on its codes, and generate from the saved folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import anyformer as af
from anyformer import cli
from anyformer.data import Arrays, Beside, Captions, Data, JSONLines, TrainedBPE
from anyformer.models import AutoencoderModel
from anyformer.objectives.draw import NextImageToken, Reconstruct
from anyformer.parts.embedding.autoencoder import ConvEmbedding
from anyformer.parts.grid.dvae import ConvDecoder, GaussianLatent, Latent, RoundedCodes
from anyformer.parts.init import Normal
from anyformer.train.optim import AdamW, Constant
from anyformer.train.run import Batch, Run
from anyformer.train.start import setup

NAMES = ("moon", "egg", "tree")
SIZE = {"image_size": (8, 8), "mean": (0.5,), "std": (0.5,)}
AGAIN = Reconstruct(**SIZE, price=0.01)
LENGTH, PLACES, CODES, WORDS = 6, 4, 9, 270


def autoencoder(latent: Latent = RoundedCodes(levels=(3, 3), width=8)) -> AutoencoderModel:
    return AutoencoderModel(
        width=8, embedding=ConvEmbedding(image_size=(8, 8), channels=1, widths=(8, 8, 8), blocks=1, kernel=3),
        latent=latent, image_decoder=ConvDecoder(channels=1, widths=(8, 8, 8), blocks=1), init={"*": Normal(std=0.1)},
    )  # fmt: skip


def decoder(**changes: Any) -> Any:
    config = {
        "vocab_size": WORDS + CODES, "n_positions": LENGTH + PLACES, "n_embd": 32, "n_layer": 1, "n_head": 2,
        "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
    }  # fmt: skip
    return af.families.find("gpt2").read({**config, **changes})


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Captions:
    """Three classes of images: dark at the top, dark on the left, dark everywhere; four of each."""
    folder, pixels = tmp_path_factory.mktemp("pairs"), np.full((12, 8, 8), 255, np.uint8)
    pixels[0::3, :4], pixels[1::3, :, :4], pixels[2::3] = 0, 0, 0
    np.savez(folder / "pictures.npz", images=pixels, labels=np.arange(12) % 3)
    source = Arrays(path=str(folder / "pictures.npz"), fields={"image": "images", "label": "labels"})
    return Captions(source=source, names=NAMES, forms=("{}", "{a} {}"))


def run(pairs: Any, **changes: Any) -> Run:
    settings: dict[str, Any] = {
        "name": "again", "model": autoencoder(), "data": Data(train=pairs), "objective": AGAIN, "steps": 80,
        "batch": Batch(examples=12), "schedule": Constant(), "optimizer": AdamW(lr=1e-2), **changes,
    }  # fmt: skip
    return Run(**settings)


@pytest.fixture(scope="module")
def vae(pairs: Captions, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An autoencoder trained on these images."""
    folder = tmp_path_factory.mktemp("vae")
    torch.manual_seed(0)
    setup(run(pairs), folder, device="cpu").fit()
    return folder


def drawing(vae: Path, **changes: Any) -> NextImageToken:
    return NextImageToken(**{**SIZE, "vae": str(vae), "length": LENGTH, **changes})


def writing(pairs: Any, vae: Path, **changes: Any) -> Run:
    return run(pairs, **{
        "name": "draw", "model": decoder(), "objective": drawing(vae), "vocabulary": TrainedBPE(size=WORDS),
        "steps": 120, "optimizer": AdamW(lr=5e-3), **changes,
    })  # fmt: skip


@pytest.fixture(scope="module")
def folder(pairs: Captions, vae: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A decoder trained to generate them."""
    folder = tmp_path_factory.mktemp("drawing")
    setup(writing(pairs, vae), folder, device="cpu").fit()
    return folder


def test_an_autoencoder_learns_pictures(pairs: Captions, vae: Path) -> None:
    model = af.load(vae)
    batch = AGAIN.collate([AGAIN.encode(row.example, None) for row in pairs.rows(("image",))], 0)
    with torch.no_grad():
        out = model(pixel_values=batch["pixel_values"])
        found, weights = AGAIN.losses(model, batch), AGAIN.weights(batch)
    assert float((out.reconstruction - batch["pixel_values"]).square().mean()) < 0.1
    error = F.mse_loss(out.reconstruction, batch["pixel_values"])
    assert torch.allclose(found["pixels"] / weights["pixels"], error)
    assert torch.allclose(found["price"] / weights["price"], 0.01 * out.price.mean())
    assert AGAIN.replace(price=0.0).weights(batch).keys() == {"pixels"}
    read = af.processor(vae)  # the image settings are saved with it
    picture = next(iter(pairs.rows(("image",)))).example["image"]
    assert torch.equal(read(images=picture)["pixel_values"][0], batch["pixel_values"][0])


def test_the_two_losses_are_those_of_the_words_and_of_the_codes(pairs: Captions, vae: Path, tmp_path: Path) -> None:
    trainer = setup(writing(pairs, vae), tmp_path, device="cpu")
    objective, tokenizer = trainer.objective, trainer.tokenizer
    assert objective.tokens == len(tokenizer) <= WORDS
    random = np.random.default_rng(0)
    records = [objective.encode(row.example, tokenizer) for row in pairs.rows(objective.columns)]
    batch = objective.collate([objective.vary(record, random) for record in records], tokenizer.filler)
    trained = trainer.module.eval()
    with torch.no_grad():
        found, weights = objective.losses(trained, batch), objective.weights(batch)
        codes = af.load(vae).codes(batch["pixel_values"]).flatten(1) + WORDS
        ids = torch.cat((batch["input_ids"], codes), 1)
        scores = trained.model(input_ids=ids).logits[:, :-1]
    assert batch["input_ids"].shape == (12, LENGTH) and ids.max() < WORDS + CODES
    ends = batch["labels"] == tokenizer.eos_token_id  # end of each caption; padding follows
    assert bool((ends.sum(1) == 1).all()) and bool((batch["labels"].masked_fill(ends.cumsum(1) == 0, -100) < 1).all())
    words = F.cross_entropy(scores[:, : LENGTH - 1].transpose(1, 2), batch["labels"][:, 1:])
    drawn = F.cross_entropy(scores[:, LENGTH - 1 :].transpose(1, 2), codes)
    assert torch.allclose(found["text"] / weights["text"], words / 8, rtol=1e-4)
    assert torch.allclose(found["image"] / weights["image"], 7 * drawn / 8, rtol=1e-4)


def test_a_vocabulary_of_another_size_leaves_room_for_the_codes(pairs: Captions, vae: Path, tmp_path: Path) -> None:
    """In this small vocabulary a caption has exactly `length` tokens, which is not too long."""
    trainer = setup(writing(pairs, vae, vocabulary=TrainedBPE(size=262)), tmp_path, device="cpu")
    assert trainer.splits.train.truncated == (0, 0)
    assert trainer.model.spec.embedding.tokens.vocab_size == trainer.model.spec.head.vocab_size == 262 + CODES
    assert len(trainer.tokenizer) == 262


def test_no_optimiser_and_no_checkpoint_sees_the_autoencoder(pairs: Captions, vae: Path, folder: Path) -> None:
    last = max((folder / "checkpoints").iterdir())
    assert all((last / name).is_file() for name in ("tokenizer.json", "preprocessor_config.json", "vae/spec.json"))
    before, after = af.load(vae).state_dict(), af.load(last / "vae").state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    assert {name.partition(".")[0] for name in af.load(last).state_dict(keep_vars=True)} == {
        "embedding",
        "decoder",
        "head",
    }
    (last / "vae" / "spec.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match="vae/spec.json: wrong size"):
        af.load(folder)
    af.save(af.load(vae), last / "vae", overwrite=True)


def test_what_is_asked_for_is_drawn(pairs: Captions, folder: Path, tmp_path: Path) -> None:
    af.save(af.load(folder), tmp_path / "copy")  # the autoencoder is saved with it
    rows = af.tasks.draw(tmp_path / "copy", [*NAMES, "an egg"], out=None, count=3, temperature=0.2)
    pictures = np.stack([row["pictures"][..., 0] for row in rows]).astype(float)  # (4, 3, 8, 8)
    dark = pictures < 128
    quarters = dark[..., :4, 4:], dark[..., 4:, :4], dark[..., 4:, 4:]
    shares = np.stack([quarter.mean((2, 3)) for quarter in quarters], -1)
    wanted = np.asarray([[1, 0, 0], [0, 1, 0], [1, 1, 1], [0, 1, 0]])  # upper right, lower left, lower right
    assert (np.abs(shares - wanted[:, None]) < 0.3).all(), shares
    again = af.tasks.draw(tmp_path / "copy", ["egg"], out=None, count=1, seed=1, temperature=0.2)
    assert np.array_equal(again[0]["pictures"][0], rows[1]["pictures"][1])  # independent of the other images


def test_the_command(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "egg.png"
    assert cli.main(["run", "draw", str(folder), "an egg", "-o", str(out), "--count", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["file"] == str(out) and out.stat().st_size > 50
    for line, message in (
        (["run", "draw", str(folder), "egg " * 9], "this model reads at most 6"),
        (["run", "draw", str(folder), "egg", "--guidance", "2"], "guidance is not an option of this kind of model"),
    ):
        assert cli.main([*line, "-o", str(out)]) == 2
        err = capsys.readouterr().err
        assert message in err and len(err.splitlines()) == 1


def test_every_token_that_is_written_is_a_code(vae: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even at a high temperature, text tokens and the end token are never sampled as codes."""
    from anyformer.tasks import image_tokens

    seen = []
    real = image_tokens.generate
    monkeypatch.setattr(image_tokens, "generate", lambda *args, **how: seen.append(real(*args, **how)) or seen[-1])
    af.tasks.draw(folder, ["moon"], out=None, count=40, temperature=50.0)
    written = torch.cat(seen)[:, LENGTH:]
    assert written.shape == (40, PLACES) and bool((written >= WORDS).all()) and len(written.unique()) == CODES


def test_mistakes(pairs: Captions, vae: Path, folder: Path, tmp_path: Path) -> None:
    objective = drawing(vae)
    model = af.build(decoder())
    for change, message in (
        (lambda: AGAIN.module(model), "needs an AutoencoderModel, not DecoderModel"),
        (lambda: AGAIN.replace(image_size=(4, 8)).module(af.load(vae)), "Reconstruct.image_size is (4, 8), but"),
        (lambda: AGAIN.replace(mean=(0.5,) * 3, std=(0.5,) * 3).module(af.load(vae)), "images with 3 channels need"),
        (lambda: objective.module(af.build(autoencoder())), "predicts tokens, but the model has no head"),
        (lambda: objective.replace(tokens=300).module(model), "300 tokens and 9 codes make 309 ids"),
        (lambda: objective.replace(length=7).module(model), "7 caption tokens and 4 codes need 11 positions"),
        (lambda: objective.with_autoencoder(model, model), "not an autoencoder with discrete codes"),
        (lambda: objective.with_autoencoder(model, af.build(autoencoder(GaussianLatent()))), "with discrete codes"),
        (lambda: objective.ready(None), "it needs a vocabulary"),
        (lambda: drawing(vae / "x").ready(NAMES), "train an autoencoder first: "),
        (lambda: drawing(vae, text=-1.0), "NextImageToken.text is -1.0"),
        (lambda: af.tasks.draw(vae, ["moon"], out=None), "draw needs a model that draws"),
        (lambda: Captions(source=pairs.source, names=NAMES, forms=("nothing",)), "each form needs {} for the name"),
    ):  # fmt: skip
        with pytest.raises(ValueError) as error:
            change()
        assert message in str(error.value) and "\n" not in str(error.value)
    few = Captions(source=pairs.source, names=NAMES[:2])
    assert [row.problem for row in few.rows(("text",))][2] == "label 2 is outside 0..1"
    (tmp_path / "lines.jsonl").write_text('{"text": "moon"}\n' * 12)
    captions = JSONLines(path=str(tmp_path / "lines.jsonl"))
    for source, message in ((pairs.source, "no column 'text'"), (captions, "no column 'image'")):
        with pytest.raises(ValueError, match=message):
            setup(writing(source, vae), tmp_path / "run", device="cpu")
    both = Beside(sources=(pairs.source, captions))
    assert setup(writing(both, vae), tmp_path / "run", device="cpu").splits.train is not None
