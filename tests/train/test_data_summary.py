"""What a run reports about its data: rows, classes, tokens that the model reads, and truncation."""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

import anyformer.objectives
from anyformer import cli, families
from anyformer.cli.train import usage
from anyformer.data import Held, JSONLines, Splits, TextFiles
from anyformer.data.shards import DataSplit, Writer
from anyformer.data.unused import describe_unused
from anyformer.inputs.tokenizer import Tokenizer
from anyformer.objectives.auxiliary import Auxiliary
from anyformer.objectives.causal import NextToken
from anyformer.objectives.classify import Classify
from anyformer.objectives.ctc import CTC
from anyformer.objectives.dialogue import Dialogue
from anyformer.objectives.images import ClassifyImage
from anyformer.objectives.objective import Objective
from anyformer.tasks.table import TASKS
from anyformer.train.baseline import frequency_baseline
from anyformer.train.data_summary import describe_data, tokens_per_number
from anyformer.weights import hub


def split(folder: Path, **fields: list[np.ndarray]) -> DataSplit:
    with Writer(folder) as writer:
        for values in zip(*fields.values(), strict=True):
            writer.add(dict(zip(fields, values)))
    return DataSplit(folder)


def test_a_picture_has_as_many_tokens_as_the_model_reads(tmp_path: Path) -> None:
    """32 x 32 pixels in three colours are 64 patches of 4 x 4 and the class token, not 3,072."""
    labels = [np.asarray(np.int64(i % 2)) for i in range(6)]
    made = split(tmp_path / "a", pixels=[np.zeros(3072, np.uint8)] * 6, label=labels)
    vit = families.find("vit").read({"image_size": 32, "patch_size": 4, "hidden_size": 8, "num_attention_heads": 1})
    objective = ClassifyImage(image_size=(32, 32), labels=("cat", "dog"))
    rate = tokens_per_number(vit, objective, made)
    assert describe_data(Splits(made), objective.labels, rate) == "data: train 6 (390 tokens; 3 cat, 3 dog)"


def test_sound_has_as_many_tokens_as_frames(tmp_path: Path) -> None:
    """The seven convolutions of wav2vec 2.0 output one frame per 320 samples; a frame depends on 400 samples."""
    sizes = (400, 720, 16000)
    made = split(tmp_path / "a", samples=[np.zeros(size, np.int16) for size in sizes])
    spec = families.find("wav2vec2").read({"hidden_size": 8, "num_attention_heads": 1, "num_hidden_layers": 1})
    assert tokens_per_number(spec, CTC(), made) * sum(sizes) == pytest.approx(1 + 2 + 49)


def test_texts_have_their_own_tokens(tmp_path: Path) -> None:
    made = split(tmp_path / "a", input_ids=[np.zeros(5, np.int32)] * 3)
    spec = families.find("gpt2").read({})
    assert tokens_per_number(spec, Classify(labels=("a", "b")), made) == 1.0


def test_the_label_frequencies_are_a_baseline() -> None:
    """Three of four training rows and half of the validation rows have the first label."""
    loss, accuracy = frequency_baseline([3, 1], [5, 5])
    assert loss == pytest.approx(-(np.log(4 / 6) + np.log(2 / 6)) / 2) and accuracy == 0.5


def test_every_objective_names_a_command_that_there_is() -> None:
    for module in pkgutil.iter_modules(anyformer.objectives.__path__):
        importlib.import_module(f"anyformer.objectives.{module.name}")
    kinds, seen = [Objective], set()
    while kinds:
        kind = kinds.pop()
        kinds += kind.__subclasses__()
        verb, *rest = shlex.split(kind.command) or ("",)
        if not verb or kind.__module__.partition(".")[0] != "anyformer":
            continue
        seen.add(verb)
        assert verb in cli.VERBS and "RUN" in rest, kind
        if verb == "run":
            assert rest[0] in TASKS and rest[1] == "RUN", kind
            assert len([word for word in rest[2:4] if word.isupper()]) == len(TASKS[rest[0]].fields), kind
    assert seen == {"run", "generate", "chat"}
    assert usage(CTC(), Path("runs/x")) == "anyformer run transcribe runs/x FILE"
    assert usage(Auxiliary(of=Classify(labels=("a", "b"))), Path("x")) == "anyformer run classify x TEXT"


def test_what_is_not_used_is_named(tmp_path: Path) -> None:
    """Unused columns, and files of another type in a folder; columns that an objective may read are not reported."""
    for name in ("a.txt", "b.pdf", "c.pdf", ".hidden"):
        (tmp_path / name).write_text("some text")
    texts = TextFiles(path=str(tmp_path))
    assert describe_unused(texts, NextToken()) == "not used: 2 files with other endings (b.pdf, c.pdf)"
    assert describe_unused(TextFiles(path=str(tmp_path / "a.txt")), NextToken()) == ""
    table = tmp_path / "table.jsonl"
    table.write_text(json.dumps({"id": 1, "said": {"en": "a"}, "kind": "x", "tools": [], "messages": []}) + "\n")
    named = Held(source=JSONLines(path=str(table), columns={"text": "said.en", "label": "kind"}))
    assert describe_unused(named, Classify(labels=("x", "y"))) == "not used: columns id, tools, messages"
    assert describe_unused(JSONLines(path=str(table)), Dialogue()) == "not used: columns id, said, kind"


def test_long_rows_are_counted_and_the_limit_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """4 of 40 rows with alternating labels have 60 words; 16 tokens are read."""
    monkeypatch.chdir(tmp_path)
    texts = ["word " * (60 if i < 4 else 3) for i in range(40)]
    rows = "".join(f"{text.strip()},{'yn'[i % 2]},{i}\n" for i, text in enumerate(texts))
    (tmp_path / "words.csv").write_text("text,kind,number\n" + rows)
    small = ("steps=2", "evaluate.every=1", "model.encoder.depth=1", "vocabulary.size=300", "objective.length=16")
    changes = [word for change in small for word in ("--set", change)]
    command = ["train", "--csv", "words.csv", "--label", "kind", "--column", "text", "--device", "cpu", *changes]
    assert cli.main(command) == 0
    out = capsys.readouterr().out
    tokens = len(Tokenizer.load("runs/words").encode(texts[0].strip())) - 16
    cut = [line for line in out.splitlines() if line.startswith("truncated to objective.length: ")]
    numbers = [int(number.replace(",", "")) for number in re.findall(r"[\d,]*\d", cut[0])]
    assert len(cut) == 1 and sum(numbers[::2]) == 4 and sum(numbers[1::2]) == 4 * tokens
    assert "; 18 n, 18 y), valid 4 (" in out and "; 2 n, 2 y)" in out
    assert "not used: column number" in out
    assert "to beat on the validation rows: loss 0.693 by the label frequencies, accuracy 0.500" in out
    assert "best validation: step " in out and "the baseline" in out
    assert "`anyformer run classify runs/words TEXT` uses it" in out
    assert Tokenizer.load("runs/words").max_length == 16  # inference truncates at the same length
    assert Tokenizer.load(hub.resolve("runs/words@last")).max_length == 16
    assert cli.main(["eval", "runs/words@last", "--device", "cpu"]) == 0
    assert "step-00000002: 4 examples of words, valid" in capsys.readouterr().out
