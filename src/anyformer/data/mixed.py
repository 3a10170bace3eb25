"""The examples of each step of a mixture: a pure function of the seed and the step number, as in plan.py."""

from __future__ import annotations

import dataclasses
import functools
import zlib
from collections.abc import Mapping

import numpy as np

from anyformer.data.mixture import Mixture
from anyformer.data.plan import MIX, Plan, StepExamples, generator
from anyformer.data.shards import DataSplit
from anyformer.data.source import Source
from anyformer.objectives.batches import Record
from anyformer.specs.messages import quote

BLOCK = 2**16  # places in a block; in every block each share has exactly its rate, rounded


class MixedPlan:
    """Steps over several plans. Each plan gets its rate of all places (of all steps, if batches are in tokens).

    The places of a block are assigned to plans in a random order with a fixed number per plan. So the number of earlier
    places of a plan is known without counting, and with it the plan's next example."""

    def __init__(self, plans: Mapping[str, Plan], rates: Mapping[str, float], seed: int = 0) -> None:
        self.plans, self.names, self.seed = [*plans.values()], [*plans], seed
        first = self.plans[0]
        self.in_tokens, self.examples, self.end_step = first.in_tokens, first.examples, None
        shares = np.array([rates[name] for name in plans])
        # places per block
        self.counts = np.diff(np.round(np.cumsum(shares / shares.sum()) * BLOCK), prepend=0).astype(np.int64)
        for name, rate, count in zip(self.names, shares, self.counts):
            if rate and not count:
                raise ValueError(
                    f"the share {quote(name)} is {rate:.1e} of the mixture; the minimum is {1 / BLOCK:.1e}"
                )
        # the items of all plans are numbered consecutively
        self.starts = np.cumsum([0, *(plan.total if plan.packs else plan.count for plan in self.plans)])
        self._block = functools.lru_cache(2)(self._make_block)

    def _make_block(self, block: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (BLOCK,) the plan of each place, and (BLOCK,) its number of earlier places in this block."""
        which = generator(self.seed, MIX, block).permutation(np.repeat(np.arange(len(self.plans)), self.counts))
        before = np.empty_like(which)
        for plan, count in enumerate(self.counts):
            before[which == plan] = np.arange(count)
        return which, before

    def locate(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the plan of each place, and the place within that plan."""
        blocks, inner = np.divmod(places, BLOCK)
        which, own = np.empty_like(places), np.empty_like(places)
        for block in np.unique(blocks).tolist():
            here = blocks == block
            plans, before = self._block(block)
            which[here], own[here] = plans[inner[here]], before[inner[here]] + block * self.counts[plans[inner[here]]]
        return which, own

    def step(self, number: int) -> StepExamples:
        if self.in_tokens:
            (plan,), (own,) = (array.tolist() for array in self.locate(np.array([number])))
            chosen = self.plans[plan].step(own)
            places = chosen.places * len(self.plans) + plan  # no two plans share a place
            return StepExamples(number, chosen.items + self.starts[plan], places, chosen.sizes)
        places = np.arange(number * self.examples, (number + 1) * self.examples)
        which, own = self.locate(places)
        items, sizes = np.empty_like(places), np.empty_like(places)
        for plan in np.unique(which).tolist():
            here = which == plan
            own_items, _, sizes[here] = self.plans[plan].items_at(own[here])
            items[here] = own_items + self.starts[plan]
        return StepExamples(number, items, places, sizes)

    def records(self, chosen: StepExamples) -> list[Record]:
        which = np.searchsorted(self.starts, chosen.items, side="right") - 1
        records: list[Record] = [{}] * len(which)
        for plan in np.unique(which).tolist():
            here = np.flatnonzero(which == plan)
            own = dataclasses.replace(chosen.part(here), items=chosen.items[here] - self.starts[plan])
            for place, record in zip(here.tolist(), self.plans[plan].records(own)):
                records[place] = record
        return records

    def others(self, item: int, random: np.random.Generator, num: int) -> list[Record]:
        plan = int(np.searchsorted(self.starts, item, side="right")) - 1
        return self.plans[plan].others(item - int(self.starts[plan]), random, num)

    def epochs(self, steps: int) -> dict[str, float]:
        """Return the number of epochs of each source in the first `steps` steps."""
        blocks, rest = divmod(steps if self.in_tokens else steps * self.examples, BLOCK)
        seen = blocks * self.counts + np.bincount(self._block(blocks)[0][:rest], minlength=len(self.plans))
        whole = [len(plan) if self.in_tokens else plan.count for plan in self.plans]
        return {name: float(count / size) for name, count, size in zip(self.names, seen, whole)}


def plan_of(
    source: Source,
    split: DataSplit,
    *,
    seed: int = 0,
    examples: int | None = None,
    tokens: int | None = None,
    length: int | None = None,
    packs: bool = False,
) -> Plan | MixedPlan:
    """Return the endless plan over a prepared source; a MixedPlan if it is a Mixture."""

    def plan(split: DataSplit, seed: int) -> Plan:
        return Plan(split, seed=seed, examples=examples, tokens=tokens, length=length, packs=packs)

    if not isinstance(source, Mixture):
        return plan(split, seed)
    parts = {name: split.part(name) for name in split.parts}
    rates = source.rates({name: part.tokens if packs else len(part) for name, part in parts.items()})
    # the seed depends on the name, so a source keeps its order in any mixture
    plans = {name: plan(part, (zlib.crc32(name.encode()) << 32) + seed) for name, part in parts.items()}
    return MixedPlan(plans, rates, seed)
