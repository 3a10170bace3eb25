"""What the steps of a run learn from, one phase after another: the same for whoever asks from any step on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from anyformer.data import DataSplit, Loader, MixedPlan, Plan, StepBatches, plan_of
from anyformer.objectives.objective import Objective
from anyformer.train.run import Run

Prepared = Callable[[Objective, int], DataSplit]


class Phase(NamedTuple):
    """The steps [start, stop) of a run, to its end where `stop` is None."""

    objective: Objective
    plan: Plan | MixedPlan
    split: DataSplit
    start: int = 0
    stop: int | None = None


class Course:
    """The phases of a run: one, or two where it begins with shorter texts. `prepared` gives the records of these."""

    def __init__(
        self, run: Run, objective: Objective, split: DataSplit, length: int | None, prepared: Prepared
    ) -> None:
        def phase(objective: Objective, split: DataSplit, length: int | None, start: int, stop: int | None) -> Phase:
            plan = plan_of(
                run.data.train,
                split,
                seed=run.seed,
                examples=run.batch.examples,
                tokens=run.batch.tokens,
                length=row_of(objective, length),
                packs=objective.packs,
            )
            return Phase(objective, plan, split, start, stop)

        begin, self.phases = run.batch.begin, list[Phase]()
        if begin is not None:
            short = objective.with_max_length(begin.length)
            self.phases.append(phase(short, prepared(short, begin.length), begin.length, 0, begin.steps))
        self.phases.append(phase(objective, split, length, begin.steps if begin is not None else 0, None))

    @contextlib.contextmanager
    def feed(self, step: int, loader: Callable[[Phase, int], Loader]) -> Iterator[Iterable[StepBatches]]:
        """Every step from this one on; `loader` is that of a phase, from a step on."""
        with contextlib.ExitStack() as stack:
            left = [phase for phase in self.phases if phase.stop is None or step < phase.stop]
            # each is begun when the one before is over
            yield chain.from_iterable(stack.enter_context(loader(phase, max(step, phase.start))) for phase in left)

    def epochs(self, steps: int) -> dict[str, float]:
        """How often the first `steps` go through each source of a mixture."""
        found: dict[str, float] = {}
        for phase in self.phases:
            if isinstance(phase.plan, MixedPlan) and steps > phase.start:
                last = steps if phase.stop is None else min(steps, phase.stop)
                before = phase.plan.epochs(phase.start)
                for name, value in phase.plan.epochs(last).items():
                    found[name] = found.get(name, 0.0) + value - before[name]
        return found


def row_of(objective: Objective, length: int | None) -> int | None:
    """The tokens of text in a packed row; otherwise the longest record."""
    return length if length is None or not objective.packs else objective.reads(length)
