"""MASS end to end: a small version of its named description learns to write the masked fragment."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import anyformer as af
from anyformer import families
from anyformer.objectives.mass import MASS

TEXTS = ("thank you for inviting me to your party last week", "the cat sat on the mat and the dog ran",
         "the dog sat on the mat and the cat ran last week", "thank you and the cat for inviting the dog")  # fmt: skip
SMALL = {"d_model": 32, **{f"{side}_{name}": n for side in ("encoder", "decoder")
         for name, n in (("layers", 2), ("ffn_dim", 64), ("attention_heads", 4))}}  # fmt: skip


def small(name: str, tokenizer: Any) -> Any:
    """Return the named description with a smaller width and vocabulary."""
    family = dict(families.names())[name]
    ids = {f"{n}_token_id": getattr(tokenizer, f"{n}_token_id") for n in ("pad", "bos", "eos")}
    ids |= {"decoder_start_token_id": tokenizer.eos_token_id, "vocab_size": len(tokenizer)}
    return family.read({**family.sizes[name].config, **ids, **SMALL})


@pytest.mark.parametrize(("name", "width", "published"), [("mass-base", 768, 123), ("mass-middle", 1024, 208)])
def test_counts(name: str, width: int, published: int) -> None:
    D, norm = width, 2 * width
    attention, feedforward = 4 * (D * D + D) + norm, 2 * 4 * D * D + 5 * D + norm
    sides = 2 * (514 * D + norm) + 6 * (attention + feedforward) + 6 * (2 * attention + feedforward)
    assert af.count(af.spec(name)).parameters == 30522 * D + sides
    assert (30522 * D + sides) // 10**6 == published


@pytest.mark.slow
def test_fragments_are_learnt(words: Any) -> None:
    objective = MASS(mask=1.0, random=0.0).ready(words)
    records = [objective.encode({"text": text}, words) for text in TEXTS]
    model = af.build(small("mass-base", words), seed=0)
    module, random = objective.module(model), np.random.default_rng(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def batch(seed: int) -> Any:
        random = np.random.default_rng(seed)
        return objective.collate([objective.vary(record, random) for record in records], words.pad_token_id)

    def loss(batch: Any) -> torch.Tensor:
        return objective.losses(module, batch)["loss"] / objective.weights(batch)["loss"]

    model.eval()
    with torch.no_grad():
        before = float(loss(batch(999)))
    model.train()
    for _ in range(150):
        optimizer.zero_grad()
        loss(batch(int(random.integers(1 << 30)))).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        held = batch(999)
        assert float(loss(held)) < before / 4
        # the decoder uses the positions: with other positions it writes other tokens
        moved = {**held, "decoder_position_ids": held["decoder_position_ids"] * 0}
        assert float(loss(moved)) > float(loss(held)) + 0.1
        # the decoder uses the source: without it the fragment is unknown
        empty = {**held, "input_ids": torch.full_like(held["input_ids"], words.mask_token_id)}
        assert float(loss(empty)) > float(loss(held)) + 0.1
