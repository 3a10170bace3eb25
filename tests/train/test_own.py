"""`anyformer train --text`, `--csv`, `--jsonl`, `--images`, `--tags`: from a user's files to a model, with a
complete run.json."""

from __future__ import annotations

import csv
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import anyformer as af
from anyformer import cli, families
from anyformer.inputs.tokenizer import Tokenizer
from anyformer.objectives.examples import label_number
from anyformer.objectives.masked import Masked
from anyformer.objectives.permuted import Permuted
from anyformer.recipes.shared.own_images import from_images
from anyformer.recipes.shared.own_pairs import from_pairs
from anyformer.recipes.shared.own_tags import from_tags
from anyformer.recipes.shared.own_text import from_table, from_text
from anyformer.specs.codec import encode, override, to_json
from anyformer.train.run import Pretrained, description_of, read_run
from anyformer.train.start import setup

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
import runs

from tiny import encoder
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
    (tmp_path / "bad.csv").write_text("text,kind\na,good\nb,\nc\nd,good\ne, \n")
    commas = "".join(f"a house {i};{i % 9},{i % 10}\n" for i in range(20))
    (tmp_path / "commas.csv").write_text(f"text;kind\n{commas}none;n/a\n")
    (tmp_path / "header.csv").write_text("text,kind\n")
    (tmp_path / "twice.csv").write_text("text,kind,text\na,good,b\n")
    (tmp_path / "none.csv").write_text("text,kind\n,good\n")
    files = "".join(f"a/{i}.PNG,a/{i}.wav,{'yes' if i % 2 else 'no'}\n" for i in range(30))
    (tmp_path / "files.csv").write_text(f"photo,sound,kind\n{files}")
    (tmp_path / "none.txt").write_text(" \n\n")
    (tmp_path / "hi.txt").write_text("hi\n")
    (tmp_path / "films.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert cli.main(["train", *arguments, "--show"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def test_from_a_folder_of_texts_to_a_model_that_writes(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--set", "model.decoder.depth=1"]
    whole = shown(capsys, "--text", "texts", *TINY, *small)
    assert cli.main(["train", "--text", "texts", *TINY, *small]) == 0
    assert json.loads(Path("runs/texts/run.json").read_text()) == whole  # the file has the complete run
    capsys.readouterr()
    assert cli.main(["generate", "runs/texts", "aa", "--max-new-tokens", "3", "--device", "cpu"]) == 0
    assert capsys.readouterr().out.strip()
    assert read_run(Path("runs/texts/run.json")).evaluate.sample


def test_texts_in_other_encodings_and_in_one_line(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A Windows encoding and line ends, a text in one line, and a folder with a space in its name."""
    (place / "my texts").mkdir()
    (place / "my texts" / "a.txt").write_bytes("déjà vu à Nîmes\r\n".encode("cp1252") * 60)
    source = shown(capsys, "--text", "my texts")["data"]["train"]
    assert source["encoding"] == "cp1252" and shown(capsys, "--text", "texts")["data"]["train"].get("encoding") is None
    (place / "my texts" / "b.txt").write_text("“word” " * 400, encoding="utf-8-sig")
    run = from_text("my texts", tell=(reports := list[str]()).append)
    assert reports == ["my texts: encoding cp1252, utf-8 (--encoding sets another)"]
    assert [row.example["text"][:8] for row in run.data.valid.raw()] == ["déjà vu ", "“word” “"]
    assert cli.main(["train", "--text", "my texts", "--set", "model.decoder.depth=1", *TINY]) == 0
    assert "`anyformer generate 'runs/my texts' PROMPT` uses it" in capsys.readouterr().out
    assert shown(capsys, "--text", "my texts/b.txt", "--encoding", "latin-1")["data"]["train"]["encoding"]


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


def test_every_row_of_a_validation_file_is_scored(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = ["a good film,good", "it was awful,bad", "fine,good"]
    (place / "valid.csv").write_text("text,kind\n" + "".join(f"{row}\n" for row in rows * 7))
    small = ["--set", "model.encoder.depth=1", "--set", "vocabulary.size=300"]
    own = ["--set", "data.valid.source.path=valid.csv"]
    assert cli.main(["train", "--csv", "films.csv", "--label", "kind", *TINY, *small, *own]) == 0
    out = capsys.readouterr().out
    (line,) = [line for line in out.splitlines() if line.startswith("data: ")]
    assert "train 32 (" in line and "valid 21 (" in line and "7 bad, 14 good" in line
    assert cli.main(["eval", "runs/films", "--json", "--device", "cpu", "--save", "predicted.jsonl"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert (scores["split"], scores["examples"]) == ("valid", 21)
    assert len(Path("predicted.jsonl").read_text().splitlines()) == 21


def test_own_files_for_validation_and_test(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every row is in the split of its file, whatever the file's delimiter; splits.csv lists them."""
    (place / "valid.tsv").write_text("kind\ttext\n" + "good\tfine\nbad\tawful\n" * 5 + "odd\tunknown label\n")
    (place / "test.jsonl").write_text(json.dumps({"text": "fine", "kind": "good"}) + "\n")
    small = ["--set", "model.encoder.depth=1", "--set", "vocabulary.size=300"]
    files = ["--valid", "valid.tsv", "--test", "test.jsonl"]
    assert cli.main(["train", "--csv", "films.csv", "--label", "kind", *files, *TINY, *small]) == 0
    rows = [line.split(",", 2) for line in Path("runs/films/splits.csv").read_text().splitlines()[1:]]
    assert [sum(name == split for name, *_ in rows) for split in ("train", "valid", "test", "skipped")] == [
        32,
        10,
        1,
        1,
    ]
    assert rows[0] == ["train", "films.csv:2", ""] and rows[32][:2] == ["valid", "valid.tsv:2"]
    assert rows[-2][:2] == ["skipped", "valid.tsv:12"] and "label 'odd' is not known" in rows[-2][2]
    capsys.readouterr()
    assert cli.main(["eval", "runs/films", "--json", "--device", "cpu"]) == 0
    assert json.loads(capsys.readouterr().out)["examples"] == 1  # the test file
    held = shown(capsys, "--csv", "films.csv", "--label", "kind", "--test", "films.jsonl")["data"]
    assert held["valid"]["out"] is True and held["test"]["kind"] == "JSONLines"  # still held out for validation
    texts = shown(capsys, "--text", "texts", "--valid", "hi.txt")["data"]
    assert "stop" not in texts["train"] and texts["valid"]["path"] == "hi.txt"
    for flag in ("--valid", "--class-weights"):
        assert cli.main(["train", "quickstart", flag, "x"]) == 2
        assert f"{flag} goes with --text" in capsys.readouterr().err


def test_rare_classes_by_flags(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    label = ["--csv", "films.csv", "--label", "kind"]
    run = shown(capsys, *label, "--class-weights", "balanced", "--oversample")
    assert run["objective"]["balanced"] is True and run["data"]["train"]["kind"] == "Oversample"
    assert run["data"]["valid"]["kind"] == "Held"
    run = shown(capsys, *label, "--class-weights", "good=0.5,bad=2")
    assert run["objective"]["class_weights"] == {"good": 0.5, "bad": 2.0}
    rows = [{"text": "x", "of": topics} for topics in (["a"], None, ["a", "b"], [])]
    (place / "topics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert shown(capsys, "--jsonl", "topics.jsonl", "--label", "of")["objective"]["kind"] == "MultiLabel"
    for more, why in (
        (["--jsonl", "topics.jsonl", "--label", "of", "--oversample"], "need one label per example"),
        ([*label, "--class-weights", "goood=2"], "did you mean 'good'?"),
        (["--text", "texts", "--oversample"], "need one label per example"),
        (["--csv", "films.csv", "--multi-label", ","], "--multi-label needs --label"),
    ):
        assert cli.main(["train", *more]) == 2
        assert why in capsys.readouterr().err


def test_the_model_has_the_tokens_of_the_vocabulary(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`vocabulary.size` sets both sizes, smaller and larger; the model has no tokens that are not in the texts."""
    small = ["--set", "model.encoder.depth=1", "--set", "vocabulary.size=290"]
    assert cli.main(["train", "--csv", "films.csv", "--label", "kind", *TINY, *small]) == 0
    built = len(Tokenizer.load("runs/films"))
    message = f"the model's vocabulary has {built:,} tokens, as many as were found in the texts (described: 2,000)"
    assert 256 < built <= 290 and message in capsys.readouterr().out
    assert af.spec("runs/films").embedding.tokens.vocab_size == built
    assert cli.main(["convert", "runs/films", "exported", "--format", "hf"]) == 0
    assert json.loads(Path("exported/config.json").read_text())["vocab_size"] == built
    tables = [f"model.{path}.vocab_size" for path in ("embedding.tokens", "decoder_embedding.tokens", "head")]
    small = override(from_pairs("films.csv", "kind", ["text"]), {"vocabulary.size": 280, **dict.fromkeys(tables, 270)})
    spec = setup(small, place / "pairs").model.spec
    assert [part.vocab_size for part in (spec.embedding.tokens, spec.decoder_embedding.tokens, spec.head)] == [280] * 3


def test_what_stands_in_a_table_decides(place: Path) -> None:
    run = from_table("films.csv", "kind")
    assert run.objective.labels == ("bad", "good") and run.data.train.source.columns["text"] == "text"
    assert run.model.labels == ("bad", "good")
    pair = from_table("films.jsonl", "kind", ["sentence", "score"])
    assert pair.objective.pair and pair.data.valid.source.columns["pair"] == "score"
    number = from_table("films.jsonl", "score", ["sentence"])
    assert number.objective.labels == () and number.evaluate.metrics == ("pearson",)
    assert type(from_table("films.jsonl", None, ["sentence"]).objective).__name__ == "NextToken"


def test_a_model_of_numbers_gives_numbers(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Multi-label probabilities, not those of a single label, here and in the exported files."""
    rows = [{"text": "good " * n + "bad " * (6 - n), "stars": 10.5 * n} for n in range(7)] * 6
    Path("stars.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    few = ("--set", "steps=30", "--set", "model.encoder.depth=1", "--set", "optimizer.lr=0.01", "--device", "cpu")
    assert cli.main(["train", "--jsonl", "stars.jsonl", "--label", "stars", *few]) == 0
    log, splits = capsys.readouterr().out, [*csv.DictReader(Path("runs/stars/splits.csv").read_text().splitlines())]
    train, valid = ([rows[int(row["row"].split(":")[1]) - 1]["stars"] for row in splits if row["split"] == name]
                    for name in ("train", "valid"))  # fmt: skip
    mean = sum(train) / len(train)
    loss = sum((value - mean) ** 2 for value in valid) / len(valid)
    assert f"to beat on the validation rows: loss {loss:.3f} by the mean of the training labels" in log
    assert re.search(r"best validation: step .* the baselines? \(?mean label", log)
    (found,) = af.tasks.classify("runs/stars", "good good good good good good")
    model, tokenizer = af.load("runs/stars"), af.processor("runs/stars")
    logit = float(model(**tokenizer("good good good good good good")).logits)
    assert found["score"] == pytest.approx(logit) and logit > 1
    assert cli.main(["convert", "runs/stars", "exported", "--format", "hf"]) == 0
    assert json.loads(Path("exported/config.json").read_text())["problem_type"] == "regression"
    assert cli.main(["train", "--jsonl", "stars.jsonl", "--label", "stars", "--label", "text"]) == 2
    assert "--label is given twice" in capsys.readouterr().err


def test_other_models(place: Path) -> None:
    spec = families.find("gpt2").read({"n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 300, "n_positions": 64})
    af.save(af.build(spec), place / "gpt", format="hf")
    with pytest.warns(UserWarning, match="gpt has no tokenizer: training one of 300 tokens"):
        begun = from_text("texts", "gpt")
    assert isinstance(begun.model, Pretrained) and begun.vocabulary.size == 300 and begun.batch.length == 64
    gpt2(place / "gpt")
    tuned = from_text("texts", "gpt")
    assert tuned.model == begun.model and tuned.vocabulary is None and tuned.optimizer.lr < begun.optimizer.lr
    with pytest.warns(UserWarning, match=r"gpt2-medium: training .* 512 tokens .* \(the description has 50,257\)"):
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
    assert fresh.model.head.pool.take.padding_token == list(fresh.vocabulary.special).index("pad_token")


def test_a_decoder_without_a_padding_token_learns_labels(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The head reads the last token of each row, and rows are padded with the eos token."""
    spec = families.find("gpt2").read({"n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 400, "n_positions": 64})
    af.save(af.build(spec), gpt2(place / "gpt"), format="hf")
    table = ["--csv", "films.csv", "--label", "kind", "--model", "gpt", "--set", "batch.examples=4"]
    assert cli.main(["train", *table, *TINY]) == 0, capsys.readouterr().err
    assert af.spec("runs/films").head.pool.take.padding_token == af.processor("gpt").tokenizer.eos_token_id


def hybrid(**changes: Any) -> af.parts.DecoderModel:
    """A description without a family, with two kinds of layers."""
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
    """A model by its folder, which has weights and no tokenizer, and by its description."""
    af.save(af.build(hybrid()), "hyb0")
    assert cli.main(["train", "--text", "texts", "--model", name, *TINY, "--out", "run"]) == 0
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "tokens on the texts" in err
    tokenizer, spec = af.processor("run"), af.spec("run")
    size = 280 if name == "hyb0" else 512  # of the weights, or of the vocabulary chosen for this amount of text
    assert spec.embedding.tokens.vocab_size == spec.head.vocab_size == size
    assert spec.source["eos_token_id"] == tokenizer.tokenizer.eos_token_id is not None
    assert cli.main(["generate", "run", "aa", "--max-new-tokens", "2", "--device", "cpu"]) == 0


def test_a_description_by_whatever_names_it(place: Path) -> None:
    """A spec.json, a folder without weights, and a run before training, by its file and by its folder."""
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
    assert "NextToken reads text, but this run has no vocabulary; set one: " in capsys.readouterr().err
    assert cli.main(["train", *table, "--model", "hyb0", "--show"]) == 2
    assert "--model hyb0: it has no published family; --model hyb0/spec.json" in capsys.readouterr().err
    af.save(af.build(hybrid(**{"embedding": af.parts.TextEmbedding(tokens=af.parts.Tokens(vocab_size=100)),
                               "head": af.parts.LMHead(vocab_size=100)})), "small")  # fmt: skip
    assert cli.main(["train", "--text", "texts", "--model", "small", "--show"]) == 2
    assert "its 100 token ids are too few for a new one, which needs 258" in capsys.readouterr().err


@pytest.mark.parametrize("arguments, line", [
    (("--text", "nowhere"), "nowhere: no such file or folder"),
    (("--jsonl", "films.jsonl", "--label", "kind", "--column", "txt"), "no column 'txt'"),
    (("--jsonl", "films.jsonl", "--label", "kind", "--delimiter", ";"), "--delimiter goes with --csv"),
    (("--csv", "films.csv", "--label", "kind", "--encoding", "utf-9"), "no encoding 'utf-9'; did you mean 'utf-8'?"),
    (("--csv", "bad.csv", "--label", "kind"), "bad.csv: column 'kind' has a single value, 'good', in all 2 rows (3 rows"
     " skipped: 2 because column 'kind' is empty, 1 because 1 value for 2 columns)"),
    (("--csv", "films.csv", "--label", "id", "--column", "text"), "'id' has a different value in each of its 32 rows"),
    (("--csv", "commas.csv", "--label", "kind"), "commas.csv: column 'kind' has decimal commas, such as '0,0'; write"
     " them with a point, or use --multi-label ',' if a cell names several labels"),
    (("--csv", "header.csv", "--label", "kind"), "header.csv: no row can be read (it has only a line of column names)"),
    (("--csv", "twice.csv", "--label", "kind"), "twice.csv:1: two columns have the name 'text'; rename one of them"),
    (("--csv", "films.csv", "--target", "kind", "--label", "kind"), "give one of --label, --target, --prompt and"),
    (("--csv", "films.csv", "--target", "kindd", "--column", "text"), "no column 'kindd'; did you mean 'kind'?"),
    (("--csv", "none.csv", "--target", "kind"), "none.csv: no row has a text in 'text' and in 'kind'"),
    (("--text", "none.txt"), "none.txt: too little text; the last tenth is held out"),
    (("--text", "hi.txt"), "hi.txt: too little text; the last tenth is held out"),
    (("--csv", "none.csv", "--label", "kind"), "none.csv: no row can be used; 1 row skipped: 1 because"),
    (("--csv", "files.csv", "--label", "kind", "--column", "photo"), "column 'photo' names images, such as 'a/0.PNG',"
     " not texts; put the images of each class into one folder, and give --images DIR"),
    (("--csv", "files.csv", "--label", "kind", "--column", "sound"), "column 'sound' names sound files, such as"
     " 'a/0.wav', not texts; a run.json with the objective CTC or Transcribe learns from recordings"),
    (("--csv", "files.csv", "--target", "kind", "--column", "sound"), "column 'sound' names sound files"),
    (("--csv", "files.csv", "--similar", "--column", "kind", "--column", "photo"), "column 'photo' names images"),
    (("--images", "nowhere"), "nowhere: no such folder"),
    (("--images", "texts"), "texts: no file ends in .png"),
    (("--tags", "films.jsonl"), "choose the column of the words with --column COLUMN: sentence, kind, score"),
    (("--tags", "texts/0.txt", "--label", "99"), "--label 99: texts/0.txt has columns 1 to "),
    (("--text", "texts", "--model", "t5-small"), "--model t5-small is an encoder-decoder"),
    (("--text", "texts", "--model", "./gpt9"), "gpt9"),
    (("shakespeare", "--model", "gpt2"), "--model goes with"),
], ids=str)  # fmt: skip
def test_mistakes(arguments: tuple[str, ...], line: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", *arguments, "--show"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and line in err and err.count("\n") == 1, err


# -- pairs of texts


def test_from_a_table_of_pairs_to_a_model_that_translates(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["cat", "dog", "sun", "sea"]
    rows = [f"the {a} and the {b}\t{b} {a}".upper() if i else "english\tturned" for i, (a, b) in enumerate(
        [("", ""), *((a, b) for a in words for b in words)])]  # fmt: skip
    (place / "my pairs.tsv").write_text("\n".join([*rows, "no target\t"]))
    small = ["--set", "model.encoder.depth=1", "--set", "model.decoder.depth=1"]
    assert cli.main(["train", "--csv", "my pairs.tsv", "--target", "turned", *TINY, *small]) == 0
    out, err = capsys.readouterr()
    assert err == "my pairs.tsv: 16 rows; source: column 'english'; target: column 'turned'\n"
    assert "skipped 1 of 17 rows" in out and "`anyformer run translate 'runs/my pairs' TEXT` uses it" in out
    assert cli.main(["run", "translate", "runs/my pairs", "THE CAT AND THE DOG", "--device", "cpu"]) == 0
    run = from_pairs("my pairs.tsv", "turned")
    assert run.objective.columns == ("source", "target") and run.data.train.source.columns["target"] == "turned"
    with pytest.raises(ValueError, match="--model gpt2 is not an encoder-decoder"):
        from_pairs("my pairs.tsv", "turned", model="gpt2")
    assert description_of(from_pairs("my pairs.tsv", "turned", model="t5-small").model).pair


# -- messy tables


def messy(rows: int = 24) -> str:
    """Semicolons, decimal commas, a broken row, two empty labels and an empty text."""
    kinds = (("très bien, oui", "gut"), ("nul", "mies"))
    good = [f"{i};{text};{kind}" for i in range(rows // 2) for text, kind in kinds]
    return "\r\n".join(["id;Text;Urteil", *good[:5], "5;zu kurz", "6;leer;", ";;", *good[5:], "9;so;leer;ja"]) + "\r\n"


def test_a_messy_table_is_read_and_every_lost_row_is_counted(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "urteile.csv").write_bytes(messy().encode("cp1252"))
    small = ["--set", "model.encoder.depth=1", "--set", "vocabulary.size=300"]
    assert cli.main(["train", "--csv", "urteile.csv", "--label", "Urteil", *TINY, *small]) == 0
    out, err = capsys.readouterr()
    assert err == (
        "urteile.csv: 24 rows; text: column 'Text'; label: column 'Urteil', 2 labels;"
        " delimiter ';' (--delimiter sets another); encoding cp1252 (--encoding sets another)\n"
    )
    (line,) = [line for line in out.splitlines() if line.startswith("skipped")]
    assert line.startswith("skipped 4 of 28 rows (") and "2 values for 3 columns" in line
    assert "`anyformer run classify runs/urteile TEXT` uses it" in out
    run = read_run(Path("runs/urteile/run.json"))
    assert run.objective.labels == ("gut", "mies") and run.data.train.source.encoding == "cp1252"


@pytest.mark.parametrize("values, labels", [
    (["1", "0", "", "1"], ("0", "1")), ([1, 2, 10, 1], ("1", "2", "10")), ([True, False], ("False", "True")),
    (["1.0", "0.0", "1.0"], ("0.0", "1.0")), (["0.5", "2"], ()), ([*map(str, range(300)), "n/a"], ()),
    (["1.5", "2", "NA", "NaN"], ()), (["1.5", "2.0", "beta"], ("1.5", "2.0", "beta")), ([["a"], "b", "c"], ("b", "c")),
    (["beta", "0.5", *"12345678"], ()),
], ids=lambda value: str(value)[:20])  # fmt: skip
def test_labels_are_those_of_the_rows_that_can_be_used(values: list[Any], labels: tuple[str, ...], place: Path) -> None:
    Path("own.jsonl").write_text("".join(json.dumps({"text": "a", "kind": value}) + "\n" for value in values))
    run = from_table("own.jsonl", "kind")
    assert run.objective.labels == labels and run.data.unfit == "skip"
    rows = [row.example["label"] for row in run.data.train.source.rows(()) if row.example is not None]
    assert not labels or [labels[label_number(value, labels, "kind")] for value in rows] == [*map(str, rows)]


# -- images


@pytest.fixture
def images(place: Path) -> Path:
    """Two classes that differ in brightness, one broken picture, one in no class, and a file that is not a picture."""
    image = pytest.importorskip("PIL.Image")
    draw = np.random.default_rng(0)
    for name, shade in (("dark", 40), ("light", 200)):
        (place / "photos" / name).mkdir(parents=True)
        for i in range(12):
            pixels = shade + draw.integers(-30, 30, (14, 20, 3))
            image.fromarray(pixels.astype(np.uint8)).save(place / "photos" / name / f"{i}.png")
    content = (place / "photos" / "dark" / "1.png").read_bytes()
    (place / "photos" / "dark" / "broken.png").write_bytes(content[: len(content) // 2])
    (place / "photos" / "dark" / "empty.jpg").touch()
    (place / "photos" / "loose.png").write_bytes(content)
    (place / "photos" / "light" / "notes.txt").write_text("a note")
    return place / "photos"


def test_from_a_folder_of_images_to_a_classifier(images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = {"model.encoder.depth": 1, "steps": 20, "evaluate.every": 20, "batch.examples": 8}
    small = [word for path, value in few.items() for word in ("--set", f"{path}={value}")] + ["--device", "cpu"]
    assert cli.main(["train", "--images", "photos", *small]) == 0
    out, err = capsys.readouterr()
    assert err == "photos: 25 images, 2 classes, read as 16x16 pixels, 1 broken, 1 outside a class folder\n"
    (line,) = [line for line in out.splitlines() if line.startswith("skipped")]
    assert line.startswith("skipped 3 of 27 rows (") and "photos/dark/broken.png: " in line
    assert "`anyformer run classify-image runs/photos FILE` uses it" in out
    found = af.tasks.classify_image("runs/photos", ["photos/dark/3.png", "photos/light/4.png"])
    assert [one[0]["label"] for one in found] == ["dark", "light"]
    assert cli.main(["eval", "runs/photos", "--json", "--device", "cpu"]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] == 1.0


def test_splits_and_other_models_for_images(images: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for name in ("train", "val"):
        for kind in ("a", "b"):
            (images / "sets" / name / kind).mkdir(parents=True)
            image.new("L", (28, 30)).save(images / "sets" / name / kind / "1.png")
    run = from_images(str(images / "sets"))
    assert run.keep.every == run.evaluate.every == run.steps // 4
    assert run.data.train.path.endswith("sets/train") and run.data.valid.path.endswith("sets/val")
    assert run.objective.image_size == (32, 32) and run.objective.mean == (0.5,)  # grey, in whole patches
    spec = families.find("vit").read({"image_size": 24, "patch_size": 8, "hidden_size": 16, "num_hidden_layers": 1,
                                      "num_attention_heads": 2, "intermediate_size": 16})  # fmt: skip
    af.save(af.build(spec), images / "vit", format="hf")
    run = from_images(str(images / "sets"), str(images / "vit"))
    assert run.model.architecture == "ViTForImageClassification" and run.model.labels == ("a", "b")
    assert run.objective.image_size == (24, 24) and run.data.train.channels == 3


def test_one_class_of_images_is_refused(images: Path) -> None:
    with pytest.raises(ValueError, match="photos/dark: no class; 1 broken images; expected one folder of images"):
        from_images("photos/dark")


# -- tags


SENTENCES = [["Ada", "Lovelace", "lives", "in", "London", "."], ["Paul", "sees", "U.S.", "films"]]
TAGS = [["B-PER", "I-PER", "O", "O", "B-LOC", "O"], ["B-PER", "O", "B-LOC", "O"]]


def conll(separator: str = " ") -> str:
    lines = [[separator.join(pair) for pair in zip(*both)] for both in zip(SENTENCES, TAGS)] * 10
    return "\n\n".join("\n".join(sentence) for sentence in lines) + "\n"


def test_from_tagged_words_to_a_tagger(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "names.conll").write_text("# a corpus of names\n" + conll() + "\nlost\n\n")
    small = ["--set", "model.encoder.depth=1", "--set", "vocabulary.size=300", *TINY]
    assert cli.main(["train", "--tags", "names.conll", *small]) == 0
    out, err = capsys.readouterr()
    assert err == "names.conll: 20 sentences, 100 words, 4 tags; words in column 1, tags in column 2\n"
    assert "skipped 1 of 21 rows" in out and "names.conll:122: line 122 has 1 column" in out
    assert "`anyformer run tag runs/names TEXT` uses it" in out
    found = af.tasks.tag("runs/names", "Ada Lovelace sees U.S. films.")
    words = {"Ada", "Lovelace", "sees", "U.S.", "films", "."}
    assert found and all({*one["word"].replace("films.", "films .").split()} <= words for one in found)
    assert cli.main(["eval", "runs/names", "--json", "--device", "cpu"]) == 0
    assert "f1" in json.loads(capsys.readouterr().out)


def test_how_tagged_words_are_found(place: Path) -> None:
    labels = ("O", "B-LOC", "B-PER", "I-PER")
    Path("tabs.tsv").write_bytes(conll("\tX\t").replace("Ada", "Adé").encode("cp1252"))
    run = from_tags("tabs.tsv")
    assert run.objective.labels == labels and dict(run.data.train.source.fields) == {"words": 0, "tags": 2}
    assert run.data.train.source.encoding == "cp1252" and run.evaluate.metrics == ("f1",)
    assert from_tags("tabs.tsv", None, "1").objective.labels[0] == "."  # any column, by its number
    rows = [{"id": i, "tokens": words, "ner_tags": tags} for i, (words, tags) in enumerate(zip(SENTENCES, TAGS))]
    rows += [{"tokens": ["a"], "ner_tags": []}, {"tokens": "a b", "ner_tags": "O O"}]
    Path("names.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    heard: list[str] = []
    run = from_tags("names.jsonl", tell=heard.append)
    assert run.objective.labels == labels
    assert dict(run.data.train.source.columns) == {"words": "tokens", "tags": "ner_tags"}
    assert heard == ["names.jsonl: 3 sentences, 12 words, 4 tags; words in column 'tokens', tags in column 'ner_tags'"]
    universal = "# text = a b\n" + "".join(f"{i}\t{w}\t_\t{t}{chr(9)}_" + "\t_" * 5 + "\n" for i, w, t in
                                           ((1, "a", "DET"), (2, "b", "NOUN")))  # fmt: skip
    Path("own.conllu").write_text(universal)
    run = from_tags("own.conllu")
    assert run.objective.labels == ("DET", "NOUN") and run.evaluate.metrics == ("accuracy",)
    af.save(af.build(encoder("BertModel")), place / "bert", format="hf")
    assert from_tags("own.conllu", model="bert").model.architecture == "BertForTokenClassification"


# -- run.json as a person writes it


def test_a_model_by_its_name_and_kinds_left_out(place: Path) -> None:
    run = runs.run_of(Path("texts"), model=af.override(af.spec("gpt2"), {"decoder.depth": 2}))
    written = json.loads(to_json(run))
    for name in ("data", "batch", "evaluate", "keep"):  # only one kind fits
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
    ({"optimizer": {"lr": 1}}, "run.json: optimizer: missing 'kind'; valid: Adafactor, AdamW, "),
], ids=str)  # fmt: skip
def test_a_mistake_in_run_json_names_its_path(changes: dict[str, Any], line: str, place: Path) -> None:
    Path("run.json").write_text(json.dumps({"anyformer": 1, **encode(runs.run_of(Path("texts"))), **changes}))
    with pytest.raises(ValueError) as caught:
        read_run(Path("run.json"))
    assert line in str(caught.value) and "\n" not in str(caught.value)
