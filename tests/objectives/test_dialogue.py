"""Conversations: the mask of the assistant's tokens against transformers, the loss, and truncation between turns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer as af
import vocabularies
from anyformer import cli, families
from anyformer.inputs import chat
from anyformer.inputs.tokenizer import Tokenizer
from anyformer.objectives.dialogue import Dialogue

transformers = pytest.importorskip("transformers")
pytest.importorskip("jinja2")

# the same text, with and without marks around the assistant's text
MARKED = """{{ bos_token }}{% for message in messages %}<{{ message.role }}>
{% if message.role == 'assistant' %}{% generation %}{{ message.content | trim }}{{ eos_token }}{% endgeneration %}
{% else %}{{ message.content | trim }}{{ eos_token }}{% endif %}

{% endfor %}{% if add_generation_prompt %}<assistant>
{% endif %}"""
PLAIN = MARKED.replace("{% generation %}", "{% if true %}").replace("{% endgeneration %}", "{% endif %}")
INST = """{% for message in messages %}{% if message.role == 'user' %}[INST] {{ message.content }} [/INST]
{%- else %}{% generation %} {{ message.content }} {{ eos_token }}{% endgeneration %}{% endif %}{% endfor %}"""
TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "  The fox & the dog? "},
    {"role": "assistant", "content": "It's 42 dogs,\nand a café 🦊."},
    {"role": "user", "content": "Again"},
    {"role": "assistant", "content": "over the lazy dog"},
]  # fmt: skip


def folder_with(folder: Path, template: str, make: Any = vocabularies.whole) -> Path:
    make(folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    vocabularies.write(folder, "tokenizer_config.json", {**config, "chat_template": template})
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_with(tmp_path_factory.mktemp("chat"), PLAIN)


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.load(folder)


@pytest.mark.parametrize("make", [vocabularies.gpt2, vocabularies.whole], ids=["gpt2", "whole"])
@pytest.mark.parametrize("ours", [MARKED, PLAIN, INST], ids=["marked", "plain", "inst"])
def test_the_assistants_tokens_are_those_of_transformers(ours: str, make: Any, tmp_path: Path) -> None:
    theirs = INST if ours is INST else MARKED
    tokenizer = Tokenizer.load(folder_with(tmp_path, ours, make))
    oracle = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for talk in (TALK[1:], TALK[1:3], *([TALK, TALK[:4]] if theirs is MARKED else [])):
        right = oracle.apply_chat_template(
            talk, chat_template=theirs, return_assistant_tokens_mask=True, return_dict=True, add_special_tokens=False
        )
        record = Dialogue().ready(tokenizer).encode({"messages": talk}, tokenizer)
        labels = [i if keep else -100 for i, keep in zip(right["input_ids"], right["assistant_masks"], strict=True)]
        assert record["input_ids"].tolist() == right["input_ids"] and sum(right["assistant_masks"]) > 4
        assert record["labels"].tolist() == labels
    assert chat.assistant_spans(tokenizer, TALK[1:])[0] == oracle.apply_chat_template(TALK[1:], tokenize=False)


def test_the_loss_is_of_the_assistants_tokens(tokenizer: Tokenizer) -> None:
    objective = Dialogue().ready(tokenizer)
    records = [objective.encode({"messages": talk}, tokenizer) for talk in (TALK, TALK[1:3])]
    config = {"n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 360, "n_positions": 256}
    model: Any = af.build(families.find("gpt2").read({**config, "architectures": ["GPT2LMHeadModel"]}), seed=0).eval()
    batch = objective.collate(records, 0)
    total, count = 0.0, 0
    with torch.no_grad():
        for record in records:  # one record at a time, token by token
            logits = model(input_ids=torch.from_numpy(record["input_ids"]).long()[None]).logits[0].log_softmax(-1)
            for place, label in enumerate(record["labels"].tolist()):
                if label != -100:
                    total, count = total - float(logits[place - 1, label]), count + 1
        loss = objective.losses(objective.module(model), batch)["loss"]
    assert objective.weights(batch) == {"loss": count} and count < batch["input_ids"].numel() / 2
    assert float(loss) == pytest.approx(total, rel=1e-5)


def test_a_conversation_that_is_too_long_is_cut_after_an_answer(tokenizer: Tokenizer) -> None:
    objective = Dialogue().ready(tokenizer)

    def ids(stop: int) -> list[int]:
        return objective.encode({"messages": TALK[:stop]}, tokenizer)["input_ids"].tolist()

    whole, first = ids(5), ids(3)
    for length, wanted in ((len(whole), whole), (len(whole) - 1, first), (len(first), first)):
        record = objective.replace(length=length).encode({"messages": TALK}, tokenizer)
        assert record["input_ids"].tolist() == wanted
    longer = [*TALK, {"role": "user", "content": "And?"}]  # the last question is removed first
    assert objective.replace(length=len(whole)).encode({"messages": longer}, tokenizer)["input_ids"].tolist() == whole
    with pytest.raises(ValueError, match=rf"{len(first)} tokens up to the first answer; the limit is 9"):
        objective.replace(length=9).encode({"messages": TALK}, tokenizer)


@pytest.mark.parametrize("messages, why", [
    ("hello", "must be a list of"), (["hello"], "must be a list of"), ([], "no message with role 'assistant'"),
    (TALK[:2], "no message with role 'assistant'"),
    ([TALK[1], {"role": "assistant", "content": ""}], "a message of the assistant is empty"),
    ([{"content": "x"}, TALK[2]], "messages must be a non-empty list of"),
], ids=str)  # fmt: skip
def test_bad_conversations_are_one_line(messages: Any, why: str, tokenizer: Tokenizer) -> None:
    with pytest.raises(ValueError, match=why):
        Dialogue().ready(tokenizer).encode({"messages": messages}, tokenizer)


def test_templates_that_do_not_mark_the_assistant(tokenizer: Tokenizer) -> None:
    """A template that drops earlier answers, marks nothing, or changes the marked text; and a missing tokenizer."""
    forgets = "{% for m in messages %}{{ m.content if loop.last or m.role == 'user' else '...' }}\n{% endfor %}"
    nothing = "{% if false %}{% generation %}{% endgeneration %}{% endif %}{{ messages[0].content }}"
    changes = "{% set x %}{% generation %}{{ messages[-1].content }}{% endgeneration %}{% endset %}{{ x | length }}"
    for template, why in (
        (forgets, "formats a message differently if more messages follow"),
        (nothing, "marks no text of the assistant"),
        (changes, "changes the text inside"),
    ):
        with pytest.raises(ValueError, match=why):
            Dialogue(template=template).ready(tokenizer).encode({"messages": TALK}, tokenizer)
    with pytest.raises(ValueError, match="need a checkpoint with a tokenizer"):
        Dialogue().ready(None)
    with pytest.raises(ValueError, match="Dialogue.length is 1"):
        Dialogue(length=1)


def test_from_a_file_of_conversations_to_a_model_that_answers(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.set_num_threads(1)
    monkeypatch.chdir(tmp_path)
    config = {"n_layer": 1, "n_embd": 48, "n_head": 4, "vocab_size": 360, "n_positions": 64, "resid_pdrop": 0.0,
              "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 1,
              "architectures": ["GPT2LMHeadModel"]}  # fmt: skip
    af.save(af.build(families.find("gpt2").read(config), seed=0), tmp_path / "model", format="hf")
    for file in folder.glob("tokenizer*"):
        (tmp_path / "model" / file.name).write_bytes(file.read_bytes())
    talk = [{"role": "user", "content": "fox"}, {"role": "assistant", "content": "the lazy dog"}]
    Path("talks.jsonl").write_text("".join(json.dumps({"messages": talk}) + "\n" for _ in range(20)))
    command = ["train", "--jsonl", "talks.jsonl", "--model", "model", "--set", "optimizer.lr=0.01", "--device", "cpu"]
    for change in ("steps=30", "evaluate.every=30", "keep.every=30", "schedule.warmup=2", "batch.examples=4"):
        command += ["--set", change]
    assert cli.main(command) == 0, capsys.readouterr().err
    assert "perplexity 1.0" in capsys.readouterr().out
    answered = af.load("runs/talks").generate(
        input_ids=torch.tensor([Tokenizer.load("runs/talks").chat(talk[:1])]), max_new_tokens=12, do_sample=False
    )
    assert Tokenizer.load("runs/talks").decode(answered[0]).endswith("<assistant>\nthe lazy dog</s>")
    assert cli.main(command[:3]) == 2
    assert "talks.jsonl contains conversations: give a checkpoint" in capsys.readouterr().err
