"""G8: for each family, `af.processor` gives the tensors that AutoTokenizer or AutoProcessor gives for a folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import catalogue
import pytest
import torch

import anyformer as af
from anyformer import families
from anyformer.data.vocabulary import TrainedBPE
from anyformer.inputs.tokenizer_defaults import CLASSES, OTHERS
from tiny import CONFIGS, model_of

transformers = pytest.importorskip("transformers")
from inputs.comparison import FIRST, compare, row
from inputs.folders import BERT, END, FAMILIES, family_folder, generic, tokenizer, word_pieces

PAGE = Path(__file__).parents[2] / "docs" / "results" / "families.md"


@pytest.mark.parametrize("family", FAMILIES)
def test_tensors_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    found = compare(family_folder(family, tmp_path))
    assert not found.differences
    assert row(family, found) in PAGE.read_text(encoding="utf-8").splitlines()  # the results page has this row


def test_families_declare_their_tokenizers() -> None:
    """A family knows when transformers uses its base class, and names a class whose defaults we know."""
    registered = transformers.models.auto.tokenization_auto.TOKENIZER_MAPPING_NAMES
    for name, family in families.catalogue().items():
        if family.tokenizer:
            base = {"TokenizersBackend": "always", None: "unnamed"}.get(registered.get(name), "")
            assert family.base_tokenizer == base, name
            assert family.tokenizer in CLASSES or family.tokenizer in UNREAD, name
    assert not OTHERS.keys() & families.catalogue().keys()  # a family here declares its own


UNREAD = ("FSMTTokenizer",)  # its vocabulary files are refused


# changes to the settings in a folder
CHANGES: dict[str, Callable[[Path], Any]] = {
    "no class named": lambda folder: change(folder, tokenizer_class=None),
    "the generic class": lambda folder: change(folder, tokenizer_class="PreTrainedTokenizerFast"),
    "with token types": lambda folder: change(folder, model_input_names=["input_ids", "token_type_ids"]),
    "input_ids alone": lambda folder: change(folder, model_input_names=["input_ids"]),
    "no config.json": lambda folder: (folder / "config.json").unlink(),
    "few settings": lambda folder: (folder / "tokenizer_config.json").write_text('{"model_max_length": 512}'),
}


def change(folder: Path, **changes: Any) -> None:
    path = folder / "tokenizer_config.json"
    values = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({name: value for name, value in values.items() if value is not None}))


CHANGED = ("albert", "bert", "deberta-v2", "distilbert", "gpt_neox", "llama", "xlnet")


@pytest.mark.parametrize(("family", "what"), [
    (family, what) for family in CHANGED for what in CHANGES
    if (family, what) != ("llama", "few settings")  # then transformers has no token to pad with
])  # fmt: skip
def test_settings_decide_as_in_transformers(family: str, what: str, tmp_path: Path) -> None:
    folder = family_folder(family, tmp_path)
    CHANGES[what](folder)
    assert not compare(folder).differences


def test_whisper_begins_with_the_language_and_task_of_its_settings(tmp_path: Path) -> None:
    folder = family_folder("whisper", tmp_path)
    change(folder, language="german", task="translate", predict_timestamps=True)
    assert not compare(folder).differences
    change(folder, language="x" * 100_000)
    with pytest.raises(ValueError, match=r"tokenizer.json: language is 'xxx.{,700}$"):
        af.processor(folder)("a")


@pytest.mark.parametrize("names", [5, "input_ids", ["input_ids", None]])
def test_input_names_that_are_none_are_refused(names: Any, tmp_path: Path) -> None:
    folder = family_folder("gpt2", tmp_path)
    change(folder, model_input_names=names)
    with pytest.raises(ValueError, match=r"tokenizer_config.json: model_input_names is .*it must be a list of names"):
        af.processor(folder)


# -- models with these inputs -----------------------------------------------------------------------------------------


def gpt2(folder: Path) -> Path:
    """A GPT-2 with a tokenizer of the generic class, which marks the second text of a pair."""
    spec = families.find("gpt2").read({**CONFIGS["gpt2"], "vocab_size": 300})
    model = af.build(spec, seed=0)
    torch.nn.init.normal_(model.get_parameter("embedding.tokens.weight"))
    af.save(model, folder, format="hf")
    ends = ("$A:0", "$A:0 $B:1")
    generic([END, "<|padding|>"], ends, eos_token=END, pad_token="<|padding|>").save_pretrained(folder)
    return folder


def test_gpt2_writes_what_it_writes_in_transformers(tmp_path: Path) -> None:
    folder = gpt2(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)(FIRST, return_tensors="pt")
    ours, model = af.processor(folder)(FIRST), af.load(folder)
    published = transformers.GPT2LMHeadModel.from_pretrained(folder).eval()
    assert torch.allclose(model(**ours).logits, published(**theirs).logits, atol=1e-4)
    options: dict[str, Any] = {"max_new_tokens": 4, "do_sample": False}
    assert torch.equal(model.generate(**ours, **options), published.generate(**theirs, **options, pad_token_id=1))


@pytest.mark.parametrize("form", ["anyformer", "hf"])
def test_a_vocabulary_made_here_is_read_alike(form: str, tmp_path: Path) -> None:
    """The vocabulary as `train --text` writes it, and as `af.save` copies it."""
    special = {"bos_token": "<s>", "eos_token": END, "pad_token": "<pad>"}
    TrainedBPE(size=270, special=special, begin="bos_token", end="eos_token").make(["the fox " * 9], tmp_path / "run")
    model = model_of("gpt2")
    model.folder = tmp_path / "run"
    af.save(model, tmp_path / "saved", format=form)
    for folder in (tmp_path / "run", tmp_path / "saved"):
        found = compare(folder)
        assert not found.differences and found.all_keys == ["input_ids", "attention_mask"]


@pytest.mark.parametrize("family", ["bert", "electra", "deberta", "deberta-v2", "distilbert"])
def test_models_take_the_token_types_that_their_tokenizers_give(family: str, tmp_path: Path) -> None:
    folder = family_folder(family, tmp_path)
    if family == "distilbert":  # many of its folders name BERT's class, and the model ignores the types
        tokenizer("BertTokenizer", word_pieces(BERT))().save_pretrained(folder)
    config = next(case.config for case in catalogue.every_case() if case.model_type == family)
    config = {**config, "vocab_size": 400, "max_position_embeddings": 64, "model_type": family}
    inputs = af.processor(folder)(FIRST, "the fox")
    (folder / "config.json").write_text(json.dumps(config))
    published = transformers.AutoModel.from_config(transformers.AutoConfig.from_pretrained(folder)).eval()
    published.save_pretrained(folder)
    assert "token_type_ids" in inputs
    with torch.no_grad():
        wanted = published(**transformers.AutoTokenizer.from_pretrained(folder)(FIRST, "the fox", return_tensors="pt"))
        assert torch.allclose(af.load(folder)(**inputs).last_hidden_state, wanted.last_hidden_state, atol=1e-4)
