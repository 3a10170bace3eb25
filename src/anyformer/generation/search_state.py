"""The state of one call of `generate`, shared by all decoding methods."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator
from typing import Any

import torch
from torch import Tensor

from anyformer.generation.options import Settings
from anyformer.generation.random_state import SeededRows
from anyformer.generation.scores import Step
from anyformer.generation.stepper import Stepper
from anyformer.specs.messages import quote


class Ending:
    """Stopping criteria: returns which texts (N, T) have ended by an end token, a stop string or their length."""

    def __init__(self, s: Settings, max_length: int, prompt_length: int, tokenizer: Any, device: Any) -> None:
        self.eos = torch.tensor(s.eos, dtype=torch.long, device=device)
        self.stops = [s.stop_strings] if isinstance(s.stop_strings, str) else list(s.stop_strings or [])
        if not all(isinstance(stop, str) and stop for stop in self.stops):
            raise ValueError(f"stop_strings={quote(s.stop_strings)}: must be strings of at least one character")
        if self.stops and tokenizer is None:
            raise ValueError("stop_strings need a tokenizer: pass tokenizer=")
        self.max_length, self.prompt_length, self.tokenizer = max_length, prompt_length, tokenizer

    def is_stopped(self, ids: Tensor) -> Tensor:
        done = torch.isin(ids[:, -1], self.eos)
        if self.stops:
            texts = [self.end(row[self.prompt_length :].tolist()) for row in ids]
            done = done | torch.tensor([any(stop in text for stop in self.stops) for text in texts], device=ids.device)
        return done

    def end(self, tokens: list[int]) -> str:
        """Decode the end of a text, long enough for any stop string that its last token completes. Decoding the whole
        text after every token would take quadratic time."""
        longest = max(map(len, self.stops))
        count = 2 * longest + 8
        while True:
            text = self.tokenizer.decode(tokens[-count:])
            if len(text) > 2 * longest or count >= len(tokens):
                return text
            count *= 2  # some tokens have no text

    def __call__(self, ids: Tensor) -> Tensor:
        if ids.shape[1] >= self.max_length:
            return torch.ones(ids.shape[0], dtype=torch.bool, device=ids.device)
        return self.is_stopped(ids)


@dataclasses.dataclass
class Search:
    """One call of `generate`. Each prompt has one row per beam or copy. `ids` are padded on the left with the id V
    (vocabulary size), which penalties do not count."""

    settings: Settings
    stepper: Stepper
    prompt: Tensor  # (B, P) as given
    ids: Tensor  # (rows, P)
    scores: Tensor  # (rows, V) of the first new token
    places: Tensor  # (rows,) number of real tokens in the prompt
    steps: list[Step]
    ended: Ending
    rng: SeededRows
    detailed: bool = False  # also return scores, log-probabilities and finish reasons
    stream: Callable[[Tensor], None] | None = None
    source_ids: Tensor | None = None  # (rows, S) the encoder's ids
    shared: bool = False  # the stepper also has rows of other calls (ContinuousBatch)
    draft: Stepper | None = None  # the assistant model, after the prompt

    @property
    def prompt_length(self) -> int:
        return self.ids.shape[1]

    @property
    def plain(self) -> bool:
        """Whether this is greedy decoding without score processing or stop strings, and only tokens are returned."""
        return not (self.detailed or self.steps or self.ended.stops or self.settings.do_sample)

    @property
    def max_length(self) -> int:
        return self.ended.max_length

    def process(self, ids: Tensor, scores: Tensor) -> Tensor:
        for step in self.steps:
            scores = step(ids, scores)
        return scores

    def choose(self, processed: Tensor, written: int) -> Tensor:
        """Choose the next token (rows,) from processed scores (rows, V), after `written` new tokens."""
        s = self.settings
        if not s.do_sample:
            return processed.argmax(-1)
        return self.rng.one(processed, self.places + written, s.top_k)

    def with_prompt(self, ids: Tensor) -> Tensor:
        """Return ids (N, P + n) with the prompt as the caller passed it."""
        prompt = self.prompt.repeat_interleave(ids.shape[0] // max(self.prompt.shape[0], 1), 0)
        return torch.cat((prompt, ids[:, self.prompt_length :]), dim=1)


@dataclasses.dataclass(frozen=True)
class Move:
    """A request to the stepper: replace row i by row rows[i], then read one token per row."""

    tokens: Tensor  # (rows,)
    rows: Tensor | None = None


DecodingLoop = Generator[Move, Tensor, dict[str, Any]]  # yields moves, receives scores (rows, V), returns the results


def run_loop(loop: DecodingLoop, stepper: Stepper) -> dict[str, Any]:
    """Run a decoding loop until its texts have ended, and return its results."""
    try:
        move = next(loop)
        while True:
            if move.rows is not None:
                stepper.reorder(move.rows, same_memory=True)
            move = loop.send(stepper.step(move.tokens))
    except StopIteration as end:
        return end.value


class Details:
    """Collects scores, log-probabilities and finish reasons, one token at a time. Not for beam search."""

    def __init__(self, job: Search) -> None:
        self.job = job
        rows, device = job.ids.shape[0], job.ids.device
        self.going = torch.ones(rows, dtype=torch.bool, device=device)
        self.by_stop = torch.zeros(rows, dtype=torch.bool, device=device)
        self.scores: list[Tensor] = []
        self.logits: list[Tensor] = []
        self.log_probs: list[Tensor] = []

    def add(self, ids: Tensor, raw: Tensor, processed: Tensor, tokens: Tensor) -> Tensor:
        """Append one token (rows,) to `ids` and return them; `raw` and `processed` are the scores it was chosen by."""
        job, s = self.job, self.job.settings
        if s.eos or job.ended.stops:
            fill = s.pad if s.pad is not None and 0 <= s.pad < raw.shape[1] else 0
            tokens = torch.where(self.going, tokens, fill)
        if job.detailed:
            if s.output_scores is not False:
                self.scores.append(processed)
            if s.output_logits:
                self.logits.append(raw)
            log_probs = raw.log_softmax(-1).gather(1, tokens[:, None])[:, 0]
            self.log_probs.append(torch.where(self.going, log_probs, 0.0))
        ids = torch.cat((ids, tokens[:, None]), dim=1)
        if job.stream is not None:
            job.stream(tokens)
        if job.detailed and (s.eos or job.ended.stops):
            self.by_stop = self.by_stop | (self.going & job.ended.is_stopped(ids))
        self.going = self.going & ~job.ended(ids)
        return ids

    def fields(self, ids: Tensor) -> dict[str, Any]:
        out: dict[str, Any] = {"sequences": self.job.with_prompt(ids)}
        if self.job.detailed:
            out |= {
                "scores": tuple(self.scores) or None,
                "logits": tuple(self.logits) or None,
                "log_probs": torch.stack(self.log_probs, 1),
                "finish_reasons": ["stop" if stop else "length" for stop in self.by_stop.tolist()],
                "past_key_values": None if self.job.shared else self.job.stepper.result(),
            }
        return out
