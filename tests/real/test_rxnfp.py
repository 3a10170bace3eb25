"""rxnfp's BERTs of chemical reactions [Schwaller et al. 2021]: configs of 2019, two without a model_type and one with
50 labels but only two label names; pickles from before torch 1.6."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer as af

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.real

IDS = torch.tensor([[12, 20, 31, 45, 16, 20, 99, 13], [12, 31, 31, 44, 17, 21, 98, 13]])


@pytest.fixture(scope="module")
def models(fetched: Any) -> Path:
    return fetched("rxnfp==0.1.0") / "rxnfp" / "models" / "transformers"


@pytest.mark.parametrize(
    ("name", "architecture", "flags"),
    [("bert_pretrained", "BertForPreTraining", ()), ("bert_ft_10k_25s", "BertForSequenceClassification", ()),
     ("bert_ft", "BertModel", ("--architecture", "BertModel"))],
)  # fmt: skip
def test_equal_to_transformers(models: Path, unpickled: Any, name: str, architecture: str, flags: Any) -> None:
    ours = af.load(unpickled(models / name, *flags))
    assert ours.spec.architecture == architecture
    theirs, report = getattr(transformers, architecture).from_pretrained(models / name, output_loading_info=True)
    assert not report["missing_keys"] and not report["mismatched_keys"]
    mask = torch.ones_like(IDS)
    mask[1, 5:] = 0
    with torch.no_grad():
        a = ours(input_ids=IDS, attention_mask=mask, output_hidden_states=True)
        b = theirs(input_ids=IDS, attention_mask=mask, output_hidden_states=True)
    for field, value in b.items():
        pairs = zip(a[field], value, strict=True) if isinstance(value, tuple) else [(a[field], value)]
        for x, y in pairs:
            assert x.shape == y.shape and float((x - y).abs().max()) < 1e-4 * max(1.0, float(y.abs().max())), field


def test_a_body_alone_may_be_of_two_families(models: Path, tmp_path: Path, capsys: Any) -> None:
    from anyformer import cli

    assert cli.main(["convert", str(models / "bert_ft"), str(tmp_path / "out"), "--unpickle"]) == 2
    line = capsys.readouterr().err
    assert "BertModel and RobertaModel" in line and "architecture='BertModel'" in line and line.count("\n") == 1
    assert not list(tmp_path.iterdir())
