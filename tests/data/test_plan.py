"""The order is a pure function of seed and step; packing keeps documents apart; an epoch has every example once."""

import threading
import time
from collections import Counter

import numpy as np
import pytest
import torch

from anyformer.data import DataSplit, Loader, Plan
from anyformer.data.plan import PlaceGenerators, bucket, generator, share
from anyformer.data.shards import Writer
from anyformer.objectives.batches import pad_rows
from anyformer.objectives.causal import NextToken
from anyformer.objectives.objective import Objective
from tiny import model_of


class NoisyObjective(Objective):
    """Adds a random number to each record, so that tests can see the random numbers of an example."""

    def vary(self, record, random):
        return {**record, "noise": np.asarray(random.integers(2**40))}

    def collate(self, records, pad):
        batch = {"input_ids": pad_rows([record["input_ids"] for record in records], pad)}
        return {**batch, "noise": torch.tensor([int(record["noise"]) for record in records])}


class PairedObjective(NoisyObjective):
    @property
    def partners(self):
        return 2

    def vary(self, record, random, *others):
        return {**record, "noise": np.asarray(10**6 * others[0]["input_ids"][0] + others[1]["input_ids"][0])}


class RowsObjective(Objective):
    @property
    def packs(self):
        return True

    def collate(self, records, pad):
        return {name: pad_rows([record[name] for record in records], -1) for name in ("input_ids", "document_ids")}


def stored(folder, sizes, shard_bytes=2**20):
    """Write records whose numbers identify them: record i has 1000 i, 1000 i + 1, ..."""
    with Writer(folder, shard_bytes) as writer:
        for i, size in enumerate(sizes):
            writer.add({"input_ids": i * 1000 + np.arange(size)})
    return DataSplit(folder)


@pytest.fixture
def sizes():
    return np.random.default_rng(0).integers(1, 60, 57).tolist()


@pytest.fixture
def split(tmp_path, sizes):
    return stored(tmp_path / "s", sizes)


def seen(plan, steps, **options):
    """Return step -> Counter of (example, its random number) over all processes."""
    world = options.pop("world_size", 1)
    out = {}
    for rank in range(world):
        loader = Loader(plan, NoisyObjective(), rank=rank, world_size=world, **options)
        for step in steps:
            ready = loader.make(step)
            for batch, real in zip(ready.batches, ready.real):
                if real:
                    pairs = zip(batch["input_ids"][:, 0].tolist(), batch["noise"].tolist())
                    out.setdefault(step, Counter()).update(pairs)
    return out


# -- order


@pytest.mark.parametrize("batch", [{"examples": 10}, {"tokens": 200}], ids=["examples", "tokens"])
def test_any_number_of_processes_and_micro_batches_sees_the_same(split, batch):
    steps = range(14)  # more than two epochs
    expected = seen(Plan(split, seed=3, **batch), steps)
    for world, micro in ((1, 3), (2, None), (4, 2), (3, 1), (7, 5)):
        micro = micro if "examples" in batch or micro is None else micro * 30
        assert seen(Plan(split, seed=3, **batch), steps, world_size=world, micro=micro) == expected, (world, micro)
    backwards = seen(Plan(split, seed=3, **batch), reversed(steps))
    assert backwards == expected
    assert seen(Plan(split, seed=4, **batch), steps) != expected


@pytest.mark.parametrize("batch", [{"examples": 10}, {"tokens": 200}], ids=["examples", "tokens"])
def test_an_epoch_has_every_example_once_and_the_next_in_another_order(split, batch):
    plan = Plan(split, **batch)
    order, places = [], []
    for step in range(3 * len(plan)):
        chosen = plan.step(step)
        order += chosen.items.tolist()
        places += chosen.places.tolist()
    assert places == list(range(len(order)))  # each place once
    epochs = [order[i : i + 57] for i in range(0, 171, 57)]
    assert all(sorted(epoch) == list(range(57)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2] and epochs[0] != list(range(57))


def test_a_resumed_loader_goes_on_where_the_other_stopped(split):
    plan = Plan(split, examples=10)
    with Loader(plan, NoisyObjective(), stop_step=12) as loader:
        whole = [ready.batches[0] for ready in loader]
    with Loader(Plan(split, examples=10), NoisyObjective(), start_step=7, stop_step=12) as loader:
        rest = [ready.batches[0] for ready in loader]
    assert len(whole) == 12 and len(rest) == 5
    for a, b in zip(whole[7:], rest):
        assert all(torch.equal(a[name], b[name]) for name in a)


def test_chance_is_another_for_each_place_and_seed(split):
    numbers = [noise for counter in seen(Plan(split, examples=57), range(4)).values() for _, noise in counter]
    assert len(set(numbers)) == 4 * 57
    generators = PlaceGenerators(5)
    generators.generator(3).integers(10, size=7)  # earlier draws do not matter
    fresh = np.random.Generator(np.random.Philox(key=(9 << 64) | 5))
    assert generators.generator(9).normal(size=5).tolist() == fresh.normal(size=5).tolist()


@pytest.mark.parametrize("kind", ["examples", "tokens", "packed"])
def test_another_seed_is_another_order(split, sizes, kind):
    """The seed changes the order of examples, the order of batches and the shift of packed rows, not only the noise."""
    options = {"examples": {"examples": 10}, "tokens": {"tokens": 200}, "packed": {"examples": 4}}[kind]
    if kind == "packed":
        options |= {"packs": True, "length": 16}

    def order(seed, epoch=0):
        plan = Plan(split, seed=seed, **options)
        return [plan.step(step).items.tolist() for step in range(epoch * len(plan), (epoch + 1) * len(plan))]

    orders = [order(seed, epoch) for seed in (0, 1, 2, 2**40) for epoch in (0, 1)]
    assert all(a != b for i, a in enumerate(orders) for b in orders[:i]) and order(1) == orders[2]
    if kind == "tokens":  # only the order of the batches, identified by their lengths
        lengths = [[tuple(sorted(bucket(split.sizes[items]).tolist())) for items in order(seed)] for seed in (0, 1)]
        assert lengths[0] != lengths[1] and sorted(lengths[0]) == sorted(lengths[1])
    if kind == "packed":  # only the shift of the rows
        shifts = {min(start % 16 for start in items) for seed in range(6) for items in order(seed)[:1]}
        assert len(shifts) > 2


def test_no_two_seeds_share_their_chance():
    """Random numbers differ between all seeds and places, and between all seeds, purposes and epochs."""
    drawn = [int(PlaceGenerators(seed).generator(place).integers(2**62)) for seed in range(12) for place in range(12)]
    drawn += [
        int(generator(seed, purpose, n).integers(2**62)) for seed in range(6) for purpose in (1, 2, 3) for n in range(6)
    ]
    assert len(set(drawn)) == len(drawn)


def test_partners_are_other_records(split):
    met = Counter()
    for step in range(20):
        batch = Loader(Plan(split, examples=57), PairedObjective()).make(step).batches[0]
        for own, code in zip(batch["input_ids"][:, 0].tolist(), batch["noise"].tolist()):
            first, second = divmod(code, 10**6)  # the first number of record i is 1000 i
            assert own not in (first, second)
            met.update((first, second))
    assert len(met) == 57 and max(met.values()) < 80  # 40 expected for each


# -- lengths


def test_batches_in_tokens_hold_what_was_asked_and_little_padding(tmp_path):
    lengths = np.random.default_rng(1).integers(5, 100, 3000)
    plan = Plan(stored(tmp_path / "s", lengths.tolist()), tokens=2000)
    padding, real = 0, 0
    for step in range(len(plan)):
        chosen = plan.step(step)
        full = len(chosen.items) * chosen.sizes.max()
        assert full <= 2000
        padding, real = padding + full - chosen.sizes.sum(), real + chosen.sizes.sum()
    assert real == lengths.sum() and padding / real < 0.12
    assert len(plan) < 1.15 * lengths.sum() / 2000  # full batches
    assert len({tuple(sorted(plan.step(s).items)) for s in range(2 * len(plan))}) > 1.9 * len(plan)  # other batches


def test_a_bucket_is_no_shorter_and_at_most_an_eighth_longer():
    sizes = np.arange(1, 5000)
    assert (bucket(sizes) >= sizes).all() and (bucket(sizes) <= sizes * 9 / 8).all()
    assert len(np.unique(bucket(sizes))) < 100


@pytest.mark.parametrize("world, micro", [(1, None), (3, 4), (4, 1), (8, 2)])
def test_processes_make_as_many_passes_of_no_more_than_micro(split, world, micro):
    chosen = Plan(split, examples=10).step(0)
    ranks = share(chosen, world, micro, by_tokens=False)
    assert len({len(pieces) for pieces in ranks}) == 1
    parts = [piece for pieces in ranks for piece in pieces]
    assert sorted(np.concatenate(parts).tolist()) == list(range(10))
    assert micro is None or max(map(len, parts)) <= micro
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_micro_batches_in_tokens(split):
    chosen = Plan(split, tokens=600).step(0)
    for pieces in share(chosen, 2, 120, by_tokens=True):
        assert all(len(piece) * chosen.sizes[piece].max(initial=0) <= 120 or len(piece) == 1 for piece in pieces)


def test_a_process_with_nothing_to_do_gets_an_example_that_does_not_count(split):
    readies = [Loader(Plan(split, examples=2), NoisyObjective(), rank=rank, world_size=3).make(0) for rank in range(3)]
    assert [ready.real for ready in readies] == [[True], [True], [False]]
    assert all(len(ready.batches) == 1 and ready.examples == 2 for ready in readies)


def test_dynamic_padding_is_to_the_longest_of_its_batch(split):
    for batch in Loader(Plan(split, examples=20), NoisyObjective(), micro=4, pad=-7).make(0).batches:
        assert (batch["input_ids"][:, -1] != -7).any()


def test_one_pass_has_everything_once_in_order(split):
    plan = Plan(split, examples=10, once=True)
    with Loader(plan, NoisyObjective()) as loader:
        readies = list(loader)
    assert [ready.examples for ready in readies] == [10] * 5 + [7]
    assert np.concatenate([plan.step(i).items for i in range(6)]).tolist() == list(range(57))
    with pytest.raises(IndexError):
        plan.step(6)
    tokens = Plan(split, tokens=100, once=True)
    assert sorted(np.concatenate([tokens.step(i).items for i in range(len(tokens))]).tolist()) == list(range(57))


# -- packed rows


def reference(sizes, length, shift, count):
    """Return rows of the concatenated documents, starting at `shift` and wrapping at the end, token by token."""
    stream = [(i, i * 1000 + j) for i, size in enumerate(sizes) for j in range(size)]
    rows = []
    for row in range(count):
        document, number, ids, documents = None, -1, [], []
        for k in range(min(length, len(stream))):
            place = (shift + row * length + k) % len(stream)
            which, token = stream[place]
            number += which != document or (place == 0 and k > 0)
            document = which
            ids.append(token)
            documents.append(number)
        rows.append((ids, documents))
    return rows


@pytest.mark.parametrize("shard_bytes", [2**20, 800], ids=["one shard", "many shards"])
@pytest.mark.parametrize("length", [16, 100, 700, 5000])
def test_packed_rows_are_the_joined_documents_cut(tmp_path, sizes, length, shard_bytes):
    split = stored(tmp_path / "s", sizes, shard_bytes)
    assert len(split.counts) == 1 or shard_bytes < 2**20
    plan = Plan(split, seed=1, examples=3, length=length, packs=True)
    total = sum(sizes)
    count = max(total // length, 1)
    assert plan.count == count
    shifts = set()
    for epoch in range(3):
        rows = []
        for place in range(epoch * count, (epoch + 1) * count):
            step, i = divmod(place, 3)
            chosen = plan.step(step)
            rows.append(plan.records(chosen)[i])
        found = [(row["input_ids"].tolist(), row["document_ids"].tolist()) for row in rows]
        shift = plan._shift(epoch)
        shifts.add(shift)
        assert sorted(found) == sorted(reference(sizes, length, shift, count))
        if count > 3:
            assert found != reference(sizes, length, shift, count)  # in a random order
    assert len(shifts) == 3  # rows begin at different tokens in each epoch


def test_one_pass_over_packed_rows_has_every_token_once(tmp_path, sizes):
    split = stored(tmp_path / "s", sizes, 800)
    plan = Plan(split, tokens=64, length=32, packs=True, once=True)
    assert plan.examples == 2
    rows = [record for step in range(len(plan)) for record in plan.records(plan.step(step))]
    stream = np.concatenate([record["input_ids"] for record in split])
    assert np.array_equal(np.concatenate([row["input_ids"] for row in rows]), stream)
    assert len(rows[-1]["input_ids"]) == len(stream) % 32 and all(row["document_ids"][0] == 0 for row in rows)


def test_empty_documents_and_one_document(tmp_path):
    empty = stored(tmp_path / "a", [3, 0, 0, 2, 0])
    (row,) = Plan(empty, examples=1, length=5, packs=True, once=True).records(
        Plan(empty, examples=1, length=5, packs=True, once=True).step(0)
    )
    assert row["document_ids"].tolist() == [0, 0, 0, 1, 1]
    one = Plan(stored(tmp_path / "b", [10]), examples=1, length=10, packs=True)
    rows = [one.records(one.step(step))[0] for step in range(8)]
    for row in rows:  # between the last and the first document there is a boundary
        ids, documents = row["input_ids"].tolist(), row["document_ids"].tolist()
        assert sorted(ids) == list(range(10))
        assert documents == [0] * (10 - ids[0]) + [1] * ids[0]


def test_a_packed_batch_is_the_same_for_any_number_of_processes(tmp_path, sizes):
    plan = Plan(stored(tmp_path / "s", sizes), seed=2, examples=6, length=24, packs=True)

    def rows(world, micro):
        out = []
        for rank in range(world):
            for batch in Loader(plan, RowsObjective(), rank=rank, world_size=world, micro=micro).make(40).batches:
                out += torch.cat((batch["input_ids"], batch["document_ids"]), 1).tolist()
        return sorted(out)

    assert len(rows(1, None)) == 6 and rows(1, None) == rows(2, None) == rows(3, 1) == rows(1, 2)


def test_micro_is_in_tokens_where_the_batch_is(tmp_path, sizes):
    plan = Plan(stored(tmp_path / "s", sizes), tokens=250, length=24, packs=True)
    batches = Loader(plan, RowsObjective(), micro=80).make(0).batches
    assert plan.examples == 10 and [len(batch["input_ids"]) for batch in batches] == [3, 3, 2, 2]


def test_a_packed_step_in_tokens_has_as_many_rows_as_fit(split):
    for tokens, rows in ((64, 4), (79, 4), (16, 1), (5, 1)):
        assert len(Plan(split, tokens=tokens, length=16, packs=True).step(0).items) == rows


def test_only_texts_are_packed_and_a_plan_says_how_much(split, tmp_path):
    with pytest.raises(ValueError, match="examples or tokens"):
        Plan(split)
    with pytest.raises(ValueError, match="need a length"):
        Plan(split, examples=1, packs=True)
    with Writer(tmp_path / "two") as writer:
        writer.add({"input_ids": np.arange(3), "labels": np.arange(3)})
    with pytest.raises(ValueError, match="can be packed; these have input_ids, labels"):
        Plan(DataSplit(tmp_path / "two"), examples=1, length=4, packs=True)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_packed_documents_are_learnt_as_separate_ones(tmp_path, family):
    """N7 through the loader: loss and gradients of packed rows equal those of their documents, one at a time."""
    random = np.random.default_rng(0)
    with Writer(tmp_path / "s") as writer:
        for size in (5, 9, 1, 12, 3, 20, 7):
            writer.add({"input_ids": random.integers(0, 50, size)})
    plan = Plan(DataSplit(tmp_path / "s"), examples=3, length=19, packs=True)
    objective, model = NextToken(), model_of(family)
    (batch,) = Loader(plan, objective).make(0).batches
    rows = zip(batch["input_ids"], batch["document_ids"])
    pieces = [ids[documents == number] for ids, documents in rows for number in documents.unique()]
    assert len(pieces) > 6

    def learnt(batches):
        model.zero_grad()
        losses = [objective.losses(model, batch)["loss"] for batch in batches]
        torch.stack(losses).sum().backward()
        return sum(losses).item(), [p.grad.clone() for p in model.parameters()]

    alone = [{"input_ids": piece[None]} for piece in pieces if len(piece) > 1]
    packed, separate = learnt([batch]), learnt(alone)
    assert packed[0] == pytest.approx(separate[0], rel=1e-5)
    torch.testing.assert_close(packed[1], separate[1], rtol=1e-4, atol=1e-4)
    assert objective.weights(batch)["loss"] == sum(len(piece) - 1 for piece in pieces)


# -- background


class BrokenObjective(NoisyObjective):
    def collate(self, records, pad):
        raise ValueError("cannot be collated")


def test_a_mistake_in_the_background_is_raised_in_front(split):
    plan = Plan(split, examples=4)
    with pytest.raises(ValueError, match="cannot be collated"), Loader(plan, BrokenObjective()) as loader:
        list(loader)


def test_leaving_a_loader_ends_its_thread(split):
    before = {*threading.enumerate()}  # a thread of another test may end at any time
    with Loader(Plan(split, examples=4), NoisyObjective(), ahead=2) as loader:
        iterator = iter(loader)
        assert [next(iterator).step for _ in range(3)] == [0, 1, 2]
        assert len({*threading.enumerate()} - before) == 1
    assert not {*threading.enumerate()} - before


def test_batches_are_made_ahead_but_not_without_end(split):
    made = []

    class CountingObjective(NoisyObjective):
        def collate(self, records, pad):
            made.append(len(records))
            return super().collate(records, pad)

    with Loader(Plan(split, examples=4), CountingObjective(), ahead=3) as loader:
        next(iter(loader))
        deadline = time.monotonic() + 100
        while len(made) < 5 and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.05)
        assert len(made) == 5  # one consumed, three in the queue, one waiting for the queue
