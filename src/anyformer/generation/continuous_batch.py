"""Continuous batching: texts are added and removed between steps. No text depends on the other texts.

    running = ContinuousBatch(model)
    first = running.add(input_ids=ids, max_new_tokens=20)
    running.step()
    second = running.add(input_ids=others, do_sample=True, temperature=0.7, seed=3)     # joins the first
    while running.step():
        ...
    first.result.sequences, second.result.log_probs

All texts share one call of the model per step. Each has its own settings, scores, random numbers and stopping criteria.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anyformer.generation import beams, sample
from anyformer.generation.search_state import DecodingLoop, Move, Search
from anyformer.generation.setup import begin
from anyformer.generation.stepper import Stepper
from anyformer.models import Output, TransformerModule


class Request:
    """The texts of one call of `add`. `result` is None until they are finished, then the Output of `af.generate`."""

    def __init__(self, job: Search) -> None:
        self.job, self.stepper = job, job.stepper
        self.loop: DecodingLoop = (beams.search if job.settings.num_beams > 1 else sample.decode)(job)
        self.rows = job.ids.shape[0]
        self.move: Move | None = None
        self.result: Output | None = None

    def advance(self, scores: Tensor | None) -> None:
        """Receive the scores (rows, V) after the last move (None at the start); set the next `move`, or `result`."""
        try:
            self.move = next(self.loop) if scores is None else self.loop.send(scores)
        except StopIteration as end:
            self.move, self.result = None, Output(end.value)


class ContinuousBatch:
    def __init__(self, model: TransformerModule) -> None:
        self.model = model
        self.requests: list[Request] = []  # in the order of their rows
        self.waiting: list[Request] = []
        self.stepper: Stepper | None = None

    @torch.no_grad()
    def add(self, input_ids: Tensor | None = None, **options: Any) -> Request:
        """Read a prompt, which joins the batch at the next step. Takes the same arguments as `af.generate`."""
        named = {name: options.pop(name, None) for name in ("inputs_embeds", "attention_mask")}
        job = begin(self.model, {"input_ids": input_ids, **named}, options, detailed=True, compiled=False)
        s = job.settings
        unsupported = {"penalty_alpha": s.contrastive, "prompt_lookup_num_tokens": bool(s.prompt_lookup_num_tokens)}
        unsupported["inputs_embeds"] = job.stepper.embeds is not None
        for name in (name for name, is_used in unsupported.items() if is_used):
            raise ValueError(f"{name}: not supported in a continuous batch; use af.generate")
        job.shared = True
        request = Request(job)
        request.advance(None)
        if request.result is None:
            self.waiting.append(request)
        return request

    @torch.no_grad()
    def step(self) -> bool:
        """Generate one token of every text. Returns whether unfinished texts remain."""
        self.admit()
        if self.stepper is None:
            return False
        moves = [request.move for request in self.requests if request.move is not None]
        self.reorder(moves)
        scores = self.stepper.step(torch.cat([move.tokens for move in moves]))
        for request, part in zip(self.requests, scores.split([request.rows for request in self.requests]), strict=True):
            request.advance(part)
        self.dismiss()
        return bool(self.requests or self.waiting)

    def admit(self) -> None:
        """Add the waiting requests to the batch."""
        steppers = [request.stepper for request in self.waiting]
        if steppers and self.stepper is None:
            self.stepper, *steppers = steppers
        if steppers and self.stepper is not None:
            self.stepper.join(steppers)
        self.requests, self.waiting = [*self.requests, *self.waiting], []

    def reorder(self, moves: list[Move]) -> None:
        """Reorder the rows of beam searches; rows of other requests do not move."""
        assert self.stepper is not None
        if all(move.rows is None for move in moves):
            return
        indices, first = [], 0
        for move in moves:
            count = move.tokens.shape[0]
            rows = torch.arange(count, device=move.tokens.device) if move.rows is None else move.rows
            indices.append(rows + first)
            first += count
        self.stepper.reorder(torch.cat(indices), same_memory=True)

    def dismiss(self) -> None:
        """Remove finished requests and their cached state."""
        assert self.stepper is not None
        going = [request for request in self.requests if request.result is None]
        if len(going) == len(self.requests):
            return
        rows: list[int] = []
        first = 0
        for request in self.requests:
            if request.result is None:
                rows += range(first, first + request.rows)
            first += request.rows
        self.requests = going
        if not going:
            self.stepper = None
            return
        self.stepper.reorder(torch.tensor(rows, device=self.model.device))
        self.stepper.trim()
