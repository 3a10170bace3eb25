"""Published BERT folders with content that current classes do not write: old names, leftovers, a bias under two
names."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from cases.bert import CASES
from catalogue import Case, close, folder, make_inputs, ours, published
from safetensors.torch import load_file, save_file

import anyformer as af

BIASES = ("cls.predictions.bias", "cls.predictions.decoder.bias")
BY_ID = {case.id: case for case in CASES}


def with_values(case: Case, target: Path, change: Any) -> Path:
    """Return a copy of the published folder of a case with other tensors."""
    shutil.copytree(folder(case), target)
    tensors = load_file(target / "model.safetensors")
    save_file({k: v.clone() for k, v in change(tensors).items()}, target / "model.safetensors")
    return target


def test_old_names_and_leftovers(tmp_path) -> None:
    """bert-base-uncased is stored like this: LayerNorm.gamma and beta, a pooler, a next-sentence head, both biases."""
    case = BY_ID["BertForMaskedLM"]

    def age(tensors):
        out = {k.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): v
               for k, v in tensors.items()}  # fmt: skip
        out |= {"bert.pooler.dense.weight": torch.ones(32, 32), "bert.pooler.dense.bias": torch.ones(32)}
        out |= {"cls.seq_relationship.weight": torch.ones(2, 32), "cls.seq_relationship.bias": torch.ones(2)}
        out["bert.embeddings.position_ids"] = torch.arange(96)[None]
        out["cls.predictions.decoder.weight"] = out["bert.embeddings.word_embeddings.weight"]
        return {**out, "cls.predictions.decoder.bias": out["cls.predictions.bias"]}

    model, expected = af.load(with_values(case, tmp_path / "old", age)), ours(case).state_dict()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, expected[name]), name


@pytest.mark.parametrize("id", ["BertForMaskedLM", "BertForPreTraining", "BertForMaskedLM-untied"])
@pytest.mark.parametrize("name", ["cls.predictions.bias", "cls.predictions.decoder.bias"])
def test_the_output_bias_under_either_name(id: str, name: str, tmp_path) -> None:
    """Older files contain one of the two names, tied or not."""
    case = BY_ID[id]
    model, inputs = ours(case), make_inputs(case)
    bias = (model.head.lm if hasattr(model.head, "lm") else model.head).out.bias

    def move(tensors):
        return {**{k: v for k, v in tensors.items() if k not in BIASES}, name: bias.detach()}

    with torch.no_grad():
        close(af.load(with_values(case, tmp_path / "m", move))(**inputs)[0], published(case)[0](**inputs)[0])


@pytest.mark.parametrize("id", ["BertModel", "BertForSequenceClassification", "BertForNextSentencePrediction"])
def test_the_first_token_is_found_behind_pads(id: str) -> None:
    case = BY_ID[id]
    model, ids = ours(case), make_inputs(case)["input_ids"]
    field = "pooler_output" if id == "BertModel" else "logits"
    mask = torch.ones_like(ids)
    with torch.no_grad():
        plain = model(input_ids=ids)[field]
        padded = torch.cat((torch.zeros_like(ids), ids), dim=1)
        close(model(input_ids=padded, attention_mask=torch.cat((mask * 0, mask), dim=1))[field], plain)
