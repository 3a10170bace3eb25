"""Captions and answers about pictures, and `af.processor` of a LLaVA: as transformers' own classes have them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import anyformer as af
from anyformer import cli
from vocabularies import gpt2

transformers = pytest.importorskip("transformers")
Image = pytest.importorskip("PIL.Image")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny LLaVA as transformers saves it, with a vocabulary of bytes that knows <image>."""
    place = tmp_path_factory.mktemp("llava")
    tokenizer = transformers.AutoTokenizer.from_pretrained(gpt2(place / "words", pad_token="<|endoftext|>"))
    tokenizer.add_tokens(["<image>"], special_tokens=True)
    text = {"model_type": "llama", "vocab_size": len(tokenizer), "hidden_size": 16, "intermediate_size": 24,
            "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 256, "eos_token_id": 0}
    image = {"model_type": "clip_vision_model", "hidden_size": 12, "intermediate_size": 16, "num_hidden_layers": 2,
             "num_attention_heads": 2, "image_size": 16, "patch_size": 8}  # fmt: skip
    token = tokenizer.convert_tokens_to_ids("<image>")
    config = transformers.LlavaConfig(text_config=text, vision_config=image, image_token_index=token)
    torch.manual_seed(0)
    model = transformers.LlavaForConditionalGeneration(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.2)
    model.save_pretrained(place / "model")
    sides = {"height": 16, "width": 16}
    images = transformers.CLIPImageProcessorPil(size={"shortest_edge": 16}, crop_size=sides)
    transformers.LlavaProcessor(
        image_processor=images, tokenizer=tokenizer, patch_size=8, vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    ).save_pretrained(place / "model")  # fmt: skip
    return place / "model"


def pictures(count: int) -> list[np.ndarray]:
    return [np.random.default_rng(i).integers(0, 256, (20, 30, 3), dtype=np.uint8) for i in range(count)]


def test_the_processor_is_that_of_transformers(folder: Path) -> None:
    theirs, read = transformers.LlavaProcessor.from_pretrained(folder, use_fast=False), af.processor(folder)
    texts = ["The fox <image> and <image> too", "A <image>", "none"]
    wanted = theirs(text=texts, images=pictures(3), return_tensors="pt", padding=True)
    found = read(texts, images=pictures(3))
    assert found.keys() == wanted.keys()
    assert torch.equal(found["input_ids"], wanted["input_ids"])
    assert torch.equal(found["attention_mask"], wanted["attention_mask"])
    torch.testing.assert_close(found["pixel_values"], wanted["pixel_values"], atol=1e-5, rtol=0)
    with pytest.raises(ValueError, match="3 pictures, and 1 places <image> for them in the text"):
        read("A <image>", images=pictures(3))


def test_answers_are_what_transformers_writes(folder: Path, tmp_path: Path, capsys: Any) -> None:
    for i, picture in enumerate(pictures(2)):
        Image.fromarray(picture).save(tmp_path / f"{i}.png")
    model = transformers.LlavaForConditionalGeneration.from_pretrained(folder).eval()
    processor = transformers.LlavaProcessor.from_pretrained(folder, use_fast=False)
    expected = []
    for picture, question in zip(pictures(2), ("What is it?", "Who?"), strict=True):
        inputs = processor(text=f"USER: <image>\n{question} ASSISTANT:", images=picture, return_tensors="pt")
        ids = model.generate(**inputs, max_new_tokens=8, do_sample=False)[0, inputs["input_ids"].shape[1] :]
        expected.append(processor.tokenizer.decode(ids, skip_special_tokens=True).strip())
    rows = [{"image": str(tmp_path / "0.png"), "question": "What is it?"}, str(tmp_path / "1.png")]
    assert af.tasks.ask_image(folder, rows, question="Who?", max_new_tokens=8) == expected
    said = af.tasks.caption(folder, tmp_path, max_new_tokens=4)
    assert [row["file"] for row in said] == [str(tmp_path / f"{i}.png") for i in range(2)]
    assert cli.main(["run", "caption", str(folder), str(tmp_path / "1.png"), "--max-new-tokens", "4"]) == 0
    assert said[1]["text"].split() == capsys.readouterr().out.split()


def test_mistakes_are_one_line(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Image.fromarray(pictures(1)[0]).save(tmp_path / "0.png")
    file = tmp_path / "0.png"
    vit = transformers.ViTConfig(image_size=16, patch_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
                                 intermediate_size=8)  # fmt: skip
    transformers.ViTForImageClassification(vit).save_pretrained(tmp_path / "vit")
    transformers.ViTImageProcessorPil(size=16).save_pretrained(tmp_path / "vit")
    capsys.readouterr()  # transformers' bars
    for arguments, match in (
        (["ask-image", folder, file], "a picture without a question"),
        (["caption", folder, tmp_path / "1.png"], "no such file"),
        (["caption", folder, file, "--template", "What?"], "has 0 places {image}; it needs one"),
        (["caption", tmp_path / "vit", file], "it needs a decoder with a tower for them, such as LLaVA"),
    ):
        assert cli.main(["run", *map(str, arguments)]) == 2
        error = capsys.readouterr().err
        assert match in error and len(error.strip().splitlines()) == 1
