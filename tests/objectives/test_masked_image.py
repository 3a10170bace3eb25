"""Masked image modelling: masks, loss weights, and a model that learns the task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import anyformer as af
from anyformer.data import Arrays, Data
from anyformer.objectives.masked_image import MaskedImage
from anyformer.train.optim import AdamW
from anyformer.train.progress import Metrics, read_metrics
from anyformer.train.run import Batch, Run
from anyformer.train.start import setup

GREY = MaskedImage(image_size=(16, 16), mean=(0.3,), std=(0.4,), patch_size=(4, 4), share=0.5)
VIT = {
    "image_size": 16, "patch_size": 4, "num_channels": 1, "hidden_size": 16, "num_hidden_layers": 1,
    "num_attention_heads": 2, "intermediate_size": 24, "encoder_stride": 4,
}  # fmt: skip
SWIN = {
    "image_size": 16, "patch_size": 4, "num_channels": 1, "embed_dim": 8, "depths": [1, 2], "num_heads": [2, 2],
    "window_size": 2, "encoder_stride": 8, "drop_path_rate": 0.0,
}  # fmt: skip
MODELS = {"vit": ("ViTForMaskedImageModeling", VIT), "swin": ("SwinForMaskedImageModeling", SWIN)}


def spec(family: str, **changes: Any) -> Any:
    architecture, config = MODELS[family]
    return af.families.find(family).read({**config, **changes}, architecture)


def pictures(count: int) -> np.ndarray:
    """Images of one brightness each: the visible patches determine the masked ones."""
    return np.repeat(np.random.default_rng(0).integers(0, 256, (count, 1, 1), np.uint8), 16, 1).repeat(16, 2)


def test_squares_are_hidden_and_all_that_is_hidden_counts() -> None:
    for unit, squares in ((1, 16), (2, 4)):
        masked = GREY.replace(unit=unit)
        rows = [masked.encode({"image": each}, None) for each in pictures(30)]
        batch = masked.collate([masked.vary(row, np.random.default_rng(i)) for i, row in enumerate(rows)], 0)
        hidden = batch["bool_masked_pos"].view(30, 4, 4)
        assert (hidden.flatten(1).sum(1) == 8).all() and hidden.flatten(1).unique(dim=0).shape[0] > squares // 2
        whole = hidden.unflatten(1, (-1, unit)).unflatten(3, (-1, unit)).transpose(2, 3).flatten(3)
        assert (whole.all(-1) == whole.any(-1)).all()
        assert masked.weights(batch) == {"loss": 30 * 8 * 16.0}
        net = af.build(spec("vit"), seed=0).eval()
        net = masked.module(net)
        mean = masked.losses(net, batch)["loss"] / masked.weights(batch)["loss"]
        assert torch.allclose(mean, net(batch["pixel_values"], bool_masked_pos=batch["bool_masked_pos"]).loss)


@pytest.mark.parametrize("family", MODELS)
def test_what_is_hidden_is_learnt(family: str, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    np.savez(tmp_path / "some.npz", image=pictures(64))
    run = Run(
        name="hidden", model=spec(family), data=Data(train=Arrays(path=str(tmp_path / "some.npz"))), objective=GREY,
        optimizer=AdamW(lr=1e-2), batch=Batch(examples=32, micro=16), steps=60,
    )  # fmt: skip
    setup(run, tmp_path / "run", callbacks=[Metrics()]).fit()
    losses = [line["loss"] for line in read_metrics(tmp_path / "run") if "loss" in line]
    assert np.mean(losses[-5:]) < 0.5 * np.mean(losses[:5]), losses


def test_clear_errors() -> None:
    for changes, match in (({"unit": 3}, "do not divide"), ({"share": 1.0}, "share"), ({"unit": 0}, "unit")):
        with pytest.raises(ValueError, match=match):
            GREY.replace(**changes)
    with pytest.raises(ValueError, match=r"needs a model with a PixelHead"):
        GREY.module(af.build(af.families.find("vit").read(VIT)))
    with pytest.raises(ValueError, match=r"MaskedImage.patch_size is .* the model's is \(8, 8\)"):
        GREY.module(af.build(spec("vit", patch_size=8, encoder_stride=8)))
