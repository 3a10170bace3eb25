"""Text to token ids and back, over the `tokenizers` library.

>>> from anyformer.inputs.tokenizer import Tokenizer
>>> tokenizer = Tokenizer.load("a/model/folder")  # doctest: +SKIP
>>> tokenizer.decode(tokenizer.encode("Hello"))  # doctest: +SKIP
'Hello'
"""

from __future__ import annotations

import codecs
import copy
import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tokenizers

from anyformer.inputs import languages, long, tokenizer_files
from anyformer.inputs.tokenizer_bounds import CheckedTokenizer
from anyformer.inputs.tokenizer_defaults import INPUT_NAMES, NAMES
from anyformer.inputs.truncation import count_truncated
from anyformer.inputs.words import BYTES
from anyformer.models.base import TransformerModule
from anyformer.parts.embedding.text import TextEmbedding
from anyformer.specs.messages import nearest, quote

if TYPE_CHECKING:
    from torch import Tensor

SIDES = ("left", "right")


class Tokenizer:
    """The tokenizer of a model folder.

    `special` names its special tokens ({"bos_token": "<s>", ...}); each also has an id: `tokenizer.bos_token_id`.
    `languages` maps language codes to token ids; `in_language` returns a copy for a different language.
    """

    bos_token_id: int | None
    eos_token_id: int | None
    unk_token_id: int | None
    sep_token_id: int | None
    pad_token_id: int | None
    cls_token_id: int | None
    mask_token_id: int | None

    def __init__(
        self,
        core: tokenizers.Tokenizer,
        *,
        special: dict[str, str] | None = None,
        config: dict[str, Any] | None = None,
        writer: tokenizers.Tokenizer | None = None,
        unknown_from: int | None = None,
        doubles_space: bool = False,
        folder: Path | None = None,
        languages: dict[str, int] | None = None,
        target: tokenizers.Tokenizer | None = None,
    ) -> None:
        self._doubles_space = doubles_space
        self.languages, self.target = languages or {}, target
        self._ends: Any = None  # post-processor for a different language; None: use the one of `core`
        self.core, self.writer, self._unknown_from = core, writer or core, unknown_from
        self._core = CheckedTokenizer(core)
        self._writer = self._core if writer is None else CheckedTokenizer(writer)
        self._target = None if target is None else CheckedTokenizer(target)
        self.config, self.folder = config or {}, folder
        self.special = {name: text for name, text in (special or {}).items() if core.token_to_id(text) is not None}
        for name in NAMES:
            setattr(self, f"{name}_id", core.token_to_id(self.special[name]) if name in self.special else None)
        self.padding_side = self._side("padding_side", "right")
        self.truncation_side = self._side("truncation_side", "right")
        self.input_names = self._input_names()
        longest = self.config.get("model_max_length")
        self.max_length = int(longest) if isinstance(longest, (int, float)) and 0 < longest < 2**31 else None
        added = self.writer.get_added_tokens_decoder()
        self.special_ids = frozenset(number for number, token in added.items() if token.special)
        self._tidy = bool(self.config.get("clean_up_tokenization_spaces", False)) and not isinstance(
            self.writer.model, tokenizers.models.BPE
        )

    def _side(self, name: str, default: str) -> str:
        side = self.config.get(name, default)
        if side not in SIDES:
            raise ValueError(f"{name} is {quote(side)}; {nearest(str(side), SIDES)}")
        return side

    def _input_names(self) -> tuple[str, ...]:
        """Return the names of the tensors of a text: model_input_names, as in transformers."""
        names = self.config.get("model_input_names", INPUT_NAMES)
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ValueError(f"model_input_names is {quote(names)}; it must be a list of names such as {INPUT_NAMES}")
        return ("input_ids", *(name for name in names if name in ("token_type_ids", "attention_mask")))

    @classmethod
    def load(cls, name: str | Path, *, offline: bool = False) -> Tokenizer:
        """Load a folder or hub id with tokenizer.json, vocab.json + merges.txt, vocab.txt or a SentencePiece model."""
        from anyformer.weights import hub

        folder = hub.resolve(name, offline=offline)
        words = tokenizer_files.read(folder)
        try:
            return cls(
                words.core,
                special=words.special,
                config=words.config,
                writer=words.writer,
                unknown_from=words.unknown_from,
                doubles_space=words.doubles_space,
                folder=folder,
                languages=words.languages,
                target=words.target,
            )
        except ValueError as error:
            raise ValueError(f"{folder / 'tokenizer_config.json'}: {error}") from None

    def __len__(self) -> int:
        """Number of ids, added tokens included."""
        return self.writer.get_vocab_size()

    @property
    def vocab(self) -> dict[str, int]:
        return self.writer.get_vocab()

    def token(self, number: int) -> str | None:
        return self.writer.id_to_token(number)

    def id(self, token: str) -> int | None:
        return self.writer.token_to_id(token)

    # -- languages

    def language_id(self, code: str) -> int:
        if not self.languages:
            raise ValueError(f"language {quote(code)}: this model has no tokens for languages")
        if code not in self.languages:
            raise ValueError(f"no language {quote(code)}; {nearest(str(code), self.languages)}")
        return self.languages[code]

    def in_language(self, code: str) -> Tokenizer:
        """Return this tokenizer for texts of a different language."""
        assert self.eos_token_id is not None
        other = copy.copy(self)
        other._ends = languages.language_processor(self.core, self.language_id(code), self.eos_token_id)
        return other

    # -- text to ids

    def encode(self, text: str, pair: str | None = None, *, add_special_tokens: bool = True) -> list[int]:
        if pair is None and isinstance(text, str) and len(text) > long.PIECE:
            return list(chain.from_iterable(self.pieces(text, add_special_tokens=add_special_tokens)))
        return self._ids(self._encode(text, pair, None, add_special_tokens))

    def pieces(self, text: str | long.LongText, *, add_special_tokens: bool = True) -> Iterator[list[int]]:
        """Yield the ids in parts, for texts of any length in constant memory."""
        before, after = self._special_ends if add_special_tokens else ([], [])
        yield before
        for piece in self.parts(text):
            yield self._replace_unknown(piece.ids)
        yield after

    def parts(self, text: str | long.LongText) -> Iterator[long.TokenRange]:
        """Yield the tokens of a text of any length, without special tokens."""
        parts = long.split_text(self._text(text) if isinstance(text, str) else text)
        first = next(parts, "")  # a leading space may have to be doubled
        first = self._text(first) if not isinstance(text, str) else first
        return long.pieces(lambda part: self._bare.encode(part, add_special_tokens=False), chain([first], parts))

    @property
    def filler(self) -> int:
        """Id of the padding token, or the end token, or 0."""
        return next((i for i in (self.pad_token_id, self.eos_token_id) if i is not None), 0)

    @property
    def _special_ends(self) -> tuple[list[int], list[int]]:
        """Return the special tokens before and after a text."""
        one = next((encoding for text in "aA.1" if (encoding := self.plain(text)).ids), self.plain(""))
        one.truncate(1)
        ids = self._post_process(one, None, True).ids
        start = ids.index(one.ids[0]) if one.ids else len(ids)
        return ids[:start], ids[start + 1 :]

    def encode_target(self, text: str) -> list[int]:
        """Return the ids of a target text, which may have a different vocabulary (Marian)."""
        return self.encode(text) if self._target is None else self._ids(self._target.encode(self._text(text)))

    def _text(self, text: Any) -> Any:
        """Return the text as valid UTF-8: a lone surrogate, as from a JSON escape, becomes U+FFFD."""
        if text is None:
            return None
        if not isinstance(text, str):
            raise ValueError(f"text must be a string, got {type(text).__name__}")
        if not text.isascii() and _SURROGATE.search(text):
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return " " + text if self._doubles_space and text.startswith((" ", "▁")) else text

    def _ids(self, encoding: tokenizers.Encoding) -> list[int]:
        return self._replace_unknown(encoding.ids)

    def _replace_unknown(self, ids: list[int]) -> list[int]:
        if self._unknown_from is None:
            return ids
        unknown = self.unk_token_id
        assert unknown is not None
        return [number if number < self._unknown_from else unknown for number in ids]

    def batch(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        *,
        padding_side: str | None = None,
        max_length: int | None = None,
        add_special_tokens: bool = True,
        padding: bool = True,
        at_least: int = 0,
        multiple: int = 1,
        names: Sequence[str] | None = None,
    ) -> dict[str, Tensor]:
        """Return the tensors `names` (B, T), by default `input_names`. T is the length of the longest text, at least
        `at_least`, rounded up to a multiple of `multiple`.

        Texts with more than `max_length` tokens are cut, the longer text of a pair first; special tokens are kept. If
        `padding` is False, all texts must have the same number of tokens.
        """
        import torch

        if isinstance(texts, str) or isinstance(pairs, str):
            raise ValueError("batch takes a list of texts; use encode(text) for one")
        if pairs is not None and len(pairs) != len(texts):
            raise ValueError(f"{len(texts)} texts, but {len(pairs)} pairs")
        side = self.padding_side if padding_side is None else padding_side
        if side not in SIDES:
            raise ValueError(f"padding_side={quote(side)}; {nearest(str(side), SIDES)}")
        seconds: Sequence[str | None] = pairs if pairs is not None else [None] * len(texts)
        rows = [self._encode(t, p, max_length, add_special_tokens) for t, p in zip(texts, seconds)]
        T = max((len(row.ids) for row in rows), default=0)
        if not padding and any(len(row.ids) < T for row in rows):
            raise ValueError("the texts have different lengths; set padding=True")
        T = -(-max(T, at_least) // multiple) * multiple
        pad = self.filler

        def pad_rows(values: Iterable[list[int]], fill: int) -> Tensor:
            left = side == "left"
            full = [[fill] * (T - len(v)) * left + v + [fill] * (T - len(v)) * (not left) for v in values]
            return torch.tensor(full, dtype=torch.long).reshape(len(rows), T)

        columns = {
            "input_ids": lambda: pad_rows((self._ids(row) for row in rows), pad),
            "token_type_ids": lambda: pad_rows((row.type_ids for row in rows), 0),
            "attention_mask": lambda: pad_rows(([1] * len(row.ids) for row in rows), 0),
        }
        return {
            name: make() for name, make in columns.items() if name in (self.input_names if names is None else names)
        }

    def plain(self, text: str) -> tokenizers.Encoding:
        """Return the tokens of a text before `core.post_process`, so that they can be truncated."""
        return self._bare.encode(self._text(text), add_special_tokens=False)

    @functools.cached_property
    def _bare(self) -> CheckedTokenizer:
        """`core`, or a copy that does not trim offsets: trimming a space twice would remove a letter."""
        after = self.core.post_processor
        if after is None or b'"trim_offsets":true' not in after.__getstate__():
            return self._core
        bare = tokenizers.Tokenizer.from_str(self.core.to_str())
        bare.post_processor = None
        return CheckedTokenizer(bare)

    def _encode(self, text: str, pair: str | None, max_length: int | None, special: bool) -> tokenizers.Encoding:
        if max_length is None and self._ends is None:
            return self._core.encode(self._text(text), self._text(pair), add_special_tokens=special)
        first, second = self.plain(text), None if pair is None else self.plain(pair)
        a, b = len(first.ids), len(second.ids) if second is not None else 0
        ends = (self._ends or self.core).num_special_tokens_to_add(pair is not None) if special else 0
        room = a + b if max_length is None else max_length - ends
        if room < 0:
            raise ValueError(f"max_length={max_length} has no room for the special tokens")
        if a + b > room:  # shorten the longer one until both are equal, then both
            count_truncated(a + b - room)
            small = min(a, b)
            large = max(small, room - small)
            first_longer = a > b
            if small + large > room:
                small, large = room // 2, room - room // 2
                first_longer = first_longer or self.config.get("longer_text") == "first"
            a, b = (large, small) if first_longer else (small, large)
            if second is None:
                a = room
            for part, size in ((first, a), (second, b)):
                if part is not None:
                    part.truncate(size, direction=self.truncation_side)
        return self._post_process(first, second, special)

    def _post_process(
        self, first: tokenizers.Encoding, second: tokenizers.Encoding | None, special: bool
    ) -> tokenizers.Encoding:
        """Add special tokens at the ends."""
        if self._ends is not None:
            return self._ends.process(first, second, special)
        return self.core.post_process(first, second, add_special_tokens=special)

    # -- ids to text

    def decode(self, ids: Any, *, skip_special_tokens: bool = False) -> str:
        """Return the text of ids. Incomplete characters become U+FFFD."""
        text = self._writer.decode(_ints(ids), skip_special_tokens=skip_special_tokens)
        return clean_up_spaces(text) if self._tidy else text

    def batch_decode(self, rows: Iterable[Any], *, skip_special_tokens: bool = False) -> list[str]:
        return [self.decode(row, skip_special_tokens=skip_special_tokens) for row in rows]

    def stream(self, stop: str | Sequence[str] | None = None, *, skip_special_tokens: bool = True) -> StreamDecoder:
        return StreamDecoder(self, stop, skip_special_tokens=skip_special_tokens)

    # -- conversations

    def chat(self, messages: Sequence[dict[str, Any]], **options: Any) -> list[int]:
        """Return the token ids of a conversation, with the folder's chat template; see `inputs.chat.encode`."""
        from anyformer.inputs import chat

        return chat.encode(self, messages, **options)


_SURROGATE = re.compile("[\ud800-\udfff]")


def as_lists(ids: Any) -> Any:
    """Return a tensor or array as nested lists, and other values unchanged."""
    return ids.tolist() if hasattr(ids, "tolist") else ids


def _ints(ids: Any) -> list[int]:
    ids = as_lists(ids)
    return [ids] if isinstance(ids, int) else list(ids)


def check_vocabulary_size(model: TransformerModule, tokenizer: Tokenizer | None) -> None:
    """Raise ValueError if the tokenizer has more tokens than the model's embedding."""
    embedding = model.spec.embedding
    if tokenizer is None or not isinstance(embedding, TextEmbedding):
        return
    if len(tokenizer) > (size := embedding.tokens.vocab_size):
        sizes = f"the vocabulary has {len(tokenizer):,} tokens, the model {size:,}"
        raise ValueError(f"{sizes}: they do not belong together")


# -- spaces before punctuation in decoded texts, for vocabularies of words -------------------------------------------

_TIDY = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")


def clean_up_spaces(text: str) -> str:
    for old in _TIDY:
        text = text.replace(old, old.strip())
    return text


def stable_length(text: str) -> int:
    """Return the number of characters that `clean_up_spaces` can no longer change, whatever text follows: up to the
    last space after a word that it does not change."""
    space = text.rfind(" ")
    while space > 0 and (text[space - 1] in " '" or text[:space].endswith(" n") or text[:space] == "n"):
        space = text.rfind(" ", 0, space)
    return max(space, 0)


# -- token by token ----------------------------------------------------------------------------------------------------


class StreamDecoder:
    """Decodes tokens one by one. It never returns part of a character or of a stop string.

    All returned texts together, `flush()` included, equal `decode` of all tokens, cut before the first stop string and
    without an incomplete last character. After a stop string, `stopped` is that string and `push` returns "".
    """

    def __init__(
        self, tokenizer: Tokenizer, stop: str | Sequence[str] | None = None, *, skip_special_tokens: bool = True
    ) -> None:
        self.stop = [stop] if isinstance(stop, str) else list(stop or [])
        if not all(isinstance(text, str) and text for text in self.stop):
            raise ValueError("each stop string must be a non-empty string")
        self.stopped: str | None = None
        self._tokenizer, self._skip = tokenizer, tokenizer.special_ids if skip_special_tokens else frozenset()
        self._before: list[int] = []  # the last tokens whose text was returned, as context of the new ones
        self._new: list[int] = []
        self._untidy = ""  # text that tidying may still change
        self._held = ""  # text that may be the beginning of a stop string
        kinds = _decoders(tokenizer.writer)
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace") if "ByteLevel" in kinds else None
        self._fallback = "ByteFallback" in kinds

    def push(self, token: int) -> str:
        """Add a token and return the new text that can no longer change, of any number of tokens."""
        token = int(token)
        text = self._tokenizer.token(token)
        if self.stopped is not None or text is None:
            return ""
        if token in self._skip:
            if text in self.stop:  # a special token that is a stop string; it has no text
                rest = self._rest(self._settle(len(self._new)))
                self.stopped = self.stopped or text
                return rest
            return ""
        self._new.append(token)
        if self._utf8 is not None:
            self._utf8.decode(_bytes(text))
            unfinished = bool(self._utf8.getstate()[0])
        else:  # a run of single bytes can be decoded only at its end
            unfinished = self._fallback and _BYTE.fullmatch(text) is not None
        return "" if unfinished else self._pass(self._settle(len(self._new)))

    def flush(self) -> str:
        """Return the remaining text, after the last token."""
        if self.stopped is not None:
            return ""
        if self._utf8 is not None and self._utf8.getstate()[0]:
            return self._rest(self._settle(len(self._new)).removesuffix("\ufffd"))
        whole = len(self._new)
        if self._fallback and whole:
            run = bytes(int((self._tokenizer.token(token) or "")[3:5], 16) for token in self._run())
            reader = codecs.getincrementaldecoder("utf-8")("replace")
            reader.decode(run)
            whole -= len(reader.getstate()[0])
        return self._rest(self._settle(whole))

    def _run(self) -> list[int]:
        """Return the single-byte tokens at the end of the new tokens."""
        start = len(self._new)
        while start and _BYTE.fullmatch(self._tokenizer.token(self._new[start - 1]) or ""):
            start -= 1
        return self._new[start:]

    def _settle(self, count: int) -> str:
        """Return the text of the first `count` new tokens, which are then no longer new."""
        if not count:
            return ""
        decode = self._tokenizer._writer.decode
        before = decode(self._before, skip_special_tokens=False)
        text = decode([*self._before, *self._new[:count]], skip_special_tokens=False)[len(before) :]
        self._before, self._new = self._new[:count], []
        return text

    def _rest(self, text: str) -> str:
        out = self._pass(text, last=True)
        out, self._held = out + self._held, ""
        return out

    def _pass(self, text: str, last: bool = False) -> str:
        if self._tokenizer._tidy:
            text = self._untidy + text
            end = len(text) if last else stable_length(text)
            text, self._untidy = clean_up_spaces(text[:end]), text[end:]
        if not self.stop:
            return text
        text = self._held + text
        stops = [(text.index(stop), stop) for stop in self.stop if stop in text]
        if stops:
            start, self.stopped = min(stops)
            self._held = ""
            return text[:start]
        keep = max(_overlap(text, stop) for stop in self.stop)
        text, self._held = text[: len(text) - keep], text[len(text) - keep :]
        return text


_BYTE = re.compile("<0x[0-9A-F]{2}>")


def _overlap(text: str, stop: str) -> int:
    """Return the number of characters at the end of `text` that begin `stop`."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)


def _decoders(core: tokenizers.Tokenizer) -> set[str]:
    """Return the names of the decoder's steps."""
    import json

    if core.decoder is None:
        return set()
    step = json.loads(core.decoder.__getstate__())
    return {str(part.get("type")) for part in (step, *step.get("decoders", ()))}


def _bytes(token: str) -> bytes:
    """Return the bytes of a byte-level token. An added token is its own text."""
    try:
        return bytes(BYTES[letter] for letter in token)
    except KeyError:
        return token.encode()
