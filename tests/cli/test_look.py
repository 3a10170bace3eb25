"""`anyformer look`: pages of text, pictures and sound, and mistakes."""

from __future__ import annotations

import json
import re
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import anyformer as af
from anyformer import cli, families
from terminals import Run
from vocabularies import gpt2, t5, write

VERB = ("look",)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a tiny model of a family, with its tokenizer or processor."""
    configs: dict[str, dict[str, Any]] = {
        "gpt2": {"n_layer": 2, "n_embd": 16, "n_head": 2, "vocab_size": 400, "n_positions": 32, "bos_token_id": 0,
                 "eos_token_id": 0, "architectures": ["GPT2LMHeadModel"]},
        "t5": {"num_layers": 1, "d_model": 16, "d_kv": 8, "num_heads": 2, "d_ff": 24, "vocab_size": 400,
               "decoder_start_token_id": 0, "eos_token_id": 1, "pad_token_id": 0,
               "architectures": ["T5ForConditionalGeneration"]},
        "vit": {"image_size": 16, "patch_size": 4, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
                "intermediate_size": 24, "id2label": {"0": "cat", "1": "dog"}, "label2id": {"cat": 0, "dog": 1},
                "architectures": ["ViTForImageClassification"]},
        "wav2vec2": {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24,
                     "conv_dim": [8, 8], "conv_stride": [40, 8], "conv_kernel": [60, 9], "vocab_size": 9,
                     "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "feat_extract_norm": "layer",
                     "architectures": ["Wav2Vec2ForCTC"]},
        "clip": {"projection_dim": 12, "text_config": {
            "vocab_size": 400, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "bos_token_id": 0,
            "intermediate_size": 24, "max_position_embeddings": 32, "eos_token_id": 0, "pad_token_id": 0},
                 "vision_config": {"image_size": 16, "patch_size": 4, "hidden_size": 16, "num_hidden_layers": 1,
                                   "num_attention_heads": 2, "intermediate_size": 24}, "architectures": ["CLIPModel"]},
        "deit": {"image_size": 16, "patch_size": 4, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
                 "intermediate_size": 24, "architectures": ["DeiTForImageClassificationWithTeacher"]},
        "swin": {"image_size": 16, "patch_size": 2, "embed_dim": 8, "depths": [2, 1], "num_heads": [2, 2],
                 "window_size": 4, "architectures": ["SwinForImageClassification"]},
        "resnet": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic",
                   "architectures": ["ResNetForImageClassification"]},
        "mamba": {"hidden_size": 16, "num_hidden_layers": 1, "vocab_size": 400, "architectures": ["MambaForCausalLM"]},
    }  # fmt: skip
    configs["wav2vec2 silent"] = configs["wav2vec2"]
    base = tmp_path_factory.mktemp("models")

    def make(family: str) -> Path:
        folder = base / family
        if not folder.exists():
            model = af.build(families.find(family.removesuffix(" silent")).read(configs[family]), seed=1)
            if family.startswith("wav2vec2"):
                with torch.no_grad():  # a letter all the time, or the blank
                    model.head.out.bias[0 if "silent" in family else 7] = 9.0
            af.save(model, folder, format="hf")
            if family in ("gpt2", "mamba", "clip"):
                gpt2(folder)
            if family == "t5":
                t5(folder)
            if family in ("vit", "clip", "deit", "swin", "resnet"):
                write(folder, "preprocessor_config.json", {"image_processor_type": "ViTImageProcessor",
                                                           "size": {"height": 16, "width": 16}})  # fmt: skip
            if family.startswith("wav2vec2"):
                letters = ["<pad>", "<s>", "</s>", "<unk>", "|", *"ETAO"]
                write(folder, "vocab.json", {letter: i for i, letter in enumerate(letters)})
                write(folder, "tokenizer_config.json", {"tokenizer_class": "Wav2Vec2CTCTokenizer"})
                write(folder, "preprocessor_config.json", {"feature_extractor_type": "Wav2Vec2FeatureExtractor",
                                                           "sampling_rate": 8000})  # fmt: skip
        return folder

    return make


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def data_of(file: Path) -> Any:
    found = re.search(r'id="data">(.*?)</script>', file.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def picture(folder: Path) -> Path:
    image = pytest.importorskip("PIL.Image")
    file = folder / "a.png"
    image.fromarray(np.random.default_rng(0).integers(0, 255, (20, 24, 3), np.uint8)).save(file)
    return file


def sound(folder: Path) -> Path:
    file = folder / "a.wav"
    with wave.open(str(file), "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(8000)
        out.writeframes((np.sin(np.arange(8000) / 9) * 9000).astype(np.int16).tobytes())
    return file


def test_a_text(run: Run, made: Any, tmp_path: Path) -> None:
    text, other = "The fox says <b>hello</b>", "The dog says <b>hello</b>"
    assert run(made("gpt2"), text, "-o", "x.html", "--other", other) == (0, "x.html\n", "")
    data = data_of(tmp_path / "x.html")
    assert "".join(data["tokens"]) == text
    assert data["name"] == "gpt2" and len(data["maps"]) == 2 and not data["served"]
    model, ids = af.load(made("gpt2")), af.processor(made("gpt2"))(text)["input_ids"]
    with torch.no_grad():
        best = model(input_ids=ids).logits[0, -1].argmax()
    assert data["predictions"][-1][0][2] == int(best)


def test_a_default_name_replaces_no_file_of_others(run: Run, made: Any, tmp_path: Path) -> None:
    (tmp_path / "look.html").write_text("a page of mine")
    (tmp_path / "masks.png").write_bytes(b"a picture of mine")
    for command in ((made("gpt2"), "The fox"), ("--picture", "masks")):
        code, _, err = run(*command)
        assert code == 2 and "exists and was not written by anyformer" in err
    assert (tmp_path / "look.html").read_text() == "a page of mine"
    for file in ("look.html", "masks.png"):
        (tmp_path / file).unlink()
    for command in ((made("gpt2"), "The fox"), ("--picture", "masks")) * 2:  # the second time replaces the first file
        assert run(*command)[0] == 0
    assert (tmp_path / "masks.png").read_bytes().startswith(b"\x89PNG")


def test_a_pair_writes_itself_or_reads_a_target(run: Run, made: Any, tmp_path: Path) -> None:
    assert run(made("t5"), "The fox", "--target", "the dog")[0] == 0
    data = data_of(tmp_path / "look.html")
    assert data["source"] and len(data["tokens"]) > 2
    assert {each["kind"] for each in data["maps"]} == {"self", "cross"}
    assert run(made("t5"), "The fox")[0] == 0


def test_a_picture_and_a_recording(run: Run, made: Any, tmp_path: Path) -> None:
    assert run(made("vit"), picture(tmp_path)) == (0, "look.html\n", "")
    data = data_of(tmp_path / "look.html")
    assert data["media"]["grid"] == [4, 4] and len(data["tokens"]) == 17 and data["whole"]
    assert data["media"]["image"].startswith("data:image/png;base64,")
    assert {word for word, _, _ in data["predictions"][0]} == {"cat", "dog"}
    assert len(data["lens"]["tokens"]) == 3 and "why" in data["contributions"]
    assert run(made("wav2vec2"), sound(tmp_path))[0] == 0
    data = data_of(tmp_path / "look.html")
    assert data["maps"][0]["keys"] == len(data["tokens"]) > 5


def test_each_of_two_towers(run: Run, made: Any, tmp_path: Path) -> None:
    for given, places in (("The fox", 2), (picture(tmp_path), 17)):
        assert run(made("clip"), given) == (0, "look.html\n", "")
        data = data_of(tmp_path / "look.html")
        assert len(data["tokens"]) == places == data["maps"][0]["keys"]
        assert data["predictions"] == [] and "has no scores" in data["lens"]["why"]


@pytest.mark.parametrize(("name", "family", "given"), [
    ("vit", "vit", picture), ("vit", "deit", picture), ("walk", "gpt2", lambda folder: "The fox"),
    ("windows", "swin", picture), ("windows", "swin", None), ("spectrogram", "wav2vec2", sound),
])  # fmt: skip
def test_pictures_of_a_model(run: Run, made: Any, tmp_path: Path, name: str, family: str, given: Any) -> None:
    """Swin's windows can be drawn from a description, without weights and without an image."""
    pytest.importorskip("matplotlib")
    model = made(family)
    if given is None:
        af.save(af.load(model), "ours")
        model = "ours/spec.json"
    assert run("--picture", name, model, *([given(tmp_path)] if given else []), "-o", "x.svg") == (0, "x.svg\n", "")
    assert b"<svg" in (tmp_path / "x.svg").read_bytes()


def test_pictures_that_do_not_fit(run: Run, made: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    image, recording = picture(tmp_path), sound(tmp_path)
    for arguments, line in (
        (("vit", made("gpt2"), "The fox"), "a model that reads images"),
        (("vit", made("swin"), image), "does not attend from every patch"),
        (("vit", made("resnet"), image), "no filters of patches"),
        (("walk", made("vit"), image), "a model that reads texts"),
        (("walk", made("wav2vec2"), recording), "a model that reads texts"),
        (("walk", made("clip"), "The fox"), "this model predicts no words"),
        (("windows",), "give MODEL, and optionally an image"),
        (("windows", made("vit"), image), "this model has no windows"),
        (("windows", made("clip"), image), "this model has no windows"),
        (("windows", made("wav2vec2"), recording), "this model reads input_values, not images"),
        (("windows", made("swin"), recording), "this model reads a picture: give a file"),
        (("windows", "swin-tyni"), "did you mean 'swin-tiny'"),
        (("spectrogram", made("gpt2"), "The fox"), "a model that reads recordings"),
        (("spectrogram", made("wav2vec2"), image), "is not a recording, which this model reads"),
        (("spectrogram", made("wav2vec2 silent"), recording), "no words in this recording"),
    ):
        code, out, err = run("--picture", *arguments)
        assert (code, out) == (2, "") and line in err and err.count("\n") == 1, (line, err)


def test_a_saved_model_of_pictures_needs_no_tokenizer(run: Run, made: Any, tmp_path: Path) -> None:
    """af.save of a model that was built in Python writes no image processor settings."""
    pytest.importorskip("matplotlib")
    for family in ("vit", "clip"):
        model = af.load(made(family))
        model.folder = None
        af.save(model, tmp_path / family)
        message = f"{tmp_path / family} has no image processor settings: pictures are scaled to 16 x 16, -1 to 1"
        image = picture(tmp_path)
        wanted = f"anyformer: warning: {message}\n"
        assert run("--picture", "vit", tmp_path / family, image, "-o", "x.svg") == (0, "x.svg\n", wanted)
        assert run(tmp_path / family, image) == (0, "look.html\n", wanted)
    code, out, err = run(tmp_path / "clip", "The fox")
    assert code == 2 and "no tokenizer" in err
    model = af.load(made("wav2vec2"))
    model.folder = None
    af.save(model, tmp_path / "sound")
    code, out, err = run(tmp_path / "sound", sound(tmp_path))
    assert code == 2 and "no preprocessor_config.json, which is needed to read sound" in err


def test_a_model_of_other_numbers_is_named(run: Run, tmp_path: Path, capsys: Any) -> None:
    config = {"state_dim": 3, "act_dim": 2, "hidden_size": 16, "n_layer": 1, "n_head": 2, "max_ep_len": 40}
    af.save(af.build(families.find("decision_transformer").read(config)), tmp_path / "acts")
    code, out, err = run(tmp_path / "acts", "The fox")
    assert code == 2 and err.startswith("anyformer: this model reads states; `look` takes texts, pictures and sound")
    for verb in (["generate"], ["run", "embed"]):  # neither asks for a tokenizer
        assert cli.main([*verb, str(tmp_path / "acts"), "The fox"]) == 2
        err = capsys.readouterr().err
        assert "reads states" in err and "tokenizer" not in err and err.count("\n") == 1


def test_a_model_of_convolutions(run: Run, made: Any, tmp_path: Path) -> None:
    assert run(made("resnet"), picture(tmp_path)) == (0, "look.html\n", "")
    assert data_of(tmp_path / "look.html")["media"]["grid"] == [4, 4]


def test_mistakes(run: Run, made: Any, tmp_path: Path) -> None:
    image = picture(tmp_path)
    for arguments, line in (
        ((), "give MODEL and INPUT"),
        ((made("gpt2"),), "give MODEL and INPUT"),
        ((tmp_path / "none", "x"), "none"),
        ((made("gpt2"), image), "is a picture, but this model reads text"),
        ((made("vit"), "The fox"), "this model reads a picture: give a file"),
        ((made("vit"), sound(tmp_path)), "is not a picture, which this model reads"),
        ((made("gpt2"), "dog " * 40), "this model takes at most 32"),
        ((made("gpt2"), ""), "the text is empty"),
        ((made("gpt2"), "x", "--target", "y"), "this one has one stack"),
        ((made("gpt2"), "x", "--port", "80"), "--port needs --serve"),
        ((made("gpt2"), "x", "--serve", "-o", "x.html"), "not both"),
        ((made("gpt2"), "x", "--serve", "--port", "70000"), "--port is 70000; it must be from 0 to 65535"),
        ((made("gpt2"), "x", "-o", tmp_path), "is a folder"),
        ((made("gpt2"), "x", "--outptu", "y"), "--output"),
    ):
        code, out, err = run(*arguments)
        assert (code, out) == (2, "") and line in err and err.count("\n") == 1, (line, err)


def test_a_model_without_attention(run: Run, made: Any, tmp_path: Path) -> None:
    assert run(made("mamba"), "The fox") == (0, "look.html\n", "")
    data = data_of(tmp_path / "look.html")
    assert data["maps"] == [] and "no attention" in data["heads"]["why"] and data["lens"]["depths"]
