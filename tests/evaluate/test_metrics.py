"""Metrics compared with library functions and with cases computed by hand."""

from __future__ import annotations

import math
import sys

import pytest

from anyformer.objectives import metrics
from anyformer.objectives.metrics import (
    ANSWERS,
    LABELS,
    NUMBERS,
    TAGS,
    TEXTS,
    TRANSCRIPTS,
    Metrics,
    normalize_answer,
    shared_words,
)

sklearn_metrics = pytest.importorskip("sklearn.metrics")
sacrebleu = pytest.importorskip("sacrebleu")


def test_labels_by_hand() -> None:
    predicted, wanted = [1, 1, 0, 0, 1], [1, 0, 0, 1, 1]  # TP 2, FP 1, FN 1, TN 1
    labels = LABELS.functions
    assert labels["accuracy"](predicted, wanted) == 3 / 5
    assert labels["f1"](predicted, wanted) == pytest.approx(2 * 2 / (2 * 2 + 1 + 1))
    assert labels["matthews"](predicted, wanted) == pytest.approx((2 * 1 - 1 * 1) / math.sqrt(3 * 3 * 2 * 2))
    assert labels["f1"]([0, 0], [1, 0]) == 0 and labels["matthews"]([0, 0], [1, 0]) == 0


def test_labels_by_sklearn() -> None:
    predicted, wanted = [0, 2, 1, 1, 0, 2, 2], [0, 1, 1, 1, 2, 2, 0]
    ours, theirs = LABELS.functions, sklearn_metrics
    assert ours["macro_f1"](predicted, wanted) == theirs.f1_score(wanted, predicted, average="macro")
    assert ours["matthews"](predicted, wanted) == theirs.matthews_corrcoef(wanted, predicted)
    with pytest.raises(ValueError, match="f1 needs two labels.*macro_f1"):
        ours["f1"](predicted, wanted)


def test_numbers_by_hand() -> None:
    wanted = [1.0, 2.0, 3.0, 4.0]
    assert NUMBERS.functions["spearman"]([1.0, 4.0, 9.0, 16.0], wanted) == pytest.approx(1.0)
    # covariance 25 of deviations (-6.5, -3.5, 1.5, 8.5) and (-1.5, -.5, .5, 1.5); squares 129 and 5
    assert NUMBERS.functions["pearson"]([1.0, 4.0, 9.0, 16.0], wanted) == pytest.approx(25 / math.sqrt(129 * 5))
    assert NUMBERS.functions["spearman"]([4.0, 1.0, 3.0, 2.0], wanted) == pytest.approx(1 - 6 * 14 / (4 * 15))
    assert math.isnan(NUMBERS.functions["spearman"]([1.0] * 4, wanted))


def test_entities_are_whole_or_wrong() -> None:
    wanted = [["B-person", "I-person", "O", "B-group"], ["O", "B-location"]]
    predicted = [["B-person", "I-person", "O", "B-person"], ["O", "O"]]  # one of three found, one of two right
    tags = TAGS.functions
    assert tags["precision"](predicted, wanted) == 1 / 2 and tags["recall"](predicted, wanted) == 1 / 3
    assert tags["f1"](predicted, wanted) == pytest.approx(2 / 5) and tags["accuracy"](predicted, wanted) == 4 / 6
    cut = [["B-person", "O", "O", "B-group"], ["O", "B-location"]]  # half a name does not count
    assert tags["f1"](cut, wanted) == pytest.approx(2 / 3)
    assert tags["f1"]([["O"]], [["B-person"]]) == 0


def test_answers_by_hand() -> None:
    assert normalize_answer("The  Denver-Broncos, an A.F.C. team") == "denverbroncos afc team"
    assert normalize_answer("theatre another a") == "theatre another"  # articles are whole words
    answers = ANSWERS.functions
    # words {denver, broncos} in {denver, broncos, team}: precision 1, recall 2/3
    assert shared_words("the Denver Broncos", "Denver Broncos team") == pytest.approx(0.8)
    assert shared_words("to to be", "to be or not") == pytest.approx(4 / 7)  # the second "to" does not match
    assert shared_words("", "") == 1 and shared_words("the", "a b") == 0
    predicted, wanted = ["the Broncos!", "Denver", ""], [["Panthers", "broncos"], ["Denver Broncos"], []]
    assert answers["exact_match"](predicted, wanted) == pytest.approx(100 * 2 / 3)
    assert answers["f1"](predicted, wanted) == pytest.approx(100 * (1 + 2 / 3 + 1) / 3)


def test_texts_by_sacrebleu() -> None:
    wanted = ["Ein Mann schläft auf dem Sofa.", "Zwei Hunde rennen über die Wiese!"]
    predicted = ["Ein Mann schläft auf einem Sofa.", "zwei Hunde rennen über eine Wiese!"]
    texts = TEXTS.functions
    assert texts["bleu"](predicted, wanted) == sacrebleu.corpus_bleu(predicted, [wanted]).score
    assert texts["exact_match"](["a b", "a", "c"], ["a b", ["b", "a"], "C"]) == pytest.approx(100 * 2 / 3)
    assert texts["chrf"](predicted, wanted) == sacrebleu.corpus_chrf(predicted, [wanted]).score
    lower = [[text.lower() for text in texts] for texts in (predicted, wanted)]
    assert texts["bleu_lower"](predicted, wanted) == sacrebleu.corpus_bleu(lower[0], [lower[1]]).score
    assert texts["bleu"](predicted, wanted) < texts["bleu_lower"](predicted, wanted) < 100
    assert texts["bleu"](wanted, wanted) == pytest.approx(100)


def test_tokenised_bleu_counts_words_as_moses_divides_them() -> None:
    pytest.importorskip("sacremoses")
    predicted, wanted = ["Ein roter Ball, ein Hund."], ["ein roter Ball , ein Hund ."]
    assert TEXTS.functions["bleu_tokenized"](predicted, wanted) == pytest.approx(100)
    short = ["ein roter Ball ."]  # 4, 2, 1 and 0 n-grams fit of 4, 3, 2, 1 ("exp" smoothing: 1/2), 7 words against 4
    by_hand = 100 * math.exp(1 - 7 / 4) * (4 / 4 * 2 / 3 * 1 / 2 * 0.5) ** 0.25
    assert TEXTS.functions["bleu_tokenized"](short, wanted) == pytest.approx(by_hand)


def test_rouge_by_hand_and_by_its_library() -> None:
    scorer = pytest.importorskip("rouge_score.rouge_scorer")
    texts = TEXTS.functions
    # 2 of 3 words and no pair of them; endings do not count
    assert texts["rouge1"](["the dogs sat"], ["the cat sat"]) == pytest.approx(100 * 2 / 3)
    assert texts["rouge2"](["the dogs sat"], ["the cat sat"]) == 0 and texts["rouge1"](["dogs"], ["dog"]) == 100
    predicted = ["It sleeps.\nA cat sits on the mat.", "nothing alike"]
    wanted = [["The cat sat.", "A cat sits on a mat.\nIt was asleep."], "other words"]  # the best reference counts
    for name in ("rouge1", "rouge2", "rougeL", "rougeLsum"):
        one = scorer.RougeScorer([name], use_stemmer=True).score(wanted[0][1], predicted[0])[name].fmeasure
        assert one > 0.3 and texts[name](predicted, wanted) == pytest.approx(100 * one / 2)
    assert texts["rougeL"](predicted, wanted) < texts["rougeLsum"](predicted, wanted)  # by sentence, in any order


def test_of_several_right_texts_each_may_lend_its_words() -> None:
    predicted, wanted = ["a b c d e", "x y z u v"], [["a b c d", "c d e f"], ["x y z u w"]]
    theirs = sacrebleu.corpus_bleu(predicted, [["a b c d", "x y z u w"], ["c d e f", None]]).score
    firsts = sacrebleu.corpus_bleu(predicted, [["a b c d", "x y z u w"]]).score
    assert TEXTS.functions["bleu"](predicted, wanted) == theirs > firsts
    assert TEXTS.functions["bleu_tokenized"](predicted, wanted) == pytest.approx(theirs)


def test_words_that_were_misheard() -> None:
    pytest.importorskip("jiwer")
    heard = TRANSCRIPTS.functions
    predicted, wanted = ["one too three", "", "five five"], ["one two three four", "six", "five"]
    assert heard["wer"](predicted, wanted) == (2 + 1 + 1) / 6  # substitution and deletion; deletion; insertion
    assert heard["cer"](["too"], ["two"]) == 1 / 3 and heard["wer"](wanted, wanted) == 0


def test_metrics_that_are_not_there() -> None:
    with pytest.raises(ValueError, match="metrics: no 'blue' for texts; did you mean 'bleu'"):
        metrics.check(["blue"], TEXTS, ("perplexity",))
    with pytest.raises(ValueError, match="metrics: no 'accuracy' for this objective; .*perplexity"):
        metrics.check(["accuracy"], None, ("perplexity",))
    for kind in (LABELS, NUMBERS, TAGS, ANSWERS, TEXTS, TRANSCRIPTS):
        metrics.check([*kind.functions, "perplexity"], kind, ("perplexity",))


@pytest.mark.parametrize("module, kind, name", [
    ("sklearn.metrics", LABELS, "accuracy"), ("seqeval.metrics", TAGS, "f1"), ("sacrebleu", TEXTS, "bleu"),
    ("sacremoses", TEXTS, "bleu_tokenized"), ("scipy.stats", NUMBERS, "spearman"),
    ("rouge_score.rouge_scorer", TEXTS, "rouge2"), ("jiwer", TRANSCRIPTS, "wer"),
])  # fmt: skip
def test_a_library_that_is_missing_is_one_line(
    module: str, kind: Metrics, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics.check([name], kind, ())
    monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
    with pytest.raises(ValueError, match=rf"needs {module.split('.')[0]}: pip install 'anyformer\[metrics\]'"):
        metrics.check([name], kind, ())
