"""Metrics of predictions. Published implementations are called, not rewritten, except SQuAD's two, which are defined by
a short script.

The meaning of a name depends on the kind of prediction: `f1` is the F1 of the second label (GLUE) for labels, of whole
entities for tags (CoNLL), and of words for answers (SQuAD). Shares are 0 to 1, but metrics that are published as 0 to
100 (SQuAD, BLEU, chrF, ROUGE) are 0 to 100 here. A text may have several references. Lower is better for
transcripts (`wer`, `cer`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import operator
import re
import string
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from anyformer.inputs.optional_library import import_optional
from anyformer.specs.messages import nearest, quote

Values = Sequence[Any]
Metric = Callable[[Values, Values], float]  # predicted, wanted


def _library(module: str, purpose: str) -> Any:
    return import_optional(module, "metrics", purpose)


def _function(module: str, name: str) -> Any:
    library = _library(module, name)
    return getattr(library, name)


# -- labels and numbers -----------------------------------------------------------------------------------------------


def _sklearn(name: str, **options: Any) -> Metric:
    def score(predicted: Values, wanted: Values) -> float:
        return float(_function("sklearn.metrics", name)(wanted, predicted, **options))

    return score


def _binary_f1(predicted: Values, wanted: Values) -> float:
    if {*predicted, *wanted} - {0, 1}:
        raise ValueError("f1 needs two labels, and there are more; use macro_f1, the mean over labels")
    return _sklearn("f1_score", zero_division=0)(predicted, wanted)


def _set_f1(average: str) -> Metric:
    """F1 of sets of labels: over all decisions ("micro"), or the mean over labels that occur ("macro")."""

    def score(predicted: Values, wanted: Values) -> float:
        names = sorted({name for sets in (predicted, wanted) for names in sets for name in names})
        if not names:
            return 1.0  # nothing applies, and nothing was predicted
        chosen = ([[name in own for name in names] for own in sets] for sets in (wanted, predicted))
        return float(_function("sklearn.metrics", "f1_score")(*chosen, average=average, zero_division=0))

    return score


def _same_set(predicted: Values, wanted: Values) -> float:
    """Return the share of examples with exactly the right labels."""
    return sum({*mine} == {*theirs} for mine, theirs in zip(predicted, wanted)) / len(predicted)


def _correlation(name: str) -> Metric:
    def score(predicted: Values, wanted: Values) -> float:
        stats = _library("scipy.stats", name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", stats.ConstantInputWarning)  # constant input gives nan
            return float(getattr(stats, name)(predicted, wanted).statistic)

    return score


# -- tags -------------------------------------------------------------------------------------------------------------


def _entities(name: str) -> Metric:
    """Score whole entities: type and both ends must be right [Tjong Kim Sang and De Meulder 2003]."""

    def score(predicted: Values, wanted: Values) -> float:
        seqeval = _library("seqeval.metrics", f"{name} of entities")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "no predicted samples": the score is 0
            return float(getattr(seqeval, name)(*([list(row) for row in rows] for rows in (wanted, predicted))))

    return score


def entity_report(predicted: Values, wanted: Values) -> dict[str, dict[str, float]]:
    """Return precision, recall, F1 and number of examples ("support") of each type of entity, and their averages."""
    seqeval = _library("seqeval.metrics", "scores of entities")
    rows = ([list(row) for row in rows] for rows in (wanted, predicted))
    found: dict[str, dict[str, float]] = seqeval.classification_report(*rows, output_dict=True, zero_division=0)
    return found


def _word_accuracy(predicted: Values, wanted: Values) -> float:
    flat = [[tag for row in rows for tag in row] for rows in (predicted, wanted)]
    return _sklearn("accuracy_score")(*flat)


# -- answers: SQuAD's script [Rajpurkar et al. 2016] -------------------------------------------------------------------

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(answer: str) -> str:
    """Convert to lower case, then remove punctuation, articles and repeated spaces, in this order."""
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split())


def same_answer(predicted: str, wanted: str) -> float:
    return float(normalize_answer(predicted) == normalize_answer(wanted))


def shared_words(predicted: str, wanted: str) -> float:
    """Return the F1 of the words that two answers share; if one is empty, whether both are."""
    mine, theirs = normalize_answer(predicted).split(), normalize_answer(wanted).split()
    if not mine or not theirs:
        return float(mine == theirs)
    common = sum((Counter(mine) & Counter(theirs)).values())
    return 2 * common / (len(mine) + len(theirs))


def _answers(score: Callable[[str, str], float]) -> Metric:
    def mean(predicted: Values, wanted: Values) -> float:
        """Return the mean in percent; the best of several right answers counts."""
        each = [max(score(mine, one) for one in theirs or [""]) for mine, theirs in zip(predicted, wanted)]
        return 100 * sum(each) / len(each)

    return mean


# -- texts ------------------------------------------------------------------------------------------------------------


def _references(wanted: Values) -> list[list[str]]:
    """Return the list of references of each example."""
    return [[one] if isinstance(one, str) else list(one) for one in wanted]


def _identical(predicted: Values, wanted: Values) -> float:
    """Return the percentage of texts that are identical to one of their references."""
    return 100 * sum(text in right for text, right in zip(predicted, _references(wanted))) / len(predicted)


def _sacrebleu(name: str, **options: Any) -> Metric:
    def score(predicted: Values, wanted: Values) -> float:
        metric = _function("sacrebleu", name)(**options)
        columns = zip_longest(*_references(wanted))  # the first references, the second references, ...
        return float(metric.corpus_score(list(predicted), [list(column) for column in columns]).score)

    return score


def _rouge(name: str) -> Metric:
    """Mean F1 of shared n-grams or of the longest common subsequence [Lin 2004], with stemmed words; the best
    of several references counts. For `rougeLsum`, each sentence must be on its own line."""

    def score(predicted: Values, wanted: Values) -> float:
        scorer = _library("rouge_score.rouge_scorer", name).RougeScorer([name], use_stemmer=True)
        each = [scorer.score_multi(right, mine)[name].fmeasure for mine, right in zip(predicted, _references(wanted))]
        return 100 * sum(each) / len(each)

    return score


def _moses(predicted: Values, wanted: Values) -> float:
    """Return the BLEU of lower-cased words from Moses's tokenizer, as papers on small data sets report it. The language
    is not known here, so the rules for English are used on both sides."""
    moses = _library("sacremoses", "bleu_tokenized").MosesTokenizer(lang="en")

    def tokenize(texts: Values) -> list[str]:
        return [moses.tokenize(text, return_str=True, escape=False) for text in texts]

    bleu = _sacrebleu("BLEU", tokenize="none", lowercase=True, force=True)
    return bleu(tokenize(predicted), [tokenize(right) for right in _references(wanted)])


# -- transcripts ------------------------------------------------------------------------------------------------------


def _error_rate(name: str) -> Metric:
    """Insertions, deletions and substitutions of words (or letters), divided by the length of the reference."""

    def score(predicted: Values, wanted: Values) -> float:
        return float(_function("jiwer", name)(list(wanted), list(predicted)))

    return score


# -- search: a prediction is a list of texts, the best first -----------------------------------------------------------

LISTED = 10  # texts of a prediction


def _recall(count: int) -> Metric:
    def score(predicted: Values, wanted: Values) -> float:
        return sum(right in found[:count] for found, right in zip(predicted, wanted)) / len(predicted)

    return score


def _reciprocal_rank(predicted: Values, wanted: Values) -> float:
    """Return the mean of 1 / rank of the right text; 0 if it is not listed."""
    ranks = (found.index(right) + 1 if right in found else None for found, right in zip(predicted, wanted))
    return sum(1 / rank for rank in ranks if rank is not None) / len(predicted)


# -- metrics by kind of prediction ------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Metrics:
    """The metrics of one kind of prediction."""

    kind: str  # "labels"
    functions: Mapping[str, Metric]
    usual: tuple[str, ...]  # the default metrics; the others need one more library, or two labels
    trial: tuple[Values, Values]  # predictions that every metric can score, to detect a missing library at once
    more: tuple[str, ...] = ()  # metrics that `anyformer eval` also computes if their library is installed
    lower_is_better: bool = False
    right: Callable[[Any, Any], bool] | None = operator.eq  # (predicted, wanted); None: a prediction is never exact


LABELS = Metrics(
    "labels",
    {
        "accuracy": _sklearn("accuracy_score"),
        "f1": _binary_f1,
        "macro_f1": _sklearn("f1_score", average="macro", zero_division=0),
        "matthews": _sklearn("matthews_corrcoef"),
    },
    usual=("accuracy", "macro_f1", "matthews"),
    trial=((0, 1), (0, 1)),
)
TWO_LABELS = dataclasses.replace(LABELS, usual=("accuracy", "f1", "matthews"))
LABEL_SETS = Metrics(
    "sets of labels",
    {"micro_f1": _set_f1("micro"), "macro_f1": _set_f1("macro"), "exact_match": _same_set},
    usual=("micro_f1", "macro_f1", "exact_match"),
    trial=((["a"], []), (["a"], ["b"])),
)
NUMBERS = Metrics(
    "numbers",
    {"pearson": _correlation("pearsonr"), "spearman": _correlation("spearmanr")},
    usual=("pearson", "spearman"),
    trial=((0.0, 1.0), (0.0, 1.0)),
    right=None,
)
TAGS = Metrics(
    "tags",
    {
        "f1": _entities("f1_score"),
        "precision": _entities("precision_score"),
        "recall": _entities("recall_score"),
        "accuracy": _word_accuracy,
    },
    usual=("f1", "precision", "recall", "accuracy"),
    trial=((("B-a", "O"),), (("B-a", "O"),)),
)
ANSWERS = Metrics(
    "answers",
    {"exact_match": _answers(same_answer), "f1": _answers(shared_words)},
    usual=("exact_match", "f1"),
    trial=(("a",), (("a",),)),
    right=lambda predicted, wanted: any(same_answer(predicted, one) for one in wanted or [""]),
)
TEXTS = Metrics(
    "texts",
    {
        "bleu": _sacrebleu("BLEU"),
        "bleu_lower": _sacrebleu("BLEU", lowercase=True),
        "bleu_tokenized": _moses,
        "chrf": _sacrebleu("CHRF"),
        "exact_match": _identical,
        **{name: _rouge(name) for name in ("rouge1", "rouge2", "rougeL", "rougeLsum")},
    },
    usual=("bleu", "bleu_lower", "chrf", "exact_match"),
    more=("rouge1", "rouge2", "rougeL", "rougeLsum", "bleu_tokenized"),
    trial=(("a",), ("a",)),
    right=lambda predicted, wanted: predicted in _references([wanted])[0],
)
NEAREST = Metrics(
    "nearest texts",
    {"recall_at_10": _recall(LISTED), "recall_at_1": _recall(1), "mrr_at_10": _reciprocal_rank},
    usual=("recall_at_10", "recall_at_1", "mrr_at_10"),
    trial=((("a",),), ("a",)),
    right=lambda predicted, wanted: predicted[0] == wanted,
)
TRANSCRIPTS = Metrics(
    "transcripts",
    {"wer": _error_rate("wer"), "cer": _error_rate("cer")},
    usual=("wer", "cer"),
    trial=(("a",), ("a",)),
    lower_is_better=True,
)


def available_metrics(metrics: Metrics) -> list[str]:
    """Return the default metrics, and the others whose library is installed."""
    found = list(metrics.usual)
    for name in metrics.more:
        with contextlib.suppress(ValueError):  # the library is missing
            metrics.functions[name](*metrics.trial)
            found.append(name)
    return found


def check(names: Sequence[str], metrics: Metrics | None, losses: Sequence[str]) -> None:
    """Raise ValueError if a metric is neither in `metrics` nor in `losses`, or its library is missing."""
    known = [*(metrics.functions if metrics else ()), *losses]
    for name in names:
        if name not in known:
            there = f"; {nearest(name, known)}" if known else ": it has no metrics"
            raise ValueError(f"metrics: no {quote(name)} for {metrics.kind if metrics else 'this objective'}{there}")
        if metrics is not None and name not in losses:
            metrics.functions[name](*metrics.trial)
