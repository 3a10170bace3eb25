"""`anyformer train --questions` and `--similar`: questions with answers, and pairs of texts, from a user's files."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer as af
from anyformer import cli
from anyformer.data import CSV, Held, JSONLines, SQuAD
from anyformer.objectives.answer import answer_span, right_answers
from anyformer.recipes.shared.own_questions import from_questions
from anyformer.recipes.shared.own_similar import from_similar
from anyformer.specs.codec import override
from anyformer.train.start import setup

SMALL = ["--set", "model.encoder.depth=1", "--set", "vocabulary.size=300", "--set", "steps=2", "--set",
         "evaluate.every=2", "--set", "batch.examples=8", "--device", "cpu"]  # fmt: skip
TOWNS = ("Rome", "Oslo", "Lima", "Cairo", "Quito", "Delhi", "Paris", "Tunis", "Seoul", "Accra", "Dakar", "Hanoi")
CONTEXT = "Romeo Rome, also: Rome"


def row(i: int, **changes: Any) -> dict[str, Any]:
    town = TOWNS[i % len(TOWNS)]
    return {
        "question": f"Where is number {i}?",
        "context": f"The house of {town} is in {town}.",
        "answer": town,
        **changes,
    }


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    torch.set_num_threads(1)
    monkeypatch.chdir(tmp_path)
    rows = [row(i) for i in range(24)]
    rows[1] |= {"answer_start": 13, "answer": "Oslo"}
    rows[2] |= {"answer": ""}
    rows[3] |= {"answer": "The house"}  # once
    rows[5] |= {"answer": "us"}  # in "house": no whole word, once
    rows[4] |= {"answer": "nowhere to be found"}
    write(tmp_path / "faq.jsonl", rows)
    pairs = "".join(f"the {town} of {i},capital {town} {i}\n" for i, town in enumerate(TOWNS * 3))
    (tmp_path / "pairs.csv").write_text(f"ask,say\n{pairs},nothing\n")
    return tmp_path


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))


# -- questions


def test_from_questions_to_a_model_that_answers(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "--questions", "faq.jsonl", *SMALL]) == 0, capsys.readouterr().err
    out, err = capsys.readouterr()
    assert err == (
        "faq.jsonl: 23 questions about 12 texts, 1 without an answer; 21 answers without answer_start were searched for"
        " in their texts; 19 of them occur several times: the first occurrence is learnt\n"
    )
    assert "skipped 1 of 24 rows" in out and "the answer 'nowhere to be found' is not in the context" in out
    assert "`anyformer run answer runs/faq QUESTION CONTEXT` uses it" in out
    (found,) = af.tasks.answer("runs/faq", {"question": "Where?", "context": "The house of Oslo is in Oslo."})
    assert found["answer"]
    assert cli.main(["eval", "runs/faq", "--json", "--save", "found.csv", "--device", "cpu"]) == 0
    assert {"exact_match", "f1"} <= {*json.loads(capsys.readouterr().out)}
    assert (place / "found.csv").read_text().startswith("row,question,context,wanted,predicted,right")
    assert cli.main(["eval", "runs/faq", "--questions", "faq.jsonl", "--report", "--device", "cpu"]) == 0
    assert " mistakes:\n" in capsys.readouterr().out


def test_a_text_is_never_in_both_parts(place: Path) -> None:
    data = from_questions("faq.jsonl").data
    assert isinstance(data.train, Held) and data.valid is not None
    parts = [[each.example["context"] for each in part.rows(()) if each.example] for part in (data.train, data.valid)]
    assert not {*parts[0]} & {*parts[1]} and len({*parts[1]}) == 1 and len(parts[1]) == 2  # 1 of 12 texts, 2 questions
    assert sum(map(len, parts)) == 24
    source = CSV(path="pairs.csv")
    with pytest.raises(ValueError, match="no column 'text' to group by"):
        list(Held(source=source, group="text").rows(()))
    with pytest.raises(ValueError, match="give stratify or group"):
        Held(source=source, group="ask", stratify="say")


def test_the_formats_of_questions(place: Path) -> None:
    write(place / "other.jsonl", [row(i, passage="x", answer=None, q=f"{i}?", found=["Rome"]) for i in range(24)])
    columns = from_questions("other.jsonl", ("q", "context", "found")).data.train.whole.columns
    assert dict(columns) == {"question": "q", "context": "context", "answers": "found"}
    answers = [{"text": "Rome", "answer_start": 13}]
    asked = [{"id": "1", "question": "Where?", "answers": answers}]
    paragraphs = [{"context": f"The house of Rome {i}", "qas": asked} for i in range(20)]
    squad = {"version": "1", "data": [{"paragraphs": paragraphs}]}
    for indent in (None, 1):
        (place / "squad.json").write_text(json.dumps(squad, indent=indent))
        assert isinstance(from_questions("squad.json").data.train.whole, SQuAD)
    write(place / "lines.json", [row(i) for i in range(20)])
    assert isinstance(from_questions("lines.json").data.train.whole, JSONLines)


@pytest.mark.parametrize("answers, span", [
    ("Rome", (6, 10)),  # the first whole word
    (["Rome", "Ro"], (6, 10)),
    ({"text": ["Rome"], "answer_start": [18]}, (18, 22)),
    ({"text": ["Rome"]}, (6, 10)),
    ([{"text": "ome"}], (1, 4)),  # not a whole word anywhere
    ("", None), (None, None), ([], None), ({"text": [], "answer_start": []}, None),
], ids=str)  # fmt: skip
def test_where_an_answer_is(answers: Any, span: Any) -> None:
    example = {"answers": answers}
    assert answer_span(example, CONTEXT) == span
    assert bool(right_answers(example)) == (span is not None)


def test_a_wrong_location_is_reported() -> None:
    with pytest.raises(ValueError, match="'Rome' is not at character 3"):
        answer_span({"answers": "Rome", "answer_start": 3}, CONTEXT)
    with pytest.raises(ValueError, match="'Oslo' is not in the context"):
        answer_span({"answers": "Oslo"}, CONTEXT)


def test_questions_for_other_models(place: Path) -> None:
    run = from_questions("faq.jsonl", model="bert-base")
    assert run.model.architecture == "BertForQuestionAnswering" and run.objective.length == 384
    setup(override(from_questions("faq.jsonl"), {"steps": 1}), "run", device="cpu")


@pytest.mark.parametrize("arguments, line", [
    (("--questions", "nowhere.jsonl"), "nowhere.jsonl: no such file or folder"),
    (("--questions", "pairs.csv"), "pairs.csv: no row can be read (not JSON"),
    (("--questions", "odd.jsonl"), "odd.jsonl: no column 'answer'; "),
    (("--questions", "none.jsonl"), "none.jsonl: no answer can be learnt; no question has an answer"),
    (("--questions", "lost.jsonl"), "lost.jsonl: no answer can be learnt; 1 row skipped: 1 because the answer 'x' is"),
    (("--questions", "faq.jsonl", "--column", "question"), "--questions takes --column three times"),
    (("--questions", "faq.jsonl", "--label", "answer"), "--label goes with --csv, --jsonl, --tags"),
    (("--questions", "faq.jsonl", "--model", "vit-b16"), "vit-b16: its family has no class ForQuestion"),
    (("--csv", "pairs.csv", "--similar"), "--similar needs --column twice"),
    (("--csv", "pairs.csv", "--similar", "--column", "ask", "--column", "sai"), "no column 'sai'; did you mean 'say'?"),
    (("--csv", "pairs.csv", "--similar", "--label", "say"), "give one of --label, --target, --prompt and --similar"),
    (("--text", "pairs.csv", "--similar"), "--similar goes with --csv, --jsonl"),
    (("--csv", "one.csv", "--similar", "--column", "a", "--column", "b"), "one.csv: 1 pairs can be used"),
    (("--csv", "pairs.csv", "--similar", "--column", "ask", "--column", "say", "--model", "t5-small"), "t5-small is"),
], ids=str)  # fmt: skip
def test_mistakes(arguments: tuple[str, ...], line: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(place / "odd.jsonl", [{"question": "a?", "context": "b"}])
    write(place / "none.jsonl", [row(0, answer="")])
    write(place / "lost.jsonl", [row(0, answer="x")])
    (place / "one.csv").write_text("a,b\nc,d\n,e\n")
    assert cli.main(["train", *arguments, "--show"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and line in err, err


# -- pairs of similar texts


def test_from_pairs_to_vectors_and_a_search(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    columns = ["--column", "ask", "--column", "say"]
    assert cli.main(["train", "--csv", "pairs.csv", *columns, "--similar", *SMALL]) == 0, capsys.readouterr().err
    out, err = capsys.readouterr()
    assert err == "pairs.csv: 36 pairs; text: column 'ask'; pair: column 'say'\n"
    assert "skipped 1 of 37 rows" in out and "`anyformer run embed runs/pairs TEXT` uses it" in out
    assert cli.main(["eval", "runs/pairs", "--json", "--save", "found.jsonl", "--device", "cpu"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert 0 <= scores["mrr_at_10"] <= scores["recall_at_10"] <= 1
    line = json.loads((place / "found.jsonl").read_text().splitlines()[0])
    assert (
        list(line) == ["row", "text", "wanted", "predicted", "right", "score"] and line["wanted"] in line["predicted"]
    )
    again = ["eval", "found.jsonl", "runs/pairs", "--json"]
    assert cli.main(again) == 0 and json.loads(capsys.readouterr().out)["recall_at_10"] == scores["recall_at_10"]
    assert cli.main(["convert", "runs/pairs", "hf", "--format", "hf"]) == 0
    ours, theirs = (af.tasks.embed(folder, "the Oslo of 1") for folder in ("runs/pairs", "hf"))
    assert torch.equal(ours, theirs)


def test_the_pooling_of_the_training_is_kept(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    columns = ["--column", "ask", "--column", "say", "--set", "objective.pool=cls"]
    assert cli.main(["train", "--csv", "pairs.csv", *columns, "--similar", *SMALL]) == 0, capsys.readouterr().err
    assert cli.main(["convert", "runs/pairs", "hf", "--format", "hf"]) == 0
    for folder in ("runs/pairs", "hf"):
        vectors = [af.tasks.embed(folder, "the Oslo of 1", pool=pool) for pool in (None, "cls", "mean")]
        assert torch.equal(vectors[0], vectors[1]) and not torch.allclose(vectors[0], vectors[2], atol=1e-3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the field in config.json is known
        assert from_similar("pairs.csv", ("ask", "say"), "hf").objective.pool == "cls"
    assert from_similar("pairs.csv", ("ask", "say"), "gpt2").objective.pool == "last"
