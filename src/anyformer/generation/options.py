"""How to write: every option of generation, with Hugging Face's names and defaults, checked before anything runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from anyformer.specs.messages import quote

MOST = 2**24  # tokens, beams, copies: more than this is a slip of the keyboard
LARGEST = 10**9  # of any other number: a penalty, a cutoff
WHOLE = 2**63  # below it a whole number fits torch's


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Options of `generate`. Token ids that are None are taken from the model's own files."""

    # how long
    max_new_tokens: int | None = None
    max_length: int | None = None  # of prompt and text together
    min_new_tokens: int | None = None
    min_length: int = 0
    stop_strings: str | list[str] | None = None
    # how a token is chosen
    do_sample: bool = False
    num_beams: int = 1
    num_beam_groups: int = 1  # diverse beams [Vijayakumar et al. 2018]
    num_return_sequences: int = 1
    penalty_alpha: float | None = None  # contrastive search [Su et al. 2022]
    seed: int | Sequence[int] | None = None  # one for all prompts, or one each
    # sampling
    temperature: float = 1.0
    top_k: int = 50
    top_p: float = 1.0  # nucleus sampling [Holtzman et al. 2020]
    min_p: float | None = None
    typical_p: float = 1.0  # typical sampling [Meister et al. 2022]
    epsilon_cutoff: float = 0.0
    eta_cutoff: float = 0.0
    # beams
    length_penalty: float = 1.0  # power of the length that a score is divided by
    early_stopping: bool | str = False
    diversity_penalty: float = 0.0
    # what may be written
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0  # off every score of a token already written
    frequency_penalty: float = 0.0  # off it once for each time it was written
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
    language: str | list[str] | None = None  # one for all, or one each; detected if not given
    task: str | None = None  # transcribe, or translate into English
    return_timestamps: bool = False
    lang_to_id: dict[str, int] | None = None
    task_to_id: dict[str, int] | None = None
    no_timestamps_token_id: int | None = None  # the tokens behind it are times
    max_initial_timestamp_index: int | None = None
    is_multilingual: bool | None = None
    forced_decoder_ids: list[list[int | None]] | None = None  # (place, token): the old form of the same
    # special tokens
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    decoder_start_token_id: int | None = None
    # how it is computed: none of these changes the text
    use_cache: bool = True
    prefill_chunk_size: int | None = None
    num_assistant_tokens: int = 20  # speculative decoding [Leviathan et al. 2023]
    prompt_lookup_num_tokens: int | None = None  # drafted by the prompt itself
    max_matching_ngram_size: int = 2
    # what is returned
    output_scores: bool | None = None  # return_dict tells them unless this is False
    output_logits: bool = False

    @property
    def eos(self) -> list[int]:
        return list(dict.fromkeys(as_list(self.eos_token_id)))

    @property
    def pad(self) -> int | None:
        return self.pad_token_id if self.pad_token_id is not None else self.eos[0] if self.eos else None

    @property
    def has_speech_prompt(self) -> bool:
        """Whether tokens before the text say what to do: a language, a task, times or none."""
        told = (self.lang_to_id, self.task_to_id, self.forced_decoder_ids, self.no_timestamps_token_id)
        return any(each not in (None, [], {}) for each in told)

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
        """One line naming the parameter, for anything that makes no sense."""
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
            self.need(value is None or 1 <= value <= MOST, name, f"a whole number from 1 to {MOST}")
        for name in ("min_length", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "top_k", "min_new_tokens"):
            self.need((getattr(self, name) or 0) >= 0, name, "a whole number from 0 up")
        self.need(self.temperature > 0, "temperature", "above 0; greedy decoding is do_sample=False")
        for name in ("top_p", "typical_p"):
            self.need(0 < getattr(self, name) <= 1, name, "a share above 0 and up to 1")
        for name in ("min_p", "penalty_alpha"):
            self.need(getattr(self, name) is None or 0 <= getattr(self, name) <= 1, name, "a share from 0 to 1")
        for name in ("epsilon_cutoff", "eta_cutoff"):
            self.need(0 <= getattr(self, name) < 1, name, "a share from 0 to 1; 0 does nothing")
        for name in ("repetition_penalty", "encoder_repetition_penalty"):
            self.need(getattr(self, name) > 0, name, "above 0; 1 does nothing")
        self.need(self.early_stopping in (True, False, "never"), "early_stopping", "True, False or 'never'")
        self.need(abs(self.length_penalty) <= 32, "length_penalty", "a power of the length, from -32 to 32")
        self._check_together(vocab_size)
        self._check_tokens(vocab_size)

    def check_kinds(self) -> None:
        """Every field of its type, and no number beyond what arithmetic takes: they may come from a file."""
        for field in dataclasses.fields(self):
            value, kind = getattr(self, field.name), str(field.type)
            if value is None and "None" in kind:
                continue
            if kind in KINDS:
                fits, what = KINDS[kind]
                self.need(fits(value), field.name, what)
        try:
            biases = self.biases
        except (TypeError, ValueError, OverflowError):
            biases = [((), 0.0)]
        good = all(tokens and list_of(is_integer)(tokens) and is_number(bias) for tokens, bias in biases)
        self.need(good, "sequence_bias", "{tokens: bias}, each of at least one token")

    def _check_together(self, vocab_size: int) -> None:
        need, N = self.need, self.num_beams
        if self.max_new_tokens is not None:
            limit = self.max_new_tokens
            need((self.min_new_tokens or 0) <= limit, "min_new_tokens", f"more than max_new_tokens={limit}")
        elif self.max_length is not None:
            need(self.min_length <= self.max_length, "min_length", f"more than max_length={self.max_length}")
        need(vocab_size >= N, "num_beams", f"more beams than the vocabulary has tokens ({vocab_size})")
        if N > 1 or not self.do_sample:
            why = f"more than num_beams={N}" + ("" if self.do_sample else " without do_sample")
            need(self.num_return_sequences <= N, "num_return_sequences", why)
        if self.contrastive:
            need(N == 1, "penalty_alpha", f"contrastive search has no beams, and num_beams={N}")
            need(not self.do_sample, "penalty_alpha", "contrastive search does not sample, and do_sample=True")
            need(self.top_k > 1, "top_k", "contrastive search compares at least 2 candidates")
        need(N % self.num_beam_groups == 0, "num_beam_groups", f"does not divide num_beams={N}")
        if self.num_beam_groups > 1:
            need(not self.do_sample, "num_beam_groups", "diverse beams do not sample, and do_sample=True")
            need(self.diversity_penalty > 0, "diversity_penalty", "groups of beams differ by a penalty above 0")
        else:
            need(self.diversity_penalty == 0, "diversity_penalty", "needs num_beam_groups above 1")
        if self.prompt_lookup_num_tokens is not None:
            need(N == 1, "prompt_lookup_num_tokens", f"drafts no beams, and num_beams={N}")
            need(
                not self.contrastive, "prompt_lookup_num_tokens", "cannot draft for contrastive search (penalty_alpha)"
            )

    def _check_tokens(self, vocab_size: int) -> None:
        words, first = self.bad_words_ids or [], self.begin_suppress_tokens or []
        self.need(all(words), "bad_words_ids", "lists of at least one token each")
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
            self.need(all(0 <= token < vocab_size for token in ids), name, f"outside the vocabulary of {vocab_size}")
        decay = self.exponential_decay_length_penalty
        self.need(decay is None or decay[1] > 0, "exponential_decay_length_penalty", "(first token, factor above 0)")


def is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < WHOLE


def is_number(value: Any) -> bool:
    """NaN is none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= LARGEST


def list_of(kind: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, (list, tuple)) and all(map(kind, value))


def any_of(*kinds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: any(kind(value) for kind in kinds)


def is_text(value: Any) -> bool:
    return isinstance(value, str)


def _numbers(value: Any) -> bool:
    return isinstance(value, dict) and all(is_text(name) and is_integer(token) for name, token in value.items())


def _places(value: Any) -> bool:
    return list_of(list_of(any_of(is_integer, lambda token: token is None)))(value) and all(
        len(pair) == 2 for pair in value
    )


def _decay(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and is_integer(value[0]) and is_number(value[1])


# the type of a field -> what makes a value one, and how that is said
KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(("int", "int | None"), (is_integer, "a whole number")),
    **dict.fromkeys(
        ("int | list[int] | None", "int | Sequence[int] | None"),
        (any_of(is_integer, list_of(is_integer)), "a whole number, or several"),
    ),
    **dict.fromkeys(("float", "float | None"), (is_number, f"a finite number of at most {LARGEST:,}")),
    **dict.fromkeys(("bool", "bool | None"), (lambda value: isinstance(value, bool), "True or False")),
    "bool | str": (any_of(is_text, lambda value: isinstance(value, bool)), "True, False or a name"),
    "list[int] | None": (list_of(is_integer), "a list of tokens"),
    "list[list[int]] | None": (list_of(list_of(is_integer)), "a list of lists of tokens"),
    "list[list[int | None]] | None": (_places, "a list of places and tokens"),
    "dict[str, int] | None": (_numbers, "names and their tokens"),
    "str | None": (is_text, "a name"),
    "str | list[str] | None": (any_of(is_text, list_of(is_text)), "a text, or several"),
    "tuple[int, float] | None": (_decay, "(first token, factor above 0)"),
}


def as_list(value: Any) -> list[int]:
    return [] if value is None else list(value) if isinstance(value, (list, tuple)) else [value]


# options that do nothing unless another is on: refused where a caller gives them all the same
ONLY_SAMPLING = ("temperature", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff")
ONLY_BEAMS = ("length_penalty", "early_stopping")
