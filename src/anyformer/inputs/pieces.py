"""Tokenizers of SentencePiece models, with the additions of each family."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from anyformer.inputs import sentencepiece
from anyformer.inputs.languages import LANGUAGES, language_processor
from anyformer.inputs.tokenizer_defaults import CLASSES, LLAMA, PIECES, SEGMENTS, TWO_ENDS, class_defaults
from anyformer.inputs.words import TokenizerFiles, contiguous_vocab, special_tokens_template
from anyformer.specs.messages import nearest, quote


def pieces(folder: Path, kind: str, config: dict[str, Any], special: dict[str, str]) -> TokenizerFiles:
    """Read a SentencePiece model (Llama, Mistral, T5)."""
    name = next(n for n in PIECES if (folder / n).is_file())
    model = sentencepiece.read(folder / name)
    ends = class_defaults(kind).ends
    extra = range(int(config.get("extra_ids", 100 if kind == "T5Tokenizer" else 0)) - 1, -1, -1)
    core = sentencepiece.build(
        model, extra=[f"<extra_id_{i}>" for i in extra], first_only=ends is None and not config.get("legacy", False)
    )
    special = {**{name: text for name, text in LLAMA.items() if core.token_to_id(text) is not None}, **special}
    if ends is not None:
        core.post_processor = special_tokens_template(core, ends, special)
    elif not config and "bos_token" in special:  # no config: all published models of this form add bos
        config = {"add_bos_token": True}
    return TokenizerFiles(core, config, special, doubles_space=sentencepiece.doubles(core))


def fairseq(folder: Path, kind: str, config: dict[str, Any], special: dict[str, str]) -> TokenizerFiles:
    """Read the SentencePiece model of XLM-R or CamemBERT. Ids follow fairseq's dictionary: its first words (some are
    also pieces), the other pieces, the mask."""
    usual = CLASSES[kind]
    special = {**usual.special, **special}
    source = sentencepiece.read(folder / next(n for n in PIECES if (folder / n).is_file()))
    bos, pad, eos, unknown, mask = (special[f"{n}_token"] for n in ("bos", "pad", "eos", "unk", "mask"))
    first, kept = [(bos, 0.0), (pad, 0.0), (eos, 0.0), (unknown, 0.0)], source.pieces[3:]
    if kind == "CamembertTokenizer":  # its ids count these words twice
        first = [("<s>NOTUSED", 0.0), (pad, 0.0), ("</s>NOTUSED", 0.0), (unknown, 0.0), ("<unk>NOTUSED", -100.0)]
        kept = source.pieces[1:]
    marked, plain = sentencepiece.CONTROL, sentencepiece.NORMAL
    known = [(text, score, marked if text in special.values() else plain) for text, score in first]
    known += [*kept, (mask, 0.0, marked)]
    core = sentencepiece.build(sentencepiece.SentencePieces(known, unk_id=3, charsmap=source.charsmap))
    scheme = "always" if config.get("add_prefix_space", True) else "never"
    space = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme, split=True)
    core.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), space])
    core.decoder = decoders.Metaspace(replacement="▁", prepend_scheme=scheme)
    core.post_processor = special_tokens_template(core, usual.ends or TWO_ENDS, special)
    return TokenizerFiles(core, config, special)


def deberta(folder: Path, kind: str, config: dict[str, Any], special: dict[str, str]) -> TokenizerFiles:
    """Read DeBERTa v2 and v3, which normalize spaces and Unicode by rules of the class instead of the file's."""
    source = sentencepiece.read(folder / next(n for n in PIECES if (folder / n).is_file()))
    special = {**CLASSES[kind].special, **special}
    unknown = next((i for i, (text, *_) in enumerate(source.pieces) if text == special["unk_token"]), source.unk_id)
    # the file's unknown piece is special only if the class lists it
    plain = {sentencepiece.UNKNOWN: sentencepiece.NORMAL}
    known = [(text, score, plain.get(each, each)) for text, score, each in source.pieces]
    core = sentencepiece.build(sentencepiece.SentencePieces(known, unk_id=unknown))
    lower = [normalizers.Lowercase()] if config.get("do_lower_case") else []
    spaces = normalizers.Replace(Regex(r"\s{2,}|[\n\r\t]"), " ")
    core.normalizer = normalizers.Sequence([*lower, spaces, normalizers.NFC(), normalizers.Strip(left=False)])
    split = [pre_tokenizers.Punctuation("isolated")] if config.get("split_by_punct") else []
    scheme = "always" if config.get("add_prefix_space", True) else "first"
    core.pre_tokenizer = pre_tokenizers.Sequence([*split, pre_tokenizers.Metaspace("▁", scheme)])
    core.decoder = decoders.Metaspace("▁", scheme)
    return add_ends(core, kind, config, special)


def xlnet(folder: Path, kind: str, config: dict[str, Any], special: dict[str, str]) -> TokenizerFiles:
    """Read XLNet: it removes accents before the file's normalization. Its mask token includes a space before it."""
    source = sentencepiece.read(folder / next(n for n in PIECES if (folder / n).is_file()))
    special = {**CLASSES[kind].special, **special}
    core = sentencepiece.build(dataclasses.replace(source, model=sentencepiece.UNIGRAM, byte_fallback=False))
    steps = [
        normalizers.Replace("``", '"'),
        normalizers.Replace("''", '"'),
        normalizers.NFKD(),
        normalizers.StripAccents(),
    ]
    steps += [normalizers.Lowercase()] if config.get("do_lower_case") else []
    steps += [normalizers.Precompiled(source.charsmap)] if source.charsmap else []
    core.normalizer = normalizers.Sequence(steps)
    space = pre_tokenizers.Metaspace("▁", "always")
    core.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), space])
    core.decoder = decoders.Metaspace("▁", "always")
    return add_ends(core, kind, config, special, greedy=("mask_token",))


def siglip(folder: Path, kind: str, config: dict[str, Any], special: dict[str, str]) -> TokenizerFiles:
    """Read SigLIP, which removes punctuation and, by default, capitals before the file's normalization."""
    core = sentencepiece.build(sentencepiece.read(folder / next(n for n in PIECES if (folder / n).is_file())))
    steps: list[Any] = [normalizers.Lowercase()] if config.get("do_lower_case", True) else []
    steps += [normalizers.Replace(Regex(r"[!-/:-@\[-`{-~]"), ""), *([core.normalizer] if core.normalizer else [])]
    core.normalizer = normalizers.Sequence(
        [*steps, normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip(left=False)]
    )
    core.pre_tokenizer = pre_tokenizers.Metaspace("▁", "first")
    special = {**CLASSES[kind].special, **special}
    core.add_special_tokens([tokenizers.AddedToken(token, lstrip=True, rstrip=True) for token in special.values()])
    return add_ends(core, kind, config, special)


def add_ends(
    core: tokenizers.Tokenizer, kind: str, config: dict[str, Any], special: dict[str, str], greedy: tuple[str, ...] = ()
) -> TokenizerFiles:
    """Add special tokens around texts. Tokens that the file lacks are appended to its pieces. `greedy` tokens include
    the space before them."""
    core.add_special_tokens(
        [
            tokenizers.AddedToken(token, lstrip=name in greedy, normalized=False, special=True)
            for name, token in special.items()
            if name in greedy or core.token_to_id(token) is None
        ]
    )
    core.post_processor = special_tokens_template(core, CLASSES[kind].ends or SEGMENTS, special)
    return TokenizerFiles(core, config, special)


def marian(folder: Path, kind: str, config: dict[str, Any], special: dict[str, str]) -> TokenizerFiles:
    """Read Marian: source.spm and target.spm split texts into pieces; vocab.json has the ids of both languages."""
    if (folder / "target_vocab.json").is_file() and config.get("separate_vocabs"):
        raise ValueError("separate vocabularies of the two languages are not supported")
    special = {**CLASSES["MarianTokenizer"].special, **special}
    vocabulary = contiguous_vocab(folder)
    targets = [word for word in vocabulary if word.startswith(">>") and word.endswith("<<")]  # >>fr<<: target language
    core, writer = build_with_ids(folder / "source.spm", vocabulary, special, targets)
    target = None
    if (folder / "target.spm").is_file():
        target, _ = build_with_ids(folder / "target.spm", vocabulary, special, targets)
    for each in (core, target):
        if each is not None:
            each.post_processor = special_tokens_template(each, ("A eos", "A B eos"), special)
    return TokenizerFiles(core, config, special, writer, len(vocabulary), target=target)


def m2m(folder: Path, kind: str, config: dict[str, Any], special: dict[str, str]) -> TokenizerFiles:
    """Read M2M-100: pieces of a hundred languages with the ids of vocab.json, then one token per language."""
    special = {**CLASSES["M2M100Tokenizer"].special, **special}
    vocabulary = contiguous_vocab(folder)
    name = config.get("language_codes") or "m2m100"
    if name not in LANGUAGES:
        raise ValueError(f"language_codes={quote(name)}; {nearest(str(name), LANGUAGES)}")
    languages = {code: len(vocabulary) + i for i, code in enumerate(LANGUAGES[name])}
    full = {**vocabulary, **{f"__{code}__": token_id for code, token_id in languages.items()}}
    core, writer = build_with_ids(
        folder / "sentencepiece.bpe.model", full, special, tokens=list(full)[len(vocabulary) :]
    )
    core.post_processor = language_processor(
        core, source_language(config, languages, "en"), vocabulary[special["eos_token"]]
    )
    return TokenizerFiles(core, config, special, writer, len(full), languages=languages)


def source_language(config: dict[str, Any], languages: dict[str, int], usual: str) -> int:
    """Return the token of the source language."""
    code = config.get("src_lang") or usual
    if code not in languages:
        raise ValueError(f"src_lang={quote(code)}; {nearest(str(code), languages)}")
    return languages[code]


def build_with_ids(
    path: Path,
    vocabulary: dict[str, int],
    special: dict[str, str],
    inside: Iterable[str] = (),
    tokens: Iterable[str] = (),
) -> tuple[tokenizers.Tokenizer, tokenizers.Tokenizer]:
    """Return a tokenizer that encodes with the ids of a vocabulary, and one that decodes them. `inside` are words of
    the vocabulary that may occur in a text; `tokens` are special tokens."""
    for name in ("unk_token", "eos_token", "pad_token"):
        if special[name] not in vocabulary:
            raise ValueError(f"{name} {quote(special[name])} is not in vocab.json")
    source = sentencepiece.read(path)
    readable = (sentencepiece.NORMAL, sentencepiece.USER_DEFINED)
    scores = {text: score for text, score, kind in source.pieces if kind in readable}
    marked = {text for text in (*special.values(), *tokens) if text in vocabulary}
    # Words that are not pieces are never used for encoding. Pieces without an id are used and become the unknown token.
    kinds = {**dict.fromkeys(marked, sentencepiece.CONTROL), **dict.fromkeys(inside, sentencepiece.USER_DEFINED)}
    known = [
        (word, 0.0, kinds[word])
        if word in kinds
        else (word, scores[word], sentencepiece.NORMAL)
        if word in scores
        else (f"\0{word}", -1e4, sentencepiece.UNUSED)
        for word in sorted(vocabulary, key=vocabulary.__getitem__)
    ]
    without_id = [(text, score, sentencepiece.NORMAL) for text, score in scores.items() if text not in vocabulary]
    unknown = vocabulary[special["unk_token"]]
    core = sentencepiece.build(dataclasses.replace(source, pieces=known + without_id, unk_id=unknown))
    writer = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token=special["unk_token"]))
    writer.decoder = core.decoder
    writer.add_special_tokens(sorted(marked, key=vocabulary.__getitem__))
    return core, writer
