"""Matching videos, sounds and texts: records, random draws, and a model that learns the task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from anyformer import families
from anyformer.data import Arrays, Beside, Data, JSONLines, TrainedBPE
from anyformer.models.construct import build
from anyformer.objectives.video import MatchVideo
from anyformer.parts.head.similarity import nearest_of_several
from anyformer.train.optim import AdamW, Constant
from anyformer.train.run import Batch, Run
from anyformer.train.start import setup

VATT = {
    "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 270,
    "max_position_embeddings": 12, "num_frames": 2, "frame_step": 1, "image_size": 8, "patch_size": 4,
    "segment_size": 20, "num_segments": 8, "audio_space": 8, "text_space": 8, "token_drop": 0.25,
    "initializer_range": 0.1, "temperature": 0.2,
}  # fmt: skip
MATCH = MatchVideo(image_size=(8, 8), frames=2, length=12, candidates=2)
NAMES = ["one", "two", "three", "four", "five", "six", "seven", "eight"]


@pytest.fixture
def clips(tmp_path: Path) -> Beside:
    random = np.random.default_rng(0)
    np.savez(
        tmp_path / "clips.npz", videos=random.integers(0, 256, (8, 3, 8, 8, 3), dtype=np.uint8),
        sounds=random.normal(size=(8, 160)).astype(np.float32) / 4, rates=np.full(8, 16000),
    )  # fmt: skip
    lines = [f'{{"text": ["{name}", "number {name}", "{name} again"]}}\n' for name in NAMES]
    (tmp_path / "texts.jsonl").write_text("".join(lines))
    fields = {"video": "videos", "audio": "sounds", "rate": "rates"}
    seen = Arrays(path=str(tmp_path / "clips.npz"), fields=fields)
    return Beside(sources=(seen, JSONLines(path=str(tmp_path / "texts.jsonl"))))


def run(clips: Any, **changes: Any) -> Run:
    settings: dict[str, Any] = {
        "name": "clips", "model": families.find("vatt").read(VATT), "data": Data(train=clips), "objective": MATCH,
        "steps": 80, "vocabulary": TrainedBPE(size=270), "batch": Batch(examples=8), "schedule": Constant(),
        "optimizer": AdamW(lr=1e-2), **changes,
    }  # fmt: skip
    return Run(**settings)


@pytest.mark.slow
def test_a_model_learns_which_belong_together(clips: Beside, tmp_path: Path) -> None:
    """The loss falls, and in both spaces each video is matched with its own sound or text (by chance: one in eight)."""
    trainer = setup(run(clips), tmp_path / "run", device="cpu")
    records = [MATCH.encode(row.example, trainer.tokenizer) for row in clips.rows(MATCH.columns)]
    batch = MATCH.collate(records, trainer.tokenizer.filler)
    model = trainer.model

    def judged() -> tuple[float, Any]:
        with torch.no_grad():
            out = model.eval()(**{name: batch[name] for name in model.inputs if name in batch}, return_loss=True)
        return float(out.loss), out

    before, out = judged()
    terms = MATCH.losses(model, batch)
    for name, sum_ in terms.items():
        assert torch.allclose(sum_, nearest_of_several(out[f"video_{name}_logits"]).sum(), atol=1e-4)
    trainer.fit()
    after, out = judged()
    assert after < before / 2
    assert (out.video_audio_logits.argmax(-1) == torch.arange(8)).sum() >= 7
    assert (out.video_text_logits.argmax(-1) // 2 == torch.arange(8)).sum() >= 7


def test_what_is_drawn(clips: Beside, tmp_path: Path) -> None:
    tokenizer = setup(run(clips), tmp_path / "run", device="cpu").tokenizer
    row = next(iter(clips.rows(MATCH.columns))).example
    record = MATCH.encode(row, tokenizer)
    frames = torch.from_numpy(record["pixels"]).view(3, 2, 8, 8)
    assert torch.equal(frames[:, 1], torch.from_numpy(np.asarray(row["video"][2])).permute(2, 0, 1))  # first and last
    drawn = {tuple(MATCH.vary(record, np.random.default_rng(i))["drawn"].tolist()) for i in range(30)}
    assert all(a != b for a, b in drawn) and len(drawn) == 6
    alone = MATCH.encode({**row, "text": "one", "audio": np.ones(120, np.float32)}, tokenizer)
    assert MATCH.vary(alone, np.random.default_rng(0))["drawn"].tolist() == [0, 0]
    batch = MATCH.collate([record, alone], tokenizer.filler)
    assert batch["pixel_values"].shape == (2, 3, 2, 8, 8) and batch["input_ids"].shape[0] == 4
    assert batch["audio_attention_mask"].sum(-1).tolist() == [160, 120]


def test_mistakes(clips: Beside, tmp_path: Path) -> None:
    model = build(families.find("vatt").read(VATT))
    with pytest.raises(ValueError, match="MatchVideo needs a model with three towers"):
        MATCH.module(model.video)
    with pytest.raises(ValueError, match="videos of .3, 4, 8, 8."):
        MATCH.replace(frames=4).module(model)
    tokenizer = setup(run(clips), tmp_path / "run", device="cpu").tokenizer
    row = next(iter(clips.rows(MATCH.columns))).example
    for change, match in (
        ({"video": []}, "'video' must be a list of images"), ({"video": "a.mp4"}, "'video' must be a list of images"),
        ({"text": []}, "must hold a list of texts"), ({"text": " "}, "none of them empty"),
        ({"audio": np.zeros(0, np.float32)}, "no samples"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=match):
            MATCH.encode({**row, **change}, tokenizer)
    for name in ("video", "audio", "text"):
        with pytest.raises(ValueError, match=f"no column '{name}'"):
            MATCH.encode({key: value for key, value in row.items() if key != name}, tokenizer)
