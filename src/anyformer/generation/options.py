"""The options of `generate`, with Hugging Face's names and defaults. They are checked before the model runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from anyformer.specs.messages import quote

MAX_COUNT = 2**24  # largest number of tokens, beams or copies; a larger one is a typing error
MAX_NUMBER = 10**9  # largest value of other options, such as a penalty
INT64_LIMIT = 2**63


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Options of `generate`. Token ids that are None are read from the model's files."""

    # length
    max_new_tokens: int | None = None
    max_length: int | None = None  # prompt included
    min_new_tokens: int | None = None
    min_length: int = 0
    stop_strings: str | list[str] | None = None
    # method
    do_sample: bool = False
    num_beams: int = 1
    num_beam_groups: int = 1  # diverse beams [Vijayakumar et al. 2018]
    num_return_sequences: int = 1
    penalty_alpha: float | None = None  # contrastive search [Su et al. 2022]
    seed: int | Sequence[int] | None = None  # one for all prompts, or one per prompt
    # sampling
    temperature: float = 1.0
    top_k: int = 50
    top_p: float = 1.0  # nucleus sampling [Holtzman et al. 2020]
    min_p: float | None = None
    typical_p: float = 1.0  # typical sampling [Meister et al. 2022]
    epsilon_cutoff: float = 0.0
    eta_cutoff: float = 0.0
    # beams
    length_penalty: float = 1.0  # a score is divided by length ** length_penalty
    early_stopping: bool | str = False
    diversity_penalty: float = 0.0
    # changes of the scores
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0  # subtracted from the score of every token that was generated before
    frequency_penalty: float = 0.0  # subtracted once per earlier occurrence
    no_repeat_ngram_size: int = 0
    encoder_no_repeat_ngram_size: int = 0
    encoder_repetition_penalty: float = 1.0
    bad_words_ids: list[list[int]] | None = None
    sequence_bias: Any = None  # {tokens: bias}, or [[tokens, bias], ...]
    suppress_tokens: list[int] | None = None
    begin_suppress_tokens: list[int] | None = None
    forced_bos_token_id: int | None = None
    forced_eos_token_id: int | list[int] | None = None
    exponential_decay_length_penalty: tuple[int, float] | None = None
    prefix_allowed_tokens_fn: Callable[[int, Any], list[int]] | None = None  # constrained decoding
    renormalize_logits: bool = False
    remove_invalid_values: bool = False
    # Whisper's tokens before the text
    language: str | list[str] | None = None  # one for all recordings or one per recording; None: detect it
    task: str | None = None  # transcribe, or translate (into English)
    return_timestamps: bool = False
    lang_to_id: dict[str, int] | None = None
    task_to_id: dict[str, int] | None = None
    no_timestamps_token_id: int | None = None  # all larger ids are timestamps
    max_initial_timestamp_index: int | None = None
    is_multilingual: bool | None = None
    # (position, token) pairs: the old form of language and task
    forced_decoder_ids: list[list[int | None]] | None = None
    # special tokens
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    decoder_start_token_id: int | None = None
    # computation; these options do not change the text
    use_cache: bool = True
    prefill_chunk_size: int | None = None
    num_assistant_tokens: int = 20  # speculative decoding [Leviathan et al. 2023]
    prompt_lookup_num_tokens: int | None = None  # drafts from n-grams of the prompt
    max_matching_ngram_size: int = 2
    # results
    output_scores: bool | None = None  # with return_dict, scores are returned unless this is False
    output_logits: bool = False

    @property
    def eos(self) -> list[int]:
        return list(dict.fromkeys(as_list(self.eos_token_id)))

    @property
    def pad(self) -> int | None:
        return self.pad_token_id if self.pad_token_id is not None else self.eos[0] if self.eos else None

    @property
    def has_speech_prompt(self) -> bool:
        """Whether the text starts with tokens for the language, the task or timestamps (Whisper)."""
        options = (self.lang_to_id, self.task_to_id, self.forced_decoder_ids, self.no_timestamps_token_id)
        return any(each not in (None, [], {}) for each in options)

    @property
    def contrastive(self) -> bool:
        return bool(self.penalty_alpha)

    @property
    def biases(self) -> list[tuple[tuple[int, ...], float]]:
        pairs = self.sequence_bias.items() if isinstance(self.sequence_bias, dict) else self.sequence_bias or ()
        return [(tuple(tokens), float(bias)) for tokens, bias in pairs]

    def need(self, good: bool, name: str, what: str) -> None:
        if not good:
            raise ValueError(f"{name}={quote(getattr(self, name))}: {what}")

    def check(self, vocab_size: int) -> None:
        """Raise a ValueError that names the option if a value is invalid or options contradict each other."""
        self.check_kinds()
        for name in (
            "max_new_tokens",
            "max_length",
            "prompt_lookup_num_tokens",
            "prefill_chunk_size",
            "num_beams",
            "num_beam_groups",
            "num_return_sequences",
            "num_assistant_tokens",
            "max_matching_ngram_size",
        ):
            value = getattr(self, name)
            self.need(value is None or 1 <= value <= MAX_COUNT, name, f"must be a whole number from 1 to {MAX_COUNT}")
        for name in ("min_length", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "top_k", "min_new_tokens"):
            self.need((getattr(self, name) or 0) >= 0, name, "must be a whole number, at least 0")
        self.need(self.temperature > 0, "temperature", "must be above 0; for greedy decoding use do_sample=False")
        for name in ("top_p", "typical_p"):
            self.need(0 < getattr(self, name) <= 1, name, "must be above 0 and at most 1")
        for name in ("min_p", "penalty_alpha"):
            self.need(getattr(self, name) is None or 0 <= getattr(self, name) <= 1, name, "must be from 0 to 1")
        for name in ("epsilon_cutoff", "eta_cutoff"):
            self.need(0 <= getattr(self, name) < 1, name, "must be at least 0 (no effect) and below 1")
        for name in ("repetition_penalty", "encoder_repetition_penalty"):
            self.need(getattr(self, name) > 0, name, "must be above 0; 1 has no effect")
        self.need(self.early_stopping in (True, False, "never"), "early_stopping", "must be True, False or 'never'")
        self.need(abs(self.length_penalty) <= 32, "length_penalty", "must be from -32 to 32")
        self._check_together(vocab_size)
        self._check_tokens(vocab_size)

    def check_kinds(self) -> None:
        """Check that every field has its type and that numbers are not too large. Values may come from a file."""
        for field in dataclasses.fields(self):
            value, annotation = getattr(self, field.name), str(field.type)
            if value is None and "None" in annotation:
                continue
            if annotation in KINDS:
                fits, what = KINDS[annotation]
                self.need(fits(value), field.name, f"must be {what}")
        try:
            biases = self.biases
        except (TypeError, ValueError, OverflowError):
            biases = [((), 0.0)]
        good = all(tokens and list_of(is_integer)(tokens) and is_number(bias) for tokens, bias in biases)
        self.need(good, "sequence_bias", "must be {tokens: bias}, each with at least one token")

    def _check_together(self, vocab_size: int) -> None:
        need, N = self.need, self.num_beams
        if self.max_new_tokens is not None:
            limit = self.max_new_tokens
            need((self.min_new_tokens or 0) <= limit, "min_new_tokens", f"more than max_new_tokens={limit}")
        elif self.max_length is not None:
            need(self.min_length <= self.max_length, "min_length", f"more than max_length={self.max_length}")
        need(vocab_size >= N, "num_beams", f"more than the {vocab_size} tokens of the vocabulary")
        if N > 1 or not self.do_sample:
            why = f"more than num_beams={N}" + ("" if self.do_sample else " without do_sample")
            need(self.num_return_sequences <= N, "num_return_sequences", why)
        if self.contrastive:
            need(N == 1, "penalty_alpha", f"contrastive search needs num_beams=1, got num_beams={N}")
            need(not self.do_sample, "penalty_alpha", "contrastive search does not sample; use do_sample=False")
            need(self.top_k > 1, "top_k", "contrastive search needs at least 2 candidates")
        need(N % self.num_beam_groups == 0, "num_beam_groups", f"does not divide num_beams={N}")
        if self.num_beam_groups > 1:
            need(not self.do_sample, "num_beam_groups", "diverse beam search does not sample; use do_sample=False")
            need(self.diversity_penalty > 0, "diversity_penalty", "must be above 0 for diverse beam search")
        else:
            need(self.diversity_penalty == 0, "diversity_penalty", "needs num_beam_groups above 1")
        if self.prompt_lookup_num_tokens is not None:
            need(N == 1, "prompt_lookup_num_tokens", f"prompt lookup needs num_beams=1, got num_beams={N}")
            need(
                not self.contrastive,
                "prompt_lookup_num_tokens",
                "does not work with contrastive search (penalty_alpha)",
            )

    def _check_tokens(self, vocab_size: int) -> None:
        words, first = self.bad_words_ids or [], self.begin_suppress_tokens or []
        self.need(all(words), "bad_words_ids", "each list needs at least one token")
        tokens = {
            "suppress_tokens": self.suppress_tokens or [],
            "begin_suppress_tokens": first,
            "bad_words_ids": [t for word in words for t in word],
            "sequence_bias": [t for some, _ in self.biases for t in some],
            "lang_to_id": list((self.lang_to_id or {}).values()),
            "task_to_id": list((self.task_to_id or {}).values()),
            "no_timestamps_token_id": as_list(self.no_timestamps_token_id),
            "forced_decoder_ids": [t for _, t in self.forced_decoder_ids or () if t is not None],
            "forced_bos_token_id": as_list(self.forced_bos_token_id),
            "forced_eos_token_id": as_list(self.forced_eos_token_id),
        }
        for name, ids in tokens.items():
            self.need(
                all(0 <= token < vocab_size for token in ids), name, f"outside the vocabulary of {vocab_size} tokens"
            )
        decay = self.exponential_decay_length_penalty
        self.need(decay is None or decay[1] > 0, "exponential_decay_length_penalty", "the factor must be above 0")


def is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < INT64_LIMIT


def is_number(value: Any) -> bool:
    """Whether the value is a number of at most MAX_NUMBER; False for NaN."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= MAX_NUMBER


def list_of(kind: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, (list, tuple)) and all(map(kind, value))


def any_of(*kinds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: any(kind(value) for kind in kinds)


def is_text(value: Any) -> bool:
    return isinstance(value, str)


def _named_tokens(value: Any) -> bool:
    return isinstance(value, dict) and all(is_text(name) and is_integer(token) for name, token in value.items())


def _position_pairs(value: Any) -> bool:
    return list_of(list_of(any_of(is_integer, lambda token: token is None)))(value) and all(
        len(pair) == 2 for pair in value
    )


def _decay(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and is_integer(value[0]) and is_number(value[1])


# type of a field -> test of a value, and what the value must be
KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(("int", "int | None"), (is_integer, "a whole number")),
    **dict.fromkeys(
        ("int | list[int] | None", "int | Sequence[int] | None"),
        (any_of(is_integer, list_of(is_integer)), "a whole number or a list of them"),
    ),
    **dict.fromkeys(("float", "float | None"), (is_number, f"a finite number of at most {MAX_NUMBER:,}")),
    **dict.fromkeys(("bool", "bool | None"), (lambda value: isinstance(value, bool), "True or False")),
    "bool | str": (any_of(is_text, lambda value: isinstance(value, bool)), "True, False or a name"),
    "list[int] | None": (list_of(is_integer), "a list of tokens"),
    "list[list[int]] | None": (list_of(list_of(is_integer)), "a list of lists of tokens"),
    "list[list[int | None]] | None": (_position_pairs, "a list of (position, token) pairs"),
    "dict[str, int] | None": (_named_tokens, "a dict of names and their tokens"),
    "str | None": (is_text, "a name"),
    "str | list[str] | None": (any_of(is_text, list_of(is_text)), "a string or a list of strings"),
    "tuple[int, float] | None": (_decay, "(first token, factor above 0)"),
}


def as_list(value: Any) -> list[int]:
    return [] if value is None else list(value) if isinstance(value, (list, tuple)) else [value]


# options that have no effect without do_sample or num_beams: refused if the caller gives them
ONLY_SAMPLING = ("temperature", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff")
ONLY_BEAMS = ("length_penalty", "early_stopping")
