"""`anyformer course` and `anyformer show`, and how the command line finds commands of other packages."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from anyformer import cli
from anyformer.cli import completion
from anyformer.specs import extensions
from anyformer_course import lesson, pages
from anyformer_course.examples import Parameter, read_example, read_value
from anyformer_course.shown import names, show

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("commands")
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str) -> tuple[int, str, str]:
        code = cli.main(arguments)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


# -- course -----------------------------------------------------------------------------------------------------------


def test_course_lists_lessons_and_stops(run: Run, sample: lesson.Lesson) -> None:
    code, out, err = run("course")
    assert (code, err) == (0, "") and out.splitlines()[1].split() == ["7", "A", "sample", "2"]
    code, out, err = run("course", "7")
    assert (code, err) == (0, "") and "What the tests read." in out and "7.2   Two words" in out


def test_course_runs_a_stop(run: Run, sample: lesson.Lesson, tmp_path: Path) -> None:
    code, out, err = run("course", "7.1", "--picture", str(tmp_path / "a.png"))
    assert (code, err) == (0, "") and (tmp_path / "a.png").stat().st_size > 1000
    pieces = (
        "Slides: Self-attention, Attention as a soft lookup", "[Vaswani et al. 2017]", 'show("attention", "the cat sat',
        "weights", "'sat' looks most at 'down', with weight 0.64", "See: each row", "Try: leave out", "scale=1.0)",
        "course 7.1 --try", "Next: anyformer course 7.2",
    )  # fmt: skip
    places = [out.find(piece) for piece in pieces]
    assert -1 not in places and places == sorted(places), dict(zip(pieces, places))
    assert run("course", "7.two-words") == run("course", "7.2") and "Next" not in run("course", "7.2")[1]


def test_course_names_its_own_flag_if_a_table_is_cut(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anyformer_course.render.PLAIN_WIDTH", 25)
    course, example = run("course", "1.3")[1], run("show", "norm-placement", "--depth", "2")[1]
    assert "more columns; --browser shows all" in " ".join(course.split())
    assert "more columns; --json prints all" in " ".join(example.split())


def test_course_runs_the_change(run: Run, sample: lesson.Lesson) -> None:
    code, out, err = run("course", "7.1", "--try")
    assert (code, err) == (0, "") and "with weight 0.64" not in out and "looks most at" in out and "See:" not in out


def test_course_writes_a_notebook(run: Run, sample: lesson.Lesson, tmp_path: Path) -> None:
    path = tmp_path / "7.ipynb"
    assert run("course", "7", "--notebook", str(path)) == (0, f"written: {path}\n", "")
    assert len(json.loads(path.read_text())["cells"]) == 2 + 4 * 2
    assert run("course", "7", "--notebook", "x.txt")[0] == 2


def test_course_opens_the_page(
    run: Run, sample: lesson.Lesson, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr(pages, "cached_html", lambda which: tmp_path / f"{which.number}.html")
    assert run("course", "7.2", "--browser")[0] == 0 and opened == [f"file://{tmp_path}/7.html#two-words"]


@pytest.mark.parametrize(("arguments", "message"), [
    ("8", "there is no lesson 8; lessons: 7"), ("7.9", "lesson 7 has stops 1 to 2, not 9"),
    ("7.tow-words", "did you mean 'two-words'?"), ("seven", "is not a lesson or a stop"),
    ("7 --try", "name a stop, for example 7.1"), ("--try", "name a lesson"),
    ("7 --brwser", "did you mean '--browser'?"), ("7.1 --picture a.txt", "must end in .svg, .png or .pdf"),
])  # fmt: skip
def test_mistakes_of_course(run: Run, sample: lesson.Lesson, arguments: str, message: str) -> None:
    code, _, err = run("course", *arguments.split())
    assert code == 2 and message in err and err.count("\n") == 1


# -- show -------------------------------------------------------------------------------------------------------------


def test_show_lists_every_example(run: Run) -> None:
    code, out, err = run("show")
    assert (code, err) == (0, "")
    for name in names():
        assert any(line.split()[:1] == [name] and read_example(name).about[:20] in line for line in out.splitlines()), (
            name
        )


@pytest.mark.usefixtures("sample")
def test_show_groups_by_lesson(run: Run) -> None:
    out = run("show")[1]
    assert out.startswith("Lecture 7. A sample\n  attention ")


@pytest.mark.parametrize("name", names())
def test_every_example_has_a_line_and_help(run: Run, name: str) -> None:
    example = read_example(name)
    assert example.about.endswith("."), "the first line of its docstring is a sentence"
    code, out, err = run("show", name, "--help")
    assert (code, err) == (0, "") and f"usage: anyformer show {name}" in out
    assert all(f"--{option.name.replace('_', '-')}" in out for option in example.options)


def test_show_computes(run: Run, tmp_path: Path) -> None:
    code, out, err = run("show", "attention", "red green blue", "--width", "6", "--picture", str(tmp_path / "a.svg"))
    assert (code, err) == (0, "") and out.count("blue") >= 6 and "each row of weights sums to 1" in out
    assert (tmp_path / "a.svg").read_text().startswith("<svg")
    code, out, err = run("show", "attention", "red green", "--json", "--scale", "none")
    tables = {table["title"]: table for table in json.loads(out)["tables"]}
    assert sum(tables["weights"]["rows"][0][1:]) == pytest.approx(1) and len(tables["q"]["columns"]) == 5
    assert json.loads(out) == json.loads(run("show", "attention", "red green", "--json")[1])
    assert json.loads(out) != json.loads(run("show", "attention", "red green", "--json", "--scale", "-2")[1])


@pytest.mark.parametrize(("arguments", "message"), [
    ("atention", "did you mean 'attention'?"), ("attention --widht 4", "did you mean '--width'?"),
    ("attention --width four", "width: 'four' is not an integer"), ("attention the cat", "put a text in quotes"),
    ("--jsn", "has no flag '--jsn'"), ("attention --width", "--width: expected one argument"),
])  # fmt: skip
def test_mistakes_of_show(run: Run, arguments: str, message: str) -> None:
    code, _, err = run("show", *arguments.split())
    assert code == 2 and message in err and err.count("\n") == 1


def test_odd_texts(run: Run, tmp_path: Path) -> None:
    """A message quotes the start of a long text; a picture of any script is written, with one warning at most."""
    code, _, err = run("show", "activations", " ".join(f"w{i}" for i in range(300)))
    assert code == 2 and err.count("\n") == 1 and len(err) < 200 and "characters)" in err
    text = "我 喜欢 狗 🐶 [bold] $5_{"
    for name, warnings in (("a.svg", 0), ("a.png", 1)):
        code, out, err = run("show", "attention", text, "--picture", str(tmp_path / name))
        assert code == 0 and all(word in out for word in text.split())
        assert err.count("\n") == warnings, err
        assert (tmp_path / name).stat().st_size > 1000


def test_a_long_text_is_cut(run: Run) -> None:
    """One line of a message, cells of a table and a picture stay small, however long the text is."""
    long = " ".join(f"w{i}" for i in range(300))
    for name in ("patches", "context", "albert", "claim", "bayes"):  # not found, quoted twice, a name, a number
        code, _, err = run("show", name, long)
        assert code == 2 and err.count("\n") == 1 and "w30" not in err, err
    code, out, _ = run("show", "noise", long)
    assert code == 0 and out.count("\n") < 60 and max(map(len, out.splitlines())) <= 120
    width, height = show("masking", long, draws=1).draw().get_size_inches()
    assert width <= 9 and height <= 8
    assert run("show", "which", "cat")[2].endswith("the last word of a line is not a gap\n")
    assert run("show", "formats", " ")[2].endswith("the text is empty; write a few words\n")


@pytest.mark.parametrize(
    ("name", "message"),
    [("attention", "the text is empty"), ("image-data", "name at least one of vit-"),
     ("budget", "name at least one description"), ("auxiliary", "write at least one lambda")],
)  # fmt: skip
def test_an_empty_text_is_named(run: Run, name: str, message: str) -> None:
    code, out, err = run("show", name, "")
    assert (code, out) == (2, "") and message in err and err.count("\n") == 1


@pytest.mark.parametrize("arguments", [
    ("norms", "1 2 nan"), ("elo", "A:inf B:1"), ("regression", "1:nan"), ("matching", "0:0 1:1e400"),
    ("auxiliary", "nan"), ("attention", "a b", "--scale", "nan"), ("activations", "1 -inf"),
    ("state-space", "1 1e39"), ("matching", "--ask", "1e30"), ("distill", "--temperature", "1e30", "--steps", "1"),
])  # fmt: skip
def test_numbers_must_be_finite(run: Run, arguments: tuple[str, ...]) -> None:
    code, out, err = run("show", *arguments)
    assert (code, out) == (2, "") and err.count("\n") == 1


@pytest.mark.parametrize(("arguments", "limits"), [
    (("clip", "--steps", "-1"), "at least 0"), (("mixers", "--few", "0"), "at least 1"),
    (("moved-text", "--width", "3"), "even"), (("next-sentence", "--next-rate", "1.5"), "at most 1"),
    (("albert", "--widths", "64 0"), "from 1"), (("scaling", "--loss", "0.1"), "never reaches"),
])  # fmt: skip
def test_options_have_ranges(run: Run, arguments: tuple[str, ...], limits: str) -> None:
    code, out, err = run("show", *arguments)
    assert (code, out) == (2, "") and err.count("\n") == 1 and limits in err
    assert arguments[2] in err  # the value


def test_help_says_the_range_of_an_option(run: Run) -> None:
    code, out, _ = run("show", "clip", "--help")
    assert code == 0 and "int (default: 120; at least 0)" in out


@pytest.mark.parametrize(("kind", "text", "value"), [
    ("int", "-3", -3), ("float", "1e-3", 1e-3), ("bool", "yes", True), ("bool", "0", False), ("str", "3", "3"),
    ("tuple[int, ...]", "1,2,3", (1, 2, 3)), ("list[float]", "1, 2.5", [1.0, 2.5]),
    ("tuple[str, int]", "a,2", ("a", 2)), ("Sequence[str]", "a,b", ("a", "b")),
    ("Literal['pre', 'post']", "post", "post"), ("int | str", "5", 5),
    ("int | str", "x", "x"), ("str | int", "5", 5),
])  # fmt: skip
def test_values_of_options(kind: str, text: str, value: Any) -> None:
    assert read_value(kind, text) == value and type(read_value(kind, text)) is type(value)


def test_wrong_values_of_options() -> None:
    for kind, text, message in (
        ("int", "1.5", "not an integer"), ("bool", "maybe", "not true or false"), ("int | float", "x", "int or float"),
        ("Literal['pre', 'post']", "pots", "did you mean 'post'"), ("tuple[int, ...]", "1,b", "'b' is not an integer"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            read_value(kind, text)
    assert Parameter("scale", "float", "default: None", optional=True).read("none") is None


EXAMPLE = '''"""Letters of a text."""
TEXT = "100 % of it"
def example(text: str = TEXT, *more: str, upper: bool = False, sizes: tuple[int, ...] = (1, 2), k=3) -> Shown:
    """Count them."""
'''


def test_options_come_from_the_signature(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from anyformer_course import examples
    from anyformer_course.cli import show

    (tmp_path / "shows").mkdir()
    (tmp_path / "shows" / "two_words.py").write_text(EXAMPLE)
    monkeypatch.setattr(examples, "__file__", str(tmp_path / "examples.py"))
    example = read_example.__wrapped__("two-words")
    assert (example.about, example.text) == ("Letters of a text.", "Letters of a text.\n\nCount them.")
    assert [each.kind for each in (*example.inputs, *example.options)] == ["str", "bool", "tuple[int, ...]", "int"]
    parser = show.parser_of(example)
    options = parser.parse(["a", "b", "--upper", "--sizes", "4,5", "--k", "7"])
    assert (options.upper, options.sizes, options.k) == (True, (4, 5), 7)
    assert show.read_inputs(example, options.inputs) == ["a", "b"] and "100 % of it" in parser.format_help()
    assert parser.parse(["--no-upper"]).upper is False and parser.parse([]).upper is show.UNSET


# -- commands of other packages ---------------------------------------------------------------------------------------


def test_their_verbs_say_what_they_do() -> None:
    assert {"course", "show"} <= cli.verbs().keys() and all(cli.verb_module(verb).ABOUT for verb in ("course", "show"))


def test_help_and_completion_know_them(run: Run, sample: lesson.Lesson) -> None:
    assert "  course     Walk through five lectures" in run("--help")[1]
    assert "did you mean 'course'?" in run("cuorse")[2]
    script = run("completion", "bash")[1]
    assert "fetch" in script and "            course) words=" in script
    words = completion.words_of("course")
    assert {"7", "7.1", "7.two-words", "--browser", "--try"} <= {*words}
    assert {"attention", "--width", "--picture", "--json"} <= {*completion.words_of("show")}
    assert all("usage: anyformer" in run(verb, "--help")[1] for verb in ("course", "show"))


def test_a_broken_command_breaks_nothing_else(run: Run) -> None:
    extensions.register("commands", "no_such_package.command", "odd")
    extensions.register("commands", "no_such_package.zoo", "zoo")
    code, out, _ = run("--help")
    assert code == 0 and "odd        Cannot be imported" in out and "  zoo        List every named" in out
    code, _, err = run("odd")
    assert code == 2 and err.count("\n") == 1 and "cannot be imported from no_such_package.command" in err


LIGHT = ("--help", "show", "show attention --help", "course", "course --help", "show x", "show claim masking-rate",
         "course 1.t5-s-span-corruption", "show growth")  # fmt: skip
COMPUTING = ("show attention", "show router")
IMPORTS = """
import json, shlex, sys, time
from anyformer_course.extension import register
from anyformer import cli
register()
for absent, commands in json.loads(sys.argv[1]):
    for command in commands:
        assert cli.main(shlex.split(command)) == (2 if command == "show x" else 0)
        assert not {*absent} & sys.modules.keys(), command
    print("seconds", time.process_time())
"""


def test_a_command_imports_only_what_it_needs() -> None:
    """`import torch` takes two seconds, and torch._dynamo as much again. One process runs all commands: what one of
    them imports would still be there after the next."""
    needless = ("transformers", "sklearn", "matplotlib", "torch._dynamo", "sympy")
    commands = json.dumps([(("torch", *needless), LIGHT), (needless, COMPUTING)])
    seconds = []
    for _ in range(3):  # other processes may run
        command = [sys.executable, "-c", IMPORTS, commands]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT / "src")
        assert done.returncode == 0, done.stderr
        seconds.append(float(re.findall(r"^seconds (.*)", done.stdout, re.MULTILINE)[0]))
        if seconds[-1] < 2.0:
            break
    assert min(seconds) < 2.0  # all light commands together; 0.5 on a Xeon of 2.5 GHz
