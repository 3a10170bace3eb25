"""Masked spans of clips: records, random draws, sums of the loss, and a model that learns the task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from anyformer import families
from anyformer.data import Arrays, Beside, Data, JSONLines, TrainedBPE
from anyformer.models.construct import build
from anyformer.objectives.heads import model_inputs
from anyformer.objectives.hidden_spans import HiddenSpans
from anyformer.train.optim import AdamW, Constant
from anyformer.train.run import Batch, Run
from anyformer.train.start import setup

RESERVE = {
    "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32, "num_hidden_layers": 1, "num_image_layers": 1,
    "num_audio_layers": 1, "num_span_layers": 1, "vocab_size": 270, "projection_dim": 8, "max_position_embeddings": 64,
    "image_size": 8, "patch_size": 4, "segment_size": 20, "num_segments": 2, "initializer_range": 0.1,
    "image_token_index": 266, "audio_token_index": 267, "text_mask_index": 268, "audio_mask_index": 269,
}  # fmt: skip
HIDDEN = HiddenSpans(image_size=(8, 8), samples=40, patches=4, segments=2, places=(266, 267, 268, 269), hidden=0.4)
WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight"]


@pytest.fixture
def clips(tmp_path: Path) -> Beside:
    """Eight clips of three segments, with matching frames, sounds and texts."""
    random = np.random.default_rng(0)
    np.savez(
        tmp_path / "clips.npz", frames=random.integers(0, 256, (8, 3, 8, 8, 3), dtype=np.uint8),
        sounds=random.normal(size=(8, 120)).astype(np.float32) / 4, rates=np.full(8, 16000),
    )  # fmt: skip
    lines = [f'{{"texts": ["{word} first", "then {word}", "{word} last"]}}\n' for word in WORDS]
    (tmp_path / "texts.jsonl").write_text("".join(lines))
    fields = {"frames": "frames", "audio": "sounds", "rate": "rates"}
    seen = Arrays(path=str(tmp_path / "clips.npz"), fields=fields)
    return Beside(sources=(seen, JSONLines(path=str(tmp_path / "texts.jsonl"))))


def run(clips: Any, **changes: Any) -> Run:
    settings: dict[str, Any] = {
        "name": "clips", "model": families.find("reserve").read(RESERVE), "data": Data(train=clips),
        "objective": HIDDEN, "steps": 100, "vocabulary": TrainedBPE(size=266), "batch": Batch(examples=8),
        "schedule": Constant(), "optimizer": AdamW(lr=5e-3), **changes,
    }  # fmt: skip
    return Run(**settings)


@pytest.mark.slow
def test_a_model_learns_what_was_hidden(clips: Beside, tmp_path: Path) -> None:
    """The loss falls, and masked texts and sounds are identified more than twice as often as by chance."""
    trainer = setup(run(clips), tmp_path / "run", device="cpu")
    records = [HIDDEN.encode(row.example, trainer.tokenizer) for row in clips.rows(HIDDEN.columns)]
    model = trainer.model

    def judged() -> tuple[float, float, float]:
        """Return the loss, the accuracy and the accuracy by chance."""
        losses, right, number, chance = [], 0, 0, 0.0
        for seed in range(6):
            random = np.random.default_rng(seed)
            batch = HIDDEN.collate([HIDDEN.vary(record, random) for record in records], trainer.tokenizer.filler)
            with torch.no_grad():
                out = model.eval()(**model_inputs(model, batch), return_loss=True)
                sums, over = HIDDEN.losses(model, batch), HIDDEN.weights(batch)
            assert float(sum(sums[name] / over[name] for name in sums)) == pytest.approx(float(out.loss), abs=1e-4)
            losses.append(float(out.loss))
            for scores in (out.text_span_logits, out.audio_span_logits):
                right += int((scores.argmax(-1) == torch.arange(len(scores))).sum())
                number, chance = number + len(scores), chance + 1
        return float(np.mean(losses)), right / number, chance / number

    before = judged()
    trainer.fit()
    after = judged()
    assert after[0] < 0.6 * before[0] and after[1] > 2 * after[2], (before, after)


def test_what_is_drawn(clips: Beside, tmp_path: Path) -> None:
    tokenizer = setup(run(clips), tmp_path / "run", device="cpu").tokenizer
    row = next(iter(clips.rows(HIDDEN.columns))).example
    record = HIDDEN.encode(row, tokenizer)
    assert np.allclose(record["samples"], row["audio"], atol=1e-4) and record["pixels"].size == 3 * 3 * 8 * 8
    drawn = [HIDDEN.vary(record, np.random.default_rng(i))["kinds"] for i in range(60)]
    assert {kind for kinds in drawn for kind in kinds.tolist()} == {0, 1, 2, 3}
    assert {int((kinds > 1).sum()) for kinds in drawn} == {1, 2}  # 0.4 of three segments
    texts = np.split(record["input_ids"], record["lengths"].cumsum()[:-1])
    batch = HIDDEN.collate([{**record, "kinds": np.asarray([2, 1, 3])}, {**record, "kinds": np.asarray([0, 2, 1])}], 1)
    first = [266] * 4 + [268] + [266] * 4 + [267] * 2 + [266] * 4 + [269]
    second = [266] * 4 + texts[0].tolist() + [266] * 4 + [268] + [266] * 4 + [267] * 2
    for ids, mask, wanted in zip(batch["input_ids"], batch["attention_mask"], (first, second), strict=True):
        assert ids[mask.bool()].tolist() == wanted
    assert batch["pixel_values"].shape == (6, 3, 8, 8)
    for i, text in enumerate((texts[0], texts[1])):
        assert batch["hidden_ids"][i, : len(text)].tolist() == text.tolist()
    sounds = torch.from_numpy(record["samples"]).view(3, 40)
    assert torch.equal(batch["hidden_values"], sounds[2:]) and torch.equal(batch["input_values"], sounds[[1, 2]])


def test_mistakes(clips: Beside, tmp_path: Path) -> None:
    model = build(families.find("reserve").read(RESERVE))
    with pytest.raises(ValueError, match="hidden spans need an encoder with towers and span encoders"):
        HIDDEN.module(model.image.model)
    with pytest.raises(ValueError, match="HiddenSpans.segments is 3, but the model's is 2"):
        HIDDEN.replace(segments=3).module(model)
    with pytest.raises(ValueError, match="HiddenSpans.places is .* but the model's is .266, 267, 268, 269."):
        HIDDEN.replace(places=(1, 2, 3, 4)).module(model)
    with pytest.raises(ValueError, match="HiddenSpans .* four different places"):
        HIDDEN.replace(places=(1, 1, 3, 4))
    tokenizer = setup(run(clips), tmp_path / "run", device="cpu").tokenizer
    row = next(iter(clips.rows(HIDDEN.columns))).example
    for change, match in (
        ({"frames": 3}, "column 'frames' must be a list of images"), ({"texts": ["one"]}, "3 frames and 1 texts"),
        ({"texts": ["a", "b", " "]}, "column 'texts' contains an empty text"),
        ({"audio": np.zeros(100, np.float32)}, "100 samples, fewer than 3 segments of 40"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=match):
            HIDDEN.encode({**row, **change}, tokenizer)
