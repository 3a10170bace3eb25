"""Captions and answers about pictures, and `af.processor` of a LLaVA, compared with transformers' classes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import anyformer as af
from anyformer import cli, families
from vocabularies import gpt2

transformers = pytest.importorskip("transformers")
Image = pytest.importorskip("PIL.Image")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny LLaVA as transformers saves it, with a vocabulary of bytes that knows <image>."""
    place = tmp_path_factory.mktemp("llava")
    tokenizer = transformers.AutoTokenizer.from_pretrained(gpt2(place / "words", pad_token="<|endoftext|>"))
    tokenizer.add_tokens(["<image>"], special_tokens=True)
    text = {
        "model_type": "llama",
        "vocab_size": len(tokenizer),
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "max_position_embeddings": 256,
        "eos_token_id": 0,
    }
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


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model of Reka's layout, as anyformer saves it, with the image and audio processors in one file."""
    place = tmp_path_factory.mktemp("reka")
    tokenizer = transformers.AutoTokenizer.from_pretrained(gpt2(place / "words", pad_token="<|endoftext|>"))
    tokenizer.add_tokens(["<image>", "<audio>"], special_tokens=True)
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "max_position_embeddings": 256,
        "eos_token_id": 0,
    }
    image = {
        "hidden_size": 12,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 16,
        "patch_size": 8,
    }
    sound = {
        "d_model": 12,
        "encoder_layers": 1,
        "encoder_attention_heads": 2,
        "encoder_ffn_dim": 16,
        "num_mel_bins": 6,
        "max_source_positions": 50,
    }
    tokens = {f"{name}_token_index": tokenizer.convert_tokens_to_ids(f"<{name}>") for name in ("image", "audio")}
    config = {"text_config": text, "vision_config": image, "audio_config": sound, **tokens}  # fmt: skip
    model = af.build(families.find("reka").read(config), seed=0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)) * 0.2)
    af.save(model, place / "model")
    tokenizer.save_pretrained(place / "model")
    seen = {"image_processor_type": "ViTImageProcessor", "size": {"height": 16, "width": 16}}
    heard = {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "feature_size": 6,
        "chunk_length": 1,
        "sampling_rate": 16000,
    }
    parts = {"image_processor": seen, "feature_extractor": heard}
    (place / "model" / "processor_config.json").write_text(json.dumps(parts))
    return place / "model"


def sounds(count: int) -> list[tuple[np.ndarray, int]]:
    return [(np.random.default_rng(i).normal(size=9000).astype(np.float32), 16000) for i in range(count)]


def test_a_picture_and_a_sound_in_one_text(both: Path) -> None:
    read, model = af.processor(both), af.load(both)
    inputs = read(["Is <audio> in <image>?", "And <audio>?"], images=pictures(1), audio=sounds(2))
    tower = {name: getattr(model.spec, name).token for name in ("image", "audio")}
    found = {name: (inputs["input_ids"] == token).sum(-1).tolist() for name, token in tower.items()}
    assert found == {"image": [4, 0], "audio": [50, 50]} and inputs["input_features"].shape == (2, 6, 100)
    assert inputs["attention_mask"].shape == inputs["input_ids"].shape
    written = af.generate(model, **inputs, max_new_tokens=5, suppress_tokens=list(tower.values()), eos_token_id=[])
    assert written.shape[1] == inputs["input_ids"].shape[1] + 5
    for given, match in (
        ({"audio": sounds(1)}, "<audio> 0 times, but 1 sounds"),
        ({"images": pictures(2)}, "<image> 1 time, but 2 pictures"),
    ):
        with pytest.raises(ValueError, match=match):
            read("A <image>", **given)
    with pytest.raises(ValueError, match="input_features of batch size .*the text contains the token .* 0 times"):
        model(**read("A <image>", images=pictures(1)), input_features=inputs["input_features"])


def test_questions_about_sounds_and_pictures(both: Path, tmp_path: Path, capsys: Any) -> None:
    soundfile = pytest.importorskip("soundfile")
    for i, (samples, rate) in enumerate(sounds(2)):
        soundfile.write(tmp_path / f"{i}.wav", samples / 10, rate)
    model, read = af.load(both), af.processor(both)
    text = "USER: <audio>\nWho? ASSISTANT:"
    ids = model.generate(**read(text, audio=str(tmp_path / "1.wav")), max_new_tokens=6)[0]
    start = read(text, audio=str(tmp_path / "1.wav"))["input_ids"].shape[1]
    expected = read.decode(ids[start:], skip_special_tokens=True).strip()
    answers = af.tasks.ask_audio(both, str(tmp_path), question="Who?", max_new_tokens=6)
    assert [row["file"] for row in answers] == [str(tmp_path / f"{i}.wav") for i in range(2)]
    one = {"audio": str(tmp_path / "1.wav"), "question": "Who?"}
    assert answers[1]["text"] == expected == af.tasks.ask_audio(both, one, max_new_tokens=6)
    assert isinstance(af.tasks.ask_image(both, pictures(1), question="Who?", max_new_tokens=3)[0], str)
    assert isinstance(af.tasks.caption(both, pictures(1)[0], max_new_tokens=3), str)
    file = str(tmp_path / "1.wav")
    assert cli.main(["run", "ask-audio", str(both), file, "--question", "Who?", "--max-new-tokens", "6"]) == 0
    assert capsys.readouterr().out.split() == expected.split()


def test_mistakes_about_sounds_are_one_line(folder: Path, both: Path, tmp_path: Path, capsys: Any) -> None:
    soundfile = pytest.importorskip("soundfile")
    soundfile.write(tmp_path / "0.wav", sounds(1)[0][0] / 10, 16000)
    file, empty = tmp_path / "0.wav", tmp_path / "empty"
    empty.mkdir()
    for arguments, match in (
        (["ask-audio", both, file], "the recording has no question"),
        (["ask-audio", both, tmp_path / "1.wav", "--question", "Who?"], "no such file"),
        (["ask-audio", both, empty, "--question", "Who?"], "no sound in this folder"),
        (["ask-image", both, empty, "--question", "Who?"], "no pictures in this folder"),
        (["ask-audio", both, file, "--question", "Who?", "--template", "{question}"], "has {audio} 0 times, not once"),
        (["ask-audio", folder, file, "--question", "Who?"], "a model that reads sound; this one reads text and pictur"),
    ):
        assert cli.main(["run", *map(str, arguments)]) == 2
        error = capsys.readouterr().err
        assert match in error and len(error.strip().splitlines()) == 1, error


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
    with pytest.raises(ValueError, match="<image> 1 time, but 3 pictures"):
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
    captions = af.tasks.caption(folder, tmp_path, max_new_tokens=4)
    assert [row["file"] for row in captions] == [str(tmp_path / f"{i}.png") for i in range(2)]
    assert cli.main(["run", "caption", str(folder), str(tmp_path / "1.png"), "--max-new-tokens", "4"]) == 0
    assert captions[1]["text"].split() == capsys.readouterr().out.split()


def test_mistakes_are_one_line(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Image.fromarray(pictures(1)[0]).save(tmp_path / "0.png")
    file = tmp_path / "0.png"
    vit = transformers.ViTConfig(image_size=16, patch_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
                                 intermediate_size=8)  # fmt: skip
    transformers.ViTForImageClassification(vit).save_pretrained(tmp_path / "vit")
    transformers.ViTImageProcessorPil(size=16).save_pretrained(tmp_path / "vit")
    capsys.readouterr()  # drop transformers' progress bars
    for arguments, match in (
        (["ask-image", folder, file], "the picture has no question"),
        (["caption", folder, tmp_path / "1.png"], "no such file"),
        (["caption", folder, file, "--template", "What?"], "has {image} 0 times, not once"),
        (["caption", tmp_path / "vit", file], "it needs a decoder with a tower for them, such as LLaVA"),
    ):
        assert cli.main(["run", *map(str, arguments)]) == 2
        error = capsys.readouterr().err
        assert match in error and len(error.strip().splitlines()) == 1
