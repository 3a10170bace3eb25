"""Loads a tokenizer from the files of a model folder: tokenizer.json, or older formats.

Older files contain only the vocabulary; the rules are in the code of the tokenizer class that the folder names. Unknown
classes are refused, because their rules may differ.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import processors

from anyformer import families
from anyformer.inputs.languages import NLLB, add_whisper_prompt, language_processor
from anyformer.inputs.pieces import deberta, fairseq, m2m, marian, pieces, siglip, source_language, xlnet
from anyformer.inputs.tokenizer_bounds import CheckedTokenizer, hidden_panics, load_json, without_panic
from anyformer.inputs.tokenizer_defaults import NAMES, OTHERS, PIECES, ClassDefaults, class_defaults
from anyformer.inputs.words import TokenizerFiles, byte_pairs, content, letters, single_bytes, word_pieces
from anyformer.specs.messages import quote, shorten
from anyformer.weights.io import JSON_BYTES, read_json


def tokenizer_class(folder: Path, config: dict[str, Any]) -> str:
    """Return the tokenizer class that the folder names, without the suffix "Fast"; "" if none."""
    name, model = config.get("tokenizer_class"), _optional(folder / "config.json")
    if not name:
        kind = model.get("model_type") or _optional(folder / "spec.json").get("family")
        name = model.get("tokenizer_class") or (usual_class(str(kind))[0] if kind else "")
    return str(name).removesuffix("Fast")


def usual_class(model_type: str) -> tuple[str, str]:
    """Return the tokenizer class of a model type, and its `Family.base_tokenizer`."""
    if model_type in OTHERS:
        return OTHERS[model_type]
    try:
        family = families.find(model_type)
    except ValueError:
        return f"the tokenizer of {model_type}", ""
    return f"the tokenizer of {model_type}" if family.tokenizer is None else family.tokenizer, family.base_tokenizer


def read(folder: Path) -> TokenizerFiles:
    config = _optional(folder / "tokenizer_config.json")
    stored = _optional(folder / "special_tokens_map.json")
    kind = tokenizer_class(folder, config)
    usual = defaults(folder, config, kind)
    special = dict(usual.special)
    for source in (stored, config):
        for name in NAMES:
            if name in source:
                special.pop(name, None)
                if text := content(source[name]):
                    special[name] = text
    config = {name: value for name, value in config.items() if value is not None}  # null: use the default
    config = {**usual.settings, **config}
    file, make = find(folder, kind)
    try:
        with hidden_panics():
            words = without_panic(lambda: make(folder, kind, config, special))
            words.core.no_padding()
            words.core.no_truncation()
            add(words.core, folder, {**stored, **words.config}, words.special)
            if file != "tokenizer.json":  # tokenizer.json has its own post-processor
                _bounds(words.core, words.config, words.special)
            CheckedTokenizer(words.core).try_out()
    except (OSError, MemoryError):
        raise
    except Exception as error:  # tokenizers raises bare Exceptions
        reason = shorten(" ".join(str(error).split()), 600)  # the message may have several lines
        raise ValueError(reason if str(folder) in reason else f"{folder / file}: {reason}") from None
    return words


def defaults(folder: Path, config: dict[str, Any], kind: str) -> ClassDefaults:
    """Return the defaults of the class that transformers uses for the folder, which may be the base class."""
    model, file = _optional(folder / "config.json"), folder / "tokenizer.json"
    unnamed = not (config.get("tokenizer_class") or model.get("tokenizer_class"))
    base = usual_class(str(model["model_type"]))[1] if model.get("model_type") else ""
    if base == "always" or (base == "unnamed" and unnamed):
        return class_defaults("")
    if kind == "LlamaTokenizer" and file.is_file() and file.stat().st_size <= JSON_BYTES:
        if b'"ByteLevel"' in file.read_bytes():
            return class_defaults("")  # the files of Llama 3 and DeepSeek do not match the class that they name
    return class_defaults(kind)


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


Make = Callable[[Path, str, dict[str, Any], dict[str, str]], TokenizerFiles]
# format of the vocabulary -> function that reads it
MAKERS: dict[str, Make] = {
    "byte pairs": byte_pairs,
    "word pieces": word_pieces,
    "letters": letters,
    "bytes": single_bytes,
    "pieces": pieces,
    "fairseq": fairseq,
    "DeBERTa's pieces": deberta,
    "XLNet's pieces": xlnet,
    "SigLIP's pieces": siglip,
    "m2m": m2m,
    "marian": marian,
}
UNNAMED = ("byte pairs", "word pieces", "pieces")  # formats that can be read without a class name
# formats whose file is a plain SentencePiece model; the class name is needed to read it
OWN = ("fairseq", "DeBERTa's pieces", "XLNet's pieces", "SigLIP's pieces")


def find(folder: Path, kind: str) -> tuple[str, Make]:
    """Return the name of the file to read, and the function that reads it."""

    def exists(*names: str) -> bool:
        return all((folder / name).is_file() for name in names)

    if exists("tokenizer.json"):
        return "tokenizer.json", from_json
    if kind == "PerceiverTokenizer":  # it has no vocabulary file
        return "tokenizer_config.json", single_bytes
    if exists("source.spm", "vocab.json"):
        return "source.spm", marian
    if exists("vocab-src.json"):
        raise ValueError(f"{folder}: FSMT's files (vocab-src.json, merges.txt) need Moses; give token ids instead")
    model = next((name for name in PIECES if exists(name)), None)
    own, ways = class_defaults(kind).words, list[tuple[str, str]]()
    if model is not None:
        many = "m2m" if exists("sentencepiece.bpe.model", "vocab.json") else "pieces"
        ways.append((model, own if own in OWN else many))
    if exists("vocab.json", "merges.txt"):
        ways.append(("vocab.json", "byte pairs"))
    elif exists("vocab.json"):
        ways.append(("vocab.json", "letters"))
    if exists("vocab.txt"):
        ways.append(("vocab.txt", "word pieces"))
    if not ways:
        raise FileNotFoundError(f"{folder}: no tokenizer (tokenizer.json, vocab.json + merges.txt, vocab.txt, *.model)")
    file, words = ways[0]
    unnamed = not kind and words in UNNAMED and model not in PIECES[1:]  # T5, ALBERT and XLNet share a file name
    if words != own and not unnamed:
        raise ValueError(
            f"{folder / file}: {kind or 'a class without a name'} needs a tokenizer.json; save one with "
            "transformers (AutoTokenizer.from_pretrained(...).save_pretrained(...))"
        )
    return file, MAKERS[words]


def from_json(folder: Path, kind: str, config: dict[str, Any], special: dict[str, str]) -> TokenizerFiles:
    path = folder / "tokenizer.json"
    if path.stat().st_size > JSON_BYTES:
        raise ValueError(f"larger than the {JSON_BYTES:,} bytes allowed here")
    core = load_json(path.read_text(encoding="utf-8"))
    if kind == "WhisperTokenizer":
        return TokenizerFiles(add_whisper_prompt(core, config), config, special)
    if kind != "NllbTokenizer":
        return TokenizerFiles(core, config, special)
    if config.get("legacy_behaviour"):
        raise ValueError("legacy_behaviour=True (language token at the end of texts) is not supported")
    added = core.get_added_tokens_decoder()
    languages = {token.content: token_id for token_id, token in added.items() if NLLB.fullmatch(token.content)}
    end = core.token_to_id(special.get("eos_token", ""))
    if end is None:
        raise ValueError("eos_token is missing")
    core.post_processor = language_processor(core, source_language(config, languages, "eng_Latn"), end)
    return TokenizerFiles(core, config, special, languages=languages)


def add(core: tokenizers.Tokenizer, folder: Path, config: dict[str, Any], special: dict[str, str]) -> None:
    """Add the tokens of the configs to the vocabulary, each with its required id; special tokens are marked."""
    wanted: dict[int, Any] = {}
    for token, token_id in _optional(folder / "added_tokens.json").items():
        wanted[int(token_id)] = token
    for token_id, token in (config.get("added_tokens_decoder") or {}).items():
        wanted[int(token_id)] = token
    more = config.get("additional_special_tokens") or config.get("extra_special_tokens") or []
    texts = [*special.values(), *filter(None, map(content, more.values() if isinstance(more, dict) else more))]
    CheckedTokenizer(core).check_length("".join([*texts, *filter(None, map(content, wanted.values()))]))
    exists = core.get_added_tokens_decoder()
    for token_id in sorted(wanted):
        token, text = wanted[token_id], content(wanted[token_id])
        if text is None or (token_id in exists and exists[token_id].content == text):
            continue
        fields = token if isinstance(token, dict) else {"special": text in special.values()}
        options = {n: bool(fields[n]) for n in ("single_word", "lstrip", "rstrip", "normalized") if n in fields}
        marked = bool(fields.get("special", False))
        core.add_tokens([tokenizers.AddedToken(text, **{"normalized": not marked, **options}, special=marked)])
        if core.token_to_id(text) != token_id:
            raise ValueError(f"added token {quote(text)} gets the id {core.token_to_id(text)} instead of {token_id}")
    exists = core.get_added_tokens_decoder()
    marked_already = {token.content for token in exists.values() if token.special}
    core.add_special_tokens(
        [
            tokenizers.AddedToken(text, normalized=False, special=True)
            for text in dict.fromkeys(texts)
            if text not in marked_already
        ]
    )


def _bounds(core: tokenizers.Tokenizer, config: dict[str, Any], special: dict[str, str]) -> None:
    """Add bos and eos tokens as set by `add_bos_token` and `add_eos_token`, if the config has one of them."""
    if "add_bos_token" not in config and "add_eos_token" not in config:
        return
    bos, eos = special.get("bos_token"), special.get("eos_token")
    start = [bos] if config.get("add_bos_token") and bos else []
    end = [eos] if config.get("add_eos_token") and eos else []
    core.post_processor = processors.TemplateProcessing(
        single=[*start, "$A", *end],
        pair=[*start, "$A", *end, *(f"{t}:1" for t in start), "$B:1", *(f"{t}:1" for t in end)],
        special_tokens=[(token, core.token_to_id(token)) for token in {*start, *end}],
    )
