"""rxnmapper's ALBERT of chemical reactions [Schwaller et al. 2021]: 12 layers that share their weights."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer as af

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.real

# tokens of SMILES, split as in the package
TOKENS = re.compile(r"\[[^\]]+]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\(|\)|\.|=|#|-|\+|\\|/|:|~|@|\?|>>?|\*|\$|%\d\d|\d")
REACTIONS = ["CC(C)S.CN(C)C=O.Fc1cccnc1F>>CC(C)Sc1ncccc1F", "CCO.CC(=O)O>>CC(=O)OCC"]


@pytest.fixture(scope="module")
def source(fetched: Any) -> Path:
    (found,) = (fetched("rxnmapper==0.4.3") / "rxnmapper" / "models" / "transformers").iterdir()
    return found


@pytest.fixture(scope="module")
def folder(source: Path, unpickled: Any) -> Path:
    return unpickled(source)


def encode(folder: Path, text: str) -> list[int]:
    words = {word: i for i, word in enumerate((folder / "vocab.txt").read_text().split("\n"))}
    return [words["[CLS]"], *(words[token] for token in TOKENS.findall(text)), words["[SEP]"]]


def test_equal_to_transformers(folder: Path, source: Path) -> None:
    ours: Any = af.load(folder)
    theirs, report = transformers.AlbertForMaskedLM.from_pretrained(source, output_loading_info=True)
    assert not report["missing_keys"]
    for reaction in REACTIONS:
        ids = torch.tensor([encode(folder, reaction)])
        with torch.no_grad():
            a = ours(input_ids=ids, output_hidden_states=True)
            b = theirs(input_ids=ids, output_hidden_states=True)
        assert float((a.logits - b.logits).abs().max()) < 1e-4 * float(b.logits.abs().max())
        assert len(a.hidden_states) == 13
        for x, y in zip(a.hidden_states, b.hidden_states, strict=True):
            assert float((x - y).abs().max()) < 1e-4


def test_it_knows_chemistry(folder: Path) -> None:
    """The model predicts most tokens of a reaction correctly if each is masked in turn."""
    model: Any = af.load(folder)
    words = (folder / "vocab.txt").read_text().split("\n")
    right = total = 0
    for reaction in REACTIONS:
        ids = torch.tensor(encode(folder, reaction))
        inside = torch.arange(1, len(ids) - 1)
        rows = ids.repeat(len(inside), 1)
        rows[torch.arange(len(inside)), inside] = words.index("[MASK]")
        with torch.no_grad():
            best = model(input_ids=rows).logits[torch.arange(len(inside)), inside].argmax(-1)
        right, total = right + int((best == ids[inside]).sum()), total + len(inside)
    assert right / total > 0.8, f"{right} of {total}"


def test_every_field_of_its_config_survives(source: Path, folder: Path) -> None:
    before, after = (json.loads((each / "config.json").read_text()) for each in (source, folder))
    assert {name: after.get(name) for name in before} == before
