"""README, docs and examples are correct: every block runs, with one folder and process per page (`pages.py`)."""

from __future__ import annotations

import importlib.util
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import anyformer as af
import vocabularies
from anyformer import cli, families
from anyformer.cli.listing import read_rows
from anyformer.specs.part import Part, kinds_for
from anyformer.specs.slots import about
from pages import SMALLER, Reader, Server, Wrong, run_alone

ROOT = Path(__file__).resolve().parents[1]
GENERATED = ROOT / "docs" / "course"
DOCS = sorted(path for path in (ROOT / "docs").rglob("*.md") if path.parent != GENERATED)
PAGES = [*sorted(ROOT.glob("*.md")), *DOCS, *sorted((ROOT / "examples").glob("*.md"))]
ALONE = [path for path in PAGES if path.parent.name != "tutorial" and path != ROOT / "README.md"]
TUTORIAL = [path for path in PAGES if path.parent.name == "tutorial"]  # each page continues the previous one
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


# -- files that pages need --------------------------------------------------------------------------------------------


def books(folder: Path) -> None:
    """Three text files."""
    folder.mkdir()
    chance = random.Random(0)
    who, did, what = ("the captain", "my sister", "an old fox"), ("saw", "never liked", "sang of"), ("the sea", "bread")
    for name in ("one", "two", "three"):
        sentences = [" ".join(map(chance.choice, (who, did, what))) for _ in range(60)]
        (folder / f"{name}.txt").write_text("".join(f"It was night, and {line}.\n" for line in sentences))


def reviews(file: Path) -> None:
    """A table with a column `text` and a column `mood`."""
    chance = random.Random(0)
    words = {"happy": ("lovely", "fine", "great"), "sad": ("awful", "dull", "bad")}
    rows = [(mood, chance.choice(words[mood])) for mood in ("happy", "sad") * 20]
    lines = [f'"What a {word} film, number {i}",{mood}\n' for i, (mood, word) in enumerate(rows)]
    file.write_text("".join(("text,mood\n", *lines)))


def photos(folder: Path) -> None:
    """A folder for each of two classes of pictures."""
    image = pytest.importorskip("PIL.Image")
    for shade, name in enumerate(("cats", "dogs")):
        (folder / name).mkdir(parents=True)
        for i in range(6):
            image.new("RGB", (20, 16), (200 * shade, 10 * i, 90)).save(folder / name / f"{i}.png")


def names(file: Path) -> None:
    """Words and their tags, with an empty line between sentences."""
    one = "Ada B-PER\nLovelace I-PER\nlives O\nin O\nLondon B-LOC\n. O\n\n"
    file.write_text(one + "Paul B-PER\nsees O\nNew B-LOC\nYork I-LOC\n\n" + one * 10)


def gpt2(folder: Path) -> None:
    vocabularies.gpt2(folder)
    config = {"n_layer": 2, "n_embd": 32, "n_head": 4, "vocab_size": 400, "n_positions": 64}
    published(folder, "gpt2", "GPT2LMHeadModel", config)


def bert(folder: Path) -> None:
    vocabularies.bert(folder)
    config = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 40,
              "vocab_size": 300, "max_position_embeddings": 64}  # fmt: skip
    published(folder, "bert", "BertForMaskedLM", config)


def vit(folder: Path) -> None:
    config = {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 40,
              "image_size": 16, "patch_size": 8}  # fmt: skip
    published(folder, "vit", "ViTForImageClassification", config)


def published(folder: Path, family: str, architecture: str, config: dict[str, Any]) -> None:
    """A tiny model in the layout of the hub, with its vocabulary and random weights."""
    spec = families.find(family).read({**config, "architectures": [architecture]})
    af.save(af.build(spec, seed=0), folder, format="hf")


GIVEN = {
    "books": books, "reviews.csv": reviews, "photos": photos, "names.conll": names,
    "openai-community/gpt2": gpt2, "google-bert/bert-base-uncased": bert, "google/vit-base-patch16-224": vit,
}  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    found = Server()
    yield found
    found.close()


@pytest.fixture
def reader(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    """A reader in an empty folder."""
    monkeypatch.chdir(tmp_path)
    found = Reader(server, GIVEN)
    yield found
    found.close()


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def libraries(text: str) -> None:
    """Skip the test if the page or script uses a library that is not installed."""
    for name in re.findall(r"^(?:import|from) (transformers|lm_eval|peft)\b", text, re.MULTILINE):
        pytest.importorskip(name)


@pytest.mark.parametrize("path", ALONE, ids=name_of)
def test_every_block_of_a_page_runs(path: Path, reader: Reader) -> None:
    text = path.read_text("utf-8")
    libraries(text)
    reader.follow(name_of(path), text)


def test_the_first_screen_of_the_readme(reader: Reader) -> None:
    """Three text files and two commands make a language model. A CSV file and two commands make a classifier, whose
    exported folder gives the same results in transformers."""
    reader.fresh = True
    text = (ROOT / "README.md").read_text("utf-8")
    first = "\n".join(text.splitlines()[:40])
    assert "anyformer train --text books\nanyformer generate runs/books" in first
    assert "anyformer train --csv reviews.csv --label mood\nanyformer run classify runs/reviews" in first
    reader.follow("README.md", text)
    assert reader.outputs['anyformer generate runs/books "It was"'].strip()
    transformers = pytest.importorskip("transformers")
    texts = ["What a lovely film!", "What a dull film"]
    theirs = transformers.pipeline("text-classification", "exported", device="cpu", top_k=None)(texts)
    for ours, other in zip(af.tasks.classify("runs/reviews", texts, top_k=0), theirs, strict=True):
        assert {one["label"] for one in ours} == {"happy", "sad"}
        assert [one["label"] for one in ours] == [one["label"] for one in other]
        assert [one["score"] for one in ours] == pytest.approx([one["score"] for one in other], abs=1e-5)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_two_commands_learn(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a sixth of the steps, the loss is less than half the loss of token frequencies."""
    monkeypatch.setitem(SMALLER, "train", ["--set", "steps=60", "--set", "evaluate.every=60", "--device", "cpu"])
    books(Path("books"))
    output = reader.command("anyformer train --text books")
    assert reader.command('anyformer generate runs/books "It was"').strip()
    unigram = float(re.findall(r"unigram (\S+),", output)[0])
    assert float(re.findall(r"validation loss ([\d.]+)", output)[-1]) < unigram / 2, output


def test_the_tutorial_runs_from_its_first_page_to_its_last(reader: Reader) -> None:
    pytest.importorskip("transformers")
    for path in TUTORIAL:
        reader.follow(name_of(path), path.read_text("utf-8"))


@pytest.mark.parametrize("path", EXAMPLES, ids=name_of)
def test_every_example_runs(path: Path, reader: Reader) -> None:
    libraries(path.read_text("utf-8"))
    run_alone(reader.server, [str(path)])
    assert f"[{path.name}]({path.name})" in (path.parent / "README.md").read_text("utf-8")


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_links_lead_somewhere(path: Path) -> None:
    """Links between files exist; text in code blocks is not a link."""
    text = re.sub(r"```.*?```|`[^`\n]*`", "", path.read_text("utf-8"), flags=re.DOTALL)
    missing = [
        link for link in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", text)
        if not (path.parent / link).exists()
    ]  # fmt: skip
    assert not missing


# -- pages that are wrong ---------------------------------------------------------------------------------------------

WRONG = {
    "```python\nprint(1)\n```\n\n```text\n2\n```": "output of the page:\n2",
    "```python\nx = 1\n```\n```python\nassert x == 2\n```": "page.md:4: AssertionError",
    "```pycon\n>>> 1 + 1\n3\n```": "Expected:\n    3\nGot:\n    2",
    "```console\n$ anyformer zoo --family gpt3\n```": "ended with 2",
    "```console\n$ anyformer --version\nanyformer 0\n```": "actual output:\nanyformer ",
    "```bash\nanyformer --version\nanyformer nothing\n```": "no verb 'nothing'",
    "```bash\nmake test\n```": "`make` is not supported",
    "```\nanyformer zoo\n```": "no language",
    "```text\nanyformer zoo\n```": "text block contains a command",
    "```ruby\nputs 1\n```": "blocks of ruby are not supported",
    "<!-- not run: why -->\n": "`not run` without a block",
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


NEW_PROCESS = """```python
import sys
assert not [name for name in sys.modules if name.split(".")[0] == "anyformer"]
import anyformer.stacks
sys.seen = True
```
```console
$ anyformer --version
...
```
```python
assert sys.seen
```
```python title="own.py"
import sys
assert not hasattr(sys, "seen") and "anyformer" not in sys.modules
```
```bash
python own.py
```
"""


def test_a_page_starts_in_a_new_process(reader: Reader) -> None:
    """The blocks of a page share a process, which is not shared with other pages, commands or files."""
    reader.fresh = True
    for page in ("one.md", "two.md"):
        reader.follow(page, NEW_PROCESS)


# -- the site ---------------------------------------------------------------------------------------------------------

GENERATE = ROOT / "docs" / "generate.py"


@pytest.fixture(scope="module")
def site() -> Any:
    """The module with the mkdocs hooks."""
    module = importlib.util.spec_from_file_location("site_pages", GENERATE)
    assert module is not None and module.loader is not None
    found = importlib.util.module_from_spec(module)
    module.loader.exec_module(found)
    return found


def test_the_pages_of_a_family_and_a_part(site: Any) -> None:
    page = site.family_page(families.find("gpt2"), [row for row in read_rows() if row["family"] == "gpt2"], False)
    for text in (
        "pre-norm decoder, learned positions", "| `gpt2` | 124,439,808 | 124,000,000 |", "- `GPT2LMHeadModel`",
        "op: Attention(num_heads=12", "| `n_embd` | `768` | `width` |", "| `n_ctx` | `1024` | an old name of",
    ):  # fmt: skip
        assert text in page, text
    section = site.part_section(about(Part.kinds["Rope"]))
    for text in (
        "## Rope\n\nRotary positions", "- Also called: rotary, RoFormer", "- Paper: Su et al. 2021",
        "`Attention.position`", "| `fraction` | `float (above 0)` | `1.0` | share of the head's channels that rotate |",
    ):  # fmt: skip
        assert text in section, text
    assert all(f"\n## {verb}\n" in site.commands() for verb in cli.verbs())


@pytest.mark.slow
def test_the_catalogues_name_everything(site: Any) -> None:
    pages = site.pages()
    for name, family in families.catalogue().items():
        page = pages[f"catalogue/families/{name}.md"]
        assert f"(families/{name}.md)" in pages["catalogue/families.md"]
        assert all(f"`{each}`" in page for each in (*family.architectures, *family.sizes, *family.fields))
    kinds = [kind for kind in kinds_for().values() if kind.__module__.startswith("anyformer.")]
    parts = "".join(page for path, page in pages.items() if path.startswith("catalogue/parts/"))
    assert len(kinds) > 150 and all(f"\n## {kind.__name__}\n" in parts for kind in kinds)
    assert {f"examples/{path.stem}.md" for path in EXAMPLES} <= pages.keys()


def test_links_of_the_repository_become_links_of_the_site(site: Any) -> None:
    text = "[a](docs/start.md) [b](examples/README.md#x) [c](CONTRIBUTING.md) [d](https://there.org/docs/a.md)"
    assert site.relinked(text, "README.md", "index.md") == (
        "[a](start.md) [b](examples/README.md#x) [c](contributing.md) [d](https://there.org/docs/a.md)"
    )
    assert site.relinked("[a](../../examples/lora.py)", "docs/howto/a.md", "howto/a.md") == "[a](../examples/lora.md)"
    assert site.relinked("[a](../README.md#families)", "docs/compare.md", "compare.md") == "[a](index.md#families)"
    assert site.plain("a_b [x](y_z) `c_d` <e>") == r"a\_b [x](y_z) `c_d` \<e\>"


def test_every_page_is_in_a_menu(site: Any) -> None:
    nav = [{"Start": "start.md"}, {"How to": ["howto/text.md"]}, {"About": [{"Results": ["results/README.md"]}]},
           {"Course": ["course/index.md"]}]  # fmt: skip
    site.on_config(SimpleNamespace(nav=nav))
    assert "howto/csv.md" in nav[1]["How to"] and nav[1]["How to"].count("howto/text.md") == 1
    assert "results/core.md" in nav[2]["About"][0]["Results"] and "start.md" not in nav[1]["How to"]
    docs = [path.relative_to(ROOT / "docs").as_posix() for path in PAGES if path.is_relative_to(ROOT / "docs")]
    assert [path for path in docs if repr(nav).count(f"'{path}'") != 1] == []


def test_the_published_names_and_their_addresses(site: Any) -> None:
    """The page `Coming from transformers` gets a table of all families."""
    page = (ROOT / "docs" / "howto" / "transformers.md").read_text("utf-8")
    file = SimpleNamespace(src_uri="howto/transformers.md")
    shown = site.on_page_markdown(page, SimpleNamespace(file=file), None, None)
    rows = {name: (int(n), places) for name, n, places in re.findall(r"\| `(\w+)` \| (\d+) \| (.*) \|\n", shown)}
    number, places = rows["num_hidden_layers"]
    assert number > 40 and "`decoder.depth` (" in places and "`encoder.depth` (" in places
    assert len(rows) > 60 and min(number for number, _ in rows.values()) == 3


def test_the_site_opens_from_a_folder() -> None:
    """Its search needs no server, and the script for it is ours: the plugin's own is on another machine."""
    text = (ROOT / "mkdocs.yml").read_text("utf-8")
    assert "\n  - search\n  - offline" in text and "font: false" in text and "://" not in text
    (script,) = re.findall(r"polyfills: \[(\S*iframe-worker\S*)\]", text)
    assert (ROOT / "docs" / script).is_file()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the site."""
    pytest.importorskip("mkdocs", reason="mkdocs is not installed: pip install 'anyformer[docs]'")
    pytest.importorskip("mkdocstrings")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]  # --quiet counts none
    path = {"PYTHONPATH": str(ROOT / "src"), "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_site_is_searched_from_a_folder(built: Path) -> None:
    location = importlib.util.spec_from_file_location("browser", ROOT / "tests" / "look" / "browser.py")
    assert location is not None and location.loader is not None
    browser = importlib.util.module_from_spec(location)
    location.loader.exec_module(browser)
    with browser.opened(built / "howto" / "quantize.html") as (page, wrong):
        for word, found in (("bitsandbytes", "Quantise"), ("tensorboard", "Experiment trackers")):
            field = page.locator("input.md-search__input")
            field.fill("")
            field.press_sequentially(word)
            page.locator("li.md-search-result__item", has_text=found).first.wait_for()
        assert [each for each in wrong if not each.startswith(built.as_uri())] == []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_site_loads_nothing_from_other_servers(built: Path) -> None:
    tags, elsewhere = r"<(?:script|link|img|iframe|source)\b[^>]*\b(?:src|href)=", r"[\"']?(?:https?:)?//"
    asked = re.compile(rf"{tags}{elsewhere}|url\({elsewhere}")
    files = [file for file in built.rglob("*") if file.suffix in (".html", ".css", ".svg")]
    assert len(files) > 80 and [file for file in files if asked.search(file.read_text("utf-8"))] == []


def test_the_tour_leads_to_files_that_are_there() -> None:
    named = re.findall(r"`((?:[a-z_]+/)*[a-z_0-9]+\.py)`", (ROOT / "docs" / "tour.md").read_text())
    assert len(named) > 30 and [name for name in named if not (ROOT / "src" / "anyformer" / name).is_file()] == []
