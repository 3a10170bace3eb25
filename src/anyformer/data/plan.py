"""Which examples a step sees: a pure function of the seed and the number of the step.

Nothing is remembered between steps, so a run that is resumed, on any number of processes, sees what it would have seen.
An order is one permutation after another, epoch by epoch; a *place* is a number in that endless order, and decides what
chance does to the example there. Every random number comes from Philox [Salmon et al. 2011], whose key is (seed, what
it is for): no stream has to be wound forward.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence

import numpy as np

from anyformer.data.shards import DataSplit
from anyformer.objectives.objective import Record

MAX_EPOCHS = 100_000  # in one step
ORDER, SHIFT, BATCHES, MIX = 1, 2, 3, 4  # what the random numbers of an epoch, or of a mixture's block, are for


def generator(seed: int, purpose: int, number: int) -> np.random.Generator:
    key = np.random.SeedSequence([seed % 2**64, purpose, number]).generate_state(2, np.uint64)
    return np.random.Generator(np.random.Philox(key=key))


class PlaceGenerators:
    """The generator for each place: a new `Generator(Philox(key=place << 64 | seed))`, made by setting one's state."""

    def __init__(self, seed: int) -> None:
        self.bits = np.random.Philox(key=seed % 2**64)
        self.random = np.random.Generator(self.bits)
        self.state = self.bits.state
        self.key = self.state["state"]["key"]

    def generator(self, place: int) -> np.random.Generator:
        """Valid until the next call."""
        self.key[1] = place
        self.bits.state = self.state
        return self.random


@dataclasses.dataclass(frozen=True)
class StepExamples:
    """The examples of a step, over all processes."""

    step: int
    items: np.ndarray  # (n,) numbers of records, or where packed rows begin
    places: np.ndarray  # (n,) in the endless order
    sizes: np.ndarray  # (n,) tokens of each

    def part(self, which: np.ndarray) -> StepExamples:
        return StepExamples(self.step, self.items[which], self.places[which], self.sizes[which])


class Plan:
    """Steps over a split, `examples` or about `tokens` each.

    With `packs`, texts are joined and cut into rows of `length`, and "document_ids" says which text a token is of; the
    cuts fall elsewhere in each epoch. Otherwise, with `tokens`, examples of similar length come together. `once` goes
    through everything a single time in the order it is stored: for evaluation.
    """

    def __init__(
        self,
        split: DataSplit,
        *,
        seed: int = 0,
        examples: int | None = None,
        tokens: int | None = None,
        length: int | None = None,
        packs: bool = False,
        once: bool = False,
    ) -> None:
        if (examples is None) == (tokens is None):
            raise ValueError("a plan needs either examples or tokens")
        if packs and length is None:
            raise ValueError("packed rows need a length")
        if packs and set(split.fields) != {"input_ids"}:
            raise ValueError(f"only texts can be packed, and these records have {', '.join(split.fields)}")
        self.split, self.seed, self.length, self.packs, self.once = split, seed, length or 0, packs, once
        self.in_tokens = tokens is not None
        if packs:
            text = split.fields["input_ids"]
            self.total = int(text.ends[-1])
            if not self.total:
                raise ValueError("the texts have no tokens")
            # Every epoch has as many rows, whose beginning is shifted: what is left over is never the same. One pass
            # has the rest as well, in a shorter row.
            self.count = -(-self.total // self.length) if once else max(self.total // self.length, 1)
            examples = examples or max((tokens or 0) // self.length, 1)
            tokens = None
        else:
            self.count = len(split)
        self.ends = self._buckets(tokens) if tokens else None  # (batches + 1,) of an epoch, in the sorted order
        self.examples = examples or 0
        if self.examples > MAX_EPOCHS * self.count:
            data = f"{self.count:,} row{'s' if self.count > 1 else ''} of data"
            raise ValueError(
                f"{self.examples:,} examples per step of {data}: a step may see a row at most {MAX_EPOCHS:,} times"
            )
        # an epoch and, where a step reaches into it, the next
        self._order = functools.lru_cache(2)(self._make_order)
        self._shift = functools.lru_cache(2)(self._make_shift)
        self._batches = functools.lru_cache(2)(self._make_batches)

    @property
    def end_step(self) -> int | None:
        """The number of steps, or None where they never end."""
        return len(self) if self.once else None

    def __len__(self) -> int:
        """Steps of an epoch, the last of which may reach into the next (or, in one pass, be smaller)."""
        return -(-self.count // self.examples) if self.ends is None else len(self.ends) - 1

    # -- which

    def step(self, number: int) -> StepExamples:
        if self.once and not 0 <= number < len(self):
            raise IndexError(number)
        if self.ends is not None:
            epoch, batch = divmod(number, len(self))
            order, batches, before = self._batches(epoch)
            which = int(batches[batch])
            items = order[self.ends[which] : self.ends[which + 1]]
            places = epoch * self.count + int(before[batch]) + np.arange(len(items))
            return StepExamples(number, items, places, self.split.sizes[items])
        stop = (number + 1) * self.examples
        places = np.arange(number * self.examples, min(stop, self.count) if self.once else stop)
        return StepExamples(number, *self.items_at(places))

    def items_at(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(items, places, sizes) of places in the endless order, which rise."""
        items = np.empty_like(places)
        epochs = places // self.count
        for start, stop in itertools.pairwise((0, *(np.flatnonzero(np.diff(epochs)) + 1).tolist(), len(places))):
            epoch, here = int(epochs[start]), slice(start, stop)
            items[here] = self._order(epoch)[places[here] % self.count]
            if self.packs:
                items[here] = (items[here] * self.length + self._shift(epoch)) % self.total
        if not self.packs:
            return items, places, self.split.sizes[items]
        sizes = np.full(len(items), min(self.length, self.total))
        if self.once:
            sizes = np.minimum(sizes, self.total - items)
        return items, places, sizes

    def _make_order(self, epoch: int) -> np.ndarray:
        if self.once:
            return np.arange(self.count)
        return generator(self.seed, ORDER, epoch).permutation(self.count)

    def _make_shift(self, epoch: int) -> int:
        return 0 if self.once else int(generator(self.seed, SHIFT, epoch).integers(self.total))

    # -- batches of similar length

    def _buckets(self, tokens: int) -> np.ndarray:
        """Where batches end once examples are sorted by the bucket of their length. That depends only on the lengths,
        so every epoch has as many batches, and who of a bucket meets whom is chance."""
        sizes = bucket(self.split.sizes)
        sizes = sizes[np.argsort(sizes, kind="stable")]
        ends = [0]
        while ends[-1] < len(sizes):
            start = ends[-1]
            # padded, n examples take n times the longest, which is the last: the most for which that is no more
            most = start + max(tokens // int(sizes[start]), 1)
            fits = np.arange(1, min(most, len(sizes)) - start + 1) * sizes[start:most] <= tokens
            ends.append(start + max(int(fits.sum()), 1))
        return np.array(ends)

    def _make_batches(self, epoch: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The examples by bucket, in which order the batches come, and how many examples before each."""
        sizes = bucket(self.split.sizes)
        order = self._order(epoch)
        order = order[np.argsort(sizes[order], kind="stable")]
        assert self.ends is not None
        num = len(self.ends) - 1
        batches = np.arange(num) if self.once else generator(self.seed, BATCHES, epoch).permutation(num)
        before = np.cumsum(np.diff(self.ends)[batches]) - np.diff(self.ends)[batches]
        return order, batches, before

    # -- what

    def others(self, item: int, random: np.random.Generator, num: int) -> list[Record]:
        """Records drawn to be seen together with one; itself only where there is no other."""
        here, size = 0 if self.packs else item, len(self.split)
        drawn = random.integers(1, max(size, 2), size=num).tolist()
        return [self.split.record((here + other) % size) for other in drawn]

    def records(self, chosen: StepExamples) -> list[Record]:
        if not self.packs:
            return self.split.records(chosen.items)
        return self._pack_rows(chosen.items, chosen.sizes)

    def _pack_rows(self, starts: np.ndarray, sizes: np.ndarray) -> list[Record]:
        """Rows of the joined texts, which end where they began. document_ids count from 0 in each row."""
        text = self.split.fields["input_ids"]
        B, T = len(starts), int(sizes.max())
        stops = np.minimum(starts + sizes, self.total)
        ids, documents = np.empty((B, T), np.int64), np.zeros((B, T), np.int64)
        for i in text.rows(starts, ids):
            text.read(int(starts[i]), int(stops[i]), ids[i])
        # A text begins inside a row at ends[first:last] - start, so many in each row: all rows at once.
        first, last = np.searchsorted(text.ends, starts, side="right"), np.searchsorted(text.ends, stops)
        num = np.maximum(last - first, 0)
        row = np.repeat(np.arange(B), num)
        which = np.arange(len(row)) - np.repeat(np.cumsum(num) - num, num) + np.repeat(first, num)
        documents[row, text.ends[which] - starts[row]] = 1
        for i in np.flatnonzero(starts + sizes > self.total).tolist():  # around the end, where the first text follows
            size = int(sizes[i])
            rest = int(starts[i]) + size - self.total
            text.read(0, rest, ids[i, size - rest :])
            documents[i, size - rest + text.ends[: int(np.searchsorted(text.ends, rest))]] = 1
        np.cumsum(documents, axis=1, out=documents)
        return [{"input_ids": a[:size], "document_ids": b[:size]} for a, b, size in zip(ids, documents, sizes.tolist())]


def bucket(sizes: np.ndarray) -> np.ndarray:
    """Lengths rounded up to an eighth of their power of two (.., 16, 18, 20, .., 32, 36, ..): padding stays below an
    eighth, and there are enough examples in each to mix."""
    sizes = np.maximum(sizes, 1)
    step = np.maximum(2 ** np.floor(np.log2(sizes)).astype(np.int64) // 8, 1)
    return -(-sizes // step) * step


def share(chosen: StepExamples, world_size: int, micro: int | None, by_tokens: bool) -> list[Sequence[np.ndarray]]:
    """rank -> micro-batches, as numbers within the step. All ranks have as many, of nearly as many examples, similar
    lengths together; an empty one is there only so that all do the same.

    At most `micro` examples, or `by_tokens` padded tokens, go into one (a longer example goes alone)."""
    n = len(chosen.items)
    order = np.argsort(chosen.sizes, kind="stable")
    amount = int(chosen.sizes.max()) * n if by_tokens else n
    rounds = 1 if micro is None else max(-(-amount // (world_size * micro)), 1)
    while True:
        pieces = np.array_split(order, rounds * world_size)
        if micro is None or not by_tokens or all(_padded_tokens(chosen, p) <= micro or len(p) <= 1 for p in pieces):
            break
        rounds += 1
    return [pieces[rank::world_size] for rank in range(world_size)]


def _padded_tokens(chosen: StepExamples, piece: np.ndarray) -> int:
    return len(piece) * int(chosen.sizes[piece].max(initial=0))
