"""Where a run's tokenizer comes from: trained on its own text, single bytes, or a folder that has one."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyformer.inputs.long import LongText, split_at_spaces
from anyformer.inputs.tokenizer_defaults import NAMES
from anyformer.objectives.vocabulary_info import SENTINEL
from anyformer.specs.checks import at_least, at_most
from anyformer.specs.messages import nearest, quote
from anyformer.specs.part import Part, Table

if TYPE_CHECKING:
    from anyformer.data.source import Source
    from anyformer.inputs.tokenizer import Tokenizer

MAX_SIZE = 2**24  # tokens; trainers allocate them all at once, and end the process if they cannot
MAX_SENTINELS = 100_000


class Vocabulary(Part):
    """Where a run's tokenizer comes from."""

    @property
    def size(self) -> int | None:
        """Number of tokens, if it can be chosen."""
        return None

    def make(self, texts: Iterable[str], folder: Path | str) -> Tokenizer:
        """The tokenizer; one that was made here is written to `folder` as a model folder has it."""
        raise NotImplementedError


class Stored(Vocabulary):
    """The tokenizer of a model folder or hub id."""

    path: str

    def make(self, texts: Iterable[str], folder: Path | str) -> Tokenizer:
        from anyformer.inputs.tokenizer import Tokenizer

        return Tokenizer.load(self.path)


class BuiltVocabulary(Vocabulary):
    """A vocabulary that is made here. `special` names its special tokens, which have the first ids; those called
    `begin` and `end` stand around every text (and `end` after each of a pair)."""

    special: Mapping[str, str] = Table({"eos_token": "<|endoftext|>", "pad_token": "<|padding|>"})
    begin: str | None = None
    end: str | None = None
    sentinels: int = 0  # so many of <extra_id_0>, <extra_id_1>, ... come after those: span corruption needs them

    def check(self) -> None:
        at_least(self, 0, "sentinels")
        at_most(self, MAX_SENTINELS, "sentinels")
        at_most(self, MAX_SIZE, "size")
        for name in self.special:
            if name not in NAMES:
                kind = type(self).__name__
                raise ValueError(f"{kind}.special: no token is called {quote(name)}; {nearest(name, NAMES)}")
        for end in (self.begin, self.end):
            if end is not None and end not in self.special:
                raise ValueError(f"{type(self).__name__}: {quote(end)} is not in special; {nearest(end, self.special)}")

    def core(self, texts: Iterable[str], tokens: list[str]) -> Any:
        """The `tokenizers.Tokenizer`, special tokens first."""
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
    """Every word of this data, as spaces divide it, is a token: for few words, and for scores of frames over them."""

    special: Mapping[str, str] = Table({"pad_token": "<pad>", "unk_token": "<unk>"})

    def check(self) -> None:
        super().check()
        if "unk_token" not in self.special:
            raise ValueError("Words.special: 'unk_token' is missing; it stands for unknown words")

    def core(self, texts: Iterable[str], tokens: list[str]) -> Any:
        import tokenizers
        from tokenizers import models, pre_tokenizers

        words = sorted({word for text in texts for word in text.split()} - {*tokens})
        places = {word: i for i, word in enumerate([*tokens, *words])}
        core = tokenizers.Tokenizer(models.WordLevel(places, unk_token=self.special["unk_token"]))
        core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        core.add_special_tokens([tokenizers.AddedToken(token, normalized=False, special=True) for token in tokens])
        return core


class Bytes(BuiltVocabulary, called=("ByT5",)):
    """Each byte of UTF-8 a token, so that there is nothing it cannot write [Xue et al. 2021, ByT5]."""

    def core(self, texts: Iterable[str], tokens: list[str]) -> Any:
        return _byte_pairs(tokens)


class TrainedBPE(BuiltVocabulary, called=("BPE", "byte pair encoding", "byte-level BPE")):
    """Byte pairs merged by how often they stand together in this data [Sennrich et al. 2016; Radford et al. 2019]."""

    size: int = 8192

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


class PieceVocabulary(BuiltVocabulary):
    """`size` pieces of words, or fewer where the data has fewer; what no piece can write is the unknown token."""

    size: int = 8192

    def check(self) -> None:
        super().check()
        if "unk_token" not in self.special:
            raise ValueError(f"{type(self).__name__}.special: 'unk_token' is missing; it stands for unknown words")
        at_least(self, len(self.special) + self.sentinels + 1, "size")


class TrainedWordPiece(PieceVocabulary, called=("WordPiece",)):
    """BERT's pieces: the longest that fits from the left, and "##" before those inside a word [Wu et al. 2016;
    Devlin et al. 2019]. With `lowercase` texts lose their capitals and accents (BERT uncased)."""

    special: Mapping[str, str] = Table(
        {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    )
    begin: str | None = "cls_token"
    end: str | None = "sep_token"
    lowercase: bool = True
    alphabet: int = 1000  # the most frequent letters; words with others are unknown

    def core(self, texts: Iterable[str], tokens: list[str]) -> Any:
        import tokenizers
        from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

        texts = list(texts) if isinstance(texts, Iterator) else texts  # they are read twice
        normalizer = normalizers.BertNormalizer(lowercase=self.lowercase)
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update("".join(normalizer.normalize_str(text).split()))
        letters = sorted(sorted(counts), key=lambda letter: -counts[letter])[: self.alphabet]
        # in this order, so that one data set has one vocabulary: the trainer breaks ties by the ids of the letters
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
    """Pieces with probabilities; a text is read as its most probable pieces, spaces included [Kudo 2018, SentencePiece;
    T5's kind]. The trainer gives slightly different pieces each time: a run keeps those that it began with."""

    special: Mapping[str, str] = Table({"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"})
    end: str | None = "eos_token"

    def core(self, texts: Iterable[str], tokens: list[str]) -> Any:
        import tokenizers
        from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

        core = tokenizers.Tokenizer(models.Unigram())
        core.normalizer, core.pre_tokenizer = normalizers.NFKC(), pre_tokenizers.Metaspace()
        core.decoder = decoders.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=self.size,
            special_tokens=tokens,
            unk_token=self.special["unk_token"],
            show_progress=False,
        )
        core.train_from_iterator(texts, trainer)
        return core


def _byte_pairs(tokens: list[str]) -> Any:
    """No merges: the special tokens, then the 256 bytes."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers

    letters = [*tokens, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    core = tokenizers.Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    core.add_special_tokens([tokenizers.AddedToken(token, normalized=False, special=True) for token in tokens])
    return core


def texts_of(source: Source, columns: tuple[str, ...]) -> Iterable[str]:
    """Every text in these columns, words of a list included; long ones in parts that have the same words."""
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
