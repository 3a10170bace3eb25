"""Mistakes on the command line, as people type them: exit code 2 and one line in words that users know, nothing on
stdout, no traceback, and nothing started."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

import anyformer as af
from anyformer import cli, families
from anyformer.data import Bytes
from anyformer.recipes import recipe
from anyformer.specs.codec import to_json

# words that messages must not contain: internal classes, Python's terms
INSIDE = re.compile(r"\b\w+(Error|Exception|Module|Warning)\b|NoneType|Traceback|<class|object at 0x|\bNone\b")


def furnish(place: Path) -> None:
    """A user's folder: models, tables, texts, a run.json."""
    small = {"n_layer": 1, "n_embd": 16, "n_head": 2, "n_positions": 16, "vocab_size": 258}
    af.save(af.build(families.find("gpt2").read(small)), place / "gpt2", format="hf")
    Bytes().make([], place / "gpt2")
    bert = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16,
            "vocab_size": 258, "architectures": ["BertForSequenceClassification"]}  # fmt: skip
    af.save(af.build(families.find("bert").read(bert)), place / "bert", format="hf")
    Bytes().make([], place / "bert")
    own = af.override(families.find("gpt2").read(small), {"decoder.layers.feedforward.op.activation": "relu"})
    own = af.override(own, {"decoder.layers.feedforward.op": {"kind": "GatedMLP", "width": 8}})
    af.save(af.build(own), place / "own")
    (place / "texts").mkdir()
    (place / "texts/a.txt").write_text("A text that goes on for a while.\n\nAnother one.\n" * 40)
    (place / "empty").mkdir()
    (place / "films.csv").write_text("text,kind\ngood,a\nbad,b\n")
    (place / "same.csv").write_text("text,kind\ngood,a\nbad,a\n")
    (place / "run.json").write_text(to_json(recipe("shakespeare")))
    (place / "bad.json").write_text('{"anyformer": 1,')
    (place / "norm.json").write_text('{"anyformer": 1, "kind": "LayerNorm"}')
    (place / "decoder.json").write_text('{"anyformer": 1, "kind": "Decodr"}')
    (place / "wrong.json").write_text(json.dumps({**json.loads(to_json(recipe("sst2"))), "batch": {"example": 3}}))
    (place / "old").mkdir()
    (place / "old/config.json").write_text('{"model_type": "gtp2"}')
    (place / "pickled").mkdir()
    (place / "pickled/config.json").write_text((place / "gpt2/config.json").read_text())
    (place / "pickled/pytorch_model.bin").write_bytes(b"\x80\x04.")


# (command, words of the message)
COMMANDS: list[tuple[str, ...]] = [
    # verbs, flags, arguments
    ("trian shakespeare", "no verb 'trian'", "did you mean 'train'?"),
    ("--verison", "did you mean '--version'?"),
    ("zoo --familly gpt2", "no flag '--familly'", "did you mean '--family'?"),
    ("zoo --family lama", "did you mean 'llama'?"),
    ("count", "NAME"),
    ("count gpt2 bert", "unexpected argument 'bert'"),
    ("count gpt2 --length many", "--length", "many"),
    ("completion tcsh", "no shell 'tcsh'"),
    ("schema run.json", "unexpected argument 'run.json'"),
    ("zoo --import no_such_module", "--import no_such_module cannot be imported"),
    ("convert gpt2", "DST"),
    ("count gpt2 --depth x", "--depth"),
    ("count gpt2 --depth 0", "--depth"),
    ("count --by sise", "did you mean 'size'?"),
    ("count gpt2 --dtype bfloat", "did you mean 'bfloat16'?"),
    ("train run.json --resum", "has no flag '--resum'; did you mean '--resume'?"),
    # names
    ("count gtp2", "no description named 'gtp2'", "did you mean 'gpt2'?"),
    ("count gpt4 --by size", "did you mean 'gpt"),
    ("count ./nowhere", "./nowhere: no such file or folder"),
    ("count nothing.json", "no such file or folder"),
    ("count empty", "no spec.json and no config.json"),
    ("parts Rotery", "no Part is called 'Rotery'"),
    ("parts --slot decoder.layer.attention", "did you mean 'layers'?"),
    ("parts rotary --slot decoder", "NAME or --slot"),
    # other values by address
    ("count gpt2 --set decoder.dpeth=3", "did you mean 'depth'?"),
    ("count gpt2 --set decoder.depth", "--set takes PATH=VALUE"),
    ("count gpt2 --set decoder.depth=many", "decoder.depth: expected int, got 'many'"),
    ("count gpt2 --set decoder.depth=3 width=8", "did you mean '--set width=8'?"),
    ("count gpt2 --set decoder.depth=1e12", "layers"),
    (f"count gpt2 --set decoder.norm={'[' * 100_000}", "nested too deeply"),
    ("count gpt2 --set decoder.norm.eps=-1", "decoder.norm.eps is -1.0", "at least 0"),
    ("count gpt2 --set decoder.norm=RmsNorm", "RmsNorm is not of type Norm", "did you mean 'RMSNorm'?"),
    ("count gpt2 --set decoder.layers.attention.op.num_heads=0", "num_heads is 0"),
    ("count gpt2 --length 0", "--length is 0; it must"),
    ("count gpt2-xl --length 4096", "takes at most 1,024"),
    ("count gpt2 --picture parts", "a .png, .svg or .pdf"),
    ("count gpt2 --batch -1", "--batch is -1; it must"),
    ("count gpt2 --causal", "--causal needs --length"),
    ("count t5-small --source-length 5", "--source-length needs --length"),
    ("count gpt2 --length 5 --source-length 5", "this model has no encoder whose tokens a decoder attends to"),
    ("count whisper-tiny --length 5 --source-length 5", "this encoder reads only input_features of 80 x 3000"),
    ("count gpt2 --by size --set width=8", "--set applies to one description, but --by size shows several"),
    ("count gpt2 --batch 99999999999999999999 --length 8", "batch must be at most 67,108,864"),
    ("count mamba-130m --length 4611686018427387904", "length must be at most 67,108,864"),
    ("count t5-small --length 5 --source-length 99999999999999999999", "source_length must be at most 67,108,864"),
    # plans
    ("plan gpt2 --on H1000", "H1000", "H100"),
    ("plan gpt2 --tokens -5", "--tokens"),
    ("plan gpt2 --layout shrad=2", "--layout 'shrad=2'", "shard="),
    # models
    ("convert gpt2 gpt2", "gpt2 is not empty"),
    ("convert gpt2 out --format onnx", "no format 'onnx'"),
    ("convert gpt2 out --format hff", "did you mean 'hf'?"),
    ("convert gpt2 out --dtype float8", "dtype 'float8' is not supported"),
    ("convert gpt2 out --format peft", "this model has no adapters"),
    ("convert gpt2 out --base bert", "base", "is only for adapters"),
    ("convert own out --format hf", "no published gpt2 config", "feedforward.op"),
    ("convert old out", "gtp2", "did you mean 'gpt2'?"),
    ("convert pickled out", "pickled weights can run code and are refused", "--unpickle"),
    ("generate nobody/nothing hello --offline", "'nobody/nothing' is not in the cache"),
    ("generate bert hello", "no language-model head"),
    ("generate gpt2 hello --temperature -1", "temperature"),
    ("generate gpt2 hello --device tpu", "tpu"),
    ("generate gpt2 hello --max-new-tokens 0", "max_new_tokens=0: must be a whole number from 1"),
    ("generate gpt2 hello --chat", "template"),
    ("chat bert", "no language-model head"),
    # pictures
    ("draw", "NAME"),
    ("draw gtp2", "did you mean 'gpt2'?"),
    ("draw nowhere/spec.json", "nowhere/spec.json: no such file or folder"),
    ("draw decoder.json", "unknown kind 'Decodr'"),
    ("draw bad.json", "bad.json"),
    ("draw gpt2 -o x.gif", "x.gif: the name of a drawing must end in .svg, .png or .html"),
    ("draw gpt2 -o x", "x: the name of a drawing must end in .svg, .png or .html"),
    ("draw gpt2 -o no/folder/x.svg", "no/folder/x.svg"),
    ("draw gpt2 llama3-8b vit-b16", "give one NAME, or two to draw side by side, not 3"),
    ("draw gpt2 --theme dull", "no theme 'dull'"),
    ("draw gpt2 -p x.svg", "has no flag '-p'"),
    # tasks
    ("run", "give a task: fill-mask, "),
    ("run clasify bert x", "did you mean 'classify'?"),
    ("run fill-mask gpt2 x", "fill-mask needs a bidirectional model"),
    ("run classify bert --file nowhere.txt", "nowhere.txt"),
    ("run answer bert q c", "needs a model with a SpanHead; this one has ClassifyHead (BertForSequenceClassification)"),
    # training
    ("train", "give a recipe"),
    ("train shakespear", "no recipe 'shakespear'", "did you mean 'shakespeare'?"),
    ("train shakespeare", "data/tiny_shakespeare is missing", "anyformer fetch shakespeare"),
    ("train ./nowhere.json", "nowhere.json: no such file or folder; `anyformer train --list`"),
    ("train bad.json", "bad.json"),
    ("train norm.json", "norm.json: describes a LayerNorm, not a Run"),
    ("train run.json --set optimizer.rate=1", "no 'optimizer.rate' in this Run: AdamW has no 'rate'"),
    ("train run.json --set ema=1.0", "ema is 1.0; it must be in [0, 1)"),
    ("train wrong.json", "wrong.json: batch: Batch has no field 'example'; did you mean 'examples'?"),
    ("train run.json --set steps=0", "steps is 0; it must be at least 1"),
    ("train run.json --set optimizer.lr=fast", "optimizer.lr: expected float, got 'fast'"),
    ("train run.json --set precision=bf17", "precision: 'bf17' is not valid; did you mean 'bf16'?"),
    ("train nowhere --resume", "nowhere: no such file or folder; nothing to resume"),
    ("train run.json --out empty --resume", "empty has no run: nothing to resume; start a run there without --resume"),
    ("train --text texts --csv films.csv", "give one of --text, --csv"),
    ("train --text empty", "empty"),
    ("train --csv films.csv", "--csv needs --label COLUMN"),
    ("train --csv films.csv --label knd", "no column 'knd'; did you mean 'kind'?"),
    ("train --csv same.csv --label kind", "column 'kind' has a single value, 'a'"),
    ("train --text texts --label kind", "--label goes with --csv, --jsonl, --tags"),
    ("train --text texts --freeze embeding", "freeze: no parameter matches 'embeding'; did you mean 'embedding"),
    ("train --text texts --log wandbb", "did you mean 'wandb'?"),
    ("fetch sst3", "no recipe 'sst3'; did you mean 'sst2'?"),
    # evaluation
    ("eval gpt2", "give a recipe"),
    ("eval gpt2 run.json --split dev", "dev", "valid"),
    ("eval gpt2 run.json --metrics bleau", "bleau"),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("place")
    furnish(home)
    return home


@pytest.mark.parametrize("row", COMMANDS, ids=[typed[:60] for typed, *_ in COMMANDS])
def test_a_mistake_is_one_clear_line(
    row: tuple[str, ...], place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed, *words = row
    monkeypatch.chdir(place)
    before = {path for path in place.rglob("*") if "runs" not in path.parts}
    assert cli.main(shlex.split(typed)) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("anyformer: ") and err.count("\n") == 1, err
    for word in words:
        assert word in err
    assert not INSIDE.search(err), err
    assert {path for path in place.rglob("*") if "runs" not in path.parts} == before
