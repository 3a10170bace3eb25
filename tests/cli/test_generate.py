"""`anyformer generate`: its output, the sources of the prompt, and mistakes."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer as af
from anyformer import families
from anyformer.cli import generate as verb
from anyformer.inputs.tokenizer import Tokenizer
from terminals import Run, terminal
from vocabularies import gpt2, t5, write

VERB = ("generate",)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "gpt2"
    config = {"n_layer": 2, "n_embd": 16, "n_head": 2, "vocab_size": 400, "n_positions": 32}
    built = af.build(families.find("gpt2").read({**config, "bos_token_id": 0, "eos_token_id": 0}), seed=3)
    with torch.no_grad():
        for parameter in built.parameters():  # far from uniform, so that texts differ
            parameter.mul_(8 if parameter.dim() > 1 else 1)
    af.save(built, folder, format="hf")
    return gpt2(folder, chat_template="{{ messages[0].role + ': ' + messages[0].content }}")


def expected(folder: Path, prompt: str, **options: Any) -> Any:
    model, tokenizer = af.load(folder), Tokenizer.load(folder)
    ids = torch.tensor([tokenizer.encode(prompt)])
    return af.generate(model, ids, return_dict=True, **options), ids.shape[1]


def test_the_text_is_what_generate_gives(run: Run, model: Path) -> None:
    code, out, err = run(model, "The fox", "--max-new-tokens", 9)
    wanted, length = expected(model, "The fox", max_new_tokens=9)
    tokens = wanted.sequences[0, length:].tolist()
    assert (code, err) == (0, "")  # no speed, no progress without a terminal
    text = Tokenizer.load(model).decode(tokens, skip_special_tokens=True)
    assert out.startswith(text.rstrip("\ufffd")) and out.endswith("\n")


@pytest.mark.parametrize(("flags", "options"), [
    ([], {}), (["--num-beams", 3], {"num_beams": 3}),
    (["--do-sample", "--seed", 7, "--top-k", 9, "--top-p", 0.9, "--temperature", 0.7],
     {"do_sample": True, "seed": 7, "top_k": 9, "top_p": 0.9, "temperature": 0.7}),
    (["--do-sample", "--seed", 7, "--min-p", 0.1, "--kernel", "eager", "--dtype", "float32", "--device", "cpu",
      "--offline"], {"do_sample": True, "seed": 7, "min_p": 0.1}),
], ids=["greedy", "beams", "sampled", "flags"])  # fmt: skip
def test_json_has_tokens_and_their_scores(run: Run, model: Path, flags: list[Any], options: dict[str, Any]) -> None:
    code, out, err = run(model, "The fox", "--json", "--max-new-tokens", 8, *flags)
    wanted, length = expected(model, "The fox", max_new_tokens=8, **options)
    assert (code, err, out.count("\n")) == (0, "", 1)
    answer = json.loads(out)
    assert list(answer) == ["text", "tokens", "log_probs", "finish_reason"]
    assert wanted.sequences[0, length:].tolist()[: len(answer["tokens"])] == answer["tokens"]
    assert answer["finish_reason"] == wanted.finish_reasons[0]
    assert answer["finish_reason"] == "stop" or len(answer["tokens"]) == 8
    assert len(answer["log_probs"]) == len(answer["tokens"])
    loaded = af.load(model)
    ids = torch.tensor([Tokenizer.load(model).encode("The fox") + answer["tokens"]])
    scores = loaded(input_ids=ids).logits.log_softmax(-1)[0, length - 1 : -1]
    assert torch.allclose(scores.gather(1, ids[0, length:, None])[:, 0], torch.tensor(answer["log_probs"]), atol=1e-4)


def test_the_prompt_comes_from_three_places(run: Run, model: Path, tmp_path: Path, monkeypatch: Any) -> None:
    flags = ("--json", "--max-new-tokens", 5)
    code, out, err = run(model, "The fox", *flags)
    direct = json.loads(out)
    direct["log_probs"] = pytest.approx(direct["log_probs"], abs=1e-5)  # the last digit depends on the batch
    assert (code, err) == (0, "")
    write(tmp_path, "prompt.txt", "The fox\n")
    code, out, err = run(model, "--file", tmp_path / "prompt.txt", *flags)
    assert (code, json.loads(out), err) == (0, direct, "")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"The fox\n")))
    code, out, err = run(model, *flags)
    assert (code, json.loads(out), err) == (0, direct, "")
    write(tmp_path, "prompts.txt", "The fox\n\nA tab\nThe fox\n")
    code, out, err = run(model, "--file", tmp_path / "prompts.txt", "--lines", *flags)
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 1 and len(rows) == 4 and rows[0] == rows[3] == direct and rows[2]["tokens"] != rows[0]["tokens"]
    assert rows[1] == {"error": "the prompt is empty: it has no tokens"}
    assert err == "anyformer: 1 of 4 prompts failed\n"


def test_stop_strings_are_not_printed(run: Run, model: Path) -> None:
    text = json.loads(run(model, "The fox", "--json", "--max-new-tokens", 12)[1])["text"]
    stop = text[3:6]
    code, out, _ = run(model, "The fox", "--json", "--max-new-tokens", 12, "--stop", stop, "--stop", "never there")
    answer = json.loads(out)
    assert code == 0 and answer["text"] == text[: text.index(stop)] and answer["finish_reason"] == "stop"
    assert len(answer["tokens"]) < 12
    code, out, _ = run(model, "The fox", "--max-new-tokens", 12, "--stop", stop)
    assert out == answer["text"] + "\n"


def test_an_end_token_is_told_and_not_printed(run: Run, model: Path, tmp_path: Path) -> None:
    for file in model.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    free = json.loads(run(tmp_path, "The fox", "--json", "--max-new-tokens", 12)[1])
    write(tmp_path, "generation_config.json", {"eos_token_id": [0, free["tokens"][4]], "max_new_tokens": 12})
    first = free["tokens"].index(free["tokens"][4])
    answer = json.loads(run(tmp_path, "The fox", "--json")[1])
    assert answer["tokens"] == free["tokens"][: first + 1] and answer["finish_reason"] == "stop"
    assert answer["text"] == "".join(map(Tokenizer.load(tmp_path).stream().push, free["tokens"][:first]))


def test_chat_applies_the_template(run: Run, model: Path) -> None:
    assert run(model, "The fox", "--chat", "--json", "--max-new-tokens", 5) == run(
        model, "user: The fox", "--json", "--max-new-tokens", 5
    )


def test_an_encoder_reads_and_only_what_is_written_is_printed(run: Run, tmp_path: Path) -> None:
    folder = t5(tmp_path / "t5")
    tokenizer = Tokenizer.load(folder)
    config = {"vocab_size": len(tokenizer), "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
    spec = families.find("t5").read({**config, "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1})
    af.save(af.build(spec, seed=1), tmp_path / "saved", format="hf")
    for file in (tmp_path / "saved").iterdir():
        file.rename(folder / file.name)
    for flags in ((), ("--num-beams", 2)):
        code, out, err = run(folder, "The dog", "--json", "--max-new-tokens", 6, *flags)
        answer = json.loads(out)
        options = {"num_beams": 2} if flags else {}
        wanted, _ = expected(folder, "The dog", max_new_tokens=6, **options)
        assert (code, err) == (0, "") and wanted.sequences[0, 1 : 1 + len(answer["tokens"])].tolist() == answer[
            "tokens"
        ]


def test_without_a_length_the_text_fits_the_model(run: Run, model: Path) -> None:
    answer = json.loads(run(model, "The fox", "--json")[1])
    length = len(Tokenizer.load(model).encode("The fox"))
    assert answer["finish_reason"] == "stop" or len(answer["tokens"]) == 33 - length


def test_on_a_terminal_the_speed_is_told(run: Run, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """stderr is a terminal, stdout is not."""
    with terminal(monkeypatch, "stderr") as shown:
        code, out, _ = run(model, "The fox", "--max-new-tokens", "4")
    assert code == 0 and out and b"tokens/s" in b"".join(shown) and "tokens/s" not in out


def test_a_model_may_not_steer_the_terminal() -> None:
    assert "".join(map(verb.visible, "a\x1b[31m\x07é🦊\n\t\x9b")) == "a[31mé🦊\n\t"


def test_kernels_are_those_of_attention() -> None:
    from anyformer.generation.writing import LENGTH
    from anyformer.kernels.attention import KERNELS

    assert verb.KERNELS == KERNELS and verb.LENGTH == LENGTH


@pytest.mark.parametrize(("flags", "words"), [
    ([], ["empty"]), (["x", "--file", "y"], ["not both"]), (["--file", "nowhere"], ["nowhere"]),
    (["x", "--jsn"], ["'--json'"]), (["x", "--dtype", "float33"], ["float32"]), (["x", "--kernel", "sdp"], ["sdpa"]),
    (["x", "--device", "cude"], ["device 'cude' is not available"]), (["x", "--stop", ""], ["--stop"]),
    (["x", "--max-new-tokens", "0"], ["max_new_tokens=0"]),
    (["x", "--max-new-tokens", "40"], ["max_new_tokens=40", "32 positions"]), (["x", "--top-p", "2"], ["top_p=2"]),
    (["x", "--temperature", "-1", "--do-sample"], ["temperature=-1"]), (["x", "--num-beams", "0"], ["num_beams=0"]),
    (["x", "--seed", "x"], ["--seed"]), (["x", "--temperature", "0.5"], ["do_sample"]), ([""], ["empty"]),
    (["fox " * 100], ["32 positions"]), (["x", "y"], ["'y'"]),
], ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "")  # fmt: skip
def test_mistakes_are_one_line(run: Run, model: Path, monkeypatch: Any, flags: list[str], words: list[str]) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(b""))
    monkeypatch.setattr(sys, "stdin", stdin)
    code, out, err = run(model, *flags)
    assert (code, out) == (2, "") and err.count("\n") == 1, err
    assert all(word in err for word in words), err


def test_mistaken_models_are_one_line(run: Run, model: Path, tmp_path: Path) -> None:
    for name, words in (("./nowhere", "no such folder"), (str(tmp_path), "no spec.json and no config.json")):
        code, out, err = run(name, "x")
        assert (code, out) == (2, "") and err.count("\n") == 1 and words in err
    for file in model.iterdir():
        if "chat" not in file.name:
            (tmp_path / file.name).write_bytes(file.read_bytes())
    gpt2(tmp_path)
    assert "no chat template" in run(tmp_path, "x", "--chat")[2]
    vocabulary = json.loads((tmp_path / "vocab.json").read_text())
    write(tmp_path, "vocab.json", {token: place + 1000 for token, place in vocabulary.items()})
    code, out, err = run(tmp_path, "x")
    assert code == 2 and "do not belong together" in err and err.count("\n") == 1
    write(tmp_path, "blob.txt", "")
    (tmp_path / "blob.txt").write_bytes(b"\xff\xfe")
    assert "not UTF-8" in run(model, "--file", tmp_path / "blob.txt")[2]
