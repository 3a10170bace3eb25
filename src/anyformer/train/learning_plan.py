"""The batches of a run, by phase: a function of the step only."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from anyformer.data import DataSplit, Loader, MixedPlan, Plan, StepBatches, plan_of
from anyformer.objectives.objective import Objective
from anyformer.train.run import Run

Prepare = Callable[[Objective, int], DataSplit]
SAMPLE = 4  # examples per step of `Phase.sample`


class Phase(NamedTuple):
    """The steps [start, stop) of a run; `stop` None is the end of the run."""

    objective: Objective
    plan: Plan | MixedPlan
    sample: Plan | MixedPlan  # the same data in steps of SAMPLE examples
    split: DataSplit
    start: int = 0
    stop: int | None = None


class LearningPlan:
    """The phases of a run: one, or two if it begins with shorter texts (prepared by `prepare_short`)."""

    def __init__(
        self, run: Run, objective: Objective, split: DataSplit, length: int | None, prepare_short: Prepare
    ) -> None:
        def phase(objective: Objective, split: DataSplit, length: int | None, start: int, stop: int | None) -> Phase:
            rows = functools.partial(
                plan_of,
                run.data.splits["train"],
                split,
                seed=run.seed,
                length=row_length(objective, length),
                packs=objective.packs,
            )
            plan, sample = rows(examples=run.batch.examples, tokens=run.batch.tokens), rows(examples=SAMPLE)
            return Phase(objective, plan, sample, split, start, stop)

        begin, self.phases = run.batch.begin, list[Phase]()
        if begin is not None:
            short = objective.with_max_length(begin.length)
            self.phases.append(phase(short, prepare_short(short, begin.length), begin.length, 0, begin.steps))
        self.phases.append(phase(objective, split, length, begin.steps if begin is not None else 0, None))

    @contextlib.contextmanager
    def feed(self, step: int, loader: Callable[[Phase, int], Loader]) -> Iterator[Iterable[StepBatches]]:
        """Yield the batches of every step from `step` on; `loader(phase, step)` loads one phase."""
        with contextlib.ExitStack() as stack:
            remaining = [phase for phase in self.phases if phase.stop is None or step < phase.stop]
            # lazily: a loader starts when the previous one ends
            yield chain.from_iterable(stack.enter_context(loader(phase, max(step, phase.start))) for phase in remaining)

    def epochs(self, steps: int) -> dict[str, float]:
        """Return the number of epochs of each source of a mixture in the first `steps` steps."""
        epochs: dict[str, float] = {}
        for phase in self.phases:
            if isinstance(phase.plan, MixedPlan) and steps > phase.start:
                last = steps if phase.stop is None else min(steps, phase.stop)
                before = phase.plan.epochs(phase.start)
                for name, value in phase.plan.epochs(last).items():
                    epochs[name] = epochs.get(name, 0.0) + value - before[name]
        return epochs


def row_length(objective: Objective, length: int | None) -> int | None:
    """Return the number of text tokens in a packed row; without packing, in the longest record."""
    return length if length is None or not objective.packs else objective.reads(length)
