"""Tiny random models of published classes, each in a folder with a small real tokenizer."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from anyformer.inputs.tokenizer import Tokenizer
from vocabularies import camembert, gpt2, t5, words, xlm_roberta

Folders = Callable[..., Path]


def unigrams(folder: Path) -> Path:
    """T5's pieces as a tokenizer.json, which both libraries read."""
    core = Tokenizer.load(t5(folder)).core
    (folder / "spiece.model").unlink()
    core.save(str(folder / "tokenizer.json"))
    return folder


SMALL = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 40}
# model_type -> its tokenizer, and a config that fits it
KINDS: dict[str, tuple[Callable[..., Path], dict[str, Any]]] = {
    "bert": (words, {**SMALL, "vocab_size": 300, "max_position_embeddings": 48}),
    "electra": (words, {**SMALL, "vocab_size": 300, "embedding_size": 16, "max_position_embeddings": 48}),
    "distilbert": (words, {"n_layers": 2, "dim": 32, "n_heads": 4, "hidden_dim": 40, "vocab_size": 300,
                          "max_position_embeddings": 48}),
    "roberta": (lambda folder: gpt2(folder, tokenizer_class="RobertaTokenizer"),
                {**SMALL, "vocab_size": 401, "max_position_embeddings": 50, "type_vocab_size": 1, "pad_token_id": 1}),
    "xlm-roberta": (xlm_roberta, {**SMALL, "vocab_size": 130, "max_position_embeddings": 50}),
    "camembert": (camembert, {**SMALL, "vocab_size": 130, "max_position_embeddings": 50}),
    "longformer": (lambda folder: gpt2(folder, tokenizer_class="RobertaTokenizer"),
                   {**SMALL, "vocab_size": 401, "max_position_embeddings": 50, "type_vocab_size": 1, "pad_token_id": 1,
                    "attention_window": 8, "sep_token_id": 2}),
    "bart": (lambda folder: gpt2(folder, tokenizer_class="RobertaTokenizer"),
             {"encoder_layers": 2, "decoder_layers": 2, "d_model": 32, "encoder_attention_heads": 4,
              "decoder_attention_heads": 4, "encoder_ffn_dim": 40, "decoder_ffn_dim": 40, "vocab_size": 401,
              "max_position_embeddings": 48}),
    "albert": (words, {**SMALL, "vocab_size": 300, "embedding_size": 16,
                                             "max_position_embeddings": 48}),
    "t5": (unigrams, {"num_layers": 2, "d_model": 32, "d_kv": 8, "num_heads": 4, "d_ff": 40, "vocab_size": 300}),
    "gpt2": (gpt2, {"n_layer": 2, "n_embd": 32, "n_head": 4, "vocab_size": 400, "n_positions": 48}),
    "llama": (lambda folder: gpt2(folder, padding_side="left"),
              {**SMALL, "num_key_value_heads": 2, "vocab_size": 400, "max_position_embeddings": 48}),
}  # fmt: skip


def make(folder: Path, architecture: str, **changes: Any) -> Path:
    """The published class, saved with random weights that are far from uniform."""
    import transformers

    cls = getattr(transformers, architecture)
    vocabulary, config = KINDS[cls.config_class.model_type]
    vocabulary(folder)
    torch.manual_seed(0)
    model = cls(cls.config_class(**{**config, **changes}))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3 + (parameter == 1).float())
            if name in ("classifier.bias", "score.bias"):  # no label is preferred
                parameter.zero_()
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """Return the folder of a class with changes to its config; created once."""
    pytest.importorskip("transformers")
    made: dict[str, Path] = {}

    def folder(architecture: str, **changes: Any) -> Path:
        key = f"{architecture}{changes}"
        if key not in made:
            made[key] = make(tmp_path_factory.mktemp("models"), architecture, **changes)
        return made[key]

    return folder


@pytest.fixture(scope="session")
def pipeline() -> Callable[..., Any]:
    """Return transformers' pipeline, without warnings and on the CPU."""
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()

    @functools.cache
    def open_pipeline(task: str, folder: Path) -> Any:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, model_max_length=48)
        return transformers.pipeline(task, model=str(folder), tokenizer=tokenizer, device="cpu")

    return open_pipeline
