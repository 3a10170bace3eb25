"""Streaming of generated text: from the tokens of a prompt to pieces of text that can be shown."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from anyformer.generation import decode, sample
from anyformer.generation.defaults import settings_for
from anyformer.generation.search_state import Search
from anyformer.generation.setup import begin
from anyformer.models import TransformerModule, position_limit
from anyformer.parts.base import HasTokens

if TYPE_CHECKING:
    from anyformer.inputs.tokenizer import Tokenizer

LENGTH = 128  # default max_new_tokens, if neither the caller nor the model's files set a length


def length_for(model: TransformerModule, read: int, options: Mapping[str, Any]) -> dict[str, int]:
    """Return the default max_new_tokens after a prompt of `read` tokens; {} if a length is set."""
    stored = settings_for(model, options)
    if stored.max_new_tokens is not None or stored.max_length is not None:
        return {}
    limit, read = position_limit(model.spec), 1 if model.spec.pair else read
    return {"max_new_tokens": LENGTH if limit is None else max(min(LENGTH, limit + 1 - read), 1)}


def check_ids(model: TransformerModule, ids: Iterable[int]) -> None:
    """Raise ValueError if a prompt is empty or has ids outside the model's vocabulary."""
    largest = max(ids, default=None)
    if largest is None:
        raise ValueError("the prompt is empty: it has no tokens")
    embedding = model.spec.embedding
    most = embedding.tokens.vocab_size if isinstance(embedding, HasTokens) else None
    if most is not None and largest >= most:
        raise ValueError(
            f"the tokenizer gives token id {largest}, the model has {most} tokens: they do not belong together"
        )


def new_tokens(
    model: TransformerModule, sequences: torch.Tensor, prompt_length: int, ends: Collection[int]
) -> list[list[int]]:
    """Return the tokens that `generate` added to each row of `sequences` (B, T), up to but without the first end token.

    `prompt_length` is the number of tokens of `input_ids`. The sequences of an encoder-decoder have the decoder's start
    token in front instead, which may itself be an end token (BART, M2M-100).
    """
    rows = sequences[:, 1 if model.spec.pair else prompt_length :].tolist()
    return [list(itertools.takewhile(lambda token: token not in ends, row)) for row in rows]


class TextStream:
    """A generated text. Iterate over it to get pieces of the text as soon as each is final.

    A piece never contains half a character or a stop string. `text` and `tokens` are what was generated so far;
    `log_probs` and `finish_reason` are set at the end."""

    def __init__(
        self,
        model: TransformerModule,
        tokenizer: Tokenizer,
        ids: Sequence[int],
        options: Mapping[str, Any],
        stop: Sequence[str] | None = None,
        compiled: bool | None = None,
    ) -> None:
        check_ids(model, ids)
        self.model, self.tokenizer, self.ids, self.compiled = model, tokenizer, list(ids), compiled
        self.options = {**options, **length_for(model, len(ids), options), "output_scores": False, "stop_strings": stop}
        self.ends = set(settings_for(model, options).eos)
        self.decoder = tokenizer.stream(stop)
        self.text = ""
        self.tokens: list[int] = []
        self.log_probs: list[float] = []
        self.finish_reason: str | None = None

    @torch.no_grad()
    def __iter__(self) -> Iterator[str]:
        arrived: list[int] = []
        beams = settings_for(self.model, self.options).num_beams > 1
        job = begin(
            self.model,
            {"input_ids": torch.tensor([self.ids], device=self.model.device)},
            self.options,
            detailed=True,
            stream=None if beams else lambda new: arrived.append(int(new[0])),
            tokenizer=self.tokenizer,
            compiled=self.compiled,
        )
        steps = stepwise(job)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                fields = end.value
                break
            yield from self._new(arrived)
        job.stepper.check_finite(fields["sequences"])
        if beams:
            arrived = fields["sequences"][0, -fields["log_probs"].shape[1] :].tolist()
        yield from self._new(arrived)
        yield from self._emit(self.decoder.flush())
        self.log_probs = fields["log_probs"][0, : len(self.tokens)].tolist()
        self.finish_reason = "stop" if self.decoder.stopped is not None else fields["finish_reasons"][0]

    def _new(self, arrived: list[int]) -> Iterator[str]:
        """Yield the text of new tokens, up to an end token or a stop string."""
        for token in arrived[len(self.tokens) :]:
            if self.decoder.stopped is not None or (self.tokens and self.tokens[-1] in self.ends):
                return
            self.tokens.append(token)
            if token not in self.ends:
                yield from self._emit(self.decoder.push(token))

    def _emit(self, piece: str) -> Iterator[str]:
        self.text += piece
        if piece:
            yield piece


def stepwise(job: Search) -> Generator[None, None, dict[str, Any]]:
    """Generate the whole text; yields before each step if the method generates one token per step."""
    s = job.settings
    if s.num_beams > 1 or s.contrastive or job.draft is not None or s.prompt_lookup_num_tokens:
        return decode(job)
    loop = sample.decode(job)
    try:
        move = next(loop)
        while True:
            yield
            move = loop.send(job.stepper.step(move.tokens))
    except StopIteration as end:
        return end.value
