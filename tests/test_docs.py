"""README, docs and examples do what they say: every block runs, a page in a folder of its own (`pages.py`)."""

from __future__ import annotations

import random
import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import anyformer as af
import vocabularies
from anyformer import families
from anyformer.part import Part
from pages import Reader, Wrong

ROOT = Path(__file__).resolve().parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").glob("*.md"))]
ALONE = [path for path in PAGES if path.parent.name != "tutorial"]
TUTORIAL = [path for path in PAGES if path.parent.name == "tutorial"]  # one goes on where the one before ended
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


# -- what pages take for granted --------------------------------------------------------------------------------------


def books(folder: Path) -> None:
    """Three text files."""
    folder.mkdir()
    chance = random.Random(0)
    who, did, what = ("the captain", "my sister", "an old fox"), ("saw", "never liked", "sang of"), ("the sea", "bread")
    for name in ("one", "two", "three"):
        said = [" ".join(map(chance.choice, (who, did, what))) for _ in range(60)]
        (folder / f"{name}.txt").write_text("".join(f"It was night, and {line}.\n" for line in said))


def reviews(file: Path) -> None:
    """A table with a column `text` and a column `mood`."""
    chance = random.Random(0)
    words = {"happy": ("lovely", "fine", "great"), "sad": ("awful", "dull", "bad")}
    rows = [(mood, chance.choice(words[mood])) for mood in ("happy", "sad") * 20]
    lines = [f'"What a {word} film, number {i}",{mood}\n' for i, (mood, word) in enumerate(rows)]
    file.write_text("".join(("text,mood\n", *lines)))


def gpt2(folder: Path) -> None:
    vocabularies.gpt2(folder)
    config = {"n_layer": 2, "n_embd": 32, "n_head": 4, "vocab_size": 400, "n_positions": 64}
    published(folder, "gpt2", "GPT2LMHeadModel", config)


def bert(folder: Path) -> None:
    vocabularies.bert(folder)
    config = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 40,
              "vocab_size": 300, "max_position_embeddings": 64}  # fmt: skip
    published(folder, "bert", "BertForMaskedLM", config)


def published(folder: Path, family: str, architecture: str, config: dict[str, Any]) -> None:
    """A model as the hub has it, beside its vocabulary; tiny, with weights drawn by chance."""
    spec = families.find(family).read({**config, "architectures": [architecture]})
    af.save(af.build(spec, seed=0), folder, format="hf")


GIVEN = {
    "books": books, "reviews.csv": reviews,
    "openai-community/gpt2": gpt2, "google-bert/bert-base-uncased": bert,
}  # fmt: skip


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    """Someone in an empty folder. What a page declares or imports is gone afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    kinds, modules = {*Part.kinds}, {*sys.modules}
    found = Reader(GIVEN)
    monkeypatch.setitem(sys.modules, "page", found.module)
    yield found
    for name in {*Part.kinds} - kinds:
        if not Part.kinds[name].__module__.startswith("anyformer."):
            del Part.kinds[name]
    for name in {*sys.modules} - modules:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def libraries(text: str) -> None:
    """Skips where a page or script shows another library that is not installed."""
    for name in re.findall(r"^(?:import|from) (transformers|lm_eval)\b", text, re.MULTILINE):
        pytest.importorskip(name)


@pytest.mark.parametrize("path", ALONE, ids=name_of)
def test_every_block_of_a_page_runs(path: Path, reader: Reader) -> None:
    text = path.read_text("utf-8")
    libraries(text)
    reader.follow(name_of(path), text)


def test_the_tutorial_runs_from_its_first_page_to_its_last(reader: Reader) -> None:
    pytest.importorskip("transformers")
    for path in TUTORIAL:
        reader.follow(name_of(path), path.read_text("utf-8"))


@pytest.mark.parametrize("path", EXAMPLES, ids=name_of)
def test_every_example_runs(path: Path, reader: Reader) -> None:
    libraries(path.read_text("utf-8"))
    runpy.run_path(str(path), run_name="__main__")
    assert f"[{path.name}]({path.name})" in (path.parent / "README.md").read_text("utf-8")


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_links_lead_somewhere(path: Path) -> None:
    """Links between files; what stands in code is none."""
    text = re.sub(r"```.*?```|`[^`\n]*`", "", path.read_text("utf-8"), flags=re.DOTALL)
    missing = [
        link for link in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", text)
        if not (path.parent / link).exists()
    ]  # fmt: skip
    assert not missing


# -- pages that are wrong ---------------------------------------------------------------------------------------------

WRONG = {
    "```python\nprint(1)\n```\n\n```text\n2\n```": "it says that this is shown:\n2",
    "```python\nx = 1\n```\n```python\nassert x == 2\n```": "page.md:4: AssertionError",
    "```pycon\n>>> 1 + 1\n3\n```": "Expected:\n    3\nGot:\n    2",
    "```console\n$ anyformer zoo --family gpt3\n```": "ended with 2",
    "```console\n$ anyformer --version\nanyformer 0\n```": "and what is shown is:\nanyformer ",
    "```bash\nanyformer --version\nanyformer nothing\n```": "no verb 'nothing'",
    "```bash\nmake test\n```": "nothing here runs `make`",
    "```\nanyformer zoo\n```": "a block without a language",
    "```text\nanyformer zoo\n```": "what looks like a command must run",
    "```ruby\nputs 1\n```": "nothing runs a block of ruby",
    "<!-- not run: why -->\n": "with no block behind it",
    "  ```python\n  1 / 0\n  ```": "page.md:1: ZeroDivisionError",
}


@pytest.mark.parametrize("text", WRONG, ids=range(len(WRONG)))
def test_a_wrong_page_is_found(text: str, reader: Reader) -> None:
    with pytest.raises(Wrong) as caught:
        reader.follow("page.md", text)
    assert WRONG[text] in str(caught.value)


RIGHT = """<!-- given: books -->

```python title="own.py"
print("a", end="b\\n")
```
```console
$ python own.py
ab
$ ls books
one.txt
...
```
<!-- not run: it cannot be -->
```python
1 / 0
```
"""


def test_a_page_that_is_right(reader: Reader) -> None:
    reader.follow("page.md", RIGHT)
    assert Path("own.py").is_file()
