"""`anyformer train --text`, `--csv`, `--jsonl`: from files of one's own to a model, each a whole run.json."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer as af
from anyformer import cli, families
from anyformer.codec import encode, to_json
from anyformer.objectives.masked import Masked
from anyformer.objectives.permuted import Permuted
from anyformer.recipes._own import from_table, from_text
from anyformer.train.run import Pretrained, read_run

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
import runs

from vocabularies import gpt2

TINY = ["--set", "steps=2", "--set", "evaluate.every=2", "--device", "cpu"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    torch.set_num_threads(1)
    monkeypatch.chdir(tmp_path)
    for i in range(3):
        (runs.write_texts(tmp_path / "texts", seed=i, lines=30)).rename(tmp_path / "texts" / f"{i}.txt")
    rows = [("a good film", "good"), ("a bad film", "bad"), ("fine, indeed", "good"), ("it was awful", "bad")] * 8
    (tmp_path / "films.csv").write_text("id,text,kind\n" + "".join(f'{i},"{t}",{k}\n' for i, (t, k) in enumerate(rows)))
    lines = [{"sentence": text, "kind": kind, "score": i / 4} for i, (text, kind) in enumerate(rows)]
    (tmp_path / "films.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert cli.main(["train", *arguments, "--show"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def test_from_a_folder_of_texts_to_a_model_that_writes(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--set", "model.decoder.depth=1"]
    whole = shown(capsys, "--text", "texts", *TINY, *small)
    assert cli.main(["train", "--text", "texts", *TINY, *small]) == 0
    assert json.loads(Path("runs/texts/run.json").read_text()) == whole  # what is written is all of it
    capsys.readouterr()
    assert cli.main(["generate", "runs/texts", "aa", "--max-new-tokens", "3", "--device", "cpu"]) == 0
    assert capsys.readouterr().out.strip()
    assert read_run(Path("runs/texts/run.json")).evaluate.sample


def test_from_a_table_to_a_classifier_that_transformers_opens(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    transformers = pytest.importorskip("transformers")
    small = ["--set", "model.encoder.depth=1", "--set", "vocabulary.size=300"]
    assert cli.main(["train", "--csv", "films.csv", "--label", "kind", *TINY, *small]) == 0
    assert cli.main(["convert", "runs/films", "exported", "--format", "hf"]) == 0
    capsys.readouterr()
    ours = af.tasks.classify("runs/films", "a good film", top_k=0)
    theirs = transformers.pipeline("text-classification", "exported", device="cpu", top_k=None)(["a good film"])[0]
    assert [one["label"] for one in ours] == [one["label"] for one in theirs]
    assert {one["label"] for one in ours} == {"good", "bad"}
    assert [one["score"] for one in ours] == pytest.approx([one["score"] for one in theirs], abs=1e-5)


def test_what_stands_in_a_table_decides(place: Path) -> None:
    run = from_table("films.csv", "kind")
    assert run.objective.labels == ("bad", "good") and run.data.train.source.columns["text"] == "text"
    assert run.model.labels == ("bad", "good")
    pair = from_table("films.jsonl", "kind", ["sentence", "score"])
    assert pair.objective.pair and pair.data.valid.source.columns["pair"] == "score"
    number = from_table("films.jsonl", "score", ["sentence"])
    assert number.objective.labels == () and number.evaluate.metrics == ("pearson",)
    assert type(from_table("films.jsonl", None, ["sentence"]).objective).__name__ == "NextToken"


def test_other_models(place: Path) -> None:
    spec = families.find("gpt2").read({"n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 300, "n_positions": 64})
    af.save(af.build(spec), place / "gpt", format="hf")
    with pytest.warns(UserWarning, match="gpt has no tokenizer: one of 300 tokens is made from the training texts"):
        begun = from_text("texts", "gpt")
    assert isinstance(begun.model, Pretrained) and begun.vocabulary.size == 300 and begun.batch.length == 64
    gpt2(place / "gpt")
    tuned = from_text("texts", "gpt")
    assert tuned.model == begun.model and tuned.vocabulary is None and tuned.optimizer.lr < begun.optimizer.lr
    with pytest.warns(UserWarning, match=r"gpt2-medium: a vocabulary of 512 tokens .* \(the description has 50,257\)"):
        fresh = from_text("texts", "gpt2-medium")
    assert fresh.model.width == 1024 and fresh.model.head.vocab_size == fresh.vocabulary.size
    masked = from_text("texts", "bert-base")
    assert isinstance(masked.objective, Masked) and "mask_token" in masked.vocabulary.special
    assert isinstance(from_text("texts", "xlnet-base-cased").objective, Permuted)
    labelled = from_table("films.csv", "kind", model="gpt")
    assert labelled.model.architecture == "GPT2ForSequenceClassification" and labelled.vocabulary is None
    fresh = from_table("films.csv", "kind", model="gpt2")
    assert fresh.model.architecture == "GPT2ForSequenceClassification" and fresh.model.labels == ("bad", "good")
    assert fresh.model.embedding.tokens.vocab_size == fresh.vocabulary.size
    assert fresh.model.head.pool.padding_token == list(fresh.vocabulary.special).index("pad_token")


def test_a_decoder_without_a_padding_token_learns_labels(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its head reads the last token of each row, and rows are filled up with the token that ends a text."""
    spec = families.find("gpt2").read({"n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 400, "n_positions": 64})
    af.save(af.build(spec), gpt2(place / "gpt"), format="hf")
    table = ["--csv", "films.csv", "--label", "kind", "--model", "gpt", "--set", "batch.examples=4"]
    assert cli.main(["train", *table, *TINY]) == 0, capsys.readouterr().err
    assert af.spec("runs/films").head.pool.padding_token == af.processor("gpt").tokenizer.eos_token_id


def hybrid(**changes: Any) -> af.parts.DecoderModel:
    """A description of no family, with layers of two kinds."""
    parts, norm = af.parts, af.parts.RMSNorm()
    mamba = parts.Block(mixer=parts.Sublayer(pre_norm=norm, op=parts.SelectiveState(width=32)))
    attention = parts.Attention(num_heads=2, mask=parts.Causal(), position=parts.Rope())
    return parts.DecoderModel(**{
        "width": 16, "length": 64, "embedding": parts.TextEmbedding(tokens=parts.Tokens(vocab_size=280)),
        "decoder": parts.Stack(
            layers={"mamba": mamba, "attention": parts.Block(mixer=parts.Sublayer(pre_norm=norm, op=attention))},
            pattern=("mamba", "attention"), depth=2, norm=norm,
        ),
        "head": parts.LMHead(vocab_size=280), "ties": (("head.out.weight", "embedding.tokens.weight"),),
        "init": {"*": parts.Normal(std=0.02)}, **changes,
    })  # fmt: skip


@pytest.mark.parametrize("name", ["hyb0", "hyb0/spec.json"])
def test_a_model_from_scratch_learns_texts(name: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By its folder, with weights and no tokenizer, and by its description."""
    af.save(af.build(hybrid()), "hyb0")
    assert cli.main(["train", "--text", "texts", "--model", name, *TINY, "--out", "run"]) == 0
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "is made from the training texts" in err
    tokenizer, spec = af.processor("run"), af.spec("run")
    size = 280 if name == "hyb0" else 512  # of the weights, or of the vocabulary that suits so much text
    assert spec.embedding.tokens.vocab_size == spec.head.vocab_size == size
    assert spec.source["eos_token_id"] == tokenizer.tokenizer.eos_token_id is not None
    assert cli.main(["generate", "run", "aa", "--max-new-tokens", "2", "--device", "cpu"]) == 0


def test_a_description_by_whatever_names_it(place: Path) -> None:
    """A file, a folder without weights, and a run that is not trained yet, by its file and its folder."""
    for folder in ("described", "begun"):
        Path(folder).mkdir()
    Path("described/spec.json").write_text(to_json(hybrid()))
    Path("begun/run.json").write_text(to_json(runs.run_of(Path("texts"), model=hybrid())))
    names = ("described/spec.json", "described", "begun", "begun/run.json")
    (model,) = {from_text("texts", name).model for name in names}
    assert model == af.override(hybrid(), {"embedding.tokens.vocab_size": 512, "head.vocab_size": 512})


def test_a_description_of_no_family_learns_labels(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("spec.json").write_text(to_json(hybrid()))
    table = ["--csv", "films.csv", "--label", "kind"]
    assert cli.main(["train", *table, "--model", "spec.json", *TINY, "--set", "batch.examples=4"]) == 0
    capsys.readouterr()
    assert cli.main(["run", "classify", "runs/films", "a good film", "--device", "cpu"]) == 0
    assert re.search(r"\b(good|bad)\b", capsys.readouterr().out)
    af.save(af.build(hybrid()), "hyb0")
    run = runs.run_of(Path("texts"), model=Pretrained(path="hyb0"), vocabulary=None)
    Path("run.json").write_text(to_json(run))
    assert cli.main(["train", "run.json"]) == 2
    assert "NextToken reads texts, and this run has no vocabulary; set one: " in capsys.readouterr().err
    assert cli.main(["train", *table, "--model", "hyb0", "--show"]) == 2
    assert "--model hyb0: it belongs to no published family; --model hyb0/spec.json" in capsys.readouterr().err
    af.save(af.build(hybrid(**{"embedding": af.parts.TextEmbedding(tokens=af.parts.Tokens(vocab_size=100)),
                               "head": af.parts.LMHead(vocab_size=100)})), "small")  # fmt: skip
    assert cli.main(["train", "--text", "texts", "--model", "small", "--show"]) == 2
    assert "its table of 100 is too small for a new one (258)" in capsys.readouterr().err


@pytest.mark.parametrize("arguments, line", [
    (("--text", "nowhere"), "nowhere: no such file or folder"),
    (("--text", "texts", "--csv", "films.csv"), "give one of --text, --csv"),
    (("--csv", "films.csv"), "--csv needs --label COLUMN"),
    (("--csv", "films.csv", "--label", "kinds"), "no column 'kinds'; did you mean 'kind'?"),
    (("--jsonl", "films.jsonl", "--label", "kind", "--column", "txt"), "no column 'txt'"),
    (("--text", "texts", "--label", "kind"), "--label goes with --csv and --jsonl"),
    (("--text", "texts", "--model", "t5-small"), "reads one text and writes another"),
    (("--text", "texts", "--model", "./gpt9"), "gpt9"),
    (("shakespeare", "--model", "gpt2"), "--model goes with"),
], ids=str)  # fmt: skip
def test_mistakes(arguments: tuple[str, ...], line: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", *arguments, "--show"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and line in err and err.count("\n") == 1, err


# -- run.json as a person writes it


def test_a_model_by_its_name_and_kinds_left_out(place: Path) -> None:
    run = runs.run_of(Path("texts"), model=af.override(af.spec("gpt2"), {"decoder.depth": 2}))
    written = json.loads(to_json(run))
    for name in ("data", "batch", "evaluate", "keep"):  # where one kind alone fits
        del written[name]["kind"]
    del written["kind"]
    Path("short.json").write_text(json.dumps({**written, "model": "gpt2", "set": {"model.decoder.depth": 2}}))
    assert read_run(Path("short.json")) == run
    Path("folder.json").write_text(json.dumps({**written, "model": "texts"}))
    assert read_run(Path("folder.json")).model == Pretrained(path="texts")


@pytest.mark.parametrize("changes, line", [
    ({"model": "gtp2"}, "run.json: no description named 'gtp2'; did you mean 'gpt2'?"),
    ({"set": {"model.decodr.depth": 2}}, "did you mean 'decoder'?"),
    ({"batch": {"exmples": 3}}, "batch: Batch has no field 'exmples'; did you mean 'examples'?"),
    ({"optimizer": {"lr": 1}}, "run.json: optimizer: which kind? Adafactor, AdamW, "),
], ids=str)  # fmt: skip
def test_a_mistake_in_run_json_names_its_path(changes: dict[str, Any], line: str, place: Path) -> None:
    Path("run.json").write_text(json.dumps({"anyformer": 1, **encode(runs.run_of(Path("texts"))), **changes}))
    with pytest.raises(ValueError) as caught:
        read_run(Path("run.json"))
    assert line in str(caught.value) and "\n" not in str(caught.value)
