"""Prompts and answers in the formats that people have, and the tokens that are learnt, against transformers."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer as af
import vocabularies
from anyformer import cli, families
from anyformer.data import Conversations, JSONLines
from anyformer.data.conversations import conversations_in
from anyformer.inputs import chat
from anyformer.inputs.tokenizer import Tokenizer
from anyformer.objectives.dialogue import Dialogue
from anyformer.objectives.objective import Predictor

USER, ANSWER = {"role": "user", "content": "Who jumps?"}, {"role": "assistant", "content": "The fox."}
FORMATS: dict[str, tuple[dict[str, Any], list[dict[str, str]]]] = {
    "openai": ({"messages": [USER, ANSWER]}, [USER, ANSWER]),
    "sharegpt": (
        {
            "system": "Be brief.",
            "conversations": [{"from": "human", "value": "Who jumps?"}, {"from": "gpt", "value": "The fox."}],
        },
        [{"role": "system", "content": "Be brief."}, USER, ANSWER],
    ),
    "sharegpt with other keys": ({"conversations": [USER, ANSWER]}, [USER, ANSWER]),
    "alpaca": (
        {"instruction": "Who jumps?", "input": "A fox and a dog.", "output": "The fox."},
        [{"role": "user", "content": "Who jumps?\n\nA fox and a dog."}, ANSWER],
    ),
    "columns": ({"question": "Who jumps?", "answer": "The fox."}, [USER, ANSWER]),
}  # fmt: skip


def written(folder: Path, *rows: Any) -> JSONLines:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return JSONLines(path=str(folder / "rows.jsonl"))


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_recognised(name: str, tmp_path: Path) -> None:
    row, messages = FORMATS[name]
    found = conversations_in(written(tmp_path, row), row)
    assert found is not None and found.format == name.partition(" ")[0]
    (only,) = found.rows(("messages",))
    assert only.example is not None and only.example["messages"] == messages
    assert conversations_in(found.source, {"text": "no conversation"}) is None


@pytest.mark.parametrize("settings, row, problem", [
    ({"prompt": "ask"}, {"asks": "x", "completion": "y"}, "no column 'ask'; did you mean 'asks'?"),
    ({}, {"prompt": "x", "completion": ""}, "column 'completion' is empty"),
    ({}, {"prompt": "x", "completion": [1]}, "column 'completion' is not a text"),
    ({"format": "sharegpt"}, {"conversations": []}, "must be a list of"),
    ({"format": "sharegpt"}, {"conversations": ["hi"]}, "must be a list of"),
    ({"format": "sharegpt"}, {"conversations": [{"from": "humen", "value": ""}]}, "no role 'humen'; did you mean"),
], ids=range(6))  # fmt: skip
def test_other_rows_are_skipped_with_the_reason(settings: Any, row: Any, problem: str, tmp_path: Path) -> None:
    (only,) = Conversations(source=written(tmp_path, row), **settings).rows(("messages",))
    assert only.example is None and problem in only.problem


def test_without_a_template_the_plain_one_is_learnt_and_kept(tmp_path: Path) -> None:
    """Only the answer and its end token are learnt: what follows the prompt, as in TRL, token by token."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("jinja2")
    vocabularies.whole(tmp_path)
    tokenizer = Tokenizer.load(tmp_path)
    objective = Dialogue().ready(tokenizer)
    assert objective.template == chat.PLAIN and objective.tokenizer_settings(tokenizer) == {"chat_template": chat.PLAIN}
    record = objective.encode({"messages": [USER, ANSWER]}, tokenizer)
    oracle = transformers.AutoTokenizer.from_pretrained(tmp_path)
    options = {"chat_template": chat.PLAIN, "tokenize": False}
    prompt = oracle.apply_chat_template([USER], add_generation_prompt=True, **options)
    text = oracle.apply_chat_template([USER, ANSWER], **options)
    assert prompt == "User: Who jumps?\nAssistant:" and text == f"{prompt} The fox.{oracle.eos_token}\n"
    ids, asked = (oracle(each, add_special_tokens=False)["input_ids"] for each in (text, prompt))
    assert record["input_ids"].tolist()[-len(ids) :] == ids and ids[: len(asked)] == asked
    learnt = [token if token != -100 else None for token in record["labels"].tolist()[-len(ids) :]]
    end = ids.index(oracle.eos_token_id, len(asked)) + 1
    assert learnt == [None] * len(asked) + ids[len(asked) : end] + [None] * (len(ids) - end)


def test_the_last_answer_is_compared(tmp_path: Path) -> None:
    asked = []

    class Echo:
        tokenizer = Tokenizer.load(vocabularies.whole(tmp_path) or tmp_path)
        num_beams = 1

        def texts(self, objective: Any, records: Any, **options: Any) -> list[str]:
            asked.extend(record["input_ids"].tolist() for record in records)
            return ["The fox."] * len(records)

    objective = Dialogue().ready(Echo.tokenizer)
    talks = [
        {"messages": [USER, ANSWER]},
        {"messages": [USER, ANSWER, USER, {"role": "assistant", "content": " No. "}]},
    ]
    found = objective.predict(Echo(), talks, [[], []])  # type: ignore[arg-type]
    assert found.predicted == ["The fox."] * 2 and found.wanted == ["The fox.", "No."]
    assert asked[1] == chat.encode(Echo.tokenizer, talks[1]["messages"][:3], template=chat.PLAIN)
    assert objective.inputs_of(talks[1]) == {"prompt": "Who jumps?"}


def test_an_answer_that_does_not_fit_is_not_compared(tmp_path: Path) -> None:
    """The last answer that fits is compared, and no text is longer than the model's positions."""
    tokenizer = Tokenizer.load(vocabularies.gpt2(tmp_path))
    config = {"n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 400, "n_positions": 64}
    model = af.build(families.find("gpt2").read({**config, "architectures": ["GPT2LMHeadModel"]}), seed=0).eval()
    long = {"role": "assistant", "content": "no " * 60}
    talks = [{"messages": [USER, ANSWER, USER, long]}, {"messages": [{**USER, "content": "why " * 8}, ANSWER]}]
    objective = Dialogue(length=64).ready(tokenizer)
    found = objective.predict(Predictor(model, tokenizer, size=2), talks, [[], []])
    assert found.wanted == ["The fox."] * 2 and all(found.predicted)


def test_an_answer_without_a_question_before_it(tmp_path: Path) -> None:
    """The role of a first message of the assistant is not learnt, only its text and end token."""
    pytest.importorskip("jinja2")
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}{% endfor %}"
    vocabularies.whole(tmp_path)
    tokenizer = Tokenizer.load(tmp_path)
    text, spans = chat.assistant_spans(tokenizer, [ANSWER, USER, ANSWER], template)
    assert [text[slice(*span)] for span in spans] == ["The fox.</s>", "<assistant>The fox.</s>"]


def test_other_files_of_conversations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Files for validation and evaluation, with another delimiter. Empty answers and prompts that are too long are
    counted; a model without a chat template is reported."""
    torch.set_num_threads(1)
    monkeypatch.chdir(tmp_path)
    config = {"n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 400, "n_positions": 48,
              "architectures": ["GPT2LMHeadModel"]}  # fmt: skip
    af.save(af.build(families.find("gpt2").read(config), seed=0), vocabularies.gpt2(tmp_path / "gpt"), format="hf")
    rows = [f"who {i} jumps,the fox {i}" for i in range(6)]
    (tmp_path / "x.csv").write_text("\n".join(["ask,say", *rows, "no answer,", f"{'too long ' * 40},yes"]) + "\n")
    (tmp_path / "y.csv").write_text("say;ask\nthe dog, again;who, then?\n[1];list it\n")
    few = ["--set", "steps=1", "--set", "evaluate.every=1", "--set", "keep.every=1", "--device", "cpu"]
    columns = ["--csv", "x.csv", "--prompt", "ask", "--answer", "say", "--model", "gpt"]
    assert cli.main(["train", *columns, "--valid", "y.csv", *few]) == 0, capsys.readouterr().err
    out, err = capsys.readouterr()
    assert "gpt has no chat template" in err and "skipped 2 of 10 rows" in out
    assert "x.csv:8: column 'say' is empty" in out and "up to the first answer; the limit is 48" in out
    assert "train 6 (" in out and "valid 2 (" in out
    saved = ["--save", "saved.csv", "--report", "--device", "cpu"]
    assert cli.main(["eval", "runs/x", "--csv", "y.csv", *saved]) == 0, capsys.readouterr().err
    assert "2 mistakes:" in capsys.readouterr().out
    assert [row["prompt"] for row in csv.DictReader(Path("saved.csv").read_text().splitlines())] == [
        "who, then?",
        "list it",
    ]
    assert cli.main(["eval", "runs/x", "--csv", "y.csv", "--prompt", "ask", "--answer", "say"]) == 2
    assert "--prompt, --answer: the columns are those of the run" in capsys.readouterr().err


def test_flags_that_do_not_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.csv").write_text("ask,say\na,b\n")
    csv = ["train", "--csv", str(tmp_path / "x.csv")]
    for more, why in (
        (["--prompt", "ask"], "--prompt and --answer belong together"),
        (["--prompt", "ask", "--answer", "say"], "give a checkpoint as --model"),
        (["--prompt", "ask", "--answer", "say", "--label", "say"], "give one of --label, --target, --prompt and"),
        (["--prompt", "ask", "--answer", "say", "--model", "gpt2"], "give a checkpoint as --model"),
    ):
        assert cli.main([*csv, *more]) == 2
        assert why in capsys.readouterr().err
