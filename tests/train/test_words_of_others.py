"""Words of other libraries in --set, af.build and configs: accepted, or answered with what they are called here."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import pytest

import anyformer as af
import vocabularies
from anyformer import cli, families
from anyformer.cli.settings import OTHER_WORDS, change_run
from anyformer.recipes import groups, recipe, recipes
from anyformer.specs.addresses import value_at
from anyformer.train.run import Pretrained


@pytest.fixture(scope="module")
def run() -> Any:
    return recipe("quickstart", "data")


def test_addresses_of_the_model_and_lists(run: Any) -> None:
    changed = change_run(run, ["decoder.depth=3", "evaluate.metrics=perplexity,bits_per_byte", "steps=7"])
    assert changed.model.decoder.depth == 3 and changed.steps == 7
    assert changed.evaluate.metrics == ("perplexity", "bits_per_byte")
    assert change_run(run, ["name=a,b"]).name == "a,b"  # a text stays a text


@pytest.mark.parametrize("change, why", [
    ("lr=1", "did you mean optimizer.lr?"), ("batch_size=1", "did you mean batch.examples?"),
    ("epochs=3", "a run counts steps"), ("n_layer=2", "in gpt2 it is model.decoder.depth"),
    ("n_embd=2", "in gpt2 it is model.width"), ("stepps=2", "did you mean 'steps'?"),
    ("decoder.dept=2", "did you mean 'depth'?"), ("encoder.depth=2", "a run has no 'encoder'; did you mean 'decoder'?"),
    ("hidden_size=2", "in llama it is model.width"), ("gradient_accumulation_steps=2", "did you mean batch.micro?"),
])  # fmt: skip
def test_other_words_get_a_hint(run: Any, change: str, why: str) -> None:
    with pytest.raises(ValueError) as error:
        change_run(run, [change])
    assert why in str(error.value)


def test_every_hint_is_a_field_of_a_run(run: Any) -> None:
    for field in OTHER_WORDS.values():
        address, _, value = field.partition(" ")[0].partition("=")
        value_at(run, address)
        assert not value or value_at(change_run(run, [field]), address) == value


def test_a_checkpoint_is_fixed(run: Any, tmp_path: Path) -> None:
    config = {"n_layer": 1, "n_embd": 8, "n_head": 1, "vocab_size": 9, "architectures": ["GPT2LMHeadModel"]}
    af.save(af.build(families.find("gpt2").read(config)), tmp_path / "gpt")
    tuned = run.replace(model=Pretrained(path=str(tmp_path / "gpt")), vocabulary=None)
    for change, why in (("n_layer=2", "in gpt2 it is model.decoder.depth"), ("decoder.depth=2", "the model has one")):
        with pytest.raises(ValueError, match=f"{why}, but the architecture of a checkpoint is fixed"):
            change_run(tuned, [change])


def test_objects_say_what_they_are(tmp_path: Path) -> None:
    read = af.processor(vocabularies.bert(tmp_path))
    assert repr(read) == f"Processor({str(tmp_path)!r}: {len(read.tokenizer)} tokens)"
    model = af.build(families.find("gpt2").read({"n_layer": 1, "n_embd": 8, "n_head": 1, "vocab_size": 9}))
    plain = repr(model)
    for again in (af.lora.apply(model, af.lora.LoRA(rank=2)), copy.deepcopy(model)):
        assert repr(again).count("bias=True, LoRA of rank 2, scale ") == 2
    assert repr(af.lora.merge(model)) == plain


def test_every_recipe_is_in_one_group() -> None:
    names = [name for group in groups().values() for name in group]
    assert sorted(names) == sorted(recipes()) and all(groups().values())


def test_a_warning_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    def command() -> None:
        for text in ("one", "two", "one"):
            warnings.warn(text, stacklevel=1)

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert cli.run_guarded(command) == 0
    assert capsys.readouterr().err == "anyformer: warning: one\nanyformer: warning: two\n"


def test_names_instead_of_descriptions() -> None:
    with pytest.raises(ValueError, match=r"got str: write af.spec\('gpt2'\)"):
        af.build("gpt2")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not a known family; nearest relatives: gemma2"):
        families.find("gemma3")
    with pytest.raises(ValueError, match="did you mean 'gpt2'"):
        families.find("gtp2")
