"""Fine-tuning: labels of texts, pairs and words, numbers, spans, choices; each loss against that of the head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import anyformer as af
from anyformer import families
from anyformer.data import Bytes, TrainedBPE, TrainedUnigram
from anyformer.objectives.answer import Answer, best_spans
from anyformer.objectives.batches import Batch
from anyformer.objectives.choose import Choose
from anyformer.objectives.classify import Classify
from anyformer.objectives.heads import forward_to_head
from anyformer.objectives.objective import Objective
from anyformer.objectives.tag import Tag, word_tokens
from small import close
from tiny import CONFIGS

TEXTS = ["The quick brown fox jumps.", "It's a lazy dog, isn't it?", "They're 42 dogs and foxes transforming"]


def model_for(architecture: str, family: str = "bert", **more: Any) -> Any:
    config = {**CONFIGS[family], "vocab_size": 400, "architectures": [architecture], **more}
    config |= {"max_position_embeddings": 64} if family == "bert" else {}
    model = af.build(families.find(family).read(config), seed=0).eval()
    with torch.no_grad():  # new heads start near zero
        for name, parameter in model.named_parameters():
            if name.startswith("head."):
                parameter.normal_(generator=torch.Generator().manual_seed(3))
    return model


def labels(number: int) -> dict[str, Any]:
    return {"id2label": {i: f"L{i}" for i in range(number)}, "label2id": {f"L{i}": i for i in range(number)}}


def is_the_heads(objective: Objective, model: Any, batch: Batch, tolerance: float = 1e-5) -> None:
    """sum / weight equals the published head's loss of the batch, and the weight equals the head's."""
    right = model(**{name: value for name, value in batch.items() if name in model.inputs}).loss
    (loss,), (weight,) = objective.losses(objective.module(model), batch).values(), objective.weights(batch).values()
    close(loss / weight, right, tolerance)
    states = forward_to_head(model, batch)
    assert {float(term.weight) for term in model.head.losses(states.x, states.ctx, states.inputs).values()} == {weight}


# -- one label or number per text -------------------------------------------------------------------------------------


def test_single_sentences(bert: Any) -> None:
    objective = Classify(labels=("bad", "fair", "good"))
    examples = [{"text": t, "label": y} for t, y in zip(TEXTS, ("good", 0, "1"))]  # by name, by index, by index as text
    records = [objective.encode(example, bert) for example in examples]
    assert [int(record["label"]) for record in records] == [2, 0, 1]
    assert records[0]["input_ids"].tolist() == bert.encode(TEXTS[0]) and "token_type_ids" not in records[0]
    batch = objective.collate(records, bert.pad_token_id)
    assert objective.weights(batch) == {"loss": 3}
    is_the_heads(objective, model_for("BertForSequenceClassification", **labels(3)), batch)


def test_pairs_with_segments(bert: Any) -> None:
    objective = Classify(labels=("no", "yes"), pair=True, length=20)
    assert objective.columns == ("text", "pair", "label")
    record = objective.encode({"text": TEXTS[0] * 5, "pair": TEXTS[1], "label": "yes"}, bert)
    tokenizer = bert.batch([TEXTS[0] * 5], [TEXTS[1]], max_length=20)
    assert record["input_ids"].tolist() == tokenizer["input_ids"][0].tolist() and len(record["input_ids"]) == 20
    assert record["token_type_ids"].tolist() == tokenizer["token_type_ids"][0].tolist()
    assert sorted(set(record["token_type_ids"])) == [0, 1]
    short = objective.encode({"text": "fox", "pair": "dog", "label": 0}, bert)
    batch = objective.collate([record, short], bert.pad_token_id)
    is_the_heads(objective, model_for("BertForSequenceClassification", **labels(2)), batch)


def test_a_decoder_reads_pairs_without_segments(gpt2: Any) -> None:
    objective = Classify(labels=("no", "yes"), pair=True)
    model = model_for("GPT2ForSequenceClassification", "gpt2", n_positions=64, pad_token_id=0, **labels(2))
    batch = objective.collate([objective.encode({"text": t, "pair": "fox", "label": 1}, gpt2) for t in TEXTS], 0)
    inputs = {name: value for name, value in batch.items() if name != "token_type_ids"}
    loss = objective.losses(objective.module(model), batch)["loss"]
    close(loss / 3, model(**inputs).loss, 1e-5)


def test_numbers(bert: Any) -> None:
    objective = Classify(pair=True, low=0.0, high=5.0)
    examples = [{"text": t, "pair": "a fox", "label": y} for t, y in zip(TEXTS, ("3.25", 5, 0.0))]
    batch = objective.collate([objective.encode(example, bert) for example in examples], bert.pad_token_id)
    assert batch["labels"].tolist() == [3.25, 5, 0]
    is_the_heads(objective, model_for("BertForSequenceClassification", **labels(1)), batch)


@pytest.mark.parametrize(("objective", "label", "why"), [
    (Classify(labels=("a", "b")), 2, "label 2 is outside 0..1"),
    (Classify(labels=("a", "b")), -1, "label -1 is outside 0..1"),
    (Classify(labels=("no", "yes")), "yess", "label 'yess' is not known; did you mean 'yes'"),
    (Classify(labels=("a", "b")), 0.5, "label 0.5 is not known"),
    (Classify(labels=("a", "b")), None, "label None is not known"),
    (Classify(labels=("a", "b")), float("inf"), "label inf is not known"),
    (Classify(low=0.0, high=5.0), 5.5, "5.5 is outside 0.0 to 5.0"),
    (Classify(), "many", "'many' is not a number"),
    (Classify(), "nan", "nan is outside"),
])  # fmt: skip
def test_a_label_outside_is_one_line(objective: Objective, label: Any, why: str, bert: Any) -> None:
    with pytest.raises(ValueError, match=why):
        objective.encode({"text": "fox", "label": label}, bert)


def test_heads_that_do_not_fit_are_one_line() -> None:
    model = model_for("BertForSequenceClassification", **labels(3))
    with pytest.raises(ValueError, match="2 labels in the objective, 3 in the model"):
        Classify(labels=("a", "b")).module(model)
    numbers = model_for("BertForSequenceClassification", problem_type="regression", **labels(3))
    with pytest.raises(ValueError, match="head.problem is 'regression', but the objective is 'single_label_cla"):
        Classify(labels=("a", "b", "c")).module(numbers)
    with pytest.raises(ValueError, match="needs a model with a TagHead; this one has ClassifyHead"):
        Tag(labels=("a", "b")).module(model)
    with pytest.raises(ValueError, match="needs a model with a SpanHead"):
        Answer().module(model)
    with pytest.raises(ValueError, match="needs a model with a MultipleChoiceHead"):
        Choose(choices=2).module(model)
    for wrong in ({"labels": ("a",)}, {"labels": ("a", "a")}, {"labels": ("a", "b"), "low": 0.0}):
        with pytest.raises(ValueError, match="Classify"):
            Classify(**wrong)


# -- one label per word ------------------------------------------------------------------------------------------------

WORDS, TAGS = ["transforming", "foxes", "in", "O'Hare", ",", "Café", "x"], ["B", "I", "O", "B", "O", "B", "O"]


@pytest.mark.parametrize("every", [False, True])
def test_words_to_tokens(every: bool, bert: Any) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.BertTokenizerFast.from_pretrained(bert.folder)(WORDS, is_split_into_words=True)
    record = Tag(labels=("O", "B", "I"), every=every).encode({"words": WORDS, "tags": TAGS}, bert)
    assert record["input_ids"].tolist() == theirs["input_ids"]
    right, before = [], None
    for word in theirs.word_ids():
        asked = word is not None and (every or word != before)
        right.append("OBI".index(TAGS[word]) if asked else -100)
        before = word
    assert record["labels"].tolist() == right
    assert len(record["labels"]) > len(WORDS) + 2  # some words have several tokens


def test_words_of_a_byte_level_vocabulary(gpt2: Any) -> None:
    ids, places = word_tokens(WORDS, gpt2)
    assert gpt2.decode(ids) == " ".join(WORDS)
    for i, word in enumerate(WORDS):
        assert gpt2.decode(ids[places == i]).strip() == word


def test_tagging_loss(bert: Any) -> None:
    objective = Tag(labels=("O", "B", "I"))
    examples = [{"words": WORDS, "tags": TAGS}, {"words": "a quick fox", "tags": "O O B"}]
    batch = objective.collate([objective.encode(example, bert) for example in examples], bert.pad_token_id)
    assert objective.weights(batch) == {"loss": len(WORDS) + 3}
    is_the_heads(objective, model_for("BertForTokenClassification", **labels(3)), batch)


@pytest.mark.parametrize(("example", "why"), [
    ({"words": ["a"], "tags": ["O", "O"]}, "1 words and 2 tags"),
    ({"words": ["a"], "tags": ["Q"]}, "label 'Q' is not known"),
    ({"words": ["a"], "tags": [3]}, "label 3 is outside 0..2"),
    ({"words": [], "tags": []}, "'words' is empty"),
    ({"words": 3, "tags": []}, "holds int"),
])  # fmt: skip
def test_tagging_mistakes(example: dict[str, Any], why: str, bert: Any) -> None:
    with pytest.raises(ValueError, match=why):
        Tag(labels=("O", "B", "I")).encode(example, bert)


# -- spans ------------------------------------------------------------------------------------------------------------

CONTEXT = "The quick brown fox jumps over the lazy dog. It's a naïve café in the woods, isn't it? " * 3
QUESTION = "Where is the café?"
SMALL = Answer(length=32, stride=8, question_length=10)


def test_windows_are_those_of_transformers(bert: Any) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.BertTokenizerFast.from_pretrained(bert.folder)
    theirs = tokenizer(
        QUESTION, CONTEXT, truncation="only_second", max_length=32, stride=8, return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )  # fmt: skip
    windows = SMALL.windows(QUESTION, CONTEXT, bert)
    assert len(windows) > 3
    assert [window.ids for window in windows] == theirs["input_ids"]
    assert [window.type_ids for window in windows] == theirs["token_type_ids"]
    assert [[tuple(pair) for pair in window.offsets] for window in windows] == theirs["offset_mapping"]


def test_every_window_points_at_the_answer_or_at_its_first_token(bert: Any) -> None:
    text = "in the woods"
    start = CONTEXT.index(text, 100)
    example = {"question": QUESTION, "context": CONTEXT, "answers": {"text": [text], "answer_start": [start]}}
    windows, records = SMALL.windows(QUESTION, CONTEXT, bert), SMALL.encode(example, bert)
    assert max(len(record["input_ids"]) for record in records) <= 32
    held = 0
    for window, record in zip(windows, records, strict=True):
        own = [span for span, sequence in zip(window.offsets, window.sequence_ids) if sequence == 1]
        first, last = int(record["start"]), int(record["end"])
        if own[0][0] <= start and start + len(text) <= own[-1][1]:
            held += 1
            assert CONTEXT[window.offsets[first][0] : window.offsets[last][1]] == text
        else:
            assert first == last == 0
    assert 0 < held < len(records)


def test_answers_in_each_form(bert: Any) -> None:
    context, question = "A fox jumps over the lazy dog .", "What jumps ?"

    def span(**more: Any) -> tuple[int, int]:
        (record,) = SMALL.encode({"question": question, "context": context, **more}, bert)
        return int(record["start"]), int(record["end"])

    forms = [{"answers": {"text": ["fox", "A fox"], "answer_start": [2, 0]}},
             {"answers": [{"text": "fox", "answer_start": 2}]}, {"answers": "fox", "answer_start": 2},
             {"answers": "fox", "start_token": 1, "end_token": 1}, {"answers": "fox"}]  # fmt: skip
    found = {span(**form) for form in forms}
    assert len(found) == 1 and found != {(0, 0)}
    for none in ({"answers": {"text": [], "answer_start": []}}, {"answers": []}, {"answers": ""}):
        assert span(**none) == (0, 0)
    for wrong, why in [({"answers": [{"text": "fox", "answer_start": 3}]}, "'fox' is not at character 3"),
                       ({"answers": "fox", "start_token": 7, "end_token": 9}, "start_token 7 and end_token 9 .* 8"),
                       ({"answers": 3}, "holds int"), ({"answers": "wolf"}, "'wolf' is not in the")]:  # fmt: skip
        with pytest.raises(ValueError, match=why):
            span(**wrong)


def test_span_loss_and_best_spans(bert: Any) -> None:
    text = "in the woods"
    answers = [{"text": text, "answer_start": CONTEXT.index(text)}]
    example = {"question": QUESTION, "context": CONTEXT, "answers": answers}
    batch = SMALL.collate(SMALL.encode(example, bert), bert.pad_token_id)
    is_the_heads(SMALL, model_for("BertForQuestionAnswering"), batch)
    (window, *_) = SMALL.windows(QUESTION, CONTEXT, bert)
    start, end = torch.zeros(len(window.ids)), torch.zeros(len(window.ids))
    start[12], end[14], start[2], end[10] = 5.0, 5.0, 9.0, 9.0  # 2 is in the question, 10 before 12
    score, first, last = best_spans(start, end, window, CONTEXT)[0]
    assert score == 10.0 and (first, last) == (window.offsets[12][0], window.offsets[14][1])
    start[0] = end[0] = 6.0
    assert best_spans(start, end, window, CONTEXT)[0] == (12.0, 0, 0)


@pytest.mark.parametrize(
    "vocabulary", [TrainedBPE(size=400), Bytes(), TrainedUnigram(size=60)], ids=lambda part: type(part).__name__
)
def test_a_span_starts_at_its_word(vocabulary: Any, tmp_path: Path) -> None:
    """Tokens of these vocabularies begin with the space before a word, or are only a space."""
    tokenizer = vocabulary.make([CONTEXT, QUESTION], tmp_path)
    context, text = "Foxes jump over the lazy dog, over  the woods \n and the café.", "the woods"
    at = context.index(text)
    example = {"question": QUESTION, "context": context, "answers": [{"text": text, "answer_start": at}]}
    objective = Answer(length=200, stride=8, question_length=40)
    ((window,), (record,)) = objective.windows(QUESTION, context, tokenizer), objective.encode(example, tokenizer)
    first, last = int(record["start"]), int(record["end"])
    start, end = torch.zeros(2, len(window.ids))
    start[first], end[last] = 5.0, 5.0
    assert best_spans(start, end, window, context, most=40)[0] == (10.0, at, at + len(text))
    # a model may choose a space before the word, or only spaces
    own = [i for i, sequence in enumerate(window.sequence_ids) if sequence == 1]
    before = next(i for i in own if window.offsets[i][1] >= at - 1)
    start[before] = 6.0
    assert best_spans(start, end, window, context, most=40)[0][1] <= at
    for _, low, high in best_spans(start, end, window, context, most=40):
        assert low == high or context[low] != " "


def test_windows_need_room(bert: Any) -> None:
    with pytest.raises(ValueError, match="leave no room"):
        Answer(length=100, stride=90, question_length=20)
    with pytest.raises(ValueError, match="'context' is empty"):
        SMALL.encode({"question": "a?", "context": "", "answers": []}, bert)
    long = SMALL.windows("fox " * 50, CONTEXT, bert)
    assert sum(sequence == 0 for sequence in long[0].sequence_ids) == 10


# -- choices ----------------------------------------------------------------------------------------------------------


def test_choices(bert: Any) -> None:
    objective = Choose(choices=3, length=24)
    examples = [{"text": text, "choices": ["fox", "a lazy dog", text], "label": y} for text, y in zip(TEXTS, (2, 0, 1))]
    records = [objective.encode(example, bert) for example in examples]
    assert objective.size(records[0]) <= 24 < len(records[0]["input_ids"])
    batch = objective.collate(records, bert.pad_token_id)
    B, C, T = batch["input_ids"].shape
    assert (B, C) == (3, 3) and batch["attention_mask"].shape == (B, C, T)
    row = bert.batch([TEXTS[1]], ["a lazy dog"], max_length=24)
    size = row["input_ids"].shape[1]
    assert batch["input_ids"][1, 1, :size].tolist() == row["input_ids"][0].tolist()
    assert batch["token_type_ids"][1, 1, :size].tolist() == row["token_type_ids"][0].tolist()
    assert objective.weights(batch) == {"loss": 3}
    is_the_heads(objective, model_for("BertForMultipleChoice"), batch)


@pytest.mark.parametrize(("choices", "label", "why"), [
    (["a", "b"], 0, "expected 3 texts, got 2"), ("abc", 0, "got no list"),
    (["a", "b", "c"], 3, "label 3 is not known; valid: 0, 1, 2"), (["a", "b", 3], 0, "holds int"),
])  # fmt: skip
def test_choice_mistakes(choices: Any, label: Any, why: str, bert: Any) -> None:
    with pytest.raises(ValueError, match=why):
        Choose(choices=3).encode({"text": "a", "choices": choices, "label": label}, bert)


# -- micro-batches add up to the batch (T1), for every task -----------------------------------------------------------


@pytest.mark.parametrize("task", ["classify", "tag", "answer", "choose"])
def test_sums_add_up(task: str, bert: Any) -> None:
    if task == "classify":
        objective: Objective = Classify(labels=("a", "b"))
        model = model_for("BertForSequenceClassification", **labels(2))
        records = [objective.encode({"text": t, "label": i % 2}, bert) for i, t in enumerate(TEXTS)]
    elif task == "tag":
        objective, model = Tag(labels=("a", "b")), model_for("BertForTokenClassification", **labels(2))
        records = [objective.encode({"words": t, "tags": [1] * len(t.split())}, bert) for t in TEXTS]
    elif task == "answer":
        objective, model = SMALL, model_for("BertForQuestionAnswering")
        answers = [{"text": "quick", "answer_start": 4}]
        records = objective.encode({"question": QUESTION, "context": CONTEXT, "answers": answers}, bert)
    else:
        objective, model = Choose(choices=2), model_for("BertForMultipleChoice")
        records = [objective.encode({"text": t, "choices": ["x", t], "label": 1}, bert) for t in TEXTS]
    records = [{name: np.asarray(value) for name, value in record.items()} for record in records]
    whole = objective.collate(records, 0)
    parts = [objective.collate(records[:1], 0), objective.collate(records[1:], 0)]
    assert objective.weights(whole)["loss"] == sum(objective.weights(part)["loss"] for part in parts)
    total = sum(objective.losses(model, part)["loss"] for part in parts)
    close(objective.losses(model, whole)["loss"], total, 1e-5)
