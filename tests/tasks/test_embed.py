"""Vectors of texts, compared with transformers one text at a time; the batch does not change them."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer as af
from anyformer.tasks.each.embed import pool_states

Folders = Callable[..., Path]
TEXTS = ["The quick brown fox jumps over the lazy dog.", "a", "It's a naïve café, isn't it?", "42 dogs"]
CLASSES = ["BertModel", "BertForMaskedLM", "RobertaModel", "GPT2Model", "LlamaModel"]


@functools.cache
def opened(folder: Path) -> Any:
    import transformers

    return transformers.AutoTokenizer.from_pretrained(folder), transformers.AutoModel.from_pretrained(folder).eval()


def alone(folder: Path, text: str, pool: str) -> torch.Tensor:
    tokenizer, model = opened(folder)
    with torch.no_grad():
        x = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]  # (T, D)
    return {"cls": x[0], "mean": x.mean(0), "last": x[-1]}[pool]


@pytest.mark.parametrize("pool", ["cls", "mean", "last"])
@pytest.mark.parametrize("architecture", CLASSES)
def test_each_text_has_its_own_vector(folders: Folders, architecture: str, pool: str) -> None:
    folder = folders(architecture)
    wanted = torch.stack([alone(folder, text, pool) for text in TEXTS])
    found = torch.stack(af.tasks.embed(folder, TEXTS, pool=pool, raw=True, batch=3))
    assert found.dtype == torch.float32 and torch.allclose(found, wanted, atol=1e-5)
    unit = torch.stack(af.tasks.embed(folder, TEXTS, pool=pool))
    assert torch.allclose(unit, wanted / wanted.norm(dim=-1, keepdim=True), atol=1e-5)
    one = af.tasks.embed(folder, TEXTS[1], pool=pool)
    assert one.shape == (32,) and torch.allclose(one, unit[1], atol=1e-5)


@pytest.mark.parametrize("architecture", ["BertModel", "RobertaModel", "LlamaModel"])
def test_the_side_of_the_pads_changes_nothing(folders: Folders, architecture: str, tmp_path: Path) -> None:
    folder = folders(architecture)
    reader = af.tasks.open_model(folder)
    vectors = {}
    for side in ("left", "right"):
        batch = reader.tokenizer.batch(TEXTS, padding_side=side)
        with torch.inference_mode():
            x = reader.model(**batch, **({"use_cache": False} if "use_cache" in reader.model.inputs else {}))[0]
        assert not bool(batch["attention_mask"].all())
        vectors[side] = [pool_states(x, batch["attention_mask"], pool) for pool in ("cls", "mean", "last")]
    for left, right in zip(*vectors.values()):
        assert torch.allclose(left, right, atol=1e-5)
    other = shutil.copytree(folder, tmp_path / "other")
    config = json.loads((other / "tokenizer_config.json").read_text())
    for side in ("left", "right"):
        (other / "tokenizer_config.json").write_text(json.dumps({**config, "padding_side": side}))
        assert all(map(torch.equal, af.tasks.embed(other, TEXTS), af.tasks.embed(reader, TEXTS)))


def test_what_suits_the_model(folders: Folders, tmp_path: Path) -> None:
    for architecture, pool in (("BertModel", "mean"), ("LlamaModel", "last")):
        folder = folders(architecture)
        assert torch.equal(af.tasks.embed(folder, "a dog"), af.tasks.embed(folder, "a dog", pool=pool))
    folder = shutil.copytree(folders("BertModel"), tmp_path / "model")
    (folder / "1_Pooling").mkdir()
    modes = {"word_embedding_dimension": 32, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(modes))
    assert torch.equal(af.tasks.embed(folder, "a dog"), af.tasks.embed(folder, "a dog", pool="cls"))
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({**modes, "pooling_mode_max_tokens": True}))
    with pytest.raises(ValueError, match="1_Pooling.*pooling_mode_cls_token, pooling_mode_max_tokens; set pool"):
        af.tasks.embed(folder, "a dog")


def test_the_encoder_of_a_pair_is_asked(folders: Folders, tmp_path: Path) -> None:
    import transformers

    from anyformer.inputs.tokenizer import Tokenizer
    from vocabularies import t5

    folder = t5(tmp_path)
    size = len(Tokenizer.load(folder))
    config = transformers.T5Config(vocab_size=size, d_model=32, d_kv=8, num_heads=4, d_ff=40, num_layers=2)
    model = transformers.T5Model(config).eval()
    model.save_pretrained(folder)
    ids = torch.tensor([Tokenizer.load(folder).encode("The dog")])
    with torch.no_grad():
        wanted = model.encoder(ids).last_hidden_state[0].mean(0)
    found = af.tasks.embed(folder, ["A quick brown fox", "The dog"], raw=True)
    assert torch.allclose(found[1], wanted, atol=1e-5)


def test_half_precision(folders: Folders) -> None:
    folder = folders("BertModel")
    found = torch.stack(af.tasks.embed(folder, TEXTS, dtype="bfloat16"))
    assert found.dtype == torch.float32 and torch.allclose(found, torch.stack(af.tasks.embed(folder, TEXTS)), atol=0.1)


def test_a_list_has_one_result_for_each_text(folders: Folders) -> None:
    """A list of vectors, whether or not a text among them has an error."""
    folder = folders("BertModel")
    good, mixed = af.tasks.embed(folder, ["a dog", "a fox"]), af.tasks.embed(folder, ["a dog", "", "a fox"])
    assert type(good) is type(mixed) is type(af.tasks.embed(folder, [])) is list
    assert mixed[1] == {"error": "text is empty"} and len(mixed) == 3
    assert [vector.shape for vector in good] == [(32,), (32,)]
    assert all(map(torch.equal, good, (mixed[0], mixed[2])))


def test_mistakes(folders: Folders) -> None:
    folder = folders("BertModel")
    with pytest.raises(ValueError, match="^no pool 'means'; did you mean 'mean'"):
        af.tasks.embed(folder, "a", pool="means")
    with pytest.raises(ValueError, match="^the text has 72 tokens, and this model takes at most 48; truncate"):
        af.tasks.embed(folder, "dog " * 70)
    cut: Any = af.tasks.embed(folder, "dog " * 70, truncate=True)
    assert torch.allclose(cut, af.tasks.embed(folder, "dog " * 46), atol=1e-6)
    assert af.tasks.embed(folder, []) == []
