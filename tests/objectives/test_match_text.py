"""Sentence embeddings: the loss, equal texts in a batch, the nearest pairs, and a model that learns the task."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import anyformer as af
from anyformer.data import CSV, Data
from anyformer.evaluate import Evaluation
from anyformer.evaluate.split import evaluate
from anyformer.objectives.heads import forward_to_head
from anyformer.objectives.match_text import MatchText
from anyformer.objectives.metrics import NEAREST
from anyformer.recipes.shared.encoder import small_bert, vocabulary
from anyformer.train.optim import AdamW, Constant
from anyformer.train.run import Batch, Run
from anyformer.train.start import setup

NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


def bert() -> af.models.Model:
    return small_bert("BertModel", vocab_size=300, hidden_size=32, num_hidden_layers=1, intermediate_size=64,
                      max_position_embeddings=24)  # fmt: skip


@pytest.fixture
def trained(tmp_path: Path):
    torch.set_num_threads(1)
    lines = [f"the number {name},{''.join(reversed(name))} {i}" for i, name in enumerate(NUMBERS)]
    (tmp_path / "pairs.csv").write_text("text,pair\n" + "\n".join(lines) + "\n")
    source = CSV(path=str(tmp_path / "pairs.csv"))
    run = Run(
        name="pairs", model=bert(), vocabulary=vocabulary(300), data=Data(train=source, valid=source),
        objective=MatchText(length=24), optimizer=AdamW(lr=3e-3), schedule=Constant(), batch=Batch(examples=12),
        steps=60,
    )  # fmt: skip
    return setup(run, tmp_path / "run", device="cpu"), source


def test_the_loss_is_the_cross_entropy_over_the_batch(trained) -> None:
    trainer, source = trained
    model, tokenizer = trainer.model.eval(), trainer.tokenizer
    objective = MatchText(length=24, temperature=0.1)
    texts = [("the number one", "eno"), ("two", "owt"), ("two", "three"), ("four", "eno")]
    records = [objective.encode({"text": a, "pair": b}, tokenizer) for a, b in texts]
    batch = objective.collate(records, tokenizer.filler)
    vectors = [[F.normalize(model(input_ids=torch.tensor([tokenizer.encode(text)])).last_hidden_state[0].mean(0), dim=0)
                for text in column] for column in zip(*texts)]  # fmt: skip
    scores = torch.stack(vectors[0]) @ torch.stack(vectors[1]).T / 0.1
    for i, j in ((1, 2), (2, 1), (0, 3), (3, 0)):  # rows with an equal text or pair
        scores[i, j] = -torch.inf
    labels = torch.arange(4)
    wanted = (F.cross_entropy(scores, labels, reduction="sum") + F.cross_entropy(scores.T, labels, reduction="sum")) / 2
    found = objective.judge(model, batch, forward_to_head(model, batch))["loss"]
    assert objective.weights(batch) == {"loss": 4.0} and torch.allclose(found, wanted, rtol=1e-4)


def test_a_model_learns_to_find_pairs(trained) -> None:
    trainer, source = trained

    def scores() -> dict[str, float]:
        evaluation = Evaluation(source, trainer.objective, trainer.tokenizer)
        return evaluate(trainer.model.eval(), "valid", evaluation)

    before = scores()
    trainer.fit()
    after = scores()
    assert before["recall_at_1"] < 0.5 < 0.9 < after["recall_at_1"] and after["loss"] < before["loss"], (before, after)


def test_scores_of_ranked_texts() -> None:
    predicted, wanted = [["a", "b"], ["b", "a"], ["c", "d"], ["a", "c"]], ["a", "a", "a", "c"]
    found = {name: function(predicted, wanted) for name, function in NEAREST.functions.items()}
    assert found == {"recall_at_10": 0.75, "recall_at_1": 0.25, "mrr_at_10": (1 + 0.5 + 0 + 0.5) / 4}


def test_equal_pairs_are_one_candidate(trained) -> None:
    trainer, _ = trained
    from anyformer.objectives.objective import Predictor

    examples = [{"text": f"text {i}", "pair": "the same" if i < 3 else "another"} for i in range(4)]
    records = [[trainer.objective.encode(each, trainer.tokenizer)] for each in examples]
    with torch.no_grad():
        job = Predictor(trainer.model.eval(), trainer.tokenizer, size=3)
        answered = trainer.objective.predict(job, examples, records)
    assert all(sorted(found) == ["another", "the same"] for found in answered.predicted)
    assert answered.scores is not None and np.all(np.abs(answered.scores) <= 1 + 1e-6)


def test_models_that_it_cannot_train() -> None:
    for name in ("t5-small", "vit-b16"):
        with pytest.raises(ValueError, match="MatchText needs an encoder or a decoder that reads text"):
            MatchText().module(af.build(af.spec(name), device="meta"))
