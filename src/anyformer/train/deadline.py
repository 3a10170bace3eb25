"""Training with a time limit."""

from __future__ import annotations

import sys
import time

from anyformer.train.trainer import Callback, StepResult, Trainer


class Deadline(Callback):
    """Ends training at a given time: after every step it sets the number of steps to what fits into the remaining time.
    The learning-rate schedule follows, because it depends on the share of steps done.

    Recipes do not use it, because results would depend on the speed of the machine.
    """

    def __init__(self, end: float, tail: float = 0.0, *, most: int | None = None, slow: int = 0) -> None:
        self.end, self.tail = end, tail  # by time.monotonic(); seconds reserved after the last evaluation
        self.most, self.slow = most, slow  # most steps to do; first steps that compile and are not timed
        self.evaluating = 0.0  # seconds that the last evaluation took

    def on_start(self, trainer: Trainer) -> None:
        self.begin, self.first = time.monotonic(), trainer.step

    def on_step(self, trainer: Trainer, result: StepResult) -> None:
        self.now = time.monotonic()
        if result.step <= self.first:  # launched before on_start: results of a device arrive one step late
            return
        if self.slow:
            if result.step >= self.first + self.slow:
                self.begin, self.first, self.slow = self.now, result.step, 0
            return
        pace = (self.now - self.begin) / (result.step - self.first)  # seconds per step, with everything between steps
        remaining = self.end - self.tail - self.evaluating - self.now
        trainer.steps = min(result.step + max(int(remaining / pace), 0), self.most or sys.maxsize)

    def on_evaluate(self, trainer: Trainer, scores: dict[str, float]) -> None:
        self.evaluating = time.monotonic() - self.now
