"""Error messages are short enough to read, whatever value a user or a file passes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer as af
import vocabularies
from anyformer.specs.messages import quote, shorten
from anyformer.weights.io import write_checkpoint
from tiny import model_of

LONG = "x" * 100_000
MANY = [3] * 20_000
MOST = 2_000  # characters of a message


def test_what_is_short_stays_and_what_is_long_says_how_long_it_is() -> None:
    assert quote("gelu") == "'gelu'" and quote([1, 2]) == "[1, 2]" and shorten("a" * 200) == "a" * 200
    assert shorten("a" * 201) == "a" * 200 + "... (201 characters)"
    assert quote(LONG, 5) == "'xxxx... (100,002 characters)" and quote(10**5000) == "a very large int"


def folder_of(tmp_path: Path, **config: Any) -> Path:
    """Save a model and change values in its config.json."""
    af.save(model_of("gpt2"), tmp_path / "model", format="hf")
    path = tmp_path / "model" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **config}))
    return tmp_path / "model"


def stored_as(tmp_path: Path, shape: tuple[int, ...], name: str = "") -> Path:
    """Save a model whose tensors all have this wrong shape."""
    folder = folder_of(tmp_path)
    ends = [f"{end}.{part}" for end in ("ln_1", "ln_2", "attn.c_attn", "attn.c_proj") for part in ("weight", "bias")]
    tensors = {f"transformer.h.{i}.{end}": torch.zeros(shape) for i in range(2) for end in ends}
    tensors |= {name: torch.zeros(1)} if name else {}
    (folder / "model.safetensors").unlink()
    write_checkpoint(folder, tensors)
    return folder


def described(tmp_path: Path, name: str, value: Any) -> Path:
    af.save(model_of("gpt2"), tmp_path / "own")
    path = tmp_path / "own" / "spec.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), name: value}))
    return tmp_path / "own"


def vocabulary_of(tmp_path: Path, **config: Any) -> Path:
    return vocabularies.gpt2(tmp_path / "words", **config)


CALLS: dict[str, Callable[[Path], Any]] = {
    "activation": lambda path: af.load(folder_of(path, activation_function=LONG)),
    "head width": lambda path: af.load(folder_of(path, model_type="deberta-v2", attention_head_size=LONG)),
    "list for a number": lambda path: af.load(folder_of(path, n_layer=MANY)),
    "model_type": lambda path: af.load(folder_of(path, model_type=LONG)),
    "architecture": lambda path: af.load(folder_of(path, architectures=[LONG])),
    "dtype of a config": lambda path: af.load(folder_of(path, dtype=LONG)),
    "dtype": lambda path: af.load(folder_of(path), dtype=LONG),
    "device": lambda path: af.load(folder_of(path), device=LONG),
    "shapes": lambda path: af.load(stored_as(path, (1,) * 60)),
    "name of a tensor": lambda path: af.load(stored_as(path, (24,), LONG[:20_000])),
    "kind of a description": lambda path: af.load(described(path, "kind", LONG)),
    "field of a description": lambda path: af.load(described(path, "width", MANY)),
    "unknown field": lambda path: af.load(described(path, LONG, 1)),
    "path of an override": lambda path: af.override(af.spec("gpt2"), {LONG: 1}),
    "value of an override": lambda path: af.override(af.spec("gpt2"), {"width": LONG}),
    "name": lambda path: af.spec(LONG[:3000]),
    "option of generate": lambda path: model_of("gpt2").generate(torch.tensor([[1]]), cache_implementation=LONG),
    "stop strings": lambda path: model_of("gpt2").generate(torch.tensor([[1]]), temperature=LONG),
    "address": lambda path: af.trace(model_of("gpt2"), keep=[LONG], input_ids=torch.tensor([[1]])),
    "input": lambda path: model_of("gpt2")(input_ids=torch.zeros((1,) * 400, dtype=torch.long)),
    "padding side": lambda path: af.processor(vocabulary_of(path, padding_side=LONG)),
    "input names": lambda path: af.processor(vocabulary_of(path, model_input_names=[LONG, 3])),
    "added token": lambda path: af.processor(vocabulary_of(path, added_tokens_decoder={"9000": {"content": LONG}})),
}


@pytest.mark.parametrize("name", CALLS)
def test_messages_do_not_repeat_long_values(name: str, tmp_path: Path) -> None:
    with pytest.raises((ValueError, TypeError, KeyError, OSError)) as caught:
        CALLS[name](tmp_path)
    assert 10 < len(str(caught.value)) < MOST


def test_a_dtype_that_a_file_names_is_told_with_the_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"model/config.json: dtype 'nonsense' is not supported; valid: bfloat16"):
        af.load(folder_of(tmp_path, dtype="nonsense"))
    folder = described(tmp_path, "source", {"dtype": {"a": 1}})
    with pytest.raises(ValueError, match=r"own/spec.json: dtype \{'a': 1\} is not supported"):
        af.load(folder)
    assert af.load(folder, dtype="float32").dtype == torch.float32
    with pytest.raises(ValueError, match="^dtype 'float31' is not supported; did you mean"):
        af.load(folder, dtype="float31")


@pytest.mark.parametrize("dtype", ["float32", 5, None])
def test_a_count_takes_types_of_torch(dtype: Any) -> None:
    count = af.count(model_of("gpt2").spec)
    for call in (lambda: count.memory(dtype), lambda: count.state(1, 9, dtype)):
        with pytest.raises(ValueError, match="dtype must be a torch.dtype such as torch.bfloat16, got"):
            call()
