"""aren-transliteration (CTranslate2's test model): an encoder-decoder with pre-norms that converts names from Arabic to
Latin letters. CTranslate2 writes "atzmon" with score -0.1517 and "achison" with -0.1543."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import anyformer as af
from anyformer import families
from anyformer.parts.embedding.text import Tokens

pytestmark = pytest.mark.real

START, END = 1, 2  # <blank> <s> </s>


def tensors_of(path: Path) -> dict[str, torch.Tensor]:
    """Read version 2 of CTranslate2's format: strings with their lengths, and tensors with shapes, all fp32 here."""
    raw, at = path.read_bytes(), 0

    def number(kind: str) -> int:
        nonlocal at
        (value,) = struct.unpack_from(f"<{kind}", raw, at)
        at += struct.calcsize(kind)
        return value

    def text() -> str:
        nonlocal at
        size = number("H")
        at += size
        return raw[at - size : at].rstrip(b"\0").decode()

    assert (number("I"), text(), number("I")) == (2, "TransformerBase", 2)
    found = {}
    for _ in range(number("I")):
        name = text()
        shape = [number("I") for _ in range(number("B"))]
        width, count = number("B"), number("I")
        assert width == 4 and count == int(np.prod(shape))
        found[name] = torch.from_numpy(np.frombuffer(raw, "<f4", count, at).copy()).view(shape)
        at += 4 * count
    assert at == len(raw)
    return found


@pytest.fixture(scope="module")
def model(shared_data: Path) -> Any:
    """M2M-100's description, with one vocabulary per language and a bias in the head."""
    tensors = tensors_of(shared_data / "weights" / "aren-transliteration-ct2" / "model.bin")
    sizes = {"d_model": 32, "max_position_embeddings": 128}
    for side in ("encoder", "decoder"):
        sizes |= {f"{side}_layers": 6, f"{side}_attention_heads": 8, f"{side}_ffn_dim": 128}
    spec = families.find("m2m_100").read({
        **sizes, "vocab_size": 51, "pad_token_id": 0, "bos_token_id": START, "decoder_start_token_id": START,
        "eos_token_id": END, "tie_word_embeddings": False, "architectures": ["M2M100ForConditionalGeneration"],
    })  # fmt: skip
    spec = af.override(spec, {
        "embedding.tokens": spec.embedding.tokens.as_kind(Tokens),
        "decoder_embedding.tokens.vocab_size": 43, "head.vocab_size": 43,
        "head.bias": True,
    })  # fmt: skip
    made = af.build(spec, seed=0).eval()
    made.load_state_dict(dict(renamed(tensors)), strict=True)
    return made


def renamed(tensors: dict[str, torch.Tensor]) -> Any:
    ends = {"gamma": "weight", "beta": "bias", "weight": "weight", "bias": "bias"}
    parts = {
        ("self_attention", "linear_0"): ("attention", "qkv"), ("self_attention", "linear_1"): ("attention", "o"),
        ("attention", "linear_0"): ("cross", "q"), ("attention", "linear_1"): ("cross", "kv"),
        ("attention", "linear_2"): ("cross", "o"), ("ffn", "linear_0"): ("feedforward", "up"),
        ("ffn", "linear_1"): ("feedforward", "down"),
    }  # fmt: skip
    steps = {"self_attention": "attention", "attention": "cross", "ffn": "feedforward"}
    for name, tensor in tensors.items():
        side, *inner, last = name.split("/")
        end = ends[last]
        if inner == ["embeddings"]:
            yield {"encoder": "embedding", "decoder": "decoder_embedding"}[side] + f".tokens.{end}", tensor
        elif inner == ["projection"]:
            yield f"head.out.{end}", tensor
        elif inner == ["layer_norm"]:
            yield f"{side}.norm.{end}", tensor
        else:
            layer, step, what = inner
            here = f"{side}.layers.{layer.removeprefix('layer_')}"
            if what == "layer_norm":
                yield f"{here}.{steps[step]}.pre_norm.{end}", tensor
                continue
            block, places = parts[step, what]
            split = list(places) if places in ("qkv", "kv") else [places]
            for place, piece in zip(split, tensor.chunk(len(split)), strict=True):
                yield f"{here}.{block}.op.{place}.{end}", piece


@pytest.mark.parametrize("num_beams", [2, 4])
@pytest.mark.parametrize(
    ("source", "target", "score"),
    [("\u0622\u062a\u0632\u0645\u0648\u0646", "atzmon", -0.1517),
     ("\u0622\u062a\u0634\u06cc\u0633\u0648\u0646", "achison", -0.1543),
     ("\u0622\u062a\u0634\u064a\u0633\u0648\u0646", "achison", -0.1392)],  # another letter y
    ids=["atzmon", "achison", "achison-2"],
)  # fmt: skip
def test_names(model: Any, shared_data: Path, source: str, target: str, score: float, num_beams: int) -> None:
    folder = shared_data / "weights" / "aren-transliteration-ct2"
    words, letters = (
        (folder / f"{side}_vocabulary.txt").read_text(encoding="utf-8").split("\n") for side in ("source", "target")
    )
    ids = torch.tensor([[words.index(letter) for letter in source]])
    out = af.generate(model, ids, num_beams=num_beams, max_new_tokens=30, return_dict=True, length_penalty=1.0)
    written = "".join(letters[i] for i in out.sequences[0].tolist() if i > END)
    assert written == target
    assert float(out.sequences_scores[0]) == pytest.approx(score, abs=5e-5)
