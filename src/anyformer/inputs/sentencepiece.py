"""Reads a SentencePiece model file without the sentencepiece library, and builds an equal tokenizer from its pieces.

The file is one protocol-buffer message, with the field numbers of sentencepiece_model.proto.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

LONGEST_BYTES = 64 * 2**20
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # kinds of pieces
UNIGRAM, BPE = 1, 2  # kinds of models


@dataclasses.dataclass(frozen=True)
class SentencePieces:
    """The contents of a SentencePiece model file."""

    pieces: list[tuple[str, float, int]]  # text, score, kind; the index is the token's id
    model: int = UNIGRAM
    unk_id: int = 0
    byte_fallback: bool = False
    charsmap: bytes = b""  # compiled normalization
    dummy_prefix: bool = True  # a space before the text
    squeeze: bool = True  # merge runs of spaces, and strip both ends
    suffix_spaces: bool = False


def fields(raw: bytes) -> Iterator[tuple[int, Any]]:
    """Yield (number, value) of each field of a message. Values are ints or bytes."""

    def varint(at: int) -> tuple[int, int]:
        value = shift = 0
        while True:
            byte = raw[at]
            at, value, shift = at + 1, value | (byte & 127) << shift, shift + 7
            if byte < 128:
                return value, at
            if shift > 63:
                raise ValueError("a number has more than ten bytes")

    at = 0
    while at < len(raw):
        key, at = varint(at)
        kind = key & 7
        if kind == 0:
            value, at = varint(at)
            yield key >> 3, value - 2**64 if value >= 2**63 else value
            continue
        if kind not in (1, 2, 5):
            raise ValueError(f"a field has the unknown type {kind}")
        size, at = varint(at) if kind == 2 else ({1: 8, 5: 4}[kind], at)
        if at + size > len(raw):
            raise ValueError("a field extends beyond the end of the file")
        yield key >> 3, raw[at : at + size]
        at += size


def read(path: Path) -> SentencePieces:
    """Read a model file. Errors are a one-line ValueError that names the file."""
    with path.open("rb") as file:
        raw = file.read(LONGEST_BYTES + 1)
    if len(raw) > LONGEST_BYTES:
        raise ValueError(f"{path}: larger than the {LONGEST_BYTES:,} bytes allowed here")
    try:
        return _parse(raw)
    except (ValueError, IndexError, TypeError, AttributeError, struct.error) as error:
        raise ValueError(f"{path}: not a SentencePiece model ({error})") from None


def _parse(raw: bytes) -> SentencePieces:
    pieces: list[tuple[str, float, int]] = []
    trainer: dict[int, Any] = {}
    normalizer: dict[int, Any] = {}
    for number, value in fields(raw):
        if number == 1:
            piece = dict(fields(value))
            score = struct.unpack("<f", piece[2])[0] if 2 in piece else 0.0
            pieces.append((piece.get(1, b"").decode(), score, piece.get(3, NORMAL)))
        elif number == 2:
            trainer = dict(fields(value))
        elif number == 3:
            normalizer = dict(fields(value))
    if not pieces:
        raise ValueError("no pieces")
    model = trainer.get(3, UNIGRAM)
    if model not in (UNIGRAM, BPE):
        raise ValueError("neither a unigram nor a BPE model")
    unknown = next((i for i, (_, _, kind) in enumerate(pieces) if kind == UNKNOWN), trainer.get(40, 0))
    return SentencePieces(
        pieces,
        model,
        unknown,
        bool(trainer.get(35, False)),
        normalizer.get(2, b""),
        bool(normalizer.get(3, True)),
        bool(normalizer.get(4, True)),
        bool(trainer.get(24, False)),
    )


def merges(pieces: SentencePieces) -> list[tuple[str, str]]:
    """Return the merges of a BPE model, best piece first: one pair per way to split a piece into two pieces."""
    kinds = {text: kind for text, _, kind in pieces.pieces if kind in (NORMAL, USER_DEFINED)}
    order = sorted((text for text in kinds if kinds[text] == NORMAL), key=_best_first(pieces))
    return [
        (text[:i], text[i:]) for text in order for i in range(1, len(text)) if text[:i] in kinds and text[i:] in kinds
    ]


def doubles(core: tokenizers.Tokenizer) -> bool:
    """Whether a leading space of a text must be doubled, because the tokenizer adds no prefix space before a space."""
    return isinstance(core.pre_tokenizer, pre_tokenizers.Metaspace) and core.pre_tokenizer.prepend_scheme == "first"


def _best_first(pieces: SentencePieces) -> Any:
    rank = {text: (-score, i) for i, (text, score, _) in enumerate(pieces.pieces)}
    return rank.__getitem__


def build(pieces: SentencePieces, *, extra: list[str] | None = None, first_only: bool = False) -> tokenizers.Tokenizer:
    """Build the tokenizer of a model file. `extra` are special tokens that are appended.

    With `first_only`, no prefix space is added after special tokens inside the text. If a text begins with a space, the
    caller must double it (see `doubles`)."""
    if pieces.suffix_spaces:
        raise ValueError("spaces at the end of pieces are not supported; save a tokenizer.json with transformers")
    texts = [text for text, _, _ in pieces.pieces]
    extra = [token for token in extra or [] if token not in set(texts)]
    if pieces.model == UNIGRAM:
        scores = [(text, score) for text, score, _ in pieces.pieces] + [(token, 0.0) for token in extra]
        core = tokenizers.Tokenizer(models.Unigram(scores, pieces.unk_id, pieces.byte_fallback))
    else:
        vocabulary = {text: i for i, text in enumerate([*texts, *extra])}
        unknown = texts[pieces.unk_id]
        core = tokenizers.Tokenizer(
            models.BPE(vocabulary, merges(pieces), unk_token=unknown, fuse_unk=True, byte_fallback=pieces.byte_fallback)
        )
    steps: list[Any] = [normalizers.Precompiled(pieces.charsmap)] if pieces.charsmap else []
    if pieces.squeeze and pieces.dummy_prefix:
        space = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always", split=True)
        core.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), space])
    elif pieces.dummy_prefix and first_only:
        core.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    else:
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")] if pieces.squeeze else []
        steps += [normalizers.Prepend("▁")] if pieces.dummy_prefix else []
        steps += [normalizers.Replace(" ", "▁")]
    if steps:
        core.normalizer = normalizers.Sequence(steps)
    undo = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    core.decoder = decoders.Sequence([*undo, decoders.Strip(" ", 1, 0)] if pieces.dummy_prefix else undo)
    special = [text for text, _, kind in pieces.pieces if kind in (CONTROL, UNKNOWN)]
    core.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in [*special, *extra]])
    core.add_tokens([AddedToken(text, normalized=False) for text, _, kind in pieces.pieces if kind == USER_DEFINED])
    return core
