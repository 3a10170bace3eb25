"""few-shot: the prompt built from examples, and answers compared with transformers' scores and texts."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer as af
from anyformer.cli import main

transformers = pytest.importorskip("transformers")

Folders = Callable[..., Path]
EXAMPLES = [{"text": "a dog", "answer": "good"}, {"text": "the fox", "answer": "bad"}]
TEMPLATE = "{text}: {answer}"
ROWS: list[dict[str, Any]] = [
    {"text": "lazy dog", "answer": "good"}, {"text": "naïve", "answer": "bad"}, {"text": "The {text}", "answer": "bad"},
    {"text": "café", "answer": "very good"},
]  # fmt: skip
CHOICES = ["good", "bad", "very good"]
CLASSES = {"gpt2": "GPT2LMHeadModel", "llama": "LlamaForCausalLM", "bart": "BartForConditionalGeneration"}
TOKENS = {"bos_token_id": 0, "eos_token_id": 0}


@pytest.fixture(params=CLASSES)
def folder(request: Any, folders: Folders) -> Path:
    pair = request.param == "bart"
    return folders(CLASSES[request.param], **({"forced_eos_token_id": None} if pair else TOKENS))


@functools.cache
def theirs(folder: Path) -> tuple[Any, Any]:
    bart = json.loads((folder / "config.json").read_text())["model_type"] == "bart"
    cls = transformers.AutoModelForSeq2SeqLM if bart else transformers.AutoModelForCausalLM
    return cls.from_pretrained(folder), transformers.AutoTokenizer.from_pretrained(folder)


@torch.no_grad()
def likelihood(folder: Path, context: str, rest: str) -> tuple[float, int]:
    """(sum of log-probabilities, number of tokens) by transformers, one text at a time."""
    model, tokenizer = theirs(folder)
    first = tokenizer(context)["input_ids"]
    if model.config.is_encoder_decoder:
        wanted = tokenizer(rest, add_special_tokens=False)["input_ids"]
        logits = model(input_ids=torch.tensor([first]), labels=torch.tensor([wanted])).logits[0]
    else:
        wanted = tokenizer(context + rest)["input_ids"][len(first) :]
        logits = model(input_ids=torch.tensor([first + wanted])).logits[0, len(first) - 1 : -1]
    chosen = logits.log_softmax(-1)[torch.arange(len(wanted)), torch.tensor(wanted)]
    return float(chosen.sum()), len(wanted)


@pytest.mark.parametrize(("shots", "before"), [
    (0, "{}:"), (1, "a dog: good\n\n{}:"), (None, "a dog: good\n\nthe fox: bad\n\n{}:"),
], ids=["zero", "one", "few"])  # fmt: skip
def test_choices_by_their_likelihood(folder: Path, shots: int | None, before: str) -> None:
    given: dict[str, Any] = {"examples": EXAMPLES, "shots": shots, "template": TEMPLATE, "choices": CHOICES, "batch": 5}
    plain = af.tasks.few_shot(folder, ROWS, **given)
    each = af.tasks.few_shot(folder, ROWS, per_token=True, **given)
    for row, a, b in zip(ROWS, plain, each, strict=True):
        sums = {choice: likelihood(folder, before.replace("{}", row["text"]), f" {choice}") for choice in CHOICES}
        assert a["scores"] == pytest.approx({choice: total for choice, (total, _) in sums.items()}, abs=1e-4)
        assert b["scores"] == pytest.approx({choice: total / n for choice, (total, n) in sums.items()}, abs=1e-4)
        for result in (a, b):
            assert result["answer"] == max(result["scores"], key=result["scores"].get)
            assert result["right"] is (result["answer"] == row["answer"])
    assert plain.accuracy == sum(result["right"] for result in plain) / 4
    assert af.tasks.few_shot(folder, ROWS[0], **given)["scores"] == pytest.approx(plain[0]["scores"], abs=1e-4)


def test_texts_that_are_written(folder: Path) -> None:
    rows = [row["text"] for row in ROWS]
    found = af.tasks.few_shot(folder, rows, examples=EXAMPLES, template=r"{text}\n{answer}", separator="#",
                              instruction="Do!", max_new_tokens=6, stop=["e"])  # fmt: skip
    model, tokenizer = theirs(folder)
    for text, result in zip(rows, found, strict=True):
        inputs = tokenizer(f"Do!#a dog\ngood#the fox\nbad#{text}\n", return_tensors="pt", return_token_type_ids=False)
        ids = model.generate(**inputs, max_new_tokens=6, do_sample=False, pad_token_id=1)[0]
        new = ids if model.config.is_encoder_decoder else ids[inputs["input_ids"].shape[1] :]
        assert result == {"answer": tokenizer.decode(new, skip_special_tokens=True).split("e")[0].strip()}
    assert found.accuracy is None and len({result["answer"] for result in found}) > 1
    right = af.tasks.few_shot(folder, {"text": rows[0], "answer": "x"}, examples=EXAMPLES, max_new_tokens=2)
    assert right["right"] is False


def test_choices_of_an_input_and_a_file_of_examples(folders: Folders, tmp_path: Path) -> None:
    folder = folders("GPT2LMHeadModel", **TOKENS)
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(example) + "\n\n" for example in EXAMPLES))
    own = af.tasks.few_shot(folder, {"text": "café", "choices": ["a", "b"]}, examples=str(tmp_path / "a.jsonl"))
    assert list(own["scores"]) == ["a", "b"] and "right" not in own
    assert own == af.tasks.few_shot(folder, "café", examples=EXAMPLES, choices=["a", "b"])


def test_the_command(folders: Folders, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(folders("GPT2LMHeadModel", **TOKENS))
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(example) + "\n" for example in EXAMPLES))
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    flags = ["--examples", str(tmp_path / "a.jsonl"), "--template", TEMPLATE, "--shots", "1"]
    flags += [flag for choice in CHOICES for flag in ("--choices", choice)]
    wanted = af.tasks.few_shot(folder, ROWS, examples=EXAMPLES, template=TEMPLATE, shots=1, choices=CHOICES)
    assert main(["run", "few-shot", folder, "--file", str(tmp_path / "rows.jsonl"), "--json", *flags]) == 0
    *lines, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert lines == wanted and last == {"accuracy": wanted.accuracy}
    assert main(["run", "few-shot", folder, "--file", str(tmp_path / "rows.jsonl"), *flags]) == 0
    assert f"accuracy  {wanted.accuracy:.4f}" in capsys.readouterr().out
    assert main(["run", "few-shot", folder, "a dog", "--choices", "a", "--choices", ""]) == 2
    assert capsys.readouterr().err == "anyformer: choice 2 is empty\n"


@pytest.mark.parametrize(("rows", "options", "message"), [
    ("a", {"choices": ["a"]}, "^1 choices; there must be at least two"),
    ("a", {"choices": ["a", " "]}, "^choice 2 is empty$"),
    ("a", {"choices": ["a", "a"]}, "^choice 2 is 'a' again$"),
    ("a", {"choices": "ab"}, "^choices are a list of texts, not str$"),
    ({"text": "a", "choices": ["a", 1]}, {}, "^choice 2 is int, not text$"),
    ({"text": "a", "answer": "god"}, {"choices": CHOICES}, "^the answer 'god' is not among the choices; .*'good'"),
    ({"text": "a", "answer": 1}, {"choices": CHOICES}, "^answer is 1, not text$"),
    ("a", {"choices": CHOICES, "stop": ["x"]}, "^stop=.*it does not apply to choices"),
    ("a", {"template": "{text}"}, "^template '{text}': it must have"),
    ("a", {"template": "{answer} {text}"}, "it must have {text}, and {answer} at its end$"),
    ("a", {"shots": 3, "examples": EXAMPLES}, "^shots is 3, and there are 2 examples$"),
    ("a", {"examples": [{"text": "a"}]}, "^example 1 has no answer$"),
    ("a", {"examples": EXAMPLES * 9}, "tokens, and this model takes at most 48; give fewer examples"),
    ("a", {"examples": EXAMPLES * 9, "choices": CHOICES}, "at most 48; give fewer examples"),
    ("a", {"exampels": 3}, "takes no 'exampels'; did you mean 'examples'"),
])  # fmt: skip
def test_mistakes(folders: Folders, rows: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        af.tasks.few_shot(folders("GPT2LMHeadModel", **TOKENS), rows, **options)


def dogs(count: int) -> str:
    return " dog" * count  # one token each


@pytest.mark.parametrize(("architecture", "options", "most"), [
    ("GPT2LMHeadModel", lambda text: {"inputs": text, "choices": [dogs(1), " fox"]}, 48),
    ("GPT2LMHeadModel", lambda text: {"inputs": text, "choices": [dogs(5), " fox"]}, 44),
    ("GPT2LMHeadModel", lambda text: {"inputs": text, "max_new_tokens": 5}, 43),
    # each side of an encoder-decoder has its own limit; its prompt has two special tokens
    ("BartForConditionalGeneration", lambda text: {"inputs": text, "choices": [dogs(5), " fox"]}, 46),
    ("BartForConditionalGeneration", lambda text: {"inputs": " fox", "choices": [text, " fox"]}, 48),
    ("BartForConditionalGeneration", lambda text: {"inputs": text, "max_new_tokens": 5}, 46),
])  # fmt: skip
def test_a_prompt_and_its_answer_may_fill_the_model(
    folders: Folders, architecture: str, options: Callable[[str], dict[str, Any]], most: int
) -> None:
    folder = folders(architecture, **(TOKENS if "GPT2" in architecture else {}))
    assert "answer" in af.tasks.few_shot(folder, template="{text}{answer}", **options(dogs(most)))
    with pytest.raises(ValueError, match="the prompt and its answer have .* at most 48; give fewer examples"):
        af.tasks.few_shot(folder, template="{text}{answer}", **options(dogs(most + 1)))


def test_mistakes_in_a_file(folders: Folders, tmp_path: Path) -> None:
    folder, path = folders("GPT2LMHeadModel", **TOKENS), tmp_path / "a.jsonl"
    for text, message in (
        ("{", ":1: "),
        ('{"text": "a"}', ":1: the object has no answer"),
        ("[1]", "list, not an object"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=message) as caught:
            af.tasks.few_shot(folder, "a", examples=path)
        assert str(caught.value).startswith(f"{path}:1: ")
    with pytest.raises(OSError):
        af.tasks.few_shot(folder, "a", examples=tmp_path / "none")
    with pytest.raises(ValueError, match="BertModel has no language-model head"):
        af.tasks.few_shot(folders("BertModel"), "a")
