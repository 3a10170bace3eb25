"""The examples of each step: a pure function of the seed and the step number.

There is no state between steps, so a resumed run sees the same examples on any number of processes. The order is
endless: one permutation per epoch. A *place* is an index into this order; it seeds the random changes of the example.
All random numbers come from Philox [Salmon et al. 2011], whose key is (seed, purpose): no generator has to be advanced.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence

import numpy as np

from anyformer.data.shards import DataSplit
from anyformer.objectives.batches import Record
from anyformer.specs.messages import amount

MAX_EPOCHS = 100_000  # epochs in one step
ORDER, SHIFT, BATCHES, MIX = 1, 2, 3, 4  # purposes of random numbers; MIX is per block of a mixture, others per epoch


def generator(seed: int, purpose: int, number: int) -> np.random.Generator:
    key = np.random.SeedSequence([seed % 2**64, purpose, number]).generate_state(2, np.uint64)
    return np.random.Generator(np.random.Philox(key=key))


class PlaceGenerators:
    """One generator per place, `Generator(Philox(key=place << 64 | seed))`. One object is reused by setting its state,
    which is faster than creating a new one."""

    def __init__(self, seed: int) -> None:
        self.bits = np.random.Philox(key=seed % 2**64)
        self.random = np.random.Generator(self.bits)
        self.state = self.bits.state
        self.key = self.state["state"]["key"]

    def generator(self, place: int) -> np.random.Generator:
        """Return the generator of a place. It is valid until the next call."""
        self.key[1] = place
        self.bits.state = self.state
        return self.random


@dataclasses.dataclass(frozen=True)
class StepExamples:
    """The examples of a step, over all processes."""

    step: int
    items: np.ndarray  # (n,) record indices; for packed rows, their first tokens
    places: np.ndarray  # (n,) indices into the endless order
    sizes: np.ndarray  # (n,) tokens per example

    def part(self, which: np.ndarray) -> StepExamples:
        return StepExamples(self.step, self.items[which], self.places[which], self.sizes[which])


class Plan:
    """Steps over a split, with `examples` examples or about `tokens` tokens each.

    With `packs`, texts are concatenated and cut into rows of `length` tokens, at different tokens in each epoch;
    "document_ids" gives the text of each token. Otherwise, with `tokens`, examples of similar length share a batch.
    `once` makes a single pass in stored order, for evaluation.
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
            raise ValueError(f"only records of input_ids can be packed; these have {', '.join(split.fields)}")
        self.split, self.seed, self.length, self.packs, self.once = split, seed, length or 0, packs, once
        self.in_tokens = tokens is not None
        if packs:
            text = split.fields["input_ids"]
            self.total = int(text.ends[-1])
            if not self.total:
                raise ValueError("the texts have no tokens")
            # Every epoch has the same number of rows, with a random shift, so it drops different tokens at the end. A
            # single pass keeps these tokens in a shorter row.
            self.count = -(-self.total // self.length) if once else max(self.total // self.length, 1)
            examples = examples or max((tokens or 0) // self.length, 1)
            tokens = None
        else:
            self.count = len(split)
        self.ends = self._buckets(tokens) if tokens else None  # (batches + 1,) bounds of batches in the sorted order
        self.examples = examples or 0
        if self.examples > MAX_EPOCHS * self.count:
            data = f"{amount(self.count, 'row')} of data"
            raise ValueError(
                f"{self.examples:,} examples per step of {data}: a step may see a row at most {MAX_EPOCHS:,} times"
            )
        # a step may reach into the next epoch, so two are cached
        self._order = functools.lru_cache(2)(self._make_order)
        self._shift = functools.lru_cache(2)(self._make_shift)
        self._batches = functools.lru_cache(2)(self._make_batches)

    @property
    def end_step(self) -> int | None:
        """The number of steps; None if they never end."""
        return len(self) if self.once else None

    def __len__(self) -> int:
        """Return the steps per epoch. The last step may reach into the next epoch (with `once`: may be smaller)."""
        return -(-self.count // self.examples) if self.ends is None else len(self.ends) - 1

    # -- examples of a step

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
        """Return (items, places, sizes) of ascending places."""
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
        """Return the bounds of batches when examples are sorted by length bucket. They depend only on the lengths, so
        every epoch has the same number of batches; the examples of a bucket are shuffled."""
        sizes = bucket(self.split.sizes)
        sizes = sizes[np.argsort(sizes, kind="stable")]
        ends = [0]
        while ends[-1] < len(sizes):
            start = ends[-1]
            # n padded examples take n times the longest, which is the last: find the largest n that fits
            most = start + max(tokens // int(sizes[start]), 1)
            fits = np.arange(1, min(most, len(sizes)) - start + 1) * sizes[start:most] <= tokens
            ends.append(start + max(int(fits.sum()), 1))
        return np.array(ends)

    def _make_batches(self, epoch: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the examples sorted by bucket, the order of the batches, and the number of examples before each."""
        sizes = bucket(self.split.sizes)
        order = self._order(epoch)
        order = order[np.argsort(sizes[order], kind="stable")]
        assert self.ends is not None
        num = len(self.ends) - 1
        batches = np.arange(num) if self.once else generator(self.seed, BATCHES, epoch).permutation(num)
        before = np.cumsum(np.diff(self.ends)[batches]) - np.diff(self.ends)[batches]
        return order, batches, before

    # -- records

    def others(self, item: int, random: np.random.Generator, num: int) -> list[Record]:
        """Return `num` random records to combine with record `item`; the record itself only if there is no other."""
        here, size = 0 if self.packs else item, len(self.split)
        drawn = random.integers(1, max(size, 2), size=num).tolist()
        return [self.split.record((here + other) % size) for other in drawn]

    def records(self, chosen: StepExamples) -> list[Record]:
        if not self.packs:
            return self.split.records(chosen.items)
        return self._pack_rows(chosen.items, chosen.sizes)

    def _pack_rows(self, starts: np.ndarray, sizes: np.ndarray) -> list[Record]:
        """Return rows of the concatenated texts; after the last text the first follows. document_ids count from 0 in
        each row."""
        text = self.split.fields["input_ids"]
        B, T = len(starts), int(sizes.max())
        stops = np.minimum(starts + sizes, self.total)
        ids, documents = np.empty((B, T), np.int64), np.zeros((B, T), np.int64)
        for i in text.rows(starts, ids):
            text.read(int(starts[i]), int(stops[i]), ids[i])
        # Inside a row, texts begin at ends[first:last] - start; this is computed for all rows at once.
        first, last = np.searchsorted(text.ends, starts, side="right"), np.searchsorted(text.ends, stops)
        num = np.maximum(last - first, 0)
        row = np.repeat(np.arange(B), num)
        which = np.arange(len(row)) - np.repeat(np.cumsum(num) - num, num) + np.repeat(first, num)
        documents[row, text.ends[which] - starts[row]] = 1
        for i in np.flatnonzero(starts + sizes > self.total).tolist():  # rows that continue with the first text
            size = int(sizes[i])
            rest = int(starts[i]) + size - self.total
            text.read(0, rest, ids[i, size - rest :])
            documents[i, size - rest + text.ends[: int(np.searchsorted(text.ends, rest))]] = 1
        np.cumsum(documents, axis=1, out=documents)
        return [{"input_ids": a[:size], "document_ids": b[:size]} for a, b, size in zip(ids, documents, sizes.tolist())]


def bucket(sizes: np.ndarray) -> np.ndarray:
    """Round lengths up to a multiple of an eighth of their power of two (.., 16, 18, 20, .., 32, 36, ..). This keeps
    padding below an eighth, with enough examples per bucket to shuffle."""
    sizes = np.maximum(sizes, 1)
    step = np.maximum(2 ** np.floor(np.log2(sizes)).astype(np.int64) // 8, 1)
    return -(-sizes // step) * step


def share(chosen: StepExamples, world_size: int, micro: int | None, by_tokens: bool) -> list[Sequence[np.ndarray]]:
    """Return the micro-batches of each rank, as indices into the step. All ranks have the same number of micro-batches
    (some may be empty), with nearly equal numbers of examples of similar length.

    A micro-batch has at most `micro` examples or, if `by_tokens`, padded tokens (or one example, if it is longer)."""
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
