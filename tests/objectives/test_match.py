"""Image-text matching: records, random captions, the published loss, and a model that learns the task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import anyformer as af
from anyformer.data import Arrays, Beside, Data, JSONLines, TrainedBPE
from anyformer.objectives.match import MatchImage
from anyformer.train.optim import AdamW, Constant
from anyformer.train.run import Batch, Run
from anyformer.train.start import setup

TEXT = {
    "vocab_size": 270, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
    "max_position_embeddings": 12, "eos_token_id": 0,
}  # fmt: skip
IMAGE = {
    "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 8,
    "patch_size": 4,
}  # fmt: skip
MATCH = MatchImage(image_size=(8, 8), length=12)
NAMES = ["one", "two", "three", "four", "five", "six", "seven", "eight"]


def spec(**changes: Any) -> Any:
    return af.families.find("clip").read({"text_config": TEXT, "vision_config": IMAGE, "projection_dim": 8, **changes})


@pytest.fixture
def pairs(tmp_path: Path) -> Beside:
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 8, 3), dtype=np.uint8)
    np.savez(tmp_path / "pictures.npz", images=pixels)
    lines = [f'{{"name": ["{name}", "number {name}"]}}\n' for name in NAMES]
    (tmp_path / "names.jsonl").write_text("".join(lines))
    pictures = Arrays(path=str(tmp_path / "pictures.npz"), fields={"image": "images"})
    return Beside(sources=(pictures, JSONLines(path=str(tmp_path / "names.jsonl"), columns={"text": "name"})))


def run(pairs: Any, **changes: Any) -> Run:
    settings: dict[str, Any] = {
        "name": "match", "model": spec(), "data": Data(train=pairs), "objective": MATCH, "steps": 60,
        "vocabulary": TrainedBPE(size=270), "batch": Batch(examples=8), "schedule": Constant(),
        "optimizer": AdamW(lr=1e-2), **changes,
    }  # fmt: skip
    return Run(**settings)


def test_what_was_learnt_is_asked_from_its_folder(pairs: Beside, tmp_path: Path) -> None:
    """Every checkpoint contains the tokenizer and the image settings."""
    setup(run(pairs, steps=2), tmp_path / "run", device="cpu").fit()
    picture = np.zeros((8, 8, 3), np.uint8)
    ranking = af.tasks.zero_shot_image(tmp_path / "run", picture, labels=NAMES)
    assert sorted(each["label"] for each in ranking) == sorted(NAMES)


def test_a_model_learns_which_belong_together(pairs: Beside, tmp_path: Path) -> None:
    trainer = setup(run(pairs), tmp_path / "run", device="cpu")
    trainer.fit()
    model, tokenizer = trainer.model.eval(), trainer.tokenizer
    rows = [row.example for row in pairs.rows(("image", "text"))]
    records = [MATCH.encode({**row, "text": row["text"][1]}, tokenizer) for row in rows]
    with torch.no_grad():
        scores = model(**MATCH.collate(records, tokenizer.filler)).logits_per_text
    assert scores.argmax(-1).tolist() == list(range(8))


@pytest.mark.slow
def test_one_stack_with_experts_learns_it_too(pairs: Beside, tmp_path: Path) -> None:
    """LIMoE learns to match names and images, and routing is traced: at first tokens are undecided, later they are sure
    of their expert, and each modality uses several experts."""
    config = {
        "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_expert_layers": 1, "num_experts": 4,
        "num_attention_heads": 2, "projection_dim": 8, "vocab_size": 270, "max_position_embeddings": 12,
        "image_size": 8, "patch_size": 4, "text_experts": 2, "image_experts": 2, "entropy_weight": 0.2,
    }  # fmt: skip
    limoe = af.families.find("limoe").read(config)
    trainer = setup(run(pairs, model=limoe), tmp_path / "run", device="cpu")
    rows = [row.example for row in pairs.rows(("image", "text"))]
    records = [MATCH.encode({**row, "text": row["text"][1]}, trainer.tokenizer) for row in rows]
    batch = MATCH.collate(records, trainer.tokenizer.filler)

    def routed() -> tuple[list[float], list[int], list[int]]:
        """Return the mean probability of the chosen expert and the number of used experts, per modality."""
        with torch.no_grad():
            kept = af.trace(trainer.model.eval(), keep=["*.encoder.layers.1.feedforward.op.router.*"], **batch)
        at = [f"{side}.encoder.layers.1.feedforward.op.router" for side in ("text", "image")]
        chosen = [kept[f"{each}.logits"].argmax(-1) for each in at]
        return [float(kept[f"{each}.weights"].mean()) for each in at], *(each.unique().tolist() for each in chosen)

    assert max(routed()[0]) < 0.3
    trainer.fit()
    sure, texts, images = routed()
    assert min(sure) > 0.6 and len(texts) > 1 and len(images) > 1, (sure, texts, images)
    with torch.no_grad():
        assert trainer.model(**batch).logits_per_text.argmax(-1).tolist() == list(range(8))
    ranking = af.tasks.zero_shot_image(tmp_path / "run", rows[2]["image"], labels=NAMES, template="number {}")
    assert ranking[0]["label"] == "three"
    losses = MATCH.losses(trainer.model.train(), batch)["loss"] / 8
    out = trainer.model(**batch, return_loss=True)
    assert torch.allclose(losses, out.loss) and float(out.aux_loss.detach()) > 0


def test_the_loss_is_the_published_one_as_a_sum(pairs: Beside, tmp_path: Path) -> None:
    trainer = setup(run(pairs), tmp_path / "run", device="cpu")
    records = [MATCH.encode(row.example, trainer.tokenizer) for row in pairs.rows(("image", "text"))]
    random = np.random.default_rng(1)
    batch = MATCH.collate([MATCH.vary(record, random) for record in records], trainer.tokenizer.filler)
    model = MATCH.module(trainer.model.eval())
    with torch.no_grad():
        out = model(**batch, return_loss=True)
        own = torch.arange(8)
        both = (F.cross_entropy(out.logits_per_text, own) + F.cross_entropy(out.logits_per_image, own)) / 2
        assert torch.allclose(out.loss, both)
        assert torch.allclose(MATCH.losses(model, batch)["loss"] / MATCH.weights(batch)["loss"], both)


def test_one_of_several_texts_is_drawn_and_ends(pairs: Beside, tmp_path: Path) -> None:
    tokenizer = setup(run(pairs), tmp_path / "run", device="cpu").tokenizer
    row = next(iter(pairs.rows(("image", "text")))).example
    record = MATCH.encode(row, tokenizer)
    assert record["lengths"].sum() == len(record["input_ids"])
    drawn = {tuple(MATCH.vary(record, np.random.default_rng(i))["input_ids"]) for i in range(20)}
    assert {tokenizer.decode([*ids[:-1]]) for ids in drawn} == {"one", "number one"}
    assert all(ids[-1] == tokenizer.eos_token_id for ids in drawn)
    cut = MATCH.replace(length=3).encode({**row, "text": "a long sentence of words"}, tokenizer)
    assert len(cut["input_ids"]) == 3 and cut["input_ids"][-1] == tokenizer.eos_token_id


def test_mistakes(pairs: Beside, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="MatchImage needs a model with two towers"):
        MATCH.module(af.build(spec().image))
    with pytest.raises(ValueError, match="images with 1 channels"):
        MATCH.replace(mean=(0.5,), std=(0.5,)).module(af.build(spec()))
    model = af.build(spec())
    ids, pixels = torch.tensor([[5, 6, 0]]), torch.zeros(1, 3, 8, 8)
    with pytest.raises(ValueError, match="missing input pixel_values.*model.text"):
        model(input_ids=ids)
    with pytest.raises(ValueError, match="missing input input_ids.*model.image"):
        model(pixel_values=pixels)
    with pytest.raises(ValueError, match="one text per image, got 2 texts and 1 images"):
        model(input_ids=ids.expand(2, 3), pixel_values=pixels, return_loss=True)
    with pytest.raises(ValueError, match="^image.head must be ProjectionHead"):
        spec().replace(image=spec().image.replace(head=None))
    (tmp_path / "short.jsonl").write_text('{"name": "one"}\n')
    short = pairs.replace(sources=(pairs.sources[0], JSONLines(path=str(tmp_path / "short.jsonl"))))
    with pytest.raises(ValueError, match="has fewer rows"):
        list(short.raw())
