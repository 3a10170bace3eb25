"""A tokenizer from the files of a model folder: tokenizer.json, or what was published before there was one.

Older files hold the words alone and the rest was code, so what they mean depends on the tokenizer class that the
folder names. A class that is not listed here is refused: its words would be read with another's rules.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors

from anyformer.inputs import sentencepiece
from anyformer.inputs.languages import LANGUAGES, NLLB, between
from anyformer.part import nearest
from anyformer.weights.io import JSON_BYTES, read_json

PIECES = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "spm.model")
NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclasses.dataclass(frozen=True)
class Words:
    """The files of a folder, understood: `core` reads text, `writer` makes it (where that is another vocabulary)."""

    core: tokenizers.Tokenizer
    config: dict[str, Any]
    special: dict[str, str]
    writer: tokenizers.Tokenizer | None = None
    unknown_from: int | None = None  # ids from here on stand for words that the model does not have
    doubles_space: bool = False  # see sentencepiece.doubles
    languages: dict[str, int] = dataclasses.field(default_factory=dict)  # code -> the id of its token
    target: tokenizers.Tokenizer | None = None  # reads what is to be written, where `core` does not


def named(folder: Path, config: dict[str, Any]) -> str:
    """The tokenizer class that the folder names, without the suffix for speed; "" if none."""
    name, model = config.get("tokenizer_class"), _optional(folder / "config.json")
    if not name:
        kind = model.get("model_type") or _optional(folder / "spec.json").get("family")
        name = model.get("tokenizer_class") or (KINDS.get(str(kind), f"the tokenizer of {kind}") if kind else "")
    return str(name).removesuffix("Fast")


# model_type -> tokenizer class, where the folder names none
KINDS = {
    "gpt2": "GPT2Tokenizer", "gpt_neo": "GPT2Tokenizer", "opt": "GPT2Tokenizer", "roberta": "RobertaTokenizer",
    "bart": "BartTokenizer", "bert": "BertTokenizer", "distilbert": "DistilBertTokenizer", "t5": "T5Tokenizer",
    "mt5": "MT5Tokenizer", "umt5": "T5Tokenizer", "llama": "LlamaTokenizer", "mistral": "LlamaTokenizer",
    "mixtral": "LlamaTokenizer", "qwen2": "Qwen2Tokenizer", "qwen3": "Qwen2Tokenizer", "marian": "MarianTokenizer",
    "fsmt": "FSMTTokenizer", "electra": "ElectraTokenizer", "mamba": "GPTNeoXTokenizer",
    "rwkv": "GPTNeoXTokenizer", "mamba2": "GPTNeoXTokenizer",
    "m2m_100": "M2M100Tokenizer", "longformer": "LongformerTokenizer", "switch_transformers": "T5Tokenizer",
    "whisper": "WhisperTokenizer", "wav2vec2": "Wav2Vec2CTCTokenizer", "wav2vec2-conformer": "Wav2Vec2CTCTokenizer",
    "funnel": "FunnelTokenizer", "perceiver": "PerceiverTokenizer", "roberta-prelayernorm": "RobertaTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer", "xlm-roberta-xl": "XLMRobertaTokenizer", "camembert": "CamembertTokenizer",
    "deberta": "DebertaTokenizer", "xlnet": "XLNetTokenizer",
    **dict.fromkeys(("linformer", "dmca", "limoe", "reka", "vatt", "reserve"), ""),  # published without
}  # fmt: skip

END = "<|endoftext|>"
_ROBERTA = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "sep_token": "</s>", "pad_token": "<pad>",
            "cls_token": "<s>", "mask_token": "<mask>"}  # fmt: skip
_FAIRSEQ = {**_ROBERTA}  # the same words in a SentencePiece model
_BERT = {"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]", "mask_token": "[MASK]"}
_DEBERTA = {"bos_token": "[CLS]", "eos_token": "[SEP]", **_BERT}
_FUNNEL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "sep_token": "<sep>", "pad_token": "<pad>",
           "cls_token": "<cls>", "mask_token": "<mask>"}  # fmt: skip
_XLNET = {**_FUNNEL}
_LLAMA = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
_M2M = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "sep_token": "</s>", "pad_token": "<pad>"}
_T5 = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
_GPT2 = {"bos_token": END, "eos_token": END, "unk_token": END}
_LETTERS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
# a token each before those of the bytes, in this order
_BYTES = {"pad_token": "[PAD]", "bos_token": "[BOS]", "eos_token": "[EOS]", "mask_token": "[MASK]",
          "cls_token": "[CLS]", "sep_token": "[SEP]"}  # fmt: skip
_QWEN = {"eos_token": END, "pad_token": END, "unk_token": END}
# class -> special tokens that its folders need not name
DEFAULTS: dict[str, dict[str, str]] = {
    "": {}, "M2M100Tokenizer": _M2M, "GPT2Tokenizer": _GPT2, "Qwen2Tokenizer": _QWEN, "GPTNeoXTokenizer": _GPT2,
    "WhisperTokenizer": _GPT2, "Wav2Vec2CTCTokenizer": _LETTERS,
    **dict.fromkeys(("RobertaTokenizer", "BartTokenizer", "LongformerTokenizer", "LEDTokenizer"), _ROBERTA),
    **dict.fromkeys(("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MobileBertTokenizer",
                     "ConvBertTokenizer", "LayoutLMTokenizer"), _BERT),
    "NllbTokenizer": _FAIRSEQ, "XLMRobertaTokenizer": _FAIRSEQ, "CamembertTokenizer": _FAIRSEQ,
    "FunnelTokenizer": _FUNNEL, "PerceiverTokenizer": _BYTES, "DebertaTokenizer": _DEBERTA, "XLNetTokenizer": _XLNET,
    **dict.fromkeys(("LlamaTokenizer", "CodeLlamaTokenizer", "MistralTokenizer"), _LLAMA),
    **dict.fromkeys(("T5Tokenizer", "MT5Tokenizer", "MarianTokenizer"), _T5),
}  # fmt: skip
# class -> settings that its folders need not name
USUAL: dict[str, dict[str, Any]] = {
    "XLNetTokenizer": {"padding_side": "left", "model_input_names": ["input_ids", "attention_mask"]}
}


def read(folder: Path) -> Words:
    config = _optional(folder / "tokenizer_config.json")
    stored = _optional(folder / "special_tokens_map.json")
    kind = named(folder, config)
    special = dict(DEFAULTS.get(kind, {}))
    for source in (stored, config):
        for name in NAMES:
            if name in source:
                special.pop(name, None)
                if text := content(source[name]):
                    special[name] = text
    config = {name: value for name, value in config.items() if value is not None}  # null: whatever is usual
    config = {**USUAL.get(kind, {}), **config}
    file, make = find(folder, kind)
    try:
        words = make(folder, kind, config, special)
        words.core.no_padding()
        words.core.no_truncation()
        add(words.core, folder, {**stored, **words.config}, words.special)
        if file != "tokenizer.json":  # which has its own say on what stands at the ends
            _bounds(words.core, words.config, words.special)
    except (OSError, MemoryError):
        raise
    except Exception as error:  # tokenizers raises bare Exceptions
        reason = " ".join(str(error).split())  # which may be several lines
        raise ValueError(reason if str(folder) in reason else f"{folder / file}: {reason}") from None
    return words


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def content(token: Any) -> str | None:
    """A token as configs write it: its text, or an object with the text in it."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) and text else None


Make = Callable[[Path, str, dict[str, Any], dict[str, str]], Words]


def find(folder: Path, kind: str) -> tuple[str, Make]:
    """Which files to read, and how."""

    def there(*names: str) -> bool:
        return all((folder / name).is_file() for name in names)

    if there("tokenizer.json"):
        return "tokenizer.json", from_json
    if kind == "PerceiverTokenizer":  # there is nothing to read
        return "tokenizer_config.json", single_bytes
    if there("source.spm", "vocab.json"):
        return "source.spm", marian
    if there("vocab-src.json"):
        raise ValueError(f"{folder}: FSMT's files (vocab-src.json, merges.txt) need Moses; give token ids instead")
    model = next((name for name in PIECES if there(name)), None)
    ways: list[tuple[str, Make]] = []
    if model is not None:
        many = m2m if there("sentencepiece.bpe.model", "vocab.json") else pieces
        ways.append((model, fairseq if kind in SUPPORTED[fairseq] else many))
    if there("vocab.json", "merges.txt"):
        ways.append(("vocab.json", byte_pairs))
    elif there("vocab.json"):
        ways.append(("vocab.json", letters))
    if there("vocab.txt"):
        ways.append(("vocab.txt", word_pieces))
    if not ways:
        raise FileNotFoundError(f"{folder}: no tokenizer (tokenizer.json, vocab.json + merges.txt, vocab.txt, *.model)")
    file, make = ways[0]
    unnamed = not kind and model in PIECES[1:]  # T5's, ALBERT's and XLNet's files have one name
    if kind not in SUPPORTED[make] or unnamed:
        raise ValueError(
            f"{folder / file}: {kind or 'a class without a name'} is read from a tokenizer.json alone; save one with "
            "transformers (AutoTokenizer.from_pretrained(...).save_pretrained(...))"
        )
    return file, make


def unpanicked(read: Callable[[], tokenizers.Tokenizer]) -> tokenizers.Tokenizer:
    """What the library panics over, which is no Exception to Python, as a mistake in the file."""
    try:
        return read()
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise ValueError(" ".join(str(error).split())) from None


def from_json(folder: Path, kind: str, config: dict[str, Any], special: dict[str, str]) -> Words:
    path = folder / "tokenizer.json"
    if path.stat().st_size > JSON_BYTES:
        raise ValueError(f"larger than the {JSON_BYTES:,} bytes allowed here")
    core = unpanicked(lambda: tokenizers.Tokenizer.from_file(str(path)))
    if kind != "NllbTokenizer":
        return Words(core, config, special)
    if config.get("legacy_behaviour"):
        raise ValueError("legacy_behaviour: languages at the end of texts are not supported")
    added = core.get_added_tokens_decoder()
    languages = {token.content: place for place, token in added.items() if NLLB.fullmatch(token.content)}
    end = core.token_to_id(special.get("eos_token", ""))
    if end is None:
        raise ValueError("there is no eos_token")
    core.post_processor = between(core, source_of(config, languages, "eng_Latn"), end)
    return Words(core, config, special, languages=languages)


def source_of(config: dict[str, Any], languages: dict[str, int], usual: str) -> int:
    """The token of the language that a folder's texts are in."""
    code = config.get("src_lang") or usual
    if code not in languages:
        raise ValueError(f"src_lang={code!r}; {nearest(str(code), languages)}")
    return languages[code]


# Qwen2's split into words: digits one by one.
_QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def byte_pairs(folder: Path, kind: str, config: dict[str, Any], special: dict[str, str]) -> Words:
    """Byte-level BPE: GPT-2, RoBERTa, DeBERTa, Qwen2."""
    for name in ("vocab.json", "merges.txt"):
        if (folder / name).stat().st_size > JSON_BYTES:
            raise ValueError(f"{name} is larger than the {JSON_BYTES:,} bytes allowed here")
    vocabulary = places(folder)
    lines = (folder / "merges.txt").read_text(encoding="utf-8").split("\n")
    lines = [line.rstrip("\r") for line in lines if line.strip() and not line.startswith("#version")]
    if bad := [line for line in lines if line.count(" ") != 1]:
        raise ValueError(f"merges.txt: {bad[0]!r} is not a pair")
    if not kind:  # files of before there was a config tell by their special tokens
        kind = next((k for k in ("RobertaTokenizer", "GPT2Tokenizer") if {*DEFAULTS[k].values()} <= {*vocabulary}), "")
        special = {**DEFAULTS[kind], **special}
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
    if DEFAULTS.get(kind) is _ROBERTA:
        end, start = ((special[name], vocabulary[special[name]]) for name in ("sep_token", "cls_token"))
        core.post_processor = processors.RobertaProcessing(end, start, trim_offsets=True, add_prefix_space=space)
    if kind == "DebertaTokenizer":
        first, last = special["cls_token"], special["sep_token"]
        core.post_processor = processors.TemplateProcessing(
            single=[first, "$A", last], pair=[first, "$A", last, last, "$B", last],
            special_tokens=[(token, vocabulary[token]) for token in (first, last)],
        )  # fmt: skip
    return Words(core, config, special)


def _alphabet() -> dict[str, int]:
    """GPT-2's letters for the 256 bytes: itself where it can be seen, else the next of those from U+0100 on."""
    seen = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    other = [byte for byte in range(256) if byte not in seen]
    return {**{chr(byte): byte for byte in seen}, **{chr(256 + i): byte for i, byte in enumerate(other)}}


BYTES = _alphabet()


def single_bytes(folder: Path, kind: str, config: dict[str, Any], special: dict[str, str]) -> Words:
    """A token a byte, behind the special ones: the Perceiver's."""
    marked = [special.get(name, usual) for name, usual in _BYTES.items()]
    vocabulary = {token: i for i, token in enumerate(marked)}
    vocabulary |= {letter: len(marked) + byte for letter, byte in BYTES.items()}
    core = tokenizers.Tokenizer(models.BPE(vocabulary, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    start, end = marked[-2:]
    core.post_processor = processors.TemplateProcessing(
        single=[start, "$A", end], pair=[start, "$A", end, "$B:1", f"{end}:1"],
        special_tokens=[(token, vocabulary[token]) for token in (start, end)],
    )  # fmt: skip
    return Words(core, config, special)


def letters(folder: Path, kind: str, config: dict[str, Any], special: dict[str, str]) -> Words:
    """One token a letter, and one that stands between words: what is heard, letter by letter."""
    between_words = content(config.get("word_delimiter_token", "|")) or "|"
    core = tokenizers.Tokenizer(models.WordLevel(numbered(folder), special.get("unk_token", "<unk>")))
    spaces = normalizers.Replace(" ", between_words)
    lower = [normalizers.Lowercase()] if config.get("do_lower_case") else []
    core.normalizer = normalizers.Sequence([*lower, spaces])
    core.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    ends = decoders.Replace(Regex(r"\A +| +\z"), "")  # not Strip, which fails on a lone space
    core.decoder = decoders.Sequence([decoders.Fuse(), decoders.Replace(between_words, " "), ends])
    # some files call the space special, which it is not: it is written
    added = {n: token for n, token in config.get("added_tokens_decoder", {}).items() if content(token) != between_words}
    return Words(core, {**config, "added_tokens_decoder": added}, special)


def word_pieces(folder: Path, kind: str, config: dict[str, Any], special: dict[str, str]) -> Words:
    """BERT's WordPiece."""
    special = {**DEFAULTS[kind or "BertTokenizer"], **special}
    path = folder / "vocab.txt"
    if path.stat().st_size > JSON_BYTES:
        raise ValueError(f"larger than the {JSON_BYTES:,} bytes allowed here")
    lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    vocabulary = {line.removesuffix("\r"): i for i, line in enumerate(lines)}
    for name in ("unk_token", "cls_token", "sep_token"):
        if special[name] not in vocabulary:
            raise ValueError(f"{name} {special[name]!r} is not among its words")
    core = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token=special["unk_token"]))
    core.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=bool(config.get("tokenize_chinese_chars", True)),
        strip_accents=config.get("strip_accents"), lowercase=bool(config.get("do_lower_case", True)),
    )  # fmt: skip
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.decoder = decoders.WordPiece(prefix="##")
    start, end = special["cls_token"], special["sep_token"]
    first = f"{start}:2" if kind == "FunnelTokenizer" else start
    core.post_processor = processors.TemplateProcessing(
        single=[first, "$A", end], pair=[first, "$A", end, "$B:1", f"{end}:1"],
        special_tokens=[(start, vocabulary[start]), (end, vocabulary[end])],
    )  # fmt: skip
    return Words(core, config, special)


def pieces(folder: Path, kind: str, config: dict[str, Any], special: dict[str, str]) -> Words:
    """A SentencePiece model: Llama and Mistral, T5."""
    name = next(n for n in PIECES if (folder / n).is_file())
    model = sentencepiece.read(folder / name)
    t5 = DEFAULTS.get(kind) is _T5
    extra = range(int(config.get("extra_ids", 100 if kind == "T5Tokenizer" else 0)) - 1, -1, -1)
    core = sentencepiece.build(
        model, extra=[f"<extra_id_{i}>" for i in extra], first_only=not t5 and not config.get("legacy", False)
    )
    special = {**{name: text for name, text in _LLAMA.items() if core.token_to_id(text) is not None}, **special}
    if t5:
        end = special["eos_token"]
        core.post_processor = processors.TemplateProcessing(
            single=["$A", end], pair=["$A", end, "$B", end], special_tokens=[(end, core.token_to_id(end))]
        )
    elif not config and "bos_token" in special:  # a bare model file: every published one wants its beginning marked
        config = {"add_bos_token": True}
    return Words(core, config, special, doubles_space=sentencepiece.doubles(core))


def fairseq(folder: Path, kind: str, config: dict[str, Any], special: dict[str, str]) -> Words:
    """XLM-R and CamemBERT: before the pieces of a SentencePiece model the first words of fairseq's dictionary, which
    has some of them already, and the mask after them."""
    special = {**_FAIRSEQ, **special}
    source = sentencepiece.read(folder / next(n for n in PIECES if (folder / n).is_file()))
    bos, pad, eos, unknown, mask = (special[f"{n}_token"] for n in ("bos", "pad", "eos", "unk", "mask"))
    first, kept = [(bos, 0.0), (pad, 0.0), (eos, 0.0), (unknown, 0.0)], source.pieces[3:]
    if kind == "CamembertTokenizer":  # it was trained on ids that counted them twice
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
    core.post_processor = processors.TemplateProcessing(
        single=[bos, "$A", eos], pair=[bos, "$A", eos, eos, "$B", eos],
        special_tokens=[(token, core.token_to_id(token)) for token in (bos, eos)],
    )  # fmt: skip
    return Words(core, config, special)


def marian(folder: Path, kind: str, config: dict[str, Any], special: dict[str, str]) -> Words:
    """Marian: pieces of the source language, ids from vocab.json, text from the same ids."""
    if (folder / "target_vocab.json").is_file() and config.get("separate_vocabs"):
        raise ValueError("separate vocabularies of the two languages are not supported")
    special = {**_T5, **special}
    vocabulary = numbered(folder)
    asked = [word for word in vocabulary if word.startswith(">>") and word.endswith("<<")]  # >>fr<<: the one to write
    core, writer = renumbered(folder / "source.spm", vocabulary, special, asked)
    target = None
    if (folder / "target.spm").is_file():
        target, _ = renumbered(folder / "target.spm", vocabulary, special, asked)
    end = special["eos_token"]
    for each in (core, target):
        if each is not None:
            each.post_processor = processors.TemplateProcessing(
                single=["$A", end], pair=["$A", "$B", end], special_tokens=[(end, vocabulary[end])]
            )
    return Words(core, config, special, writer, len(vocabulary), target=target)


def m2m(folder: Path, kind: str, config: dict[str, Any], special: dict[str, str]) -> Words:
    """M2M-100: pieces of a hundred languages, ids from vocab.json, and after them a token for each language."""
    special = {**_M2M, **special}
    vocabulary = numbered(folder)
    name = config.get("language_codes") or "m2m100"
    if name not in LANGUAGES:
        raise ValueError(f"language_codes={name!r}; {nearest(str(name), LANGUAGES)}")
    languages = {code: len(vocabulary) + i for i, code in enumerate(LANGUAGES[name])}
    full = {**vocabulary, **{f"__{code}__": place for code, place in languages.items()}}
    core, writer = renumbered(folder / "sentencepiece.bpe.model", full, special, tokens=list(full)[len(vocabulary) :])
    core.post_processor = between(core, source_of(config, languages, "en"), vocabulary[special["eos_token"]])
    return Words(core, config, special, writer, len(full), languages=languages)


def places(folder: Path) -> dict[str, int]:
    """The words of vocab.json and their ids."""
    vocabulary = read_json(folder / "vocab.json")
    for word, place in vocabulary.items():
        if type(place) is not int or not 0 <= place < 2**31:
            raise ValueError(f"vocab.json: the id of {word[:50]!r} is {str(place)[:50]}, not a whole number from 0 up")
    return vocabulary


def numbered(folder: Path) -> dict[str, int]:
    """The words of vocab.json, which have the ids 0, 1, ... in some order."""
    vocabulary = places(folder)
    if sorted(vocabulary.values()) != list(range(len(vocabulary))):
        raise ValueError("vocab.json does not number its words from 0 without a gap")
    return vocabulary


def renumbered(
    path: Path, vocabulary: dict[str, int], special: dict[str, str], inside: Iterable[str] = (),
    tokens: Iterable[str] = (),
) -> tuple[tokenizers.Tokenizer, tokenizers.Tokenizer]:  # fmt: skip
    """What reads the pieces of a model as the ids of a vocabulary, and what writes them. `inside` are words of the
    vocabulary that may stand in a text, `tokens` are special ones."""
    for name in ("unk_token", "eos_token", "pad_token"):
        if special[name] not in vocabulary:
            raise ValueError(f"{name} {special[name]!r} is not in vocab.json")
    source = sentencepiece.read(path)
    readable = (sentencepiece.NORMAL, sentencepiece.USER_DEFINED)
    scores = {text: score for text, score, kind in source.pieces if kind in readable}
    marked = {text for text in (*special.values(), *tokens) if text in vocabulary}
    # Words that are no pieces take no part in reading; pieces without an id do, and stand for the unknown word.
    kinds = {**dict.fromkeys(marked, sentencepiece.CONTROL), **dict.fromkeys(inside, sentencepiece.USER_DEFINED)}
    known = [
        (word, 0.0, kinds[word]) if word in kinds
        else (word, scores[word], sentencepiece.NORMAL) if word in scores
        else (f"\0{word}", -1e4, sentencepiece.UNUSED)
        for word in sorted(vocabulary, key=vocabulary.__getitem__)
    ]  # fmt: skip
    homeless = [(text, score, sentencepiece.NORMAL) for text, score in scores.items() if text not in vocabulary]
    unknown = vocabulary[special["unk_token"]]
    core = sentencepiece.build(dataclasses.replace(source, pieces=known + homeless, unk_id=unknown))
    writer = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token=special["unk_token"]))
    writer.decoder = core.decoder
    writer.add_special_tokens(sorted(marked, key=vocabulary.__getitem__))
    return core, writer


def add(core: tokenizers.Tokenizer, folder: Path, config: dict[str, Any], special: dict[str, str]) -> None:
    """Tokens that the configs add to the vocabulary, each at the id it must have; special ones are marked so."""
    wanted: dict[int, Any] = {}
    for token, place in _optional(folder / "added_tokens.json").items():
        wanted[int(place)] = token
    for place, token in (config.get("added_tokens_decoder") or {}).items():
        wanted[int(place)] = token
    there = core.get_added_tokens_decoder()
    for place in sorted(wanted):
        token, text = wanted[place], content(wanted[place])
        if text is None or (place in there and there[place].content == text):
            continue
        fields = token if isinstance(token, dict) else {"special": text in special.values()}
        options = {n: bool(fields[n]) for n in ("single_word", "lstrip", "rstrip", "normalized") if n in fields}
        marked = bool(fields.get("special", False))
        core.add_tokens([tokenizers.AddedToken(text, **{"normalized": not marked, **options}, special=marked)])
        if core.token_to_id(text) != place:
            raise ValueError(f"added token {text!r} should have the id {place} and gets {core.token_to_id(text)}")
    there = core.get_added_tokens_decoder()
    marked_already = {token.content for token in there.values() if token.special}
    more = config.get("additional_special_tokens") or config.get("extra_special_tokens") or []
    texts = [*special.values(), *filter(None, map(content, more.values() if isinstance(more, dict) else more))]
    core.add_special_tokens([
        tokenizers.AddedToken(text, normalized=False, special=True)
        for text in dict.fromkeys(texts) if text not in marked_already
    ])  # fmt: skip


def _bounds(core: tokenizers.Tokenizer, config: dict[str, Any], special: dict[str, str]) -> None:
    """`add_bos_token` and `add_eos_token` decide what stands at the ends, where a config has them."""
    if "add_bos_token" not in config and "add_eos_token" not in config:
        return
    bos, eos = special.get("bos_token"), special.get("eos_token")
    start = [bos] if config.get("add_bos_token") and bos else []
    end = [eos] if config.get("add_eos_token") and eos else []
    core.post_processor = processors.TemplateProcessing(
        single=[*start, "$A", *end],
        pair=[*start, "$A", *end, *(f"{t}:1" for t in start), "$B:1", *(f"{t}:1" for t in end)],
        special_tokens=[(token, core.token_to_id(token)) for token in {*start, *end}],
    )  # fmt: skip


SUPPORTED: dict[Make, set[str]] = {
    letters: {"Wav2Vec2CTCTokenizer"},
    byte_pairs: {"", "GPT2Tokenizer", "Qwen2Tokenizer", "WhisperTokenizer", "DebertaTokenizer"}
    | {k for k, v in DEFAULTS.items() if v is _ROBERTA},
    word_pieces: {""} | {k for k, v in DEFAULTS.items() if v is _BERT or v is _FUNNEL},
    m2m: {"M2M100Tokenizer"},
    fairseq: {"XLMRobertaTokenizer", "CamembertTokenizer"},
    pieces: {"", "T5Tokenizer", "MT5Tokenizer"} | {k for k, v in DEFAULTS.items() if v is _LLAMA},
}
