"""`af.processor` on text: the tensors that transformers' AutoTokenizer gives for the same folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import anyformer as af
from anyformer.inputs.image import Images
from vocabularies import TEXTS, gpt2, whole, words, write

KINDS: dict[str, Callable[..., Path]] = {
    "gpt2": lambda folder: gpt2(folder, pad_token="<|endoftext|>", padding_side="left"),
    "bert": lambda folder: words(folder, model_max_length=24),
    "roberta": lambda folder: gpt2(folder, tokenizer_class="RobertaTokenizer"),
    "whole": whole,
    "xlnet": lambda folder: xlnet(folder),
}  # fmt: skip


def xlnet(folder: Path) -> Path:
    """Padding on the left, <sep> and <cls> at the end: only the class determines this."""
    transformers = pytest.importorskip("transformers")
    special = ["<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"]
    letters = sorted({"\u2581", *"".join(TEXTS).replace(" ", "")})
    pieces = {**dict.fromkeys(special, 0.0), "\u2581the": -2.0, "fox": -3.0, **dict.fromkeys(letters, -5.0)}
    transformers.XLNetTokenizer(vocab=list(pieces.items())).save_pretrained(folder)
    return folder


READABLE = [text for text in TEXTS if text.strip()]


@pytest.fixture(scope="module", params=KINDS)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    transformers = pytest.importorskip("transformers")
    folder = KINDS[request.param](tmp_path_factory.mktemp("processor") / request.param)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    theirs.pad_token = theirs.pad_token or theirs.eos_token
    return af.processor(folder), theirs


@pytest.mark.parametrize("options", [
    {}, {"padding": "longest", "padding_side": "left"}, {"padding": "max_length", "max_length": 512},
    {"truncation": True, "max_length": 7}, {"pad_to_multiple_of": 8}, {"add_special_tokens": False},
    {"text_pair": READABLE[::-1], "truncation": True, "max_length": 12},
], ids=lambda options: "-".join(options) or "plain")  # fmt: skip
def test_tensors_are_those_of_the_auto_tokenizer(both: tuple[Any, Any], options: dict[str, Any]) -> None:
    ours, theirs = both
    texts = READABLE if "max_length" in options else READABLE[:4]
    found = ours(texts, **options)
    wanted = theirs(texts, return_tensors="pt", **{"padding": True, **options})
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert torch.equal(found[name], tensor), name
    assert ours.batch_decode(found["input_ids"]) == theirs.batch_decode(wanted["input_ids"])
    skip = {"skip_special_tokens": True}
    assert ours.decode(found["input_ids"], **skip) == theirs.batch_decode(wanted["input_ids"], **skip)


def test_one_text_is_a_batch_of_one(both: tuple[Any, Any]) -> None:
    ours, theirs = both
    found, wanted = ours("The fox."), theirs("The fox.", return_tensors="pt")
    assert found.keys() == wanted.keys() and all(torch.equal(found[name], wanted[name]) for name in wanted)
    assert ours.decode(found["input_ids"][0]) == theirs.decode(wanted["input_ids"][0])


def test_a_broken_tokenizer_is_told_where_images_are_read_too(tmp_path: Path) -> None:
    settings = {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 4}}
    write(gpt2(tmp_path), "preprocessor_config.json", settings)
    write(tmp_path, "tokenizer.json", "{broken")
    read = af.processor(tmp_path)
    with pytest.raises(ValueError, match=r"cannot be read: \S*tokenizer.json: .*line 1 column 2"):
        read("The fox")
    assert list(read(images=np.zeros((8, 6, 3), np.uint8))) == ["pixel_values"]


def test_chat(tmp_path: Path) -> None:
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    read = af.processor(gpt2(tmp_path, chat_template=template))
    found = read.chat([{"role": "user", "content": "The fox"}])
    assert read.decode(found["input_ids"]) == ["user: The fox\n"] and bool(found["attention_mask"].all())


@pytest.mark.parametrize("call, line", [
    (lambda read: read(), "pass a text"),
    (lambda read: read(["a", "a b c d"], padding=False), "set padding=True"),
    (lambda read: read("a", padding="longst"), "padding='longst'; valid: "),
    (lambda read: read("a", max_length=3), "without truncation=True"),
    (lambda read: read("a", truncation=True), "pass max_length"),
    (lambda read: read("a", images=["dog.png"]), "only settings for text"),
    (lambda read: read("a", sampling_rate=3), "unknown setting 'sampling_rate' for a text"),
    (lambda read: read(["a"], text_pair=["b", "c"]), "1 texts, but 2 pairs"),
], ids=lambda value: value if isinstance(value, str) else "call")  # fmt: skip
def test_a_mistake_is_one_line(call: Any, line: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError) as caught:
        call(af.processor(gpt2(tmp_path)))
    assert line in str(caught.value) and "\n" not in str(caught.value)


def test_images_beside_text_and_alone(tmp_path: Path) -> None:
    folder, picture = gpt2(tmp_path / "both"), np.arange(8 * 6 * 3, dtype=np.uint8).reshape(8, 6, 3)
    with pytest.raises(ValueError, match="images .* only settings for text$"):
        af.processor(folder)(images=[picture])
    settings = {"image_processor_type": "ViTImageProcessor", "do_resize": True, "size": {"height": 4, "width": 4}}
    write(folder, "preprocessor_config.json", settings)
    found = af.processor(folder)("The fox", images=[picture, picture])
    assert list(found) == ["input_ids", "attention_mask", "pixel_values"]
    assert torch.equal(found["pixel_values"], Images.load(folder)([picture, picture])["pixel_values"])
    write(tmp_path / "alone", "preprocessor_config.json", settings)
    alone = af.processor(tmp_path / "alone")
    assert list(alone(images=picture)) == ["pixel_values"]
    with pytest.raises(ValueError, match="has no tokenizer; it reads images"):
        alone("The fox")


def test_sound_as_the_feature_extractor_gives_it(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.Wav2Vec2FeatureExtractor(sampling_rate=8000, return_attention_mask=True)
    theirs.save_pretrained(tmp_path)
    rows = [np.sin(np.arange(n) / 7).astype(np.float32) for n in (300, 200)]
    found = af.processor(tmp_path)(audio=rows, sampling_rate=8000)
    wanted = theirs(rows, sampling_rate=8000, padding=True, return_tensors="pt")
    assert found.keys() == wanted.keys()
    assert all(torch.allclose(found[name].float(), wanted[name].float(), atol=1e-5) for name in found)
