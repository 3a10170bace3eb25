"""Vocabularies of a run: trained on its text, single bytes or words, or the tokenizer of a model folder."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from anyformer.inputs.long import LongText, split_at_spaces
from anyformer.inputs.tokenizer_defaults import NAMES
from anyformer.objectives.vocabulary_info import SENTINEL
from anyformer.specs.field_types import Range
from anyformer.specs.messages import nearest, quote
from anyformer.specs.part import Part, Table

if TYPE_CHECKING:
    from anyformer.data.source import Source
    from anyformer.inputs.tokenizer import Tokenizer

MAX_SIZE = 2**24  # tokens; trainers allocate all at once, and abort the process if memory runs out
MAX_SENTINELS = 100_000


class Vocabulary(Part, abstract=True):
    """Base class of vocabularies: a description of how to get a run's tokenizer."""

    @property
    def size(self) -> int | None:
        """Number of tokens, if it can be chosen."""
        return None

    def make(self, texts: Iterable[str], folder: Path | str) -> Tokenizer:
        """Return the tokenizer. A new tokenizer is written to `folder`, in the format of a model folder."""
        raise NotImplementedError


class Stored(Vocabulary):
    """The tokenizer of a model folder or hub id."""

    path: str

    def make(self, texts: Iterable[str], folder: Path | str) -> Tokenizer:
        from anyformer.inputs.tokenizer import Tokenizer

        return Tokenizer.load(self.path)


class BuiltVocabulary(Vocabulary, abstract=True):
    """Base class of vocabularies that are built from the data. The `special` tokens have the first ids. `begin` and
    `end` name the special tokens before and after every text; in a pair, `end` follows each of the two texts."""

    special: Mapping[str, str] = Table({"eos_token": "<|endoftext|>", "pad_token": "<|padding|>"})
    begin: str | None = None
    end: str | None = None
    sentinels: Annotated[int, Range(at_least=0, at_most=MAX_SENTINELS)] = 0  # tokens <extra_id_0>, ...: span corruption

    def check(self) -> None:
        for name in self.special:
            if name not in NAMES:
                kind = type(self).__name__
                raise ValueError(f"{kind}.special: unknown token name {quote(name)}; {nearest(name, NAMES)}")
        for end in (self.begin, self.end):
            if end is not None and end not in self.special:
                raise ValueError(f"{type(self).__name__}: {quote(end)} is not in special; {nearest(end, self.special)}")

    def core(self, texts: Iterable[str], tokens: list[str]) -> Any:
        """Return the `tokenizers.Tokenizer`, with the special `tokens` first."""
        raise NotImplementedError

    def make(self, texts: Iterable[str], folder: Path | str) -> Tokenizer:
        from tokenizers import processors

        from anyformer.inputs.tokenizer import Tokenizer
        from anyformer.weights.io import write_json

        sentinels = (SENTINEL.format(i) for i in range(self.sentinels))
        core = self.core(texts, list(dict.fromkeys((*self.special.values(), *sentinels))))
        begin = [self.special[self.begin]] if self.begin else []
        end = [self.special[self.end]] if self.end else []
        if begin or end:
            core.post_processor = processors.TemplateProcessing(
                single=[*begin, "$A", *end],
                pair=[*begin, "$A", *end, "$B:1", *(f"{token}:1" for token in end)],
                special_tokens=[(token, core.token_to_id(token)) for token in dict.fromkeys(begin + end)],
            )
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "tokenizer.json", json.loads(core.to_str()))
        write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **self.special})
        return Tokenizer.load(folder)


class Words(BuiltVocabulary, called=("word level",)):
    """One token per word of the data, split at spaces: for small vocabularies, and for CTC over words."""

    special: Mapping[str, str] = Table({"pad_token": "<pad>", "unk_token": "<unk>"})

    def check(self) -> None:
        super().check()
        if "unk_token" not in self.special:
            raise ValueError("Words.special: 'unk_token' is missing; it replaces unknown words")

    def core(self, texts: Iterable[str], tokens: list[str]) -> Any:
        import tokenizers
        from tokenizers import models, pre_tokenizers

        words = sorted({word for text in texts for word in text.split()} - {*tokens})
        ids = {word: i for i, word in enumerate([*tokens, *words])}
        core = tokenizers.Tokenizer(models.WordLevel(ids, unk_token=self.special["unk_token"]))
        core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        core.add_special_tokens([tokenizers.AddedToken(token, normalized=False, special=True) for token in tokens])
        return core


class Bytes(BuiltVocabulary, called=("ByT5",)):
    """One token per UTF-8 byte, so that every text can be written [Xue et al. 2021, ByT5]."""

    def core(self, texts: Iterable[str], tokens: list[str]) -> Any:
        return _byte_pairs(tokens)


class TrainedBPE(BuiltVocabulary, called=("BPE", "byte pair encoding", "byte-level BPE")):
    """Byte-level BPE: merges the most frequent pairs of the data [Sennrich et al. 2016; Radford et al. 2019]."""

    size: Annotated[int, Range(at_most=MAX_SIZE)] = 8192

    def check(self) -> None:
        super().check()
        if self.size < 256 + len(self.special) + self.sentinels:
            raise ValueError(f"TrainedBPE.size is {self.size}; 256 bytes and the special tokens must fit")

    def core(self, texts: Iterable[str], tokens: list[str]) -> Any:
        from tokenizers import pre_tokenizers, trainers

        core = _byte_pairs(tokens)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=self.size, special_tokens=tokens, initial_alphabet=alphabet, show_progress=False
        )
        core.train_from_iterator(texts, trainer)
        return core


class PieceVocabulary(BuiltVocabulary, abstract=True):
    """Base class: `size` word pieces, or fewer if the data has fewer. Text without a matching piece is unk_token."""

    size: Annotated[int, Range(at_most=MAX_SIZE)] = 8192

    def check(self) -> None:
        super().check()
        if "unk_token" not in self.special:
            raise ValueError(f"{type(self).__name__}.special: 'unk_token' is missing; it replaces unknown words")
        if self.size <= len(self.special) + self.sentinels:
            raise ValueError(f"{type(self).__name__}.size is {self.size}; a word and the special tokens must fit")


class TrainedWordPiece(PieceVocabulary, called=("WordPiece",)):
    """BERT's WordPiece: the longest matching piece from the left, with "##" before pieces inside a word [Wu et al.
    2016; Devlin et al. 2019]. `lowercase` also removes accents (BERT uncased)."""

    special: Mapping[str, str] = Table(
        {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    )
    begin: str | None = "cls_token"
    end: str | None = "sep_token"
    lowercase: bool = True
    alphabet: int = 1000  # number of distinct letters, the most frequent; words with other letters are unknown

    def core(self, texts: Iterable[str], tokens: list[str]) -> Any:
        import tokenizers
        from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

        texts = list(texts) if isinstance(texts, Iterator) else texts  # read twice
        normalizer = normalizers.BertNormalizer(lowercase=self.lowercase)
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update("".join(normalizer.normalize_str(text).split()))
        letters = sorted(sorted(counts), key=lambda letter: -counts[letter])[: self.alphabet]
        # the trainer breaks ties by letter id, so a fixed order makes the vocabulary reproducible
        symbols = [*tokens, *letters, *(f"##{letter}" for letter in letters)]

        def build(vocabulary: dict[str, int]) -> Any:
            core = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token=self.special["unk_token"]))
            core.normalizer, core.pre_tokenizer = normalizer, pre_tokenizers.BertPreTokenizer()
            core.decoder = decoders.WordPiece()
            return core

        scratch = build({})
        trainer = trainers.WordPieceTrainer(vocab_size=self.size, special_tokens=symbols, show_progress=False)
        scratch.train_from_iterator(texts, trainer)
        pieces = sorted(scratch.get_vocab(), key=scratch.token_to_id)[: self.size]
        core = build({piece: i for i, piece in enumerate(pieces)})
        core.add_special_tokens([tokenizers.AddedToken(token, normalized=False, special=True) for token in tokens])
        return core


class TrainedUnigram(PieceVocabulary, called=("Unigram", "SentencePiece", "unigram tokenizer")):
    """Pieces with probabilities, as in T5; a text is split into its most probable pieces, spaces included [Kudo 2018,
    SentencePiece]. Every training gives slightly different pieces; a run keeps the vocabulary it started with."""

    special: Mapping[str, str] = Table({"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"})
    end: str | None = "eos_token"

    def core(self, texts: Iterable[str], tokens: list[str]) -> Any:
        import tokenizers
        from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

        core = tokenizers.Tokenizer(models.Unigram())
        core.normalizer, core.pre_tokenizer = normalizers.NFKC(), pre_tokenizers.Metaspace()
        core.decoder = decoders.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=self.size, special_tokens=tokens, unk_token=self.special["unk_token"], show_progress=False
        )
        core.train_from_iterator(texts, trainer)
        return core


def _byte_pairs(tokens: list[str]) -> Any:
    """Return a byte-level BPE without merges: the special tokens, then the 256 bytes."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers

    letters = [*tokens, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    core = tokenizers.Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    core.add_special_tokens([tokenizers.AddedToken(token, normalized=False, special=True) for token in tokens])
    return core


def texts_of(source: Source, columns: tuple[str, ...]) -> Iterable[str]:
    """Return every text in these columns. Lists of words are joined; long texts are split at spaces."""
    return _Texts(source, columns)


class _Texts:
    """Texts that can be read more than once."""

    def __init__(self, source: Source, columns: tuple[str, ...]) -> None:
        self.source, self.columns = source, columns

    def __iter__(self) -> Iterator[str]:
        for row in self.source.rows(self.columns):
            for value in (row.example[name] for name in self.columns) if row.example is not None else ():
                if isinstance(value, (str, LongText)):
                    yield from split_at_spaces(value)
                elif isinstance(value, (list, tuple)):
                    yield " ".join(item for item in value if isinstance(item, str))
