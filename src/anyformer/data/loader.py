"""Prepares batches in the background while the model trains."""

from __future__ import annotations

import dataclasses
import queue
import threading
from collections.abc import Iterator
from types import TracebackType

import numpy as np
import torch

from anyformer.data.mixed import MixedPlan
from anyformer.data.plan import PlaceGenerators, Plan, StepExamples, share
from anyformer.kernels.random_bits import mix
from anyformer.objectives.batches import Batch, Record
from anyformer.objectives.objective import Objective


@dataclasses.dataclass(frozen=True)
class StepBatches:
    """The batches of this process for one step. A batch that is not `real` repeats an example, so that all processes
    do the same number of forward passes; its loss must not count."""

    step: int
    batches: list[Batch]
    real: list[bool]
    examples: int  # in this step, over all processes
    tokens: int  # in this step without padding, over all processes


class Loader:
    """Yields the batches of steps `start_step` to `stop_step` - 1: `with Loader(...) as loader: for ready in loader`.

    A batch contains at most `micro` examples (tokens, if the plan is in tokens). The examples of a step and their
    random changes depend only on the plan, not on the number of processes. `rate`: model tokens per number of a record.
    """

    def __init__(
        self,
        plan: Plan | MixedPlan,
        objective: Objective,
        *,
        rank: int = 0,
        world_size: int = 1,
        micro: int | None = None,
        pad: int = 0,
        start_step: int = 0,
        stop_step: int | None = None,
        ahead: int = 4,
        pin: bool | None = None,
        rate: float = 1.0,
    ) -> None:
        self.plan, self.objective, self.rank, self.world_size = plan, objective, rank, world_size
        self.micro, self.pad, self.rate, self.ahead = micro, pad, rate, ahead
        self.start, self.stop = start_step, plan.end_step if stop_step is None else stop_step
        self.pin = torch.cuda.is_available() if pin is None else pin
        self._varies = type(objective).vary is not Objective.vary
        self._generators, self._luck = PlaceGenerators(plan.seed), mix(torch.tensor(plan.seed % 2**63))
        self._queue: queue.Queue[StepBatches | BaseException | None] = queue.Queue(ahead)
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    # -- one step

    def make(self, step: int) -> StepBatches:
        """Return this process's batches of a step, without the background thread."""
        chosen = self.plan.step(step)
        pieces = share(chosen, self.world_size, self.micro, self.plan.in_tokens)[self.rank]
        batches = [self.batch_of(chosen.part(piece if len(piece) else np.zeros(1, int))) for piece in pieces]
        real = [len(piece) > 0 for piece in pieces]
        return StepBatches(step, batches, real, len(chosen.items), round(int(chosen.sizes.sum()) * self.rate))

    def batch_of(self, chosen: StepExamples) -> Batch:
        records = self.plan.records(chosen)
        if self._varies:
            numbers = zip(chosen.places.tolist(), chosen.items.tolist())
            records = [self._vary(record, *where) for record, where in zip(records, numbers)]
        batch = self.objective.collate(records, self.pad)
        if self.objective.draws:
            batch["seeds"] = mix(torch.from_numpy(chosen.places) + self._luck)
        return {name: tensor.pin_memory() for name, tensor in batch.items()} if self.pin else batch

    def _vary(self, record: Record, place: int, item: int) -> Record:
        random, num = self._generators.generator(place), self.objective.partners
        return self.objective.vary(record, random, *(self.plan.others(item, random, num) if num else ()))

    # -- all steps, ahead of time

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __iter__(self) -> Iterator[StepBatches]:
        if self._thread is not None:
            raise RuntimeError("a Loader can be iterated only once; create another with start_step")
        self._thread = threading.Thread(target=self._work, name="anyformer-loader", daemon=True)
        self._thread.start()
        while (item := self._queue.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item

    def _work(self) -> None:
        step = self.start
        try:
            while not self._over.is_set() and (self.stop is None or step < self.stop):
                self._put(self.make(step))
                step += 1
            self._put(None)
        except BaseException as error:
            self._put(error)

    def _put(self, item: StepBatches | BaseException | None) -> None:
        while not self._over.is_set():
            try:
                return self._queue.put(item, timeout=0.1)
            except queue.Full:
                continue

    def close(self) -> None:
        """Stop the background thread and drop the prepared batches."""
        self._over.set()
        while self._thread is not None and self._thread.is_alive():
            while not self._queue.empty():
                self._queue.get_nowait()
            self._thread.join(0.05)
