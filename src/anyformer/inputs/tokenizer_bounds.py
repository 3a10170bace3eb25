"""Limits for untrusted tokenizers: how much they may lengthen a text, and how their errors are reported.

A tokenizer.json describes steps: normalizer, pre_tokenizer, post_processor, decoder. A few lines of it can turn one
letter into gigabytes, so `judge` bounds the growth of the steps before the `tokenizers` library runs any of them. The
library runs in this process, because speed matters; it reports some errors as a Rust panic, which is not an `Exception`
in Python and prints to stderr. `CheckedTokenizer` turns each into a one-line ValueError.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import functools
import json
import os
import re
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import IO, Any, TypeVar

import tokenizers
from tokenizers.models import WordPiece

from anyformer.inputs.long import LONGEST
from anyformer.specs.messages import quote, shorten

T = TypeVar("T")
Step = dict[str, Any]

STEPS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
MAX_STEPS = 1000  # in one sequence
MAX_GROWTH = 2**16  # normalizer: output characters per input character
MAX_DECODER_GROWTH = 4
MAX_BYTE_STEPS = 2  # pre-tokenizers that replace one character by several
MAX_SPECIAL_TOKENS = 1024  # of a post-processor, per text
MAX_TOKEN_CHARACTERS = 4096
MAX_WORD_CHARACTERS = 500  # of WordPiece, whose time grows with its third power
SECONDS = 5.0  # for one text, if a regular expression may backtrack

ENCODING, DECODING = "the tokenizer cannot encode this text: ", "the tokenizer cannot decode these tokens: "

# Output characters per input character of a normalizer. Unicode's longest compatibility decomposition has 18.
FACTORS = {"Strip": 1, "StripAccents": 1, "Nmt": 1, "Lowercase": 2, "NFC": 3, "NFD": 4, "ByteLevel": 4}
UNICODE_FACTOR = 18


@dataclasses.dataclass(frozen=True)
class Bounds:
    growth: int  # maximal output characters of the normalizer per input character, `prefix` included
    prefix: int  # characters that it adds to each part of a text between added tokens; 0 if it adds only one
    may_backtrack: bool  # whether a regular expression may panic or take very long


# -- before a file is loaded -------------------------------------------------------------------------------------------


def judge(steps: dict[str, Any]) -> Bounds:
    """Return the bounds of a tokenizer's steps, as in tokenizer.json. Raise ValueError if a step may exceed limits."""
    flat = {name: flatten(steps.get(name)) for name in STEPS}
    for name in STEPS:
        if len(flat[name]) > MAX_STEPS:
            raise ValueError(f"the {name} has {len(flat[name]):,} steps; the limit is {MAX_STEPS:,}")
    growth, extra = text_growth(flat["normalizer"])
    decoder_growth = sum(text_growth(list(map(decoder_replacement, flat["decoder"]))))
    special = added_tokens(flat["post_processor"])
    prefix = extra if extra > 1 else 0  # Llama's prefix has one character
    growth += prefix
    if growth > MAX_GROWTH:
        raise ValueError(f"the normalizer can make a text {growth:,} times as long; the limit is {MAX_GROWTH:,}")
    if decoder_growth > MAX_DECODER_GROWTH:
        raise ValueError(
            f"the decoder can make a text {decoder_growth:,} times as long; the limit is {MAX_DECODER_GROWTH}"
        )
    if special > MAX_SPECIAL_TOKENS:
        raise ValueError(f"the post_processor adds {special:,} tokens; the limit is {MAX_SPECIAL_TOKENS:,}")
    if sum("add_prefix_space" in step or "replacement" in step for step in flat["pre_tokenizer"]) > MAX_BYTE_STEPS:
        raise ValueError(f"the pre_tokenizer has more than {MAX_BYTE_STEPS} ByteLevel and Metaspace steps")
    patterns = [step.get("pattern") for name in STEPS for step in flat[name]]
    expressions = [pattern["Regex"] for pattern in patterns if isinstance(pattern, dict) and "Regex" in pattern]
    strips = any(step.get("stop") for step in flat["decoder"])  # panics if a token is shorter
    return Bounds(growth, prefix, strips or any(map(may_backtrack, expressions)))


def flatten(step: Step | None) -> list[Step]:
    """Return the steps of a sequence and its nested sequences."""
    if step is None:
        return []
    for name in ("normalizers", "pretokenizers", "processors", "decoders"):
        if name in step:
            return [inner for part in step[name] for inner in flatten(part)]
    return [step]


def text_growth(steps: list[Step]) -> tuple[int, int]:
    """Return upper bounds: (output characters per input character, characters added to a text).

    The loop goes backwards: in the steps after this one, a character becomes `weights[character]` characters, or `rest`
    if it is not in `weights`."""
    weights: dict[str, int] = {}
    rest, extra = 1, 0
    for step in reversed(steps):
        largest = max(rest, *weights.values()) if weights else rest
        content = step.get("prepend") or step.get("content") or ""
        if max(largest, len(content)) > MAX_GROWTH:
            return max(largest, len(content)), extra
        added = sum(count * weights.get(letter, rest) for letter, count in Counter(content).items())
        if "prepend" in step:
            extra += added
        elif "pattern" in step and "content" in step:
            literal = step["pattern"].get("String")
            if literal:
                weights[literal[0]] = max(weights.get(literal[0], rest), added)
            elif literal is None and consumes_text(step["pattern"]["Regex"]):
                weights, rest = {letter: max(weight, added) for letter, weight in weights.items()}, max(rest, added)
            else:  # the expression may match between any two characters
                weights, rest = {letter: weight + added for letter, weight in weights.items()}, rest + added
                extra += added
        elif "precompiled_charsmap" in step:
            weights, rest = {}, largest * longest_replacement(step["precompiled_charsmap"] or "")
        else:
            weights, rest = {}, largest * FACTORS.get(str(step.get("type")), UNICODE_FACTOR)
    return max(rest, *weights.values()) if weights else rest, extra


def decoder_replacement(step: Step) -> Step:
    """Return a Replace step that lengthens a text as much as this decoder does."""
    if "pattern" in step:
        return step
    if "suffix" in step:  # BPEDecoder
        return {"pattern": {"String": step["suffix"]}, "content": " "}
    if "word_delimiter_token" in step:  # CTC
        return {"pattern": {"String": step["word_delimiter_token"]}, "content": " "}
    return {"type": "Strip"}  # other decoders add at most a space to a token


def longest_replacement(charsmap: str) -> int:
    """Return the longest replacement's length in a SentencePiece charsmap (trie size, trie, zero-terminated texts).

    It is at least UNICODE_FACTOR, because such maps contain Unicode's decompositions."""
    raw = base64.b64decode(charsmap)
    texts = raw[4 + int.from_bytes(raw[:4], "little") :].split(b"\0")
    return max(
        len(text.decode("utf-8", "replace")) for text in (bytes(UNICODE_FACTOR), *texts) if len(text) >= UNICODE_FACTOR
    )


def added_tokens(steps: list[Step]) -> int:
    """Return the number of tokens that TemplateProcessing adds. Raise ValueError if a template would cause a panic."""
    count = 0
    for step in steps:
        if "special_tokens" not in step:
            continue
        known = step["special_tokens"]
        for name, valid in (("single", "A"), ("pair", "AB")):
            sequences = [piece["Sequence"]["id"] for piece in step[name] if "Sequence" in piece]
            if sorted(sequences) != sorted(set(sequences) & set(valid)):
                raise ValueError(f"the post_processor's {name} must contain each of {', '.join(valid)} at most once")
            tokens = [piece["SpecialToken"]["id"] for piece in step[name] if "SpecialToken" in piece]
            missing = [token for token in tokens if token not in known]
            if missing:
                raise ValueError(
                    f"the post_processor's {name} needs {quote(missing[0])}, which special_tokens does not have"
                )
            count += sum(len(known[token]["ids"]) for token in tokens)
    return count


_CLASS = r"\[(?:\\.|[^\[\]\\])*\]"
_SIMPLE = re.compile(rf"\\[sSdDwWnrt]|\\[pP]\{{[^}}]*\}}|\\\W|{_CLASS}")  # one character each
_ATOM = re.compile(rf"\\[pPxuo]\{{[^}}]*\}}|\\.|{_CLASS}")
_COUNT = re.compile(r"\{(\d*)(?:,\d*)?\}")


def consumes_text(expression: str) -> bool:
    """Whether every match has at least one character. False if the expression is too complex to be sure."""
    plain = _SIMPLE.sub("x", expression)
    if re.search(r"[(\\\[\]^$]", plain):  # groups, other escapes, classes in classes, anchors
        return False
    plain = _COUNT.sub(lambda count: "+" if int(count[1] or 0) else "*", plain)
    return all(re.search(r"[^*+?](?![*?])", part) for part in plain.split("|"))


def may_backtrack(expression: str) -> bool:
    """Whether matching may take more than quadratic time: a repetition of a group or of a repetition, a back reference,
    or three repetitions in one alternative."""
    plain = _ATOM.sub("x", expression)
    return (
        re.search(r"[)}][*+{]|[*+?][*{]", plain) is not None
        or re.search(r"\\[1-9kg]", expression) is not None
        or any(len(re.findall(r"[*+]|\{\d*,\d*\}", part)) > 2 for part in plain.split("|"))
    )


def load_json(text: str) -> tokenizers.Tokenizer:
    """Load a tokenizer.json. Its steps are judged first, because loading already normalizes the added tokens."""
    members = read_steps(text)
    try:
        growth = judge(members).growth
        added = "".join(token["content"] for token in members.pop("added_tokens") or [])
    except (AttributeError, LookupError, TypeError):
        raise ValueError(f"{', '.join(STEPS)} or added_tokens: a field is missing or has the wrong type") from None
    if len(added) * growth > LONGEST:
        state = {**json.loads(tokenizers.Tokenizer(tokenizers.models.BPE()).to_str()), **members}
        CheckedTokenizer(tokenizers.Tokenizer.from_str(json.dumps(state))).check_length(added)
    # If a name occurs twice, the library uses the last value: the judged steps, which are appended here.
    judged = "".join(f", {json.dumps(name)}: {json.dumps(step)}" for name, step in members.items())
    return tokenizers.Tokenizer.from_str(f"{text.rstrip().removesuffix('}')}{judged}}}")


def read_steps(text: str) -> dict[str, Any]:
    """Return the steps and the added tokens of a tokenizer.json. The large model is parsed only if it precedes them."""
    wanted = (*STEPS, "added_tokens")
    members: dict[str, Any] = {}
    scan = json.JSONDecoder().raw_decode
    with contextlib.suppress(ValueError):
        position = _after(text, 0, "{")
        while True:
            name, position = scan(text, position)
            position = _after(text, position, ":")
            if name == "model":
                break
            members[name], position = scan(text, position)
            position = _after(text, position, ",")
    if not all(name in members for name in wanted):
        members = json.loads(text)
        if not isinstance(members, dict):
            raise ValueError("not a JSON object")
    return {name: members.get(name) for name in wanted}


_SPACE = re.compile(r"\s*")


def _after(text: str, position: int, letter: str) -> int:
    """Return the position after spaces, `letter` and spaces."""
    position = _SPACE.match(text, position).end()  # type: ignore[union-attr]
    if not text.startswith(letter, position):
        raise ValueError(f"expected {letter!r} at {position}")
    return _SPACE.match(text, position + 1).end()  # type: ignore[union-attr]


# -- while it is used --------------------------------------------------------------------------------------------------


class CheckedTokenizer:
    """Encodes and decodes with a `tokenizers.Tokenizer`, within limits; each error is a one-line ValueError."""

    def __init__(self, core: tokenizers.Tokenizer) -> None:
        self.core = core

    @functools.cached_property
    def bounds(self) -> Bounds:
        parts = {name: getattr(self.core, name) for name in STEPS}
        bounds = judge({name: json.loads(part.__getstate__()) for name, part in parts.items() if part is not None})
        model = self.core.model
        longest_word = model.max_input_chars_per_word if isinstance(model, WordPiece) else 0
        if longest_word > MAX_WORD_CHARACTERS:
            raise ValueError(f"max_input_chars_per_word is {longest_word:,}; the limit is {MAX_WORD_CHARACTERS}")
        return bounds

    def encode(self, text: str, pair: str | None = None, *, add_special_tokens: bool = True) -> tokenizers.Encoding:
        self.check_length(text)
        if pair is not None:
            self.check_length(pair)
        if not self.bounds.may_backtrack:
            return without_panic(lambda: self.core.encode(text, pair, add_special_tokens=add_special_tokens), ENCODING)
        # encode_batch releases the GIL, encode does not
        given: Any = [text if pair is None else (text, pair)]
        return within_seconds(lambda: self.core.encode_batch(given, add_special_tokens=add_special_tokens)[0], ENCODING)

    def decode(self, ids: list[int], *, skip_special_tokens: bool = False) -> str:
        if (longest := self._longest_token) > MAX_TOKEN_CHARACTERS:
            raise ValueError(f"{DECODING}one has {longest:,} characters; the limit is {MAX_TOKEN_CHARACTERS:,}")
        if not self.bounds.may_backtrack:
            return without_panic(lambda: self.core.decode(ids, skip_special_tokens=skip_special_tokens), DECODING)
        return within_seconds(lambda: self.core.decode_batch([ids], skip_special_tokens)[0], DECODING)

    def check_length(self, text: str) -> None:
        """Raise ValueError if the text, before or after normalization, is too long for one encoding."""
        growth = self.bounds.growth
        if len(text) * growth <= LONGEST:
            return
        if len(text) > LONGEST:
            raise ValueError(f"the text has {len(text):,} characters; the limit is {LONGEST:,}")
        size, total = LONGEST // 4 // growth, 0
        for start in range(0, len(text), size):
            part = text[start : start + size]
            total += len(without_panic(functools.partial(self.core.normalizer.normalize_str, part), ENCODING))
            total += self.bounds.prefix * len(part)
            if total > LONGEST:
                raise ValueError(f"the normalizer makes more than {LONGEST:,} characters of {start + len(part):,}")

    def try_out(self) -> None:
        """Raise ValueError if the tokenizer panics on a letter or a pair of letters, as with some hostile files."""

        def probe() -> None:
            for pair in (None, "a"):
                with contextlib.suppress(Exception):  # "a" may be unknown; a panic is not an Exception
                    self.core.decode(self.core.encode("a", pair).ids)

        self.check_length("a")
        without_panic(probe)

    @functools.cached_property
    def _longest_token(self) -> int:
        return max(map(len, self.core.get_vocab()), default=0)


def without_panic(call: Callable[[], T], what: str = "") -> T:
    """Return `call()`. A panic or a bare Exception of the library becomes a ValueError that begins with `what`."""
    try:
        return call()
    except BaseException as error:
        if type(error).__name__ != "PanicException" and type(error) is not Exception:
            raise
        raise ValueError(what + shorten(" ".join(str(error).split()), 600)) from None


def within_seconds(call: Callable[[], T], what: str = "") -> T:
    """Like `without_panic`, but raise ValueError after SECONDS. `call` must release the GIL; its thread cannot be
    stopped."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(without_panic(call, what))
        except BaseException as error:
            errors.append(error)

    with hidden_panics():
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(SECONDS)
    if errors:
        raise errors[0]
    if not results:
        raise ValueError(f"{what}it takes more than {SECONDS:g} seconds")
    return results[0]


_hiding = threading.Lock()
_PANIC = re.compile(rb"\n?thread '.*panicked at.*", re.DOTALL)


@contextlib.contextmanager
def hidden_panics() -> Iterator[None]:
    """Buffer stderr, and at the end write it without the library's report of a panic."""
    with contextlib.ExitStack() as stack:
        if _hiding.acquire(blocking=False):  # otherwise a different thread is already buffering
            stack.callback(_hiding.release)
            with contextlib.suppress(OSError):  # no stderr, or no space for a file
                held, real = stack.enter_context(tempfile.TemporaryFile()), os.dup(2)
                stack.callback(_write_rest, held, real)
                os.dup2(held.fileno(), 2)
        yield


def _write_rest(held: IO[bytes], real: int) -> None:
    os.dup2(real, 2)
    os.close(real)
    held.seek(0)
    if rest := _PANIC.sub(b"", held.read()):
        os.write(2, rest)
