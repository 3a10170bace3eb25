"""Answers as spans of a text, compared with SQuAD's published procedure on transformers' model and tokenizer."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import anyformer as af
from anyformer.data import TrainedBPE
from vocabularies import WORDS

Folders = Callable[..., Path]
QUESTION = "What jumps over the dog?"
CONTEXT = "The quick brown fox jumps over the lazy dog. It's a naïve café, isn't it?"
LONG = WORDS  # no part of it is repeated


@functools.cache
def opened(folder: Path) -> Any:
    import transformers

    model = transformers.AutoModelForQuestionAnswering.from_pretrained(folder).eval()
    return transformers.AutoTokenizer.from_pretrained(folder), model


def expected(folder: Path, context: str, length: int, stride: int, most: int = 30) -> tuple[list[Any], float]:
    """[(score, start, end)] of all windows, best first, and the score of no answer. Every token is tried as a start
    and an end among the twenty likeliest of each, as in the published script."""
    tokenizer, model = opened(folder)
    windows = tokenizer(
        QUESTION, context, truncation="only_second", max_length=length, stride=stride, return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )  # fmt: skip
    best: dict[tuple[int, int], float] = {}
    none = np.inf
    for i in range(len(windows["input_ids"])):
        row = {k: torch.tensor([windows[k][i]]) for k in ("input_ids", "token_type_ids") if k in windows}
        with torch.no_grad():
            out = model(**row)
        start, end = out.start_logits[0].numpy(), out.end_logits[0].numpy()
        none = min(none, start[0] + end[0])
        places, offsets = windows.sequence_ids(i), windows["offset_mapping"][i]
        for a in np.argsort(-start)[:20]:
            for b in np.argsort(-end)[:20]:
                if places[a] == places[b] == 1 and a <= b < a + most and offsets[b][1] > offsets[a][0]:
                    span = (offsets[a][0], offsets[b][1])
                    best[span] = max(best.get(span, -np.inf), float(start[a] + end[b]))
    return sorted(((score, *span) for span, score in best.items()), reverse=True), float(none)


@pytest.mark.parametrize("architecture", [f"{name}ForQuestionAnswering" for name in ("Bert", "Roberta", "Bart")])
@pytest.mark.parametrize(("context", "options"), [
    (CONTEXT, {}), (LONG, {}), (LONG, {"length": 32, "stride": 4}), (LONG, {"max_answer_tokens": 2}),
])  # fmt: skip
def test_the_published_procedure_says_the_same(
    folders: Folders, architecture: str, context: str, options: dict[str, int]
) -> None:
    folder = folders(architecture)
    wanted, none = expected(
        folder, context, options.get("length", 48), options.get("stride", 16), options.get("max_answer_tokens", 30)
    )
    found = af.tasks.answer(folder, {"question": QUESTION, "context": context}, top_k=20, **options)
    scores = torch.tensor([score for score, _, _ in wanted[:20]]).softmax(0).tolist()
    assert [(one["start"], one["end"]) for one in found] == [(start, end) for _, start, end in wanted[:20]]
    assert [one["score"] for one in found] == pytest.approx(scores, abs=1e-5)
    assert [one["no_answer"] for one in found] == pytest.approx([none - s for s, _, _ in wanted[:20]], abs=1e-4)
    assert all(one["answer"] == context[one["start"] : one["end"]] for one in found)


def test_an_answer_of_our_own_vocabulary_starts_at_its_word(folders: Folders, tmp_path: Path) -> None:
    """Its tokens begin with the space before a word."""
    folder = shutil.copytree(folders("RobertaForQuestionAnswering"), tmp_path / "model")
    for name in ("vocab.json", "merges.txt", "tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink(missing_ok=True)
    TrainedBPE(size=400, special={"cls_token": "<s>", "sep_token": "</s>"}).make([LONG], folder)
    found = af.tasks.answer(folder, {"question": QUESTION, "context": CONTEXT}, top_k=20)
    assert len(found) > 5 and any(one["start"] for one in found)
    for one in found:
        assert one["answer"] == CONTEXT[one["start"] : one["end"]] == one["answer"].lstrip(" ")


def test_a_threshold_lets_there_be_no_answer(folders: Folders) -> None:
    folder = folders("BertForQuestionAnswering")
    given = {"question": QUESTION, "context": LONG}
    (best,) = af.tasks.answer(folder, given)
    assert af.tasks.answer(folder, given, threshold=best["no_answer"] + 0.1) == [best]
    none, second = af.tasks.answer(folder, given, threshold=best["no_answer"] - 0.1, top_k=2)
    assert (none["answer"], none["start"], none["end"], none["no_answer"]) == ("", 0, 0, 0)
    assert {**second, "score": 0} == {**best, "score": 0}


def test_many_at_once(folders: Folders) -> None:
    folder = folders("BertForQuestionAnswering")
    rows = [{"question": QUESTION, "context": text} for text in (LONG, CONTEXT, "A dog")]
    together = af.tasks.answer(folder, rows, batch=3)
    for row, found in zip(rows, together, strict=True):
        (alone,) = af.tasks.answer(folder, row)
        close = {name: pytest.approx(alone[name], abs=1e-5) for name in ("score", "no_answer")}
        assert found == [{**alone, **close}]


def test_mistakes(folders: Folders) -> None:
    folder = folders("BertForQuestionAnswering")
    with pytest.raises(ValueError, match="^answer needs question and context, but context is missing$"):
        af.tasks.answer(folder, "What jumps?")
    with pytest.raises(ValueError, match="^context is empty$"):
        af.tasks.answer(folder, {"question": "What jumps?", "context": " \n"})
    with pytest.raises(ValueError, match="^context is list, not text$"):
        af.tasks.answer(folder, {"question": "What jumps?", "context": ["a"]})
    with pytest.raises(ValueError, match="^the question and stride=16 leave no room for a text in 48 tokens$"):
        af.tasks.answer(folder, {"question": "dog " * 40, "context": "a"})
    with pytest.raises(ValueError, match="^length is 60, and this model takes at most 48 tokens$"):
        af.tasks.answer(folder, {"question": "a", "context": "a"}, length=60)
    with pytest.raises(ValueError, match="^stride is 47, and a window has 48 tokens$"):
        af.tasks.answer(folder, {"question": "a", "context": "a"}, stride=47)
    with pytest.raises(ValueError, match="top_k is 0"):
        af.tasks.answer(folder, {"question": "a", "context": "a"}, top_k=0)
    with pytest.raises(ValueError, match="needs a model with a SpanHead"):
        af.tasks.answer(folders("BertForMaskedLM"), {"question": "a", "context": "a"})
