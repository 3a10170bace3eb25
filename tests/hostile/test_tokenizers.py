"""tokenizer.json files that multiply a text, panic or never end are refused in one line, within 20 s and 2 GB (X4)."""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prisoner import results

import anyformer as af
import vocabularies
from anyformer import cli, families
from anyformer.inputs import tokenizer_bounds
from anyformer.inputs.long import LONGEST
from anyformer.inputs.tokenizer import Tokenizer
from anyformer.inputs.tokenizer_bounds import CheckedTokenizer, consumes_text, judge, may_backtrack, read_steps

Change = Callable[[dict[str, Any]], Any]
PROMPT = "the fox was here" + " and a" * 20 + "a" * 40 + "!"


def replace(pattern: str, content: str, regex: bool = False) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"Regex" if regex else "String": pattern}, "content": content}


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def sequence(name: str, steps: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "Sequence", name: steps}


def normalized(*steps: dict[str, Any]) -> Change:
    return lambda file: file.update(normalizer=sequence("normalizers", list(steps)))


def decoded(*steps: dict[str, Any]) -> Change:
    return lambda file: file.update(decoder=sequence("decoders", list(steps)))


def charsmap(longest: int) -> str:
    """A SentencePiece map with an empty trie and one long replacement."""
    return base64.b64encode(bytes(4) + b"y" * longest + b"\0").decode()


A, B = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
X = {"SpecialToken": {"id": "x", "type_id": 0}}


def processed(single: list[Any], pair: list[Any], ids: list[int] | None = None, repeats: int = 1) -> Change:
    special = {} if ids is None else {"x": {"id": "x", "ids": ids, "tokens": ["a"] * len(ids)}}
    step = {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special}
    return lambda file: file.update(post_processor=sequence("processors", [step] * repeats))


def token(text: str) -> Change:
    """Return a change that makes this text token 5."""

    def change(file: dict[str, Any]) -> None:
        vocab = file["model"]["vocab"]
        del vocab[next(name for name, place in vocab.items() if place == 5)]
        vocab[text] = 5
        file["model"]["merges"] = []

    return change


def added(text: str, *steps: dict[str, Any]) -> Change:
    """An added token, which the library normalizes on loading."""

    def change(file: dict[str, Any]) -> None:
        normalized(*steps)(file)
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "special"), False)
        file["added_tokens"].append(
            {"id": file["model"]["vocab"].get(text, 400), "content": text, "normalized": True, **flags}
        )

    return change


def word_pieces(file: dict[str, Any]) -> None:
    vocab = {token: i for i, token in enumerate(["<s>", "</s>", "<unk>", *"abcdefghijklmnopqrstuvwxyz !"])}
    vocab |= {f"##{letter}": len(vocab) + i for i, letter in enumerate("abcdefghijklmnopqrstuvwxyz !")}
    vocab |= {f"filler {i}": i for i in range(len(vocab), 350)}
    file["pre_tokenizer"] = None
    file["model"] = {"type": "WordPiece", "unk_token": "<unk>", "continuing_subword_prefix": "##",
                     "max_input_chars_per_word": 10**9, "vocab": vocab}  # fmt: skip


def twice(file: dict[str, Any]) -> None:
    """Handled by `text_of`: a second normalizer after the model."""
    file["after the model"] = sequence("normalizers", [replace("e", "ee")] * 40)


HOSTILE: dict[str, tuple[Change, str]] = {
    "doubled 40 times": (normalized(*[replace("e", "ee")] * 40), "normalizer can make a text"),
    "doubled in turn": (normalized(*[replace("e", "oo"), replace("o", "ee")] * 20), "normalizer can make a text"),
    "20 MB for a letter": (normalized(replace("e", "x" * 20_000_000)), "normalizer can make a text"),
    "between letters": (normalized(*[replace("", "q")] * 40), "normalizer can make a text"),
    "between letters by a regex": (normalized(*[replace("(?<=.)(?=.)", "q", True)] * 40), "normalizer can make a text"),
    "by a class": (normalized(*[replace("[a-z]", "qq", True)] * 40), "normalizer can make a text"),
    "prepended": (normalized({"type": "Prepend", "prepend": "x" * 10**6}), "normalizer can make a text"),
    "prepended and doubled": (
        normalized({"type": "Prepend", "prepend": "x" * 100}, *[replace("x", "xx")] * 30), "normalizer can make a text"
    ),
    "bytes of bytes": (normalized(replace("e", "é"), *[{"type": "ByteLevel"}] * 40), "normalizer can make a text"),
    "a charsmap": (
        normalized({"type": "Precompiled", "precompiled_charsmap": charsmap(10**6)}), "normalizer can make a text"
    ),
    "prepended to each part": (
        added("a", {"type": "Prepend", "prepend": "x" * 50_000}), "makes more than 4,194,304 characters of"
    ),
    "a growth of 10,000 digits": (normalized(*[replace("e", "e" * 60_000)] * 900), "normalizer can make a text"),
    "60,000 for a letter": (normalized(replace("a", "x" * 60_000)), "makes more than 4,194,304 characters of"),
    "an added token": (added("e" * 4000, replace("e", "x" * 60_000)), "makes more than 4,194,304 characters of"),
    "a second normalizer": (twice, ""),
    "too many steps": (normalized(*[{"type": "NFC"}] * 1001), "1,001 steps"),
    "bytes of bytes, split": (
        lambda file: file.update(pre_tokenizer=sequence("pretokenizers", [
            {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": False}] * 40)),
        "more than 2 ByteLevel",
    ),
    "backtracking": (lambda file: file.update(pre_tokenizer=split("(a+)+$")), "retry-limit-in-match over"),
    "backtracking normalizer": (normalized(replace("(a+)+$", "b", True)), "retry-limit-in-match over"),
    "backtracking alternatives": (lambda file: file.update(pre_tokenizer=split("(a|aa)+$")), "retry-limit"),
    "backtracking without a group": (lambda file: file.update(pre_tokenizer=split("a*a*a*a*a*a*$")), "retry-limit"),
    "slow at every letter": (
        lambda file: file.update(pre_tokenizer=split("([a-z ]{1,2}){1,20}[^a-z !]")), "takes more than 5 seconds"
    ),
    "pieces of no length": (lambda file: file.update(pre_tokenizer={"type": "FixedLength", "length": 0}), "chunk size"),
    "a broken charsmap": (normalized({"type": "Precompiled", "precompiled_charsmap": "AAAA"}), "precompiled_charsmap"),
    "a token that is missing": (processed([X, A], [A, B]), "'x', which special_tokens does not have"),
    "a missing token of pairs": (processed([A], [X, A, B]), "'x', which special_tokens does not have"),
    "a second text": (processed([A, B], [A, B]), "single must contain each of A at most once"),
    "the text three times": (processed([A, A, A], [A, B], repeats=3), "single must contain each of A at most once"),
    "a million special tokens": (processed([X] * 1000 + [A], [A, B], ids=[1] * 1000), "adds 1,000,000 tokens"),
    "an id that the model does not have": (processed([X, A], [A, B], ids=[10**9]), "1000000000"),
    "20 MB from the decoder": (decoded(replace("e", "x" * 20_000_000)), "decoder can make a text"),
    "a decoder that doubles": (decoded(*[replace("e", "ee")] * 30), "decoder can make a text"),
    "a decoder between letters": (decoded(*[{"type": "BPEDecoder", "suffix": ""}] * 30), "decoder can make a text"),
    "a decoder that strips": (
        decoded({"type": "Strip", "content": "a", "start": 0, "stop": 9}), "index out of bounds"
    ),
    "a token of 20 MB": (token("x" * 20_000_000), "20,000,000 characters"),
    "words of any length": (word_pieces, "max_input_chars_per_word"),
}  # fmt: skip
SLOW = ["slow at every letter"]
WORKS = ["a second normalizer"]  # the first one is used


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good")
    sizes = {"n_layer": 1, "n_embd": 8, "n_head": 2, "vocab_size": 420, "n_positions": 256}
    af.save(af.build(families.find("gpt2").read(sizes), seed=0), folder, format="hf")
    return vocabularies.whole(folder)


def text_of(file: dict[str, Any]) -> str:
    again = file.pop("after the model", None)
    text = json.dumps(file)
    return text if again is None else f'{text[:-1]}, "normalizer": {json.dumps(again)}}}'


def hostile(good: Path, folder: Path, change: Change) -> Path:
    shutil.copytree(good, folder)
    file = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    change(file)
    (folder / "tokenizer.json").write_text(text_of(file))
    return folder


def command(folder: Path, words: str, code: int = 2) -> None:
    """`anyformer generate` ends with this code and, if it fails, one line with these words on stderr."""
    start = time.monotonic()
    with tempfile.TemporaryFile() as held:
        real = os.dup(2)
        os.dup2(held.fileno(), 2)
        try:
            with open(2, "w", closefd=False) as stderr, contextlib.redirect_stderr(stderr):
                ended = cli.main(["generate", str(folder), PROMPT, "--max-new-tokens", "4", "--device", "cpu"])
        finally:
            os.dup2(real, 2)
        held.seek(0)
        err = held.read().decode()
    assert ended == code, f"code {ended}: {err[:500]}"
    assert err.count("\n") == (code == 2) and words in err and len(err) < 1500, f"{err.count(chr(10))}: {err[:500]}"
    assert time.monotonic() - start < 20


@pytest.mark.parametrize("kind", [pytest.param(k, marks=[pytest.mark.slow] * (k in SLOW)) for k in HOSTILE])
def test_hostile_tokenizers_are_one_line_of_the_command(kind: str, good: Path, tmp_path: Path) -> None:
    change, words = HOSTILE[kind]
    folder = hostile(good, tmp_path / "model", change)
    attack = functools.partial(command, folder, words, 0 if kind in WORKS else 2)
    (result,) = results([attack])
    assert result.what == "works", f"{result.what}: {result.line}\n{result.where}"


# -- what is not refused -----------------------------------------------------------------------------------------------


def test_the_good_file_works(good: Path) -> None:
    (result,) = results([functools.partial(command, good, "", 0)])
    assert result.what == "works", result


HONEST = {
    "llama": [{"type": "Prepend", "prepend": "▁"}, replace(" ", "▁")],
    "albert": [replace("``", '"'), replace("''", '"'), {"type": "NFKD"}, {"type": "StripAccents"},
               {"type": "Lowercase"}, {"type": "Precompiled", "precompiled_charsmap": charsmap(18)},
               replace(" {2,}", " ", True)],
    "clip": [{"type": "NFC"}, replace(r"\s+", " ", True), {"type": "Lowercase"}],
    "ligatures": [replace(letter, f"{chr(97 + i % 26)}.") for i, letter in enumerate(map(chr, range(0x100, 0x17F)))],
}  # fmt: skip


@pytest.mark.parametrize("name, growth", [("llama", 1), ("albert", 18 * 18 * 2), ("clip", 6), ("ligatures", 2)])
def test_the_growth_of_published_normalizers(name: str, growth: int) -> None:
    assert judge({"normalizer": sequence("normalizers", HONEST[name])}).growth == growth


EXPRESSIONS = {  # (a match has at least one letter, it may backtrack)
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+": (False, False),
    r"(?i:'s|'t|'re|'ve|'m)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+":
    (False, False),
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{M}]*[\p{Ll}\p{Lo}\p{M}]+(?i:'s|'t)?|\p{N}{1,3}": (False, False),
    r" {2,}": (True, False), r"\s+": (True, False), "a": (True, False), "a|b+": (True, False), "a*": (False, False),
    "a|b*": (False, False), "x{0,3}": (False, False), "x{,3}": (False, False), r"\b": (False, False),
    "^a": (False, False), "[[a-z]]*": (False, False), "": (False, False), r"a\*": (True, False),
    "(a+)+$": (False, True), "(a|aa)*": (False, True), "(a?){20}": (False, True), "a*a*a*b": (True, True),
    r"(a)\1": (False, True), "a{1,2}{1,20}b": (True, True), r"\x41*": (False, False), r"\x{41}*": (False, False),
    r"[\]a]+": (True, False),
}  # fmt: skip


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_regular_expressions_are_understood(expression: str) -> None:
    assert (consumes_text(expression), may_backtrack(expression)) == EXPRESSIONS[expression]


def test_a_text_is_refused_only_if_it_does_grow(good: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(hostile(good, tmp_path / "x", normalized(replace("q", "x" * 1000))))
    assert tokenizer.encode("no such letter " * 10_000) == Tokenizer.load(good).encode("no such letter " * 10_000)
    assert len(tokenizer.core.encode("q").ids) > 100
    assert tokenizer._core.bounds.growth == 1000
    tokenizer._core.check_length("a" * (LONGEST // 1000) + "q" * 4000)
    with pytest.raises(ValueError, match="the normalizer makes more than 4,194,304 characters"):
        tokenizer.encode("q" * 5000)
    with pytest.raises(ValueError, match="the normalizer makes more than 4,194,304 characters"):
        tokenizer.batch(["a"], ["q" * 5000])


def test_steps_are_found_wherever_they_are(good: Path) -> None:
    text = (good / "tokenizer.json").read_text(encoding="utf-8")
    file = json.loads(text)
    expected = {name: file[name] for name in (*tokenizer_bounds.STEPS, "added_tokens")}
    assert read_steps(text) == expected
    assert read_steps(json.dumps(file)) == expected
    assert read_steps(json.dumps({"model": 1, **file})) == expected
    assert read_steps(json.dumps(dict(sorted(file.items())))) == expected


def test_a_file_whose_members_are_sorted_is_read_alike(good: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(good, tmp_path / "sorted")
    file = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    (folder / "tokenizer.json").write_text(json.dumps(dict(sorted(file.items()))))
    assert Tokenizer.load(folder).core.to_str() == Tokenizer.load(good).core.to_str()


def test_what_others_write_to_stderr_is_kept(capfd: pytest.CaptureFixture[str]) -> None:
    """Only the report of a panic is hidden."""
    with tokenizer_bounds.hidden_panics():
        os.write(2, b"a message\n")
    with tokenizer_bounds.hidden_panics():
        os.write(2, b"before\n\nthread 'x' (1) panicked at lib.rs:1:1:\nboo\n")
    assert capfd.readouterr().err == "a message\nbefore\n"


def test_encoding_a_text_that_takes_too_long_is_given_up(
    good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pattern = split("([a-z ]{1,2}){1,20}[^a-z !]")
    tokenizer = Tokenizer.load(hostile(good, tmp_path / "x", lambda file: file.update(pre_tokenizer=pattern)))
    assert isinstance(tokenizer._core, CheckedTokenizer) and tokenizer._core.bounds.may_backtrack
    monkeypatch.setattr(tokenizer_bounds, "SECONDS", 0.01)  # it takes a quarter of a second
    with pytest.raises(ValueError, match="takes more than 0.01 seconds"):
        tokenizer.encode("the fox was here" * 2)


def test_a_decoder_that_backtracks_is_one_line(good: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    change = decoded({"type": "Fuse"}, replace("(a+)+$", "", True))
    tokenizer = Tokenizer.load(hostile(good, tmp_path / "x", change))
    ids = [tokenizer.vocab["a"]] * 40
    assert tokenizer.decode(ids) == ""
    with pytest.raises(ValueError, match="cannot decode these tokens: Onig: Regex search error: retry-limit-in-match"):
        tokenizer.decode([*ids, tokenizer.vocab["b"]])
    assert capfd.readouterr().err == ""
