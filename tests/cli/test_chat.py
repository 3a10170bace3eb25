"""`anyformer chat`: a loop with a history, commands, and an answer that can be stopped."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import anyformer as af
from anyformer import cli, families
from anyformer.cli import chat as verb
from anyformer.inputs.tokenizer import Tokenizer
from vocabularies import gpt2

Talk = Callable[..., tuple[int, str, str]]
TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]"


def made(folder: Path, positions: int = 512, **config: str) -> Path:
    sizes = {"n_layer": 2, "n_embd": 16, "n_head": 2, "vocab_size": 400, "n_positions": positions}
    built = af.build(families.find("gpt2").read({**sizes, "bos_token_id": 0, "eos_token_id": 0}), seed=3)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in built.parameters():  # far from uniform, so that texts differ
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5 + (parameter == 1).float())
    af.save(built, folder, format="hf")
    return gpt2(folder, **config)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("chat") / "templated", chat_template=TEMPLATE)


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("chat") / "bare", positions=64)


@pytest.fixture
def talk(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Talk:
    def call(folder: Path, *lines_in: str, flags: tuple[str, ...] = ()) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines_in)))
        code = cli.main(["chat", str(folder), "--device", "cpu", "--max-new-tokens", "6", *flags])
        return code, *capsys.readouterr()

    return call


def answer(folder: Path, text: str) -> str:
    """Return the model's continuation of this text, six tokens."""
    return af.tasks.write(folder, text, max_new_tokens=6)


def test_the_history_is_read_by_the_template(talk: Talk, model: Path, tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    code, out, err = talk(model, "Hello", "  ", "And you?", f"/save {file}", flags=("--system", "Be kind."))
    assert (code, err) == (0, "")
    first = answer(model, "[system]Be kind.[user]Hello[assistant]")
    second = answer(model, f"[system]Be kind.[user]Hello[assistant]{first.strip()}[user]And you?[assistant]")
    assert out == f"{first}\n{second}\n" and first != second
    messages = json.loads(file.read_text())["messages"]
    assert [m["role"] for m in messages] == ["system", "user", "assistant", "user", "assistant"]
    assert messages[2]["content"] == first.strip()
    third = answer(model, "".join(f"[{m['role']}]{m['content']}" for m in messages) + "[user]More[assistant]")
    assert talk(model, "More", flags=("--load", str(file)))[1] == f"{third}\n"


def test_without_a_template_the_layout_is_plain(talk: Talk, bare: Path, model: Path) -> None:
    code, out, err = talk(bare, "Hello")
    assert code == 0 and err == verb.PLAIN + "\n"
    assert out == answer(bare, "User: Hello\nAssistant:") + "\n"
    assert talk(model, "Hello", flags=("--plain",))[1:] == (answer(model, "User: Hello\nAssistant:") + "\n", "")


def test_commands(talk: Talk, model: Path) -> None:
    hello = answer(model, "[user]Hello[assistant]")
    obedient = answer(model, "[system]Hush[user]Hello[assistant]")
    code, out, err = talk(
        model, "Hello", "/reset", "Hello", "/retry", "/undo", "/system Hush", "Hello", "/history", "/system", "/undo",
        "Hello", "/quit", "not read",
    )  # fmt: skip
    assert code == 0 and out == f"{hello}\n" * 3 + f"{obedient}\n" + f"{hello}\n"
    assert err.startswith("System: Hush\nUser: Hello\nAssistant: ")
    code, out, err = talk(model, "/help", "/rest", "/retry", "/save", "/save /nowhere/at/all.json", "Hello")
    assert code == 0 and out == f"{hello}\n"  # a mistake does not end the conversation
    assert all(f"/{name}" in err for name in ("help", "system", "reset", "undo", "retry", "history", "save", "quit"))
    assert "no command /rest; did you mean 'reset'?" in err and "no message to answer" in err


def test_what_no_longer_fits_is_left_out(talk: Talk, bare: Path) -> None:
    turns = [f"The fox number {i} says hello." for i in range(4)]
    code, out, err = talk(bare, *turns, "fox " * 70, "Well")
    assert code == 0 and "messages no longer fit" in err
    assert "longer than the 64 tokens that this model takes" in err
    assert len(Tokenizer.load(bare).encode("User: " + turns[0])) * 4 > 64  # all together do not fit


def test_ctrl_c_stops_the_answer_and_not_the_program(
    talk: Talk, model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole = answer(model, "[user]Hello[assistant]")
    shown: list[str] = []

    def stopping(piece: str) -> None:
        if len(shown) == 1:
            shown.append("stop")
            raise KeyboardInterrupt
        shown.append(piece)

    monkeypatch.setattr(verb, "show", stopping)
    file = tmp_path / "talk.json"
    code, out, err = talk(model, "Hello", "Still there?", f"/save {file}")
    messages = json.loads(file.read_text())["messages"]
    assert code == 0 and "(stopped)" in err and len(messages) == 4
    assert whole.strip().startswith(messages[1]["content"]) and messages[1]["content"] != whole.strip()
    assert "".join(shown[2:]).strip() == messages[3]["content"]


@pytest.mark.slow
def test_a_real_signal_while_it_writes(model: Path) -> None:
    command = [sys.executable, "-m", "anyformer", "chat", str(model), "--max-new-tokens", "400", "--device", "cpu"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(b"Hello\n")
    process.stdin.flush()
    os.read(process.stdout.fileno(), 1)  # the answer has begun
    process.send_signal(signal.SIGINT)
    time.sleep(0.1)
    out, err = process.communicate(b"/history\n/quit\n", timeout=60)
    assert process.returncode == 0 and b"(stopped)" in err and b"User: Hello" in err and out.endswith(b"\n")


@pytest.mark.parametrize("flags, line", [
    (("--temperature", "0.5", "--systm", "x"), "did you mean '--system'?"), (("--dtype", "int3"), "no dtype 'int3'"),
    (("--load", "/nowhere.json"), "nowhere.json"), (("--stop", ""), "--stop takes a text"),
], ids=str)  # fmt: skip
def test_a_mistake_is_one_line(flags: tuple[str, ...], line: str, talk: Talk, model: Path) -> None:
    code, out, err = talk(model, "Hello", flags=flags)
    assert (code, out) == (2, "") and line in err and err.count("\n") == 1


def test_a_model_that_does_not_write_is_refused(talk: Talk, tmp_path: Path) -> None:
    sizes = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "vocab_size": 400}
    af.save(af.build(families.find("bert").read(sizes)), tmp_path, format="hf")
    code, out, err = talk(gpt2(tmp_path), "Hello")
    assert (code, out) == (2, "") and "no language-model head" in err
