"""Every input has one result, in order: a failed input has its error, and the other results do not change."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import anyformer as af
from anyformer import cli
from anyformer.tasks.task import TaskRun, start_run

Folders = Callable[..., Path]
Image = pytest.importorskip("PIL.Image")
LONG = "dog " * 70
SPAN = {"question": "Who?", "context": "The quick fox jumps."}


def same(found: Any, wanted: Any) -> bool:
    """Equal up to rounding, which depends on the batch."""
    if isinstance(wanted, torch.Tensor):
        return torch.allclose(found, wanted, atol=1e-5)
    if isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(same(found[name], wanted[name]) for name in wanted)
    if isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(same, found, wanted))
    return found == pytest.approx(wanted, abs=1e-5) if isinstance(wanted, float) else found == wanted


@pytest.mark.parametrize(("task", "architecture", "good", "bad", "options"), [
    ("fill-mask", "BertForMaskedLM", ["A [MASK]", "The [MASK] fox jumps"], ["", "no mask", "[MASK]" + LONG], {}),
    ("classify", "BertForSequenceClassification", ["A dog", {"text": "The fox", "pair": "jumps"}], ["  ", LONG], {}),
    ("tag", "BertForTokenClassification", ["A dog", LONG], ["", {"txt": "a"}], {}),
    ("answer", "BertForQuestionAnswering", [SPAN, {**SPAN, "question": "What?"}],
     [{"question": "Who?"}, {**SPAN, "question": LONG}], {}),
    ("embed", "BertModel", ["A dog", "The fox jumps"], ["", LONG], {}),
    ("next-sentence", "BertForNextSentencePrediction", [{"text": "a", "pair": "b"}], ["a", {"text": "a"}], {}),
    ("detect-replaced", "ElectraForPreTraining", ["A dog", "The fox jumps"], ["", LONG], {}),
    ("write", "GPT2LMHeadModel", ["A dog", "The fox jumps"], ["", LONG], {"max_new_tokens": 3}),
    ("few-shot", "GPT2LMHeadModel", [{"text": "A dog", "choices": ["a", "b"], "answer": "a"}],
     ["no choices", {"text": "a", "choices": ["a"]}], {}),
    ("few-shot", "GPT2LMHeadModel", ["A dog"], ["", LONG], {"max_new_tokens": 3}),
    ("summarize", "BartForConditionalGeneration", ["A dog", "The fox jumps"], ["", LONG], {"max_new_tokens": 3}),
    ("translate", "BartForConditionalGeneration", ["A dog", "The fox"], [{"text": "a", "target": 3}, LONG],
     {"max_new_tokens": 3}),
])  # fmt: skip
def test_one_result_for_each_input(
    folders: Folders, task: str, architecture: str, good: list[Any], bad: list[Any], options: dict[str, Any]
) -> None:
    function, reader = getattr(af.tasks, task.replace("-", "_")), af.tasks.open_model(folders(architecture), batch=2)
    inputs = [bad[0], good[0], *bad[1:], good[-1]]
    found = function(reader, inputs, **options)
    assert len(found) == len(inputs)
    for given, result in zip(inputs, found, strict=True):
        if given in good:
            assert same(result, function(reader, [given], **options)[0])
            continue
        assert list(result) == ["error"] and "\n" not in result["error"]
        if given != "no choices":  # it lacks the choices that other inputs have
            with pytest.raises(ValueError) as caught:
                function(reader, given, **options)
            assert str(caught.value) == result["error"]


def test_a_batch_that_fails_in_the_model_is_tried_without_the_input_that_spoils_it(folders: Folders) -> None:
    reader = af.tasks.open_model(folders("BertForSequenceClassification"), batch=4, dtype="bfloat16")
    texts = ["a dog", "The fox", "spoils", "naïve café", "42", "spoils", "jumps"]
    wanted = af.tasks.classify(reader, texts)
    vocabulary, spoilt = reader.model.embedding.tokens, reader.tokenizer.encode("spoils")[1]
    with torch.no_grad():
        vocabulary.weight[spoilt] = float("nan")
    found = af.tasks.classify(reader, texts)
    for text, result, before in zip(texts, found, wanted, strict=True):
        if text == "spoils":
            assert list(result) == ["error"] and "nan" in result["error"].lower()
        else:
            assert result[0]["score"] == pytest.approx(before[0]["score"], abs=1e-2)
    with pytest.raises(FloatingPointError):  # the same error for all inputs is an error of the model
        af.tasks.classify(reader, ["spoils", "spoils"])


def test_halves_are_tried_until_the_input_is_found(folders: Folders) -> None:
    """Good inputs are answered at most a few times over, and prepared inputs are never used twice."""
    run, calls = start_run("embed", folders("BertModel"), [f"{i}" for i in range(64)], {}), []

    def finish(part: TaskRun, prepared: list[Any]) -> list[Any]:
        assert not any(one["used"] for one in prepared)
        for one in prepared:
            one["used"] = True
        calls.append(len(prepared))
        if any(one["text"] == "37" for one in prepared):
            raise ValueError("not this one")
        return [one["text"] for one in prepared]

    found = run.answer(lambda row: {**row, "used": False}, finish)
    assert found == [{"error": "not this one"} if i == 37 else f"{i}" for i in range(64)]
    assert sum(calls) == 64 + 64 + 32 + 16 + 8 + 4 + 2


def test_texts_that_are_cut_are_counted_once(folders: Folders) -> None:
    """Texts that are prepared again after a failed batch are counted once."""
    run = start_run("embed", folders("BertModel"), [LONG, "spoils", LONG, "a dog"], {})

    def finish(part: TaskRun, prepared: list[Any]) -> list[Any]:
        if any(row["text"] == "spoils" for row in part.rows):
            raise ValueError("not this one")
        return [row["text"] for row in part.rows]

    with pytest.warns(UserWarning, match=r"^too long, and cut: 2 of 4 inputs \(48 tokens\); the limit is 48 tokens$"):
        found = run.answer(lambda row: run.encode(row["text"], truncate=True), finish)
    assert found == [LONG, {"error": "not this one"}, LONG, "a dog"]


def test_texts_are_cut_to_the_length_that_the_folder_stores(folders: Folders, tmp_path: Path) -> None:
    af.save(af.load(folders("BertForSequenceClassification")), tmp_path / "model")
    config = json.loads((tmp_path / "model" / "tokenizer_config.json").read_text())
    (tmp_path / "model" / "tokenizer_config.json").write_text(json.dumps({**config, "model_max_length": 12}))
    reader = af.tasks.open_model(tmp_path / "model")
    with pytest.warns(UserWarning, match=r"^too long, and cut: 2 of 3 inputs \(70 tokens\); the limit is 12 tokens$"):
        found = af.tasks.classify(reader, [LONG, "a dog", "dog " * 20])
    assert same(found[0], af.tasks.classify(reader, "dog " * 10)) and same(found[2], found[0])
    with pytest.raises(ValueError, match="the text has 72 tokens, and this model takes at most 48; truncate cuts it"):
        af.tasks.classify(reader, LONG, truncate=False)
    with pytest.warns(UserWarning, match=r"^too long, and cut: 1 of 1 inputs \(60 tokens\); the limit is 12 tokens$"):
        af.tasks.classify(reader, LONG, truncate=True)


# -- pictures ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from anyformer.data import TrainedBPE
    from anyformer.inputs.image import Images

    tower = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = {**tower, "vocab_size": 258, "max_position_embeddings": 30, "eos_token_id": 0}
    config = {"text_config": text, "vision_config": {**tower, "image_size": 8, "patch_size": 4}, "projection_dim": 8}
    folder = tmp_path_factory.mktemp("clip")
    af.save(af.build(af.families.find("clip").read(config), seed=0), folder)
    TrainedBPE(size=258).make(iter(["cat dog house"]), folder)
    Images(size={"height": 8, "width": 8}, do_convert_rgb=True).save(folder)
    return folder


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Four pictures; the second cannot be read."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    for i in (0, 2, 3):
        pixels = np.random.default_rng(i).integers(0, 256, (9, 11, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{i}.png")
    (folder / "1.png").write_bytes(b"no picture")
    return folder


@pytest.mark.parametrize("task", ["zero-shot-image", "embed-image"])
def test_a_picture_that_cannot_be_read(clip: Path, pictures: Path, task: str, capsys: Any) -> None:
    function, options = getattr(af.tasks, task.replace("-", "_")), {}
    options = {"labels": ["cat", "dog"]} if task == "zero-shot-image" else {}
    found = function(clip, str(pictures), batch=3, **options)
    assert len(found) == 4 and found[1]["file"] == str(pictures / "1.png") and "1.png" in found[1]["error"]
    for i in (0, 2, 3):
        alone = function(clip, str(pictures / f"{i}.png"), **options)
        alone = [{"file": str(pictures / f"{i}.png"), **each} for each in alone] if options else alone
        assert same(found[i], alone)
    flags = ["--labels", "cat", "--labels", "dog"] if options else []
    assert cli.main(["run", task, str(clip), str(pictures), "--json", *flags]) == 1
    out, err = capsys.readouterr()
    lines = [json.loads(line) for line in out.splitlines()]
    assert len(lines) == 4 and lines[1]["error"] == found[1]["error"]
    assert err.count("\n") == 1 and err.startswith("anyformer: 1 error; the first: input 2: ")


def test_a_search_goes_on_without_a_picture_that_cannot_be_read(clip: Path, pictures: Path, tmp_path: Path) -> None:
    index, broken = tmp_path / "index", str(pictures / "1.png")
    found = af.tasks.search_images(clip, ["cat", "", "dog"], folder=pictures, index=index, top_k=2)
    assert found[1] == {"error": "text is empty"}
    for result in (found[0], found[2]):
        assert len(result) == 3 and result[-1]["file"] == broken and "1.png" in result[-1]["error"]
        assert all("score" in one for one in result[:2])
    assert af.tasks.search_images(clip, ["cat", "", "dog"], folder=pictures, index=index, top_k=2) == found
    (pictures / "1.png").unlink()
    again = af.tasks.search_images(clip, "cat", folder=pictures, index=index, top_k=2)
    assert same(again, found[0][:2])
