"""Tokenizers from files of words, word pieces, byte pairs or letters, as published before tokenizer.json."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors

from anyformer.inputs.tokenizer_defaults import CLASSES, PERCEIVER, SEGMENTS, class_defaults
from anyformer.specs.messages import quote
from anyformer.weights.io import JSON_BYTES, read_json


@dataclasses.dataclass(frozen=True)
class TokenizerFiles:
    """A tokenizer read from the files of a folder."""

    core: tokenizers.Tokenizer  # encodes text
    config: dict[str, Any]
    special: dict[str, str]
    writer: tokenizers.Tokenizer | None = None  # decodes ids, if that needs a different vocabulary
    unknown_from: int | None = None  # ids from here on are unknown to the model
    doubles_space: bool = False  # see sentencepiece.doubles
    languages: dict[str, int] = dataclasses.field(default_factory=dict)  # code -> id of the language token
    target: tokenizers.Tokenizer | None = None  # encodes target texts, if `core` does not (Marian)


def content(token: Any) -> str | None:
    """Return the text of a token from a config: a string, or an object with the field `content`."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) and text else None


def special_tokens_template(
    core: tokenizers.Tokenizer, ends: tuple[str, str], special: dict[str, str]
) -> processors.PostProcessor:
    """Return a post-processor that adds special tokens around a text and a pair (see `ClassDefaults.ends`)."""
    texts = {"A": "$A", "B": "$B"}
    tokens = {name.removesuffix("_token"): token for name, token in special.items()}

    def template(form: str) -> list[str]:
        named = (word.partition(":") for word in form.split())
        return [{**tokens, **texts}[name] + colon + segment for name, colon, segment in named]

    used = {tokens[name] for name in re.findall("[a-z]+", " ".join(ends))}
    return processors.TemplateProcessing(
        single=template(ends[0]),
        pair=template(ends[1]),
        special_tokens=[(token, core.token_to_id(token)) for token in sorted(used)],
    )


def read_vocab(folder: Path) -> dict[str, int]:
    """Read the words of vocab.json and their ids."""
    vocabulary = read_json(folder / "vocab.json")
    for word, token_id in vocabulary.items():
        if type(token_id) is not int or not 0 <= token_id < 2**31:
            raise ValueError(f"vocab.json: the id of {quote(word)} is {quote(token_id)}; ids are integers from 0 on")
    return vocabulary


def contiguous_vocab(folder: Path) -> dict[str, int]:
    """Read vocab.json, and raise ValueError unless its ids are 0, 1, ... in some order."""
    vocabulary = read_vocab(folder)
    if sorted(vocabulary.values()) != list(range(len(vocabulary))):
        raise ValueError("the ids in vocab.json must be 0, 1, 2, ... without a gap")
    return vocabulary


# Qwen2's regular expression for words, with single digits
_QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def byte_pairs(folder: Path, kind: str, config: dict[str, Any], special: dict[str, str]) -> TokenizerFiles:
    """Read byte-level BPE (GPT-2, RoBERTa, DeBERTa, Qwen2)."""
    for name in ("vocab.json", "merges.txt"):
        if (folder / name).stat().st_size > JSON_BYTES:
            raise ValueError(f"{name} is larger than the {JSON_BYTES:,} bytes allowed here")
    vocabulary = read_vocab(folder)
    lines = (folder / "merges.txt").read_text(encoding="utf-8").split("\n")
    lines = [line.rstrip("\r") for line in lines if line.strip() and not line.startswith("#version")]
    if bad := [line for line in lines if line.count(" ") != 1]:
        raise ValueError(f"merges.txt: {quote(bad[0])} is not a pair")
    if not kind:  # older folders without a config: recognize the class by its special tokens
        old = ("RobertaTokenizer", "GPT2Tokenizer")
        kind = next((name for name in old if {*CLASSES[name].special.values()} <= {*vocabulary}), "")
        special = {**CLASSES[kind].special, **special}
    pairs = [(first, second) for first, _, second in (line.partition(" ") for line in lines)]
    core = tokenizers.Tokenizer(models.BPE(vocabulary, pairs))
    space = bool(config.get("add_prefix_space", False))
    core.decoder = decoders.ByteLevel()
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=space)
    if kind == "Qwen2Tokenizer":
        core.normalizer = normalizers.NFC()
        split = pre_tokenizers.Split(Regex(_QWEN_WORDS), "isolated")
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=space, use_regex=False)
        core.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    ends = class_defaults(kind).ends
    if ends is not None and kind == "DebertaTokenizer":
        core.post_processor = special_tokens_template(core, ends, special)
    elif ends is not None:  # the same tokens, and offsets without spaces
        end, start = ((special[name], vocabulary[special[name]]) for name in ("sep_token", "cls_token"))
        core.post_processor = processors.RobertaProcessing(end, start, trim_offsets=True, add_prefix_space=space)
    return TokenizerFiles(core, config, special)


def _alphabet() -> dict[str, int]:
    """Return GPT-2's character for each of the 256 bytes: itself if printable, otherwise one from U+0100 on."""
    seen = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    other = [byte for byte in range(256) if byte not in seen]
    return {**{chr(byte): byte for byte in seen}, **{chr(256 + i): byte for i, byte in enumerate(other)}}


BYTES = _alphabet()


def single_bytes(folder: Path, kind: str, config: dict[str, Any], special: dict[str, str]) -> TokenizerFiles:
    """Build a tokenizer with one token per byte, after the special tokens (Perceiver)."""
    all_special = {**PERCEIVER, **special}
    marked = [all_special[name] for name in PERCEIVER]
    vocabulary = {token: i for i, token in enumerate(marked)}
    vocabulary |= {letter: len(marked) + byte for letter, byte in BYTES.items()}
    core = tokenizers.Tokenizer(models.BPE(vocabulary, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.post_processor = special_tokens_template(core, SEGMENTS, all_special)
    return TokenizerFiles(core, config, special)


def letters(folder: Path, kind: str, config: dict[str, Any], special: dict[str, str]) -> TokenizerFiles:
    """Read a vocabulary with one token per letter and one between words, as for CTC (wav2vec 2.0)."""
    between_words = content(config.get("word_delimiter_token", "|")) or "|"
    core = tokenizers.Tokenizer(models.WordLevel(contiguous_vocab(folder), special.get("unk_token", "<unk>")))
    spaces = normalizers.Replace(" ", between_words)
    lower = [normalizers.Lowercase()] if config.get("do_lower_case") else []
    core.normalizer = normalizers.Sequence([*lower, spaces])
    core.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    ends = decoders.Replace(Regex(r"\A +| +\z"), "")  # not Strip, which fails on a lone space
    core.decoder = decoders.Sequence([decoders.Fuse(), decoders.Replace(between_words, " "), ends])
    # some files declare the space as special, but it must be decoded
    added = {n: token for n, token in config.get("added_tokens_decoder", {}).items() if content(token) != between_words}
    return TokenizerFiles(core, {**config, "added_tokens_decoder": added}, special)


def word_pieces(folder: Path, kind: str, config: dict[str, Any], special: dict[str, str]) -> TokenizerFiles:
    """Read BERT's WordPiece vocabulary."""
    usual = CLASSES[kind or "BertTokenizer"]
    special = {**usual.special, **special}
    path = folder / "vocab.txt"
    if path.stat().st_size > JSON_BYTES:
        raise ValueError(f"larger than the {JSON_BYTES:,} bytes allowed here")
    lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    vocabulary = {line.removesuffix("\r"): i for i, line in enumerate(lines)}
    for name in ("unk_token", "cls_token", "sep_token"):
        if special[name] not in vocabulary:
            raise ValueError(f"{name} {quote(special[name])} is not in the vocabulary")
    core = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token=special["unk_token"]))
    core.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=bool(config.get("tokenize_chinese_chars", True)),
        strip_accents=config.get("strip_accents"),
        lowercase=bool(config.get("do_lower_case", True)),
    )
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.decoder = decoders.WordPiece(prefix="##")
    core.post_processor = special_tokens_template(core, usual.ends or SEGMENTS, special)
    return TokenizerFiles(core, config if kind else {**usual.settings, **config}, special)
