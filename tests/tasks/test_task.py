"""Common to all tasks: the table, a model that is opened once, inputs, batches."""

from __future__ import annotations

import inspect
import subprocess
import sys
import typing
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import anyformer as af
from anyformer.tasks import TASKS
from anyformer.tasks.task import RunOptions
from vocabularies import gpt2

Folders = Callable[..., Path]


@pytest.mark.parametrize("task", TASKS)
def test_the_table_tells_what_the_functions_take(task: str) -> None:
    about, function = TASKS[task], getattr(af.tasks, task.replace("-", "_"))
    parameters = inspect.signature(function).parameters
    own = [name for name, each in parameters.items() if each.kind is inspect.Parameter.KEYWORD_ONLY]
    (unpacked,) = typing.get_args(typing.get_type_hints(function)[list(parameters)[-1]])
    keys = [name for name in unpacked.__annotations__ if name not in RunOptions.__annotations__]
    assert [*own, *keys] == list(about.flags)
    assert not set(about.flags) & set(RunOptions.__annotations__)
    for name in own:
        flag, default = about.flags[name], parameters[name].default
        assert default is inspect.Parameter.empty or default is None or isinstance(default, flag.kind), name
        assert (flag.kind is not bool) or default is (None if flag.negated else False)
    assert function.__module__ == f"anyformer.tasks.each.{task.replace('-', '_')}" and function.__doc__


def test_functions_win_over_modules_of_their_name() -> None:
    code = (
        "import sys, anyformer as af; af.tasks.TASKS; print('torch' in sys.modules); import anyformer.tasks.each.tag;"
        "print(callable(af.tasks.tag), 'embed' in dir(af.tasks))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\nTrue True\n"


def test_a_model_comes_in_four_ways(folders: Folders) -> None:
    folder = folders("BertModel")
    model = af.load(folder)
    reader = af.tasks.open_model(folder, batch=2)
    wanted = af.tasks.embed(folder, "a dog")
    for source in (str(folder), model, reader, af.tasks.open_model(model), af.tasks.open_model(reader, batch=3)):
        assert torch.equal(af.tasks.embed(source, "a dog"), wanted)
    assert (reader.batch, af.tasks.open_model(reader, batch=3).batch) == (2, 3)
    assert af.tasks.embed(folder, "a dog", dtype="float64").dtype == torch.float32


def test_our_own_layout(folders: Folders, tmp_path: Path) -> None:
    folder = folders("BertForTokenClassification", num_labels=3)
    af.save(af.load(folder), tmp_path)
    assert af.tasks.tag(tmp_path, "The quick fox") == af.tasks.tag(folder, "The quick fox") != []


def test_batches_and_progress(folders: Folders) -> None:
    reader = af.tasks.open_model(folders("BertModel"), batch=2)
    texts = ["a", "The quick brown fox", "a dog", "42", "naïve café"]
    seen: list[tuple[int, int]] = []
    found = af.tasks.embed(reader, texts, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(0, 5), (2, 5), (4, 5), (5, 5)]
    for text, vector in zip(texts, found, strict=True):
        assert torch.allclose(af.tasks.embed(reader, text), vector, atol=1e-5)
    assert af.tasks.classify(folders("BertForSequenceClassification"), []) == []


def test_mistakes(folders: Folders, tmp_path: Path) -> None:
    folder = folders("BertModel")
    with pytest.raises(ValueError, match="^inputs must be a text or a list of texts; got int$"):
        af.tasks.embed(folder, 3)
    found = af.tasks.embed(folder, ["a", 3, {}])
    assert found[1:] == [{"error": "an input must be a text or {text}, got int"},
                         {"error": "embed needs text, but text is missing"}]  # fmt: skip
    with pytest.raises(ValueError, match="^embed takes no 'truncated'; did you mean 'truncate'?"):
        af.tasks.embed(folder, "a", truncated=True)
    with pytest.raises(ValueError, match="^batch is 0; it must be at least 1$"):
        af.tasks.embed(folder, "a", batch=0)
    with pytest.raises(ValueError, match="the model is already loaded"):
        af.tasks.embed(af.load(folder), "a", device="cpu")
    with pytest.raises(ValueError, match="this model was not loaded from a folder"):
        af.tasks.embed(af.build(af.load(folder).spec), "a")
    with pytest.raises(ValueError, match="got NoneType"):
        af.tasks.embed(None, "a")
    with pytest.raises(FileNotFoundError, match="no such folder"):
        af.tasks.embed("./no/such/folder", "a")
    with pytest.raises(ValueError, match="^text is empty$"):  # reported before the model is loaded
        af.tasks.embed("./no/such/folder", "")
    other = tmp_path / "other"
    af.save(af.load(folder), other)
    (other / "vocab.txt").unlink()
    gpt2(other)
    with pytest.raises(ValueError, match="the vocabulary has 400 tokens, the model 300: they do not belong together"):
        af.tasks.embed(other, "a")
