"""`anyformer run`: sources of inputs, output, and mistakes."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer as af
from anyformer import families
from anyformer.tasks.table import TASKS, find_task
from terminals import Run, terminal
from vocabularies import words, write

VERB = ("run",)
TEXTS = ["The quick fox", "a dog"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a class of BERT."""

    def make(architecture: str) -> Path:
        folder = tmp_path_factory.getbasetemp() / "run" / architecture
        if not folder.exists():
            config = {
                "architectures": [architecture], "vocab_size": 300, "hidden_size": 16, "num_hidden_layers": 1,
                "num_attention_heads": 2, "intermediate_size": 32, "max_position_embeddings": 40,
                "id2label": {"0": "bad", "1": "good"},
            }  # fmt: skip
            model = af.build(families.find("bert").read(config), seed=3)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(8 if parameter.dim() > 1 else 1)
            af.save(model, folder, format="hf")
            words(folder)
        return folder

    return make


def pipe(monkeypatch: Any, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


def parsed(out: str) -> list[Any]:
    return [json.loads(line) for line in out.splitlines()]


# -- tasks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("task", "architecture", "given", "flags", "options"), [
    ("fill-mask", "BertForMaskedLM", ["The [MASK] fox"], ["--top-k", 2], {"top_k": 2}),
    ("fill-mask", "BertForMaskedLM", ["[MASK] [MASK]"], ["--targets", "dog", "--targets", "fox"],
     {"targets": ["dog", "fox"]}),
    ("classify", "BertForSequenceClassification", ["The fox"], [], {}),
    ("classify", "BertForSequenceClassification", ["The fox"], ["--top-k", 0, "--pair", "jumps"],
     {"top_k": 0, "pair": "jumps"}),
    ("tag", "BertForTokenClassification", ["The quick fox"], ["--aggregation", "first"], {"aggregation": "first"}),
    ("answer", "BertForQuestionAnswering", ["Who?", "The quick fox " * 9], ["--threshold", "-99", "--top-k", 2],
     {"threshold": -99.0, "top_k": 2}),
    ("embed", "BertModel", ["The fox"], ["--pool", "cls", "--raw"], {"pool": "cls", "raw": True}),
    ("next-sentence", "BertForNextSentencePrediction", ["The fox", "jumps"], [], {}),
])  # fmt: skip
def test_json_is_what_python_gives(
    run: Run, models: Any, task: str, architecture: str, given: list[str], flags: list[Any], options: Any
) -> None:
    folder = models(architecture)
    function = getattr(af.tasks, task.replace("-", "_"))
    wanted = function(folder, dict(zip(TASKS[task].all_fields, given)), **options)
    wanted = wanted.tolist() if isinstance(wanted, torch.Tensor) else wanted
    assert run(task, folder, *given, "--json", *flags) == (0, json.dumps(wanted, ensure_ascii=False) + "\n", "")
    code, out, err = run(task, folder, *flags, "--batch", 3, "--dtype", "float32", "--offline", *given)  # flags between
    assert (code, err) == (0, "") and out.strip() and "{" not in out


def test_tables(run: Run, models: Any, tmp_path: Path) -> None:
    folder = models("BertForMaskedLM")
    code, out, err = run("fill-mask", folder, "The [MASK] fox", "--top-k", 2)
    lines = out.splitlines()
    assert (code, err, len(lines)) == (0, "", 3) and lines[0].split() == ["score", "token", "token_str", "sequence"]
    write(tmp_path, "texts.txt", "The [MASK] fox\n[MASK] a [MASK]\n")
    lines = run("fill-mask", folder, "--file", tmp_path / "texts.txt", "--top-k", 2)[1].splitlines()
    assert [line.split()[0] for line in lines] == ["input", "1", "1", "2", "2", "2", "2"]
    out = run("next-sentence", models("BertForNextSentencePrediction"), "a", "b")[1]
    assert out.split()[:2] == ["follows", "score"] and out.split()[2] in ("yes", "no")
    assert len(run("embed", models("BertModel"), "a")[1].split()) == 16


# -- inputs -----------------------------------------------------------------------------------------------------------


def test_inputs_come_from_three_places(run: Run, models: Any, tmp_path: Path, monkeypatch: Any) -> None:
    folder = models("BertForSequenceClassification")
    wanted = af.tasks.classify(folder, TEXTS)
    write(tmp_path, "texts.txt", "The quick fox\r\na dog\n")
    write(tmp_path, "texts.jsonl", '{"text": "The quick fox"}\n{"text": "a dog"}')
    for file in ("texts.txt", "texts.jsonl"):
        code, out, err = run("classify", folder, "--file", tmp_path / file, "--json")
        assert (code, err, parsed(out)) == (0, "", wanted)
    pipe(monkeypatch, (tmp_path / "texts.jsonl").read_text())  # between two programs: test_generate.py
    code, out, err = run("classify", folder, "--json")
    assert (code, err, parsed(out)) == (0, "", wanted)
    code, out, err = run("classify", folder, *TEXTS, "--json")  # two texts are two inputs, not a pair
    assert (code, err, parsed(out)) == (0, "", wanted)
    rows = [{"text": "The quick fox", "pair": "jumps"}, {"text": "a dog"}]
    write(tmp_path, "pairs.jsonl", "\n".join(map(json.dumps, rows)))
    assert parsed(run("classify", folder, "--file", tmp_path / "pairs.jsonl", "--json")[1]) == af.tasks.classify(
        folder, rows
    )
    write(tmp_path, "one.txt", "The quick fox\njumps over")
    whole = run("classify", folder, "--file", tmp_path / "one.txt", "--whole", "--json")[1]
    assert parsed(whole) == [af.tasks.classify(folder, "The quick fox\njumps over")]


def test_a_file_is_the_field_that_is_left(run: Run, models: Any, tmp_path: Path, monkeypatch: Any) -> None:
    folder, text = models("BertForQuestionAnswering"), "The quick fox\njumps over the lazy dog. " * 5
    wanted = af.tasks.answer(folder, {"question": "Who?", "context": text})
    write(tmp_path, "text.txt", text)
    assert parsed(run("answer", folder, "Who?", "--file", tmp_path / "text.txt", "--json")[1]) == [wanted]
    pipe(monkeypatch, text)
    assert parsed(run("answer", folder, "Who?", "--json")[1]) == [wanted]


# -- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("lines", "errors"), [
    (["The quick fox", "", "a dog"], {2: "text is empty"}),
    (["", "a dog", "dog " * 60, ""], {1: "text is empty", 3: "the text has 62 tokens, and this", 4: "text is empty"}),
    (['{"text": "a"}', "", '{"text": ""}', "The fox", '{"txt": "a"}', '{"text": "a dog"}'],
     {2: "FILE:2: the line is empty", 3: "text is empty", 4: "FILE:4: not a JSON object, as the first line is",
      5: "classify reads no field 'txt'; did you mean 'text'?"}),
])  # fmt: skip
def test_every_line_has_its_place(
    run: Run, models: Any, tmp_path: Path, monkeypatch: Any, lines: list[str], errors: dict[int, str]
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = models("BertForSequenceClassification")
    write(tmp_path, "FILE", "\n".join(lines) + "\n")
    code, out, err = run("classify", folder, "--file", "FILE", "--json")
    results, first = parsed(out), min(errors)
    assert code == 1 and len(results) == len(lines)
    plural = "s" if len(errors) > 1 else ""
    assert err.startswith(f"anyformer: {len(errors)} error{plural}; the first: input {first}: {errors[first]}")
    assert err.count("\n") == 1
    for number, (line, result) in enumerate(zip(lines, results, strict=True), 1):
        if number in errors:
            assert list(result) == ["error"] and result["error"].startswith(errors[number])
        else:
            text = json.loads(line)["text"] if line.startswith("{") else line
            assert result[0]["score"] == pytest.approx(af.tasks.classify(folder, text)[0]["score"], abs=1e-5)
    code, out, err = run("classify", folder, "--file", "FILE")
    table = out.splitlines()
    assert code == 1 and len(table) == len(lines) + 1 and "error" in table[0] and errors[first] in table[first]


def test_texts_are_printed_with_errors_in_their_place(run: Run, models: Any, monkeypatch: Any) -> None:
    pipe(monkeypatch, "The fox\n\na dog\n")
    code, out, err = run("embed", models("BertModel"))
    lines = out.splitlines()
    assert code == 1 and len(lines) == 3 and lines[1] == "error: text is empty" and len(lines[2].split()) == 16


def test_texts_cut_as_in_training_are_reported(run: Run, models: Any, tmp_path: Path) -> None:
    af.save(af.load(models("BertForSequenceClassification")), tmp_path / "model")
    config = json.loads((tmp_path / "model" / "tokenizer_config.json").read_text())
    write(tmp_path / "model", "tokenizer_config.json", {**config, "model_max_length": 10})
    code, out, err = run("classify", tmp_path / "model", "dog " * 60, "a dog", "--json")
    assert code == 0 and len(parsed(out)) == 2
    assert err == "anyformer: warning: too long, and cut: 1 of 2 inputs (52 tokens); the limit is 10 tokens\n"
    code, out, err = run("classify", tmp_path / "model", "dog " * 60, "--no-truncate")
    assert code == 2 and "takes at most 40" in err


# -- tables -----------------------------------------------------------------------------------------------------------


def read_csv(path: Path) -> list[list[str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def test_predictions_stand_next_to_the_rows_of_a_table(run: Run, models: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    folder = models("BertForSequenceClassification")
    rows = [["id", "review", "label"], ["1", "The quick, fox", "good"], ["2", "", "bad"], ["3", 'naïve "dog"', ""]]
    with open("reviews.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter=";").writerows([*rows, ["4", "one value too few"]])
    before = (tmp_path / "reviews.csv").read_bytes()
    command = ["classify", folder, "--csv", "reviews.csv", "--column", "review", "--out"]
    code, out, err = run(*command, "out.csv")
    assert code == 1 and out == "out.csv: 4 rows\n" and "2 errors; the first: input 2: text is empty" in err
    header, *lines = read_csv(tmp_path / "out.csv")
    assert header == ["id", "review", "label", "predicted_label", "score", "error"]
    assert [line[:3] for line in lines] == [*rows[1:], ["", "", ""]]
    wanted = [af.tasks.classify(folder, text)[0] for text in ("The quick, fox", 'naïve "dog"')]
    assert [lines[i][3] for i in (0, 2)] == [one["label"] for one in wanted]
    assert [float(lines[i][4]) for i in (0, 2)] == pytest.approx([one["score"] for one in wanted], abs=1e-5)
    assert lines[1][3:] == ["", "", "text is empty"] and lines[0][5] == lines[2][5] == ""
    assert lines[3][5] == "reviews.csv:5: 2 values for 3 columns"
    # a file is overwritten only with --overwrite, and never the input
    assert run(*command, "out.csv")[::2] == (2, "anyformer: --out out.csv exists already; give another name, or"
                                                " --overwrite\n")  # fmt: skip
    assert run(*command, "out.csv", "--overwrite", "--top-k", 2)[0] == 1
    assert read_csv(tmp_path / "out.csv")[0][3:] == ["predicted_label", "score", "label_2", "score_2", "error"]
    (tmp_path / "link.csv").symlink_to("reviews.csv")
    for name in ("reviews.csv", "link.csv"):
        line = f"anyformer: --out {name} is the input; give another name\n"
        assert run(*command, name, "--overwrite")[::2] == (2, line)
    assert (tmp_path / "reviews.csv").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.csv", "out.csv", "reviews.csv"]


def test_json_lines_and_two_columns(run: Run, models: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"id": 1, "q": "Who?", "text": "The quick fox"}, {"id": 2, "text": "a"}, {"id": 3, "q": "Who?", "text": 3}]
    write(tmp_path, "rows.jsonl", "\n".join(map(json.dumps, rows)))
    columns = ["--column", "q", "--column", "text"]
    folder = models("BertForQuestionAnswering")
    assert run("answer", folder, "--jsonl", "rows.jsonl", *columns, "--out", "out.jsonl")[0] == 1
    found = parsed((tmp_path / "out.jsonl").read_text())
    wanted = af.tasks.answer(folder, {"question": "Who?", "context": "The quick fox"})[0]
    assert found[0] == {**rows[0], **wanted, "error": None}
    assert [row["error"] for row in found[1:]] == ["rows.jsonl:2: no column 'q'", "context is int, not text"]
    assert [row["id"] for row in found] == [1, 2, 3]
    # other results are one column; lines and arguments also make a table
    assert run("tag", models("BertForTokenClassification"), "The fox", "a", "--out", "tags.csv")[0] == 0
    header, first, _ = read_csv(tmp_path / "tags.csv")
    assert header == ["text", "prediction", "error"] and first[0] == "The fox"
    assert isinstance(json.loads(first[1]), list)


# -- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("arguments", "line"), [
    (["fil-mask", "M", "a"], "no task 'fil-mask'; did you mean 'fill-mask'?"),
    ([], "give a task: fill-mask, classify, "),
    (["--lst"], "`anyformer run` has no flag '--lst'; did you mean '--list'?"),
    (["classify", "M", "a", "--top", "2"], "`anyformer run classify` has no flag '--top'; did you mean '--top-k'?"),
    (["classify", "M", "a", "--top-k", "x"], "argument --top-k: invalid int value: 'x'"),
    (["answer", "M", "a", "b", "c"], "answer reads question and context; 3 inputs were given"),
    (["classify", "M", "a", "--column", "b"], "--column needs --csv or --jsonl"),
    (["classify", "M", "a", "--csv", "T"], "give INPUT or --csv, not both"),
    (["classify", "M", "--csv", "no.csv"], "no.csv: no such file"),
    (["classify", "M", "--csv", "C"], "C: no column 'text'; give --column for text: id, review"),
    (["classify", "M", "--csv", "C", "--column", "revew"], "C: no column 'revew'; did you mean 'review'?"),
    (["classify", "M", "--csv", "C", *["--column", "id"] * 3], "classify reads text and pair; --column is given 3 "),
    (["classify", "M", "--csv", "C", "--column", "review", "--out", "C"], "--out C: the name of a table ends in .csv"),
    (["classify", "M", "a", "--out", "no/x.csv"], "--out no/x.csv: no such folder: no"),
    (["classify", "M", "a", "--out", "x.csv", "--json"], "give --json, which prints the results, or --out, not both"),
    (["classify", "M", "a", "--overwrite"], "--overwrite needs --out"),
    (["classify", "M", "a", "--dtype", "float8"], "no dtype 'float8'"),
    (["classify", "M", "a", "--batch", "0"], "--batch is 0; it must be at least 1"),
    (["classify", "M", "a", "--device", "tpu"], "device 'tpu' is not available: "),
    (["classify", "M", "a", "--file", "x"], "give INPUT or --file, not both"),
    (["classify", "M", "--file", "/no/such.txt"], "/no/such.txt: No such file or directory"),
    (["classify", "M", "--file", "/"], "--file / is a folder"),
    (["classify", "M", " "], "text is empty"),
    (["classify", "M", "a", "--labels", "yes"], "1 labels given, but the model has 2"),
    (["classify", "./no/such/folder", "a"], "./no/such/folder: no such folder"),
    (["classify", "M", "dog " * 60], "the text has 62 tokens, and this model takes at most 40; truncate cuts it"),
    (["answer", "M", "--whole", "--file", "T"], "--whole: answer needs question and context, and the file "),
    (["answer", "M", "--file", "T"], "T:1: not a JSON object with question and context"),
    (["answer", "M", "Who?", "a"], "span answering needs a model with a SpanHead; this one has ClassifyHead"),
    (["fill-mask", "M", "a"], "this objective predicts tokens, but the model has ClassifyHead"),
    (["classify", "M", "--file", "B"], "B: not UTF-8 text (byte 0)"),
    (["classify", "M", "--file", "E"], "classify needs text, but text is missing: E is empty"),
])  # fmt: skip
def test_a_mistake_is_one_line(
    run: Run, models: Any, tmp_path: Path, monkeypatch: Any, arguments: list[str], line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", None)
    write(tmp_path, "T", "The fox\n")
    write(tmp_path, "C", "id,review\n1,fox\n")
    (tmp_path / "B").write_bytes(b"\xff\xfe")
    write(tmp_path, "E", "\n \n")
    folder = models("BertForSequenceClassification")
    code, out, err = run(*[folder if argument == "M" else argument for argument in arguments])
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"anyformer: {line}"), err


@pytest.mark.parametrize("given", [[], ["Who?"]])
def test_without_a_pipe_the_lack_is_told(run: Run, models: Any, monkeypatch: Any, given: list[str]) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    code, out, err = run("answer", models("BertForQuestionAnswering"), *given)
    lack = "context" if given else "question"
    message = f"answer needs question and context, but {lack} is missing: as an argument, with --file, or piped in"
    assert (code, out) == (2, "") and message in err
    pipe(monkeypatch, "")
    code, out, err = run("answer", models("BertForQuestionAnswering"), *given)
    assert (code, out) == (2, "") and f"{lack} is missing: standard input is empty" in err


# -- help and terminal ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", TASKS)
def test_help_has_every_flag(run: Run, task: str) -> None:
    code, out, err = run(task, "--help")  # its speed: test_cli.py
    assert (code, err) == (0, "")
    assert all(f"--{name.replace('_', '-')}" in out for name in TASKS[task].flags)


def test_the_list_has_every_task(run: Run) -> None:
    code, out, err = run("--list")
    assert (code, err) == (0, "") and [line.split()[0] for line in out.splitlines()] == list(TASKS)


def test_a_bar_on_a_terminal_alone(run: Run, models: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A progress bar on stderr, removed at the end; stdout does not change."""
    write(tmp_path, "texts.txt", "\n".join(TEXTS * 20))
    given = ["embed", str(models("BertModel")), "--file", str(tmp_path / "texts.txt"), "--json"]
    with terminal(monkeypatch, "stderr") as shown:
        code, out, _ = run(*given)
    assert code == 0 and b"embed" in b"".join(shown)
    assert run(*given) == (0, out, "") and len(parsed(out)) == 40


@pytest.mark.parametrize("name, task", [
    ("text-generation", "write"), ("NER", "tag"), ("automatic-speech-recognition", "transcribe"),
    ("fill_mask", "fill-mask"), ("nothing", None),
])  # fmt: skip
def test_tasks_by_the_names_of_pipelines(name: str, task: str | None) -> None:
    assert find_task(name) == task
    names = [each for info in TASKS.values() for each in (info.name, *info.called)]
    assert len(names) == len({*names})


def test_the_page_names_every_pipeline_that_works() -> None:
    pipelines = pytest.importorskip("transformers").pipelines.PIPELINE_REGISTRY.get_supported_tasks()
    page = (Path(__file__).parents[2] / "docs" / "howto" / "tasks.md").read_text("utf-8")
    lines = page.split("| task | pipeline | pipeline of transformers 4 |")[1].split("\n\n")[0].splitlines()[2:]
    now: set[str] = set()
    for task, names, older in ([re.findall("`(.+?)`", cell) for cell in line.split("|")[1:-1]] for line in lines):
        assert [find_task(name) for name in (*names, *older)] == task * len((*names, *older))
        assert not {*older} & {*pipelines}
        now |= {*names}
    assert now == {name for name in pipelines if find_task(name)}
