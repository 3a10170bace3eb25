"""`af.tasks.write`: single texts, batches and streams, compared with transformers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer as af
from anyformer.generation.defaults import settings_for
from anyformer.generation.writing import new_tokens

Folders = Callable[..., Path]
TEXTS = ["The quick brown fox", "It's a", "素早い 🦊"]


@pytest.mark.parametrize("architecture", ["GPT2LMHeadModel", "LlamaForCausalLM", "T5ForConditionalGeneration"])
@pytest.mark.parametrize("options", [{}, {"do_sample": True, "seed": 3, "temperature": 0.8}, {"num_beams": 3}], ids=str)
def test_a_batch_is_its_texts_alone_and_streamed(architecture: str, options: dict[str, Any], folders: Folders) -> None:
    start = {"decoder_start_token_id": 0} if architecture.startswith("T5") else {}
    reader = af.tasks.open_model(folders(architecture, **start))
    options = {**options, "max_new_tokens": 9}
    found = af.tasks.write(reader, TEXTS, **options)
    assert any(found) and found == [af.tasks.write(reader, text, **options) for text in TEXTS]
    for text, wanted in zip(TEXTS, found):
        pieces = [*af.tasks.write(reader, text, True, **options)]
        assert "".join(pieces) == wanted and all(pieces)


@pytest.mark.parametrize("num_beams", [1, 3])
def test_a_decoder_may_start_from_the_end_token(folders: Folders, num_beams: int) -> None:
    """BART's start token is its end token: the text begins after it, and ends at the next end token."""
    transformers = pytest.importorskip("transformers")
    folder = folders("BartForConditionalGeneration", forced_bos_token_id=None)
    reader = af.tasks.open_model(folder)
    settings = settings_for(reader.model, {})
    assert settings.decoder_start_token_id in settings.eos
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.BartForConditionalGeneration.from_pretrained(folder)
    options: dict[str, Any] = {"max_new_tokens": 9, "num_beams": num_beams}
    found = af.tasks.write(reader, TEXTS, **options)
    assert all(found) and found == [af.tasks.write(reader, text, **options) for text in TEXTS]
    for text, ours in zip(TEXTS, found):
        assert "".join(af.tasks.write(reader, text, stream=True, **options)) == ours
        (out,) = model.generate(**tokenizer(text, return_tensors="pt"), do_sample=False, **options)
        theirs = tokenizer.decode(out, skip_special_tokens=True)
        assert ours in (theirs, theirs.removesuffix("\ufffd"))
    # tokens after the end are not part of the text
    ids = tokenizer("fox", add_special_tokens=False)["input_ids"]
    rows = torch.tensor([[2, *ids, 2, *ids], [2, 2, *ids, *ids]])
    assert new_tokens(reader.model, rows, 5, settings.eos) == [ids, []]


def test_texts_are_those_of_transformers(folders: Folders) -> None:
    transformers = pytest.importorskip("transformers")
    folder = folders("LlamaForCausalLM")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.LlamaForCausalLM.from_pretrained(folder)
    found = af.tasks.write(af.load(folder), TEXTS[:2], max_new_tokens=7)
    for text, ours in zip(TEXTS, found):
        ids = tokenizer(text, return_tensors="pt")
        out = model.generate(**ids, max_new_tokens=7, do_sample=False)[0, ids["input_ids"].shape[1] :]
        theirs = tokenizer.decode(out, skip_special_tokens=True)
        assert ours in (theirs, theirs.removesuffix("\ufffd"))  # half a character at the end is not shown


def test_a_stream_comes_as_it_is_written(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first piece arrives after the first steps; a stream that is not read further computes nothing more."""
    reader = af.tasks.open_model(folders("GPT2LMHeadModel"))
    calls: list[int] = []
    forward = type(reader.model).forward
    monkeypatch.setattr(type(reader.model), "forward", lambda self, *a, **k: calls.append(1) or forward(self, *a, **k))
    whole = af.tasks.write(reader, TEXTS[0], max_new_tokens=20)
    assert len(calls) == 20 and not torch.is_inference_mode_enabled()
    calls.clear()
    stream = af.tasks.write(reader, TEXTS[0], stream=True, max_new_tokens=20)
    assert not calls
    first = next(stream)
    assert len(calls) < 6 and whole.startswith(first) and torch.is_grad_enabled()
    assert whole == first + "".join(stream) and len(calls) == 20


def test_stop_strings_are_never_written(folders: Folders) -> None:
    reader = af.tasks.open_model(folders("GPT2LMHeadModel"))
    whole = af.tasks.write(reader, TEXTS[0], max_new_tokens=20)
    stop = next(pair for i in range(4, len(whole)) if (pair := whole[i : i + 2]).isascii() and pair.isalnum())
    options: dict[str, Any] = {"max_new_tokens": 20, "stop": [stop, "nothing"]}
    wanted = whole.partition(stop)[0]
    assert len(wanted) < len(whole) and af.tasks.write(reader, TEXTS, **options)[0] == wanted
    assert "".join(af.tasks.write(reader, TEXTS[0], True, **options)) == wanted


def test_near_the_longest_text_each_has_its_own_room(folders: Folders) -> None:
    reader = af.tasks.open_model(folders("GPT2LMHeadModel"))  # 48 positions
    short, long = TEXTS[0], "fox " * 20
    assert af.tasks.write(reader, [short, long]) == [af.tasks.write(reader, text) for text in (short, long)]


def test_a_model_generates(folders: Folders) -> None:
    model = af.load(folders("GPT2LMHeadModel"))
    ids = torch.tensor([[5, 6, 7]])
    assert torch.equal(model.generate(ids, max_new_tokens=5), af.generate(model, ids, max_new_tokens=5))
    assert model.generate.__doc__ == af.generate.__doc__


@pytest.mark.parametrize("call, line", [
    (lambda m: af.tasks.write(m, TEXTS, stream=True), "stream=True writes one text"),
    (lambda m: af.tasks.write(m, ""), "text is empty"),
    (lambda m: af.tasks.write(m, "fox " * 90), "takes at most 48"),
    (lambda m: af.tasks.write(m, "a", temperature=0.5), "temperature"),
    (lambda m: af.tasks.write(m, "a", tempature=0.5), "did you mean 'temperature'?"),
    (lambda m: af.tasks.write(m, "a", chat=True), "has no chat template"),
], ids=lambda value: value if isinstance(value, str) else "call")  # fmt: skip
def test_a_mistake_is_one_line(call: Any, line: str, folders: Folders) -> None:
    with pytest.raises(ValueError) as caught:
        call(folders("GPT2LMHeadModel"))
    assert line in str(caught.value) and "\n" not in str(caught.value)
