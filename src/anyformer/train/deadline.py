"""Training that must be over at a certain time."""

from __future__ import annotations

import sys
import time

from anyformer.train.trainer import Callback, Done, Trainer


class Deadline(Callback):
    """Moves the last step to where the time ends, anew after every step, so that a machine which becomes slower is done
    in time too. The schedule goes by the share of the steps that are done, and ends with them.

    No recipe has one: there a step depends on its number alone, and here it also depends on the machine.
    """

    def __init__(self, end: float, tail: float = 0.0, *, most: int | None = None, slow: int = 0) -> None:
        self.end, self.tail = end, tail  # of time.monotonic(); seconds to keep for what follows the last evaluation
        self.most, self.slow = most, slow  # steps at most; how many at first say nothing of the others: they compile
        self.evaluating = 0.0  # seconds that the last evaluation took

    def started(self, trainer: Trainer) -> None:
        self.begin, self.first = time.monotonic(), trainer.step

    def stepped(self, trainer: Trainer, done: Done) -> None:
        self.now = time.monotonic()
        if done.step <= self.first:  # on its way before this began: a device is a step behind
            return
        if self.slow:
            if done.step >= self.first + self.slow:
                self.begin, self.first, self.slow = self.now, done.step, 0
            return
        pace = (self.now - self.begin) / (done.step - self.first)  # of all steps, with what was between them
        left = self.end - self.tail - self.evaluating - self.now
        trainer.steps = min(done.step + max(int(left / pace), 0), self.most or sys.maxsize)

    def evaluated(self, trainer: Trainer, scores: dict[str, float]) -> None:
        self.evaluating = time.monotonic() - self.now
