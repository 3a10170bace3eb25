"""Words for masks, compared with transformers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import anyformer as af

Folders = Callable[..., Path]
CLASSES = {"BertForMaskedLM": "[MASK]", "RobertaForMaskedLM": "<mask>", "DistilBertForMaskedLM": "[MASK]",
           "ElectraForMaskedLM": "[MASK]", "BartForConditionalGeneration": "<mask>",
           "LongformerForMaskedLM": "<mask>", "XLMRobertaForMaskedLM": "<mask>",
           "CamembertForMaskedLM": "<mask>"}  # fmt: skip


def same(ours: Any, theirs: Any) -> None:
    if isinstance(ours, list):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs):
            same(one, other)
        return
    assert ours.keys() == theirs.keys()
    assert ours["score"] == pytest.approx(theirs["score"], abs=1e-5)
    assert {**ours, "score": 0} == {**theirs, "score": 0}


@pytest.mark.parametrize("architecture", CLASSES)
def test_the_pipeline_says_the_same(folders: Folders, pipeline: Any, architecture: str) -> None:
    folder, mask = folders(architecture), CLASSES[architecture]
    texts = [f"The quick {mask} jumps over the lazy dog.", f"A {mask}", f"{mask} fox, {mask} dogs!"]
    theirs = pipeline("fill-mask", folder)
    ours = af.tasks.fill_mask(folder, texts)
    for text, found in zip(texts, ours, strict=True):
        same(found, theirs(text))
        same(af.tasks.fill_mask(folder, text), found)
    assert len(ours[0]) == 5 and [len(each) for each in ours[2]] == [5, 5]
    same(af.tasks.fill_mask(folder, texts[0], top_k=3), ours[0][:3])


def test_targets_are_the_only_words(folders: Folders, pipeline: Any) -> None:
    folder = folders("BertForMaskedLM")
    theirs = pipeline("fill-mask", folder)("The [MASK] says", targets=["dog", "fox", "the"], top_k=2)
    same(af.tasks.fill_mask(folder, "The [MASK] says", targets=["dog", "fox", "the", "dog"], top_k=2), theirs)
    for targets in (["zyzzyva"], [], "dog"):
        with pytest.raises(ValueError, match="target"):
            af.tasks.fill_mask(folder, "The [MASK] says", targets=targets)


def test_a_pretraining_model_fills_masks_too(folders: Folders) -> None:
    import transformers

    folder = folders("BertForPreTraining")
    model = transformers.BertForPreTraining.from_pretrained(folder)
    ids = transformers.AutoTokenizer.from_pretrained(folder)("The [MASK] says", return_tensors="pt")
    place = ids.input_ids[0].tolist().index(4)
    best = model(**ids).prediction_logits[0, place].detach().softmax(-1).max()
    found = af.tasks.fill_mask(folder, "The [MASK] says", top_k=1)
    assert found[0]["score"] == pytest.approx(float(best), abs=1e-5)


def test_mistakes(folders: Folders) -> None:
    folder = folders("BertForMaskedLM")
    with pytest.raises(ValueError, match=r"^there is no \[MASK\] in the text$"):
        af.tasks.fill_mask(folder, "The dog")
    with pytest.raises(ValueError, match=r"^the text has 62 tokens, and this model takes at most 48; truncate cuts it"):
        af.tasks.fill_mask(folder, "[MASK]" + " dog" * 59)
    assert len(af.tasks.fill_mask(folder, "[MASK]" + " dog" * 59, truncate=True)) == 5
    with pytest.raises(ValueError, match="no \\[MASK\\] in the text"):  # truncation removed it
        af.tasks.fill_mask(folder, "dog " * 59 + "[MASK]", truncate=True)
    with pytest.raises(ValueError, match="fill-mask needs a bidirectional model"):
        af.tasks.fill_mask(folders("GPT2LMHeadModel"), "A [MASK]")
    with pytest.raises(ValueError, match="this objective predicts tokens"):
        af.tasks.fill_mask(folders("BertForSequenceClassification"), "A [MASK]")
    with pytest.raises(ValueError, match="top_k is 0"):
        af.tasks.fill_mask(folder, "A [MASK]", top_k=0)
