"""Words of other libraries in --set, af.build and configs: accepted, or answered with what they are called here."""

from __future__ import annotations

from typing import Any

import pytest

import anyformer as af
from anyformer import families
from anyformer.cli.settings import change_run
from anyformer.recipes import recipe


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
    ("decoder.dept=2", "did you mean 'depth'?"),
])  # fmt: skip
def test_other_words_get_a_hint(run: Any, change: str, why: str) -> None:
    with pytest.raises(ValueError) as error:
        change_run(run, [change])
    assert why in str(error.value)


def test_names_instead_of_descriptions() -> None:
    with pytest.raises(ValueError, match=r"got str: write af.spec\('gpt2'\)"):
        af.build("gpt2")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not a known family; nearest relatives: qwen2, qwen3_moe"):
        families.find("qwen3")
    with pytest.raises(ValueError, match="did you mean 'gpt2'"):
        families.find("gtp2")
