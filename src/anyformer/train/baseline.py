"""Baselines that a model has to beat: unigram and bigram counts, label frequencies, or the mean of numbers."""

from __future__ import annotations

import numpy as np

from anyformer.data import DataSplit
from anyformer.objectives.classify import Classify
from anyformer.objectives.images import ClassifyImage
from anyformer.objectives.objective import Objective
from anyformer.parts.base import HasVocabulary
from anyformer.train.data_summary import class_counts
from anyformer.train.trainer import Callback, Trainer

MEAN = "mean label"
MAX_TOKENS = 20_000_000  # only the first tokens of a split are counted
WEIGHTS = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)  # pseudo-counts of the lower-order model


class Baselines(Callback):
    """Reports baseline losses before the first step, for next-token prediction, classification and regression."""

    values: dict[str, float]

    def on_start(self, trainer: Trainer) -> None:
        self.values = {}
        splits, objective, head = trainer.splits, trainer.objective, trainer.model.spec.head
        if splits is None or splits.valid is None:
            return
        if objective.baseline == "tokens":
            size = head.vocab_size if isinstance(head, HasVocabulary) else len(trainer.tokenizer)
            self.values = baselines(splits.train, splits.valid, size)
            listed = ", ".join(f"{name} {value:.3f}" for name, value in self.values.items())
            trainer.tell(f"to beat on the validation texts, in nats per token: {listed}")
        elif objective.baseline == "labels" and objective.problem == "regression":
            train, valid = (numbers_of(split) for split in (splits.train, splits.valid))
            loss = float(np.square(valid - train.mean()).mean())
            self.values = {MEAN: loss}
            trainer.tell(f"to beat on the validation rows: loss {loss:.3f} by the mean of the training labels")
        elif objective.baseline == "labels":
            counts, true = (class_counts(split, objective.labels) for split in (splits.train, splits.valid))
            if counts:
                weights = class_weights_of(objective)
                loss, right = frequency_baseline(list(counts.values()), list(true.values()), weights)
                self.values = {"label frequencies": loss}
                always = f"accuracy {right:.3f} by the most frequent label"
                trainer.tell(f"to beat on the validation rows: loss {loss:.3f} by the label frequencies, {always}")


def numbers_of(split: DataSplit) -> np.ndarray:
    """Return the label of each record of a regression."""
    return split.fields["label"].read(0, len(split)).astype(np.float64)


def class_weights_of(objective: Objective) -> list[float] | None:
    """Return the weight of each label in the loss; None if all are 1."""
    if not isinstance(objective, Classify | ClassifyImage) or not objective.class_weights:
        return None
    return [objective.class_weights.get(label, 1.0) for label in objective.labels]


def frequency_baseline(train: list[int], valid: list[int], weights: list[float] | None = None) -> tuple[float, float]:
    """Return the validation loss of the (add-one smoothed) training frequencies, and the accuracy of always predicting
    the most frequent label. `train` and `valid` are the number of rows per label. With `weights` of the labels in the
    loss, the frequencies are those of weighted rows."""
    each = np.array(weights or [1.0] * len(train))
    prior = (np.array(train) + 1) * each
    share = np.array(valid) * each
    log_prior = np.log(np.maximum(prior, 1e-30) / prior.sum())
    right = valid[int(np.argmax(train))] / max(sum(valid), 1)
    return float(-(share * log_prior).sum() / (share.sum() or 1.0)), right


def baselines(train: DataSplit, valid: DataSplit, vocab_size: int) -> dict[str, float]:
    """Return the nats per token of the validation texts, without their first tokens, from counts in the training texts.

    Bigrams are smoothed by unigrams, and unigrams by the uniform distribution, with Dirichlet priors [MacKay and Peto
    1995]. Their weight is chosen on the validation texts, which favours the baselines.
    """
    before, after = _pairs(train)
    seen = np.bincount(after, minlength=vocab_size).astype(np.float64)
    v_before, v_after = _pairs(valid)
    if not len(v_after) or not len(after):
        return {}
    single = {w: (seen + w / vocab_size) / (seen.sum() + w) for w in WEIGHTS}
    unigram, p = min((float(-np.log(p[v_after]).mean()), w) for w, p in single.items())
    coarse = single[p][v_after]
    # how often each pair of the validation texts occurs in the training texts
    keys, counts = np.unique(before * vocab_size + after, return_counts=True)
    wanted = v_before * vocab_size + v_after
    index = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    both = np.where(keys[index] == wanted, counts[index], 0)
    first = np.bincount(before, minlength=vocab_size)[v_before]
    bigram = min(float(-np.log((both + w * coarse) / (first + w)).mean()) for w in WEIGHTS)
    return {"unigram": unigram, "bigram": bigram}


def _pairs(split: DataSplit) -> tuple[np.ndarray, np.ndarray]:
    """Return each token and the token after it, as two arrays; pairs never cross from one text to the next."""
    text = split.fields["input_ids"]
    ids = text.read(0, min(int(text.ends[-1]), MAX_TOKENS)).astype(np.int64)
    inner = np.ones(max(len(ids) - 1, 0), bool)
    ends = text.ends[1:-1]
    inner[ends[(ends > 0) & (ends < len(ids))] - 1] = False  # from one text into the next
    return ids[:-1][inner], ids[1:][inner]
