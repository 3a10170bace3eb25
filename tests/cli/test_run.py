"""`anyformer run`: where inputs come from, what is printed, and what a mistake looks like."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer as af
from anyformer import cli, families
from anyformer.tasks import TASKS
from terminals import terminal
from vocabularies import words, write

Run = Callable[..., tuple[int, str, str]]
TEXTS = ["The quick fox", "a dog"]
COMMAND = [sys.executable, "-m", "anyformer", "run"]


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


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: object) -> tuple[int, str, str]:
        code = cli.main(["run", *map(str, arguments)])
        out, err = capsys.readouterr()
        return code, out, err

    return call


def pipe(monkeypatch: Any, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


def parsed(out: str) -> list[Any]:
    return [json.loads(line) for line in out.splitlines()]


# -- tasks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "architecture", "given", "flags", "options"),
    [("fill-mask", "BertForMaskedLM", ["The [MASK] fox"], ["--top-k", 2], {"top_k": 2}),
     ("fill-mask", "BertForMaskedLM", ["[MASK] [MASK]"], ["--targets", "dog", "--targets", "fox"],
      {"targets": ["dog", "fox"]}),
     ("classify", "BertForSequenceClassification", ["The fox"], [], {}),
     ("classify", "BertForSequenceClassification", ["The fox", "jumps"], ["--top-k", 0], {"top_k": 0}),
     ("tag", "BertForTokenClassification", ["The quick fox"], ["--aggregation", "first"], {"aggregation": "first"}),
     ("answer", "BertForQuestionAnswering", ["Who?", "The quick fox " * 9], ["--threshold", "-99", "--top-k", 2],
      {"threshold": -99.0, "top_k": 2}),
     ("embed", "BertModel", ["The fox"], ["--pool", "cls", "--raw"], {"pool": "cls", "raw": True}),
     ("next-sentence", "BertForNextSentencePrediction", ["The fox", "jumps"], [], {})],
)  # fmt: skip
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
    write(tmp_path, "texts.txt", "The quick fox\r\n\n  \na dog\n")
    write(tmp_path, "texts.jsonl", '{"text": "The quick fox"}\n\n{"text": "a dog"}')
    for file in ("texts.txt", "texts.jsonl"):
        code, out, err = run("classify", folder, "--file", tmp_path / file, "--json")
        assert (code, err, parsed(out)) == (0, "", wanted)
    pipe(monkeypatch, (tmp_path / "texts.jsonl").read_text())  # between two programs: test_generate.py
    code, out, err = run("classify", folder, "--json")
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


# -- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "line"),
    [(["fil-mask", "M", "a"], "no task 'fil-mask'; did you mean 'fill-mask'?"),
     ([], "give a task: fill-mask, classify, "),
     (["--lst"], "`anyformer run` has no flag '--lst'; did you mean '--list'?"),
     (["classify", "M", "a", "--top", "2"], "`anyformer run classify` has no flag '--top'; did you mean '--top-k'?"),
     (["classify", "M", "a", "--top-k", "x"], "argument --top-k: invalid int value: 'x'"),
     (["classify", "M", "a", "b", "c"], "classify reads text and pair; 3 inputs were given"),
     (["classify", "M", "a", "--dtype", "float8"], "no dtype 'float8'"),
     (["classify", "M", "a", "--batch", "0"], "--batch is 0; it must be at least 1"),
     (["classify", "M", "a", "--device", "tpu"], "device 'tpu' is not here: "),
     (["classify", "M", "a", "--file", "x"], "give INPUT or --file, not both"),
     (["classify", "M", "--file", "/no/such.txt"], "/no/such.txt: No such file or directory"),
     (["classify", "M", "--file", "/"], "--file / is a folder"),
     (["classify", "M", " "], "text is empty"),
     (["classify", "M", "a", "--labels", "yes"], "1 labels given, and the model tells 2 apart"),
     (["classify", "./no/such/folder", "a"], "the folder './no/such/folder' does not exist"),
     (["classify", "M", "dog " * 60], "the text has 62 tokens, and this model takes at most 40; truncate cuts it"),
     (["answer", "M", "--whole", "--file", "T"], "--whole: answer needs question and context, and the file "),
     (["answer", "M", "--file", "T"], "T:1: not a JSON object with question and context"),
     (["answer", "M", "Who?", "a"], "span answering needs a model with a SpanHead; this one has ClassifyHead"),
     (["fill-mask", "M", "a"], "this objective predicts tokens, and the model has ClassifyHead"),
     (["classify", "M", "--file", "J"], "J:2: not a JSON object, as the first line is"),
     (["classify", "M", "--file", "F"], "input 1: classify reads no field 'txt'; did you mean 'text'?"),
     (["classify", "M", "--file", "B"], "B: not UTF-8 text (byte 0)"),
     (["classify", "M", "--file", "E"], "classify needs text, and there is no text: E is empty")],
)  # fmt: skip
def test_a_mistake_is_one_line(
    run: Run, models: Any, tmp_path: Path, monkeypatch: Any, arguments: list[str], line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", None)
    write(tmp_path, "T", "The fox\n")
    write(tmp_path, "J", '{"text": "a"}\nThe fox\n')
    write(tmp_path, "F", '{"txt": "a"}\n')
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
    told = f"answer needs question and context, and there is no {lack}: as an argument, with --file, or piped in"
    assert (code, out) == (2, "") and told in err
    pipe(monkeypatch, "")
    code, out, err = run("answer", models("BertForQuestionAnswering"), *given)
    assert (code, out) == (2, "") and f"there is no {lack}: standard input is empty" in err


# -- help and terminal ------------------------------------------------------------------------------------------------


HELP = """
import contextlib, io, json, sys, time
from anyformer import cli
told = {}
for words in (["--help"], ["--list"], *([task, "--help"] for task in sys.argv[1:])):
    shown, start = io.StringIO(), time.process_time()
    with contextlib.redirect_stdout(shown):
        assert cli.main(["run", *words]) == 0
    told[words[0]] = shown.getvalue(), time.process_time() - start
assert "torch" not in sys.modules
print(json.dumps(told))
"""


def test_help_is_fast_and_without_torch() -> None:
    done = subprocess.run([sys.executable, "-c", HELP, *TASKS], capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr
    for task, (shown, seconds) in json.loads(done.stdout).items():
        assert seconds < 1, task
        assert all(f"--{name.replace('_', '-')}" in shown for name in (TASKS[task].flags if task in TASKS else {}))


def test_the_list_has_every_task(run: Run) -> None:
    code, out, err = run("--list")
    assert (code, err) == (0, "") and [line.split()[0] for line in out.splitlines()] == list(TASKS)


def test_a_bar_on_a_terminal_alone(run: Run, models: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On stderr, gone at the end; results on stdout are the same."""
    write(tmp_path, "texts.txt", "\n".join(TEXTS * 20))
    given = ["embed", str(models("BertModel")), "--file", str(tmp_path / "texts.txt"), "--json"]
    with terminal(monkeypatch, "stderr") as shown:
        code, out, _ = run(*given)
    assert code == 0 and b"embed" in b"".join(shown)
    assert run(*given) == (0, out, "") and len(parsed(out)) == 40
