"""Small tokenizers of each type, trained once per session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers

import vocabularies
from anyformer.inputs.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def bert(tmp_path_factory: Any) -> Tokenizer:
    return Tokenizer.load(vocabularies.bert(tmp_path_factory.mktemp("bert")))


@pytest.fixture(scope="session")
def gpt2(tmp_path_factory: Any) -> Tokenizer:
    return Tokenizer.load(vocabularies.gpt2(tmp_path_factory.mktemp("gpt2")))


@pytest.fixture(scope="session")
def bart(tmp_path_factory: Any) -> Tokenizer:
    return Tokenizer.load(vocabularies.gpt2(tmp_path_factory.mktemp("bart"), tokenizer_class="RobertaTokenizer"))


@pytest.fixture(scope="session")
def words(tmp_path_factory: Any) -> Tokenizer:
    """A word-level tokenizer with a full stop, T5's sentinels and every special token, so that formats are readable."""
    text = "Thank you for inviting me to your party last week . the cat sat on mat and dog ran"
    special = ["<pad>", "</s>", "<unk>", "<s>", "<mask>", *(f"<extra_id_{i}>" for i in range(20))]
    vocabulary = {word: i for i, word in enumerate([*special, *dict.fromkeys(text.split())])}
    core = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    core.add_special_tokens(special)
    folder: Path = tmp_path_factory.mktemp("words")
    core.save(str(folder / "tokenizer.json"))
    names = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>", "bos_token": "<s>",
             "mask_token": "<mask>"}  # fmt: skip
    vocabularies.write(folder, "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **names})
    return Tokenizer.load(folder)
