"""Evaluation of models: in training, and by `anyformer eval`."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import anyformer as af
from anyformer import cli, families
from anyformer.data import CSV, Bytes, Data, JSONLines, TextFiles
from anyformer.evaluate import Evaluation
from anyformer.evaluate.by_position import group_losses
from anyformer.evaluate.class_report import class_scores, confusion
from anyformer.evaluate.predictions import worst_mistakes
from anyformer.evaluate.split import check_label_order
from anyformer.inputs.tokenizer import Tokenizer
from anyformer.objectives.answer import Answer, right_answers
from anyformer.objectives.auxiliary import Auxiliary
from anyformer.objectives.causal import NextToken
from anyformer.objectives.classify import Classify
from anyformer.objectives.metrics import Metrics
from anyformer.objectives.objective import Predictions, Predictor
from anyformer.objectives.tag import Tag
from anyformer.objectives.translate import Translate
from anyformer.recipes.shared.encoder import SPECIAL
from anyformer.train.optim import AdamW
from anyformer.train.run import Batch, Evaluate, Keep, Run
from anyformer.train.start import setup
from anyformer.train.trainer import Trainer
from tiny import encoder

pytest.importorskip("sklearn")
pytest.importorskip("seqeval")
pytest.importorskip("sacrebleu")

WORDS = {"good": "1", "fine": "1", "bad": "0", "poor": "0"}


def table(path: Path, rows: int, flip: int = 0) -> CSV:
    """Write sentences whose label depends on one word; every `flip`-th label is wrong."""
    lines = ["text,label"]
    for i in range(rows):
        word = list(WORDS)[i % 4]
        label = WORDS[word] if not flip or i % flip else str(1 - int(WORDS[word]))
        lines.append(f"film {i // 4 % 9} is {word},{label}")
    path.write_text("\n".join(lines))
    return CSV(path=str(path))


def run_of(folder: Path, **changes: Any) -> Run:
    base: dict[str, Any] = {
        "name": "films", "model": encoder(labels=("no", "yes"), hidden_size=32, intermediate_size=32),
        "vocabulary": Bytes(special=SPECIAL, begin="cls_token", end="sep_token"),
        "data": Data(
            train=table(folder / "train.csv", 64), valid=table(folder / "valid.csv", 24),
            test=table(folder / "test.csv", 20, flip=5),
        ),
        "objective": Classify(labels=("no", "yes")), "optimizer": AdamW(lr=5e-3), "batch": Batch(examples=16),
        "steps": 60, "keep": Keep(every=60),
        "evaluate": Evaluate(every=30, metrics=("accuracy", "f1"), best="accuracy"),
    }  # fmt: skip
    return Run(**{**base, **changes})


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run trained on this table."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("films")
    trainer = setup(run_of(folder), folder / "run").fit()
    assert trainer.scores["accuracy"] == trainer.scores["f1"] == 1.0  # in training, on the validation split
    assert trainer.best == -1.0  # the best checkpoint has the highest accuracy, not the lowest
    return folder


def evaluated(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert cli.main(["eval", *arguments, "--json", "--device", "cpu"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return json.loads(out)


def test_of_a_run_and_of_a_model_folder(films: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = evaluated(capsys, str(films / "run"), "--batch", "7")
    assert found["split"] == "test" and found["examples"] == 20
    # the test split has every fifth label wrong, and the model has learnt the right ones: 4 of 20
    assert found["accuracy"] == 0.8
    model, tokenizer, losses = af.load(films / "run"), Tokenizer.load(films / "run"), []
    for line in (films / "test.csv").read_text().splitlines()[1:]:  # one example at a time
        text, label = line.split(",")
        ids = torch.tensor([tokenizer.encode(text)])
        with torch.no_grad():
            losses.append(float(model(input_ids=ids, labels=torch.tensor([int(label)])).loss))
    assert found["loss"] == pytest.approx(sum(losses) / 20, rel=1e-4)
    af.save(model, films / "exported")
    recipe = ("--split", "valid", "--metrics", "accuracy")
    again = evaluated(capsys, str(films / "exported"), str(films / "run"), *recipe)
    assert again["accuracy"] == 1.0 and "f1" not in again
    assert evaluated(capsys, f"{films / 'run'}@last", "--most", "5")["examples"] == 5


def test_predictions_are_saved_and_scored_elsewhere(films: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = str(films / "said.jsonl")
    none = evaluated(capsys, str(films / "run"), "--metrics", "none", "--save", saved)
    assert "accuracy" not in none and "loss" in none
    second = json.loads(Path(saved).read_text().splitlines()[1])
    text, label = (films / "test.csv").read_text().splitlines()[2].split(",")
    score = second.pop("score")
    names = af.spec(films / "run").labels
    row = {"row": f"{films / 'test.csv'}:3", "text": text, "wanted": names[int(label)], "predicted": names[1]}
    assert second == {**row, "right": True} and 0.5 < score <= 1
    assert af.tasks.classify(films / "run", text)[0]["score"] == pytest.approx(score, abs=1e-4)
    assert evaluated(capsys, saved, str(films / "run"))["accuracy"] == 0.8
    table = str(films / "said.csv")
    evaluated(capsys, str(films / "run"), "--save", table)
    assert Path(table).read_text().splitlines()[0] == "row,text,wanted,predicted,right,score"
    assert evaluated(capsys, table, str(films / "run"))["accuracy"] == 0.8
    Path(saved).write_text("{}\n")
    assert cli.main(["eval", saved, str(films / "run")]) == 2
    assert "said.jsonl:1: not a prediction as written by --save" in capsys.readouterr().err


def test_another_file(films: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file with another delimiter, for a run and for an exported model, whose labels are in its own order."""
    lines = [line.split(",") for line in (films / "test.csv").read_text().splitlines()]
    names = {"label": "label", "0": "no", "1": "yes"}
    (films / "new.csv").write_text("\n".join(f"{names[label]};{text}" for text, label in lines))
    found = evaluated(capsys, str(films / "run"), "--csv", str(films / "new.csv"))
    assert (found["accuracy"], found["examples"], found["split"]) == (0.8, 20, str(films / "new.csv"))
    model = af.load(films / "run")
    model.spec = model.spec.with_labels(("yes", "no"))  # the weights now mean the opposite
    af.save(model, films / "opposite")
    for file in (films / "run").rglob("tokenizer*.json"):
        (films / "opposite" / file.name).write_bytes(file.read_bytes())
    new = ["--csv", str(films / "new.csv"), "--label", "label"]
    assert cli.main(["eval", str(films / "opposite"), *new, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] == pytest.approx(0.2)
    for more, why in (
        (new, "those of the run; leave them out"),
        (["--csv", str(films / "new.csv"), "--split", "test"], "give one of --csv, --split"),
        (["--label", "label"], "--label goes with --csv"),
    ):
        assert cli.main(["eval", str(films / "run"), *more]) == 2
        assert why in capsys.readouterr().err


def test_a_report_of_the_mistakes(films: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (films / "run" / "report.html").write_text("<html><body>before</body></html>")
    for _ in range(2):  # the second report replaces the first
        assert cli.main(["eval", str(films / "run"), "--report", "--device", "cpu"]) == 0
    out = capsys.readouterr().out.split("metric ")[-1]
    mistakes = (films / "run" / "mistakes.csv").read_text().splitlines()
    assert mistakes[0] == "row,text,wanted,predicted,score" and len(mistakes) == 5
    rows = [{"wanted": "a", "predicted": "b", "right": False, "score": score} for score in (0.5, 0.9, 0.7)]
    worst = worst_mistakes([*rows, {"wanted": "a", "predicted": "a", "right": True, "score": 1.0}])
    assert [row["score"] for row in worst] == [0.9, 0.7, 0.5] and "4 mistakes, the worst first:" in out
    numbers = [{"wanted": 1.0, "predicted": guess} for guess in (1.1, -4.0, 3.0)]
    assert [row["predicted"] for row in worst_mistakes(numbers)] == [-4.0, 3.0, 1.1]
    assert re.search(r"^yes +0\.\d{3} +0\.\d{3} +0\.\d{3} +\d+$", out, re.MULTILINE)
    page = (films / "run" / "report.html").read_text()
    assert (
        page.count("Evaluation on test") == 1
        and page.startswith("<html><body>before")
        and page.endswith("</body></html>")
    )
    assert page.count("<tr>") == 1 + 2 + 1 + 4  # scores of two classes, and four mistakes


def test_scores_by_class_are_those_of_sklearn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    draw = np.random.default_rng(0)
    labels = tuple("abcd")
    wanted, predicted = draw.integers(0, 3, 50).tolist(), draw.integers(0, 4, 50).tolist()  # no example of d
    counted = confusion(Classify(labels=labels), Predictions(predicted, wanted))
    assert counted is not None
    assert (counted.counts == metrics.confusion_matrix(wanted, predicted, labels=range(4))).all()
    right = metrics.precision_recall_fscore_support(wanted, predicted, labels=range(4), zero_division=0)
    assert np.allclose([each[1:] for each in counted.scores()], np.transpose(right))
    pairs = counted.commonest()
    assert pairs[0][2] == max(number for _, _, number in pairs) and all(a != b for a, b, _ in pairs)
    assert sum(number for _, _, number in pairs) == sum(a != b for a, b in zip(wanted, predicted))
    tags = (("O", "B-x", "I-x"), ("B-y", "O", "O")), (("O", "B-x", "O"), ("B-y", "O", "O"))
    task = Tag(labels=("O", "B-x", "I-x", "B-y"))
    counted = confusion(task, Predictions(*map(list, tags)))
    assert counted is not None and counted.commonest() == [("O", "I-x", 1)]
    pytest.importorskip("seqeval")
    by_type = {each.name: each for each in class_scores(task, Predictions(*map(list, tags)), counted)}
    assert by_type["x"].f1 == 0.0 and by_type["y"].f1 == 1.0 and by_type["x"].examples == 1


def test_a_table_on_stdout(films: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["eval", str(films / "run"), "--split", "valid", "--metrics", "accuracy", "--device", "cpu"]) == 0
    out, err = capsys.readouterr()
    assert "24 examples of films, valid" in out and "accuracy  1.0000" in out and err == ""


def test_mistakes(films: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def error_of(*arguments: str) -> str:
        assert cli.main(["eval", *arguments]) == 2
        out, err = capsys.readouterr()
        assert err.count("\n") == 1 and out == ""
        return err

    assert f"{tmp_path / 'none'}: no such folder" in error_of(str(tmp_path / "none"))
    run = str(films / "run")
    assert "no split 'tets'; did you mean 'test'?" in error_of(run, "--split", "tets")
    assert "metrics: no 'acuracy' for labels; did you mean 'accuracy'?" in error_of(run, "--metrics", "acuracy")
    assert "--num-beams is 0; it must be at least 1" in error_of(run, "--num-beams", "0")
    assert "give a recipe or --csv FILE: MODEL is not the folder of a run" in error_of(str(tmp_path))
    assert "no recipe 'sst3'; did you mean 'sst2'?" in error_of(run, "sst3")
    (tmp_path / "empty.csv").write_text("text,label\n")
    assert "the test data has no usable example" in error_of(run, "--set", f"data.test.path={tmp_path}/empty.csv")
    (tmp_path / "bad.csv").write_text("text,label\nfine,1\nfine,2\n")
    wrong = error_of(run, "--set", f"data.test.path={tmp_path}/bad.csv")
    assert "bad.csv:3: column 'label': label 2 is outside 0..1" in wrong
    (tmp_path / "long.csv").write_text(f"text,label\n{'long ' * 30},1\n")
    wrong = error_of(run, "--set", f"data.test.path={tmp_path}/long.csv")
    assert "long.csv:2: 152 tokens; the limit is 64" in wrong
    wrong = error_of(run, "--set", 'objective.labels=["a", "b", "c"]')
    assert "3 labels in the objective, 2 in the model" in wrong
    wrong = error_of(run, "--set", 'objective.labels=["yes", "no"]')
    assert "the model's labels are no, yes, in another order than yes, no" in wrong


# -- each kind of prediction


class Said:
    """A head that returns `scores(ids)` for ids (B, T), independent of the hidden states."""

    def __init__(self, model: Any, scores: Any) -> None:
        self.model, self.scores = model, scores

    def __enter__(self) -> None:
        self.model.head.answer = lambda x, ctx, inputs: self.scores(inputs["input_ids"])

    def __exit__(self, *_: Any) -> None:
        del self.model.head.answer


def test_a_tag_for_every_word(tmp_path: Path) -> None:
    labels = ("O", "B-x", "I-x")
    tokenizer = Bytes(special=SPECIAL, begin="cls_token", end="sep_token").make([], tmp_path)
    model = af.build(encoder("BertForTokenClassification", labels)).eval()
    objective, example = Tag(labels=labels), {"words": ["ab", "c", "d"], "tags": ["B-x", "I-x", "O"]}
    record = objective.encode(example, tokenizer)
    assert len(record["input_ids"]) == 8  # [CLS] a b _ c _ d [SEP]; a word's tokens begin with its space
    best = torch.tensor([0, 1, 2, 2, 0, 0, 1, 0])  # on a, b, _c (2 at the space), d's letter
    scores = torch.nn.functional.one_hot(best, 3)[None].float()
    with Said(model, lambda ids: {"logits": scores}), torch.no_grad():
        found = objective.predict(Predictor(model, tokenizer), [example], [[record]])
    assert found.wanted == [["B-x", "I-x", "O"]]
    first = [int((record["labels"] != -100).nonzero()[0][i]) for i in range(3)]
    assert found.predicted == [[labels[int(best[i])] for i in first]]  # at the labelled tokens
    less = {**example, "tags": ["B-x", "-100", "O"]}
    record = objective.encode(less, tokenizer)
    with Said(model, lambda ids: {"logits": scores}), torch.no_grad():
        part = objective.predict(Predictor(model, tokenizer), [less], [[record]])
    assert (record["labels"] != -100).nonzero()[0].tolist() == first[::2]
    assert part.wanted == [["B-x", "O"]] and part.predicted == [found.predicted[0][::2]]


def test_more_than_ten_labels_in_text_order() -> None:
    """Labels are compared by index, in any order of the file."""
    names = tuple("abcdefghijkl")
    stored = {str(i): names[i] for i in sorted(range(12), key=str)}
    spec = encoder("BertForSequenceClassification", names)
    model = SimpleNamespace(spec=spec.replace(source={**spec.source, "id2label": stored}))
    check_label_order(model, names)
    with pytest.raises(ValueError, match="in another order"):
        check_label_order(model, tuple(stored.values()))


def test_the_likeliest_span_of_all_windows(tmp_path: Path) -> None:
    tokenizer = Bytes(special=SPECIAL, begin="cls_token", end="sep_token").make([], tmp_path)
    model = af.build(encoder("BertForQuestionAnswering")).eval()
    objective = Answer(length=16, stride=2, question_length=4)
    example = {"question": "g?", "context": "abc def ghi jkl", "answers": {"text": ["ghi"], "answer_start": [8]}}
    a, g, i = (tokenizer.encode(letter, add_special_tokens=False)[0] for letter in "agi")

    def points(ids: torch.Tensor, none: float | tuple[float, float]) -> dict[str, torch.Tensor]:
        """Every g scores 5 as a start and every i as an end, also in the question; `none` is the score of no answer."""
        start, end = (ids == g) * 5.0, (ids == i) * 5.0
        if isinstance(none, tuple):  # for the window with the context's first letters, and for the other window
            none = none[0] if bool((ids == a).any()) else none[1]
        start[:, 0] = end[:, 0] = none
        return {"start_logits": start, "end_logits": end}

    def answered(none: float | tuple[float, float], *examples: Any) -> list[str]:
        records = [objective.encode(one, tokenizer) for one in examples]
        assert all(len(windows) == 2 for windows in records)
        with Said(model, lambda ids: points(ids, none)), torch.no_grad():
            return objective.predict(Predictor(model, tokenizer, size=1), examples, records).predicted

    nothing = {**example, "context": "abc def jkl mno", "answers": []}
    assert answered(9.0, example) == ["ghi"]  # "no answer" scores higher, but every question has an answer
    assert answered(2.0, example, nothing) == ["ghi", ""] and answered(9.0, example, nothing) == ["", ""]
    assert right_answers(nothing) == [] and right_answers({"answers": "a b"}) == ["a b"]
    word, g = g, tokenizer.encode(" ", add_special_tokens=False)[0]  # the model chooses the space before the word
    assert answered(2.0, example) == ["ghi"]
    g = word
    assert answered((9.0, 2.0), example, nothing) == answered((2.0, 9.0), example, nothing) == ["ghi", ""]
    several = [{"text": "x", "answer_start": 0}, {"text": "y", "answer_start": 3}]
    assert right_answers({"answers": several}) == ["x", "y"]


def test_bits_per_byte_and_perplexity_of_a_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.set_num_threads(1)
    (tmp_path / "text.txt").write_text("abab" * 20 + "\n" + "aabb" * 15)
    config = {"n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 258, "n_positions": 512,
              "architectures": ["GPT2LMHeadModel"]}  # fmt: skip
    texts = TextFiles(path=str(tmp_path / "text.txt"), unit="line")
    run = Run(
        name="letters", model=families.find("gpt2").read(config), vocabulary=Bytes(),
        data=Data(train=texts, valid=texts), objective=NextToken(), batch=Batch(examples=1), steps=2,
        evaluate=Evaluate(every=2, metrics=("perplexity", "bits_per_byte"), best="bits_per_byte"),
    )  # fmt: skip
    trainer = setup(run, tmp_path / "run").fit()
    found = evaluated(capsys, str(tmp_path / "run"))
    assert {name: found[name] for name in trainer.scores} == pytest.approx(trainer.scores, rel=1e-5)
    # by hand: every token but the first of each text, and an end token after each; 140 bytes in 142 tokens
    model, nats, count = af.load(tmp_path / "run"), 0.0, 0
    by_index: dict[int, list[float]] = {}
    for line in (tmp_path / "text.txt").read_text().splitlines():
        ids = torch.tensor([[*Tokenizer.load(tmp_path / "run").encode(line), model.spec.source["eos_token_id"]]])
        with torch.no_grad():
            nats += float(model(input_ids=ids, labels=ids).loss) * (ids.shape[1] - 1)
            each = torch.nn.functional.cross_entropy(model(input_ids=ids).logits[0, :-1], ids[0, 1:], reduction="none")
        for index, loss in enumerate(each.tolist(), 1):
            by_index.setdefault(index, []).append(loss)
        count += ids.shape[1] - 1
    assert count == 140 and found["perplexity"] == pytest.approx(math.exp(nats / 140), rel=1e-4)
    assert found["bits_per_byte"] == pytest.approx(nats / 140 * 142 / 140 / math.log(2), rel=1e-4)
    groups = evaluated(capsys, str(tmp_path / "run"), "--by", "position")["positions"]
    assert [(group["first"], group["last"]) for group in groups][:4] == [(1, 1), (2, 2), (3, 4), (5, 8)]
    assert sum(group["tokens"] for group in groups) == 140 and groups[-1]["last"] == 80
    for group in groups:
        own = [loss for index in range(group["first"], group["last"] + 1) for loss in by_index[index]]
        assert group["tokens"] == len(own) and group["loss"] == pytest.approx(sum(own) / len(own), rel=1e-4)


def test_the_derivative_of_a_loss_by_index() -> None:
    """A loss that is linear in log(index) has one slope; an index without tokens is skipped."""
    sums = [5.0 - 0.5 * math.log(index) for index in range(1, 3)]
    groups = group_losses(sums, [1, 1])
    assert [group.slope for group in groups] == pytest.approx([-0.5, -0.5])
    assert group_losses([3.0], [2])[0].slope is None and group_losses([3.0], [2])[0].loss == 1.5
    assert [group.first for group in group_losses([1.0, 0.0, 2.0, 2.0], [1, 0, 1, 1])] == [1, 3]


def test_translations_are_written_with_beams(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import sacrebleu

    torch.set_num_threads(1)
    pairs = [("a b", "Eins zwei."), ("b c d", "Drei vier!"), ("e", "Sieben acht neun zehn")]
    lines = [json.dumps({"source": a, "target": b}) for a, b in pairs]
    (tmp_path / "pairs.jsonl").write_text("\n".join(lines))
    config = {
        "architectures": ["MarianMTModel"], "vocab_size": 258, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1,
        "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16,
        "max_position_embeddings": 64, "dropout": 0.0, "init_std": 0.25, "scale_embedding": True,
        "eos_token_id": 0, "pad_token_id": 1, "decoder_start_token_id": 1,
    }  # fmt: skip
    source = JSONLines(path=str(tmp_path / "pairs.jsonl"))
    names = ("bleu", "bleu_lower", "perplexity")
    run = Run(
        name="pairs", model=families.find("marian").read(config),
        vocabulary=Bytes(special={"eos_token": "</s>", "pad_token": "<pad>"}, end="eos_token"),
        data=Data(train=source, valid=source), objective=Translate(), optimizer=AdamW(lr=2e-2, weight_decay=0.0),
        batch=Batch(examples=3), steps=60, evaluate=Evaluate(every=60, metrics=names, num_beams=2),
    )  # fmt: skip
    beams = []

    def counted(*given: Any, **options: Any) -> Any:
        beams.append(options["num_beams"])
        return af.generate(*given, **options)

    monkeypatch.setattr("anyformer.objectives.objective.generate", counted)
    trainer = setup(run, tmp_path / "run").fit()
    assert trainer.scores["bleu"] == pytest.approx(100) == trainer.scores["bleu_lower"]  # memorized
    # during training the loss has label smoothing, the perplexity does not
    assert 1 < trainer.scores["perplexity"] < 1.5 < math.exp(trainer.scores["loss"])
    found = evaluated(capsys, str(tmp_path / "run"), "--metrics", "perplexity,bits_per_byte")  # here neither has
    assert found["perplexity"] == pytest.approx(trainer.scores["perplexity"], rel=1e-5)
    assert found["loss"] == pytest.approx(math.log(found["perplexity"]), abs=1e-6)
    alone = evaluated(capsys, str(tmp_path / "run"), "--metrics", "none", "--num-beams", "2")
    assert alone["loss"] == found["loss"]
    for line in lines:  # new references: the output is compared unchanged, with capitals and punctuation
        lines[lines.index(line)] = line.replace("Eins zwei.", "eins Zwei drei").replace("neun", "Neun")
    (tmp_path / "pairs.jsonl").write_text("\n".join(lines))
    saved = tmp_path / "said.jsonl"
    found = evaluated(capsys, str(tmp_path / "run"), "--num-beams", "3", "--save", str(saved), "--metrics", "bleu,chrf")
    rows = [json.loads(line) for line in saved.read_text().splitlines()]
    assert [one["predicted"] for one in rows] == [b for _, b in pairs] and found["num_beams"] == 3
    assert set(beams) == {2, 3}
    wanted = ["eins Zwei drei", "Drei vier!", "Sieben acht Neun zehn"]
    assert found["bleu"] == sacrebleu.corpus_bleu([b for _, b in pairs], [wanted]).score < 90


class Guess(Classify):
    """Always predicts the first label, and has a metric of its own."""

    @property
    def metrics(self) -> Metrics:
        return MISSES

    def predict(self, job: Any, examples: Any, records: Any) -> Predictions:
        return Predictions([0] * len(records), [int(record["label"]) for (record,) in records])


def misses(predicted: Any, wanted: Any) -> float:
    return sum(a != b for a, b in zip(predicted, wanted, strict=True)) / len(wanted)


MISSES = Metrics("guesses", {"misses": misses}, usual=("misses",), trial=((0,), (0,)), lower_is_better=True)


def test_a_new_objective_brings_its_metrics(tmp_path: Path) -> None:
    """Its file is the only one: its metrics are named, checked, computed and compared."""
    tokenizer = Bytes(special=SPECIAL, begin="cls_token", end="sep_token").make([], tmp_path)
    objective = Auxiliary(of=Guess(labels=("0", "1")))
    evaluation = Evaluation(table(tmp_path / "films.csv", 12, flip=3), objective, tokenizer)
    model = af.build(encoder("BertForSequenceClassification"))
    assert evaluation.names == ("misses",)
    assert evaluation.score(evaluation.ask(Predictor(model, tokenizer))) == {"misses": 6 / 12}
    with pytest.raises(ValueError, match="no 'accuracy' for guesses; .*misses"):
        Evaluation(evaluation.source, objective, tokenizer, ("accuracy",))
    trainer: Any = SimpleNamespace(objective=objective)
    assert Trainer.lower_is_better(trainer, "misses") and not Trainer.lower_is_better(trainer, "bleu")


def test_metrics_are_checked_before_any_work(tmp_path: Path) -> None:
    run = run_of(tmp_path, evaluate=Evaluate(metrics=("bleu",)))
    with pytest.raises(ValueError, match="metrics: no 'bleu' for labels; valid: accuracy, "):
        setup(run, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(ValueError, match="no 'perplexity'"):
        Evaluation(run.data.train, run.objective, None, ["perplexity"])
