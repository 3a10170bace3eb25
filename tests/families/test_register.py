"""Families of other packages, and new heads with `af.load(labels=...)`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import anyformer as af
from anyformer import cli, families
from anyformer.families.base.family import Size
from anyformer.families.llama import LLAMA
from anyformer.specs import extensions

SMALL = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 40}
OTHER = LLAMA.but("other_llama", changes={"decoder.norm.eps": 1e-3}, sizes={"other-tiny": Size(SMALL)})
FAMILIES = (OTHER,)  # found by the entry point of the second test


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    yield
    families._registered.clear()
    extensions._registered.pop(f"{__name__}:FAMILIES", None)
    families.catalogue.cache_clear()


def test_a_registered_family_loads_trains_and_exports(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown model_type"):
        families.find("other_llama")
    af.register(OTHER)
    model = af.build(af.spec("other-tiny"), seed=0)
    assert model.spec.decoder.norm.eps == 1e-3 and af.count(model.spec).parameters > 0
    ids = torch.arange(1, 9)[None]
    model(input_ids=ids, labels=ids).loss.backward()
    af.save(model, tmp_path / "saved", format="hf")
    assert json.loads((tmp_path / "saved" / "config.json").read_text())["model_type"] == "other_llama"
    with torch.no_grad():
        assert torch.equal(af.load(tmp_path / "saved")(input_ids=ids).logits, model.eval()(input_ids=ids).logits)
    af.register(OTHER)  # twice is no mistake
    with pytest.raises(ValueError, match="there is a family 'llama' already"):
        af.register(LLAMA.but("llama"))
    with pytest.raises(ValueError, match="there is a description named 'gpt2' already"):
        af.register(LLAMA.but("third_llama", sizes={"gpt2": Size(SMALL)}))


def test_a_package_brings_families_by_entry_point(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])
    extensions.register("families", f"{__name__}:FAMILIES", "other_llama")
    families.catalogue.cache_clear()
    assert families.find("other_llama") is OTHER
    assert cli.main(["zoo", "other-tiny"]) == 0
    assert "other-tiny" in capsys.readouterr().out
    assert cli.main(["count", "other-tiny"]) == 0


def test_a_new_head(tmp_path: Path) -> None:
    config = {"architectures": ["BertForMaskedLM"], "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
              "intermediate_size": 16, "vocab_size": 30, "max_position_embeddings": 8}  # fmt: skip
    masked = af.build(families.find("bert").read(config), seed=0)
    af.save(masked, tmp_path / "masked", format="hf")
    model = af.load(tmp_path / "masked", labels=["a", "b", "c"])
    assert model.spec.labels == ("a", "b", "c") and model.spec.architecture == "BertForSequenceClassification"
    assert {name.partition(".")[0] for name in model.fresh} == {"head"}
    assert torch.equal(model.embedding.tokens.weight, masked.embedding.tokens.weight)
    assert af.load(tmp_path / "masked", num_labels=2).head.num_labels == 2
    tagger = af.load(tmp_path / "masked", num_labels=4, architecture="BertForTokenClassification")
    assert tagger(input_ids=torch.ones(1, 3, dtype=torch.long)).logits.shape == (1, 3, 4)
    af.save(model, tmp_path / "classifier", format="hf")
    again = af.load(tmp_path / "classifier", labels=["x", "y", "z"])
    assert not again.fresh and torch.equal(again.head.out.weight, model.head.out.weight)
    for options, why in (
        ({"labels": "ab"}, "labels is a text"),
        ({"labels": ["a", "a"]}, "different names"),
        ({"labels": ["a", "b"], "num_labels": 3}, "2 names, num_labels=3"),
        ({"labels": ["a", "b"], "architecture": "BertForNothing"}, "is not supported"),
    ):
        with pytest.raises(ValueError, match=why):
            af.load(tmp_path / "masked", **options)


PACKAGE = """
from anyformer.families.base.family import Size
from anyformer.families.llama import LLAMA

SMALL = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
FAMILIES = (LLAMA.but("alpaca", changes={"decoder.norm.eps": 1e-3}, sizes={"alpaca-tiny": Size(SMALL)}),)
"""


def wheel(folder: Path) -> Path:
    """Write a package with the family `alpaca` as a wheel."""
    info = "alpacas-1.0.dist-info"
    files = {
        "alpacas.py": PACKAGE,
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: alpacas\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[anyformer.families]\nalpacas = alpacas:FAMILIES\n",
        f"{info}/RECORD": "",
    }
    path = folder / "alpacas-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


@pytest.mark.slow
def test_an_installed_package_brings_a_family(tmp_path: Path) -> None:
    """pip installs a package into a folder; new processes list its family, train it, export it and load the export."""
    installed = tmp_path / "installed"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--target", str(installed), str(wheel(tmp_path))], check=True)
    path = os.pathsep.join([str(Path(af.__file__).parents[1]), str(installed)])

    def run(*arguments: str) -> str:
        command, env = [sys.executable, *arguments], {**os.environ, "PYTHONPATH": path}
        return subprocess.run(command, cwd=tmp_path, env=env, check=True, capture_output=True, text=True).stdout

    assert "alpaca-tiny" in run("-m", "anyformer", "zoo", "--family", "alpaca")
    (tmp_path / "text.txt").write_text("The quick brown fox jumps over the lazy dog.\n" * 200)
    run("-m", "anyformer", "train", "--text", "text.txt", "--model", "alpaca-tiny", "--set", "steps=2", "--out", "run")
    run("-m", "anyformer", "convert", "run", "exported", "--format", "hf")
    config = json.loads((tmp_path / "exported" / "config.json").read_text())
    assert config["model_type"] == "alpaca" and config["rms_norm_eps"] == 1e-3
    assert "LlamaForCausalLM" in run("-c", "import anyformer as af; print(af.load('exported').spec.architecture)")
