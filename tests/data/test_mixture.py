"""Mixtures: each source has its rate and its own epochs, and the order is a pure function of the step."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anyformer.data import First, Loader, Mixture, Share, TextFiles, TextToText, plan_of
from anyformer.data.mixed import BLOCK, MixedPlan
from anyformer.data.plan import Plan
from anyformer.data.prepare import Data, prepare
from anyformer.data.source import Row, Source
from anyformer.data.vocabulary import Bytes
from anyformer.objectives.batches import pad_rows
from anyformer.objectives.causal import NextToken
from anyformer.objectives.objective import Objective
from anyformer.specs.codec import from_json, to_json
from anyformer.specs.part import Table


class NumberedRows(Source):
    """Rows whose texts are the numbers first, first + 1, ..."""

    first: int
    count: int

    def raw(self) -> Any:
        for i in range(self.first, self.first + self.count):
            yield Row(f"rows:{i}", {"text": str(i)})

    def digest(self) -> str:
        return f"{self.first} {self.count}"


class NumberObjective(Objective):
    """Encodes number n as n % 10 + 1 tokens n; adds a random number and a partner from the same source."""

    @property
    def partners(self) -> int:
        return 1

    def encode(self, example: Any, tokenizer: Any) -> Any:
        return {"input_ids": np.full(int(example["text"]) % 10 + 1, int(example["text"]), np.int32)}

    def vary(self, record: Any, random: Any, *others: Any) -> Any:
        noise = random.integers(2**40)
        return {**record, "other": others[0]["input_ids"][:1], "noise": np.array([noise])}

    def collate(self, records: Any, pad: int) -> Any:
        return {name: pad_rows([record[name] for record in records], pad) for name in ("input_ids", "other", "noise")}


def mixture(**weights: float | None) -> Mixture:
    """Sources "a", "b", "c" of 30, 50 and 7 rows, numbered from 1000, 2000 and 3000."""
    sizes = {"a": (1000, 30), "b": (2000, 50), "c": (3000, 7)}
    shares = [
        Share(name=name, source=NumberedRows(first=sizes[name][0], count=sizes[name][1]), weight=weight)
        for name, weight in weights.items()
    ]
    return Mixture(shares=tuple(shares))


def planned(folder: Path, source: Mixture, **batch: Any) -> MixedPlan:
    split = prepare(Data(train=source), NumberObjective(), None, folder).train
    plan = plan_of(source, split, **batch)
    assert isinstance(plan, MixedPlan)
    return plan


def seen(plan: Any, steps: Any, world: int = 1, micro: int | None = None) -> dict[int, Counter[Any]]:
    """Return step -> (rows, their partners, their noise) over all processes."""
    out: dict[int, Counter[Any]] = {}
    for rank in range(world):
        loader = Loader(plan, NumberObjective(), rank=rank, world_size=world, micro=micro)
        for step in steps:
            ready = loader.make(step)
            for batch, real in zip(ready.batches, ready.real):
                columns = (batch[name][:, 0].tolist() for name in ("input_ids", "other", "noise"))
                out.setdefault(step, Counter()).update(zip(*columns) if real else ())
    return out


@pytest.mark.parametrize("batch", [{"examples": 16}, {"tokens": 60}], ids=["examples", "tokens"])
def test_the_order_is_a_function_of_the_step(batch: dict[str, int], tmp_path: Path) -> None:
    source = mixture(a=2.0, b=1.0, c=1.0)
    expected = seen(planned(tmp_path, source, seed=3, **batch), range(24))
    for world, micro in ((2, None), (3, 1), (4, 2)):
        micro = micro if "examples" in batch or micro is None else 20 * micro
        assert seen(planned(tmp_path, source, seed=3, **batch), range(24), world, micro) == expected, (world, micro)
    resumed = seen(planned(tmp_path, source, seed=3, **batch), reversed(range(17, 24)))
    assert resumed == {step: expected[step] for step in range(17, 24)}
    assert seen(planned(tmp_path, source, seed=4, **batch), range(24)) != expected
    noise = [one[2] for step in expected.values() for one in step]
    assert len(set(noise)) == len(noise)
    for row, other, _ in (one for step in expected.values() for one in step):
        assert row // 1000 == other // 1000 and row != other  # partners are from the same source


def test_each_source_goes_through_its_own_epochs(tmp_path: Path) -> None:
    plan = planned(tmp_path, mixture(a=6.0, b=3.0, c=1.0), examples=32)
    steps = 2 * BLOCK // 32
    rows: dict[str, list[int]] = {"a": [], "b": [], "c": []}
    first: dict[str, list[int]] = {}
    for step in range(steps):
        for item in plan.step(step).items.tolist():  # items of the three sources are numbered consecutively
            rows["a" if item < 30 else "b" if item < 80 else "c"].append(item)
        if step == 99:
            first = {name: list(items) for name, items in rows.items()}
    counts = {name: len(items) for name, items in rows.items()}
    assert counts == pytest.approx({"a": 0.6 * 2 * BLOCK, "b": 0.3 * 2 * BLOCK, "c": 0.1 * 2 * BLOCK}, abs=2)
    for name, size in (("a", 30), ("b", 50), ("c", 7)):  # every row equally often, in a new order per epoch
        epochs = [tuple(rows[name][i : i + size]) for i in range(0, len(rows[name]) - size, size)]
        assert all(len(set(epoch)) == size for epoch in epochs) and len(set(epochs)) > 0.7 * len(epochs)
    assert plan.epochs(100) == {name: len(items) / size for (name, items), size in zip(first.items(), (30, 50, 7))}
    assert plan.epochs(steps) == {name: counts[name] / size for name, size in (("a", 30), ("b", 50), ("c", 7))}
    assert all(abs(len(items) / 3200 - rate) < 0.04 for items, rate in zip(first.values(), (0.6, 0.3, 0.1)))


def test_a_source_keeps_its_order_in_another_mixture(tmp_path: Path) -> None:
    def rows(source: Mixture) -> list[int]:
        plan, found = planned(tmp_path, source, examples=16), []
        for step in range(30):
            found += [int(record["input_ids"][0]) for record in plan.records(plan.step(step))]
        return [row for row in found if 2000 <= row < 3000][:90]

    assert rows(mixture(a=1.0, b=1.0)) == rows(mixture(b=5.0, c=1.0)) != sorted(rows(mixture(b=1.0, c=2.0)))


def test_packed_texts_by_weight(tmp_path: Path) -> None:
    """Every packed row is from one source, and begins, ends and wraps inside it."""
    texts = {"x": "xyz" * 40, "long": "longer " * 60}
    for name, text in texts.items():
        (tmp_path / f"{name}.txt").write_text("\n".join(text[i : i + 31] for i in range(0, len(text), 31)))
    shares = [Share(name=n, source=TextFiles(path=str(tmp_path / f"{n}.txt"), unit="line"), weight=w)
              for n, w in (("x", 3.0), ("long", 1.0))]  # fmt: skip
    source, tokenizer = Mixture(shares=tuple(shares)), Bytes().make((), tmp_path / "bytes")
    split = prepare(Data(train=source), NextToken(), tokenizer, tmp_path / "data").train
    plan = plan_of(source, split, examples=20, length=16, packs=True)
    letters: Counter[str] = Counter()
    for step in range(60):
        for record in plan.records(plan.step(step)):
            row = tokenizer.decode(record["input_ids"], skip_special_tokens=True)
            assert len(record["input_ids"]) == 16 and ({*row} <= {*"xyz"} or {*row} <= {*"longer "}), row
            letters["x" if {*row} <= {*"xyz"} else "long"] += 1
    assert letters["x"] / letters.total() == pytest.approx(0.75, abs=0.05)
    assert isinstance(plan, MixedPlan) and plan.epochs(60)["x"] == letters["x"] / plan.plans[0].count
    whole = Plan(split, examples=20, length=16, packs=True, once=True)  # for evaluation: every source once
    joined = [int(i) for step in range(len(whole)) for r in whole.records(whole.step(step)) for i in r["input_ids"]]
    assert len(joined) == split.tokens == sum(split.part(name).tokens for name in ("x", "long"))


def test_rates_by_size_limit_and_temperature() -> None:
    """As in T5: rates in proportion to the size, to at most K, and with T = 2 to its square root."""
    sizes = {"a": 100, "b": 400, "c": 10_000}
    source = mixture(a=None, b=None, c=None)
    assert source.rates(sizes) == pytest.approx({"a": 100 / 10_500, "b": 400 / 10_500, "c": 10_000 / 10_500})
    assert source.replace(limit=500).rates(sizes) == pytest.approx({"a": 0.1, "b": 0.4, "c": 0.5})
    rooted = source.replace(limit=900, temperature=2.0)
    assert rooted.rates(sizes) == pytest.approx({"a": 1 / 6, "b": 2 / 6, "c": 3 / 6})
    assert mixture(a=3.0, b=1.0, c=0.0).rates(sizes) == {"a": 0.75, "b": 0.25, "c": 0.0}
    assert source.replace(temperature=1e-9).rates(sizes) == {"a": 0.0, "b": 0.0, "c": 1.0}  # no overflow
    assert mixture(a=1e308, b=1e308).rates(sizes) == {"a": 0.5, "b": 0.5}


def test_a_mixture_is_a_source_and_a_description(tmp_path: Path) -> None:
    source = mixture(a=1.0, c=2.0)
    assert from_json(json.loads(to_json(source))) == source
    assert [row.example["text"] for row in source.rows(("text",)) if row.example] == [
        *map(str, range(1000, 1030)), *map(str, range(3000, 3007))
    ]  # fmt: skip
    split = prepare(Data(train=source), NumberObjective(), None, tmp_path).train
    assert split.parts == {"a": 30, "c": 7} and len(split) == 37
    assert [int(record["input_ids"][0]) for record in split.part("c")] == [*range(3000, 3007)]


@pytest.mark.parametrize("make, why", [
    (lambda a, b: Mixture(shares=(a, b.replace(name="a"))), "two shares have the name 'a'"),
    (lambda a, b: a.replace(weight=-1.0), "the share 'a' has the weight -1.0; it must be 0 or more"),
    (lambda a, b: a.replace(weight=float("nan")), "Share.weight: expected float | None, got nan"),
    (lambda a, b: Mixture(shares=(a.replace(weight=0.0), b.replace(weight=0.0))), "all weights are 0"),
    (lambda a, b: Mixture(shares=(a.replace(weight=1.0), b)), "'b' has no weight; give all shares a weight, or none"),
    (lambda a, b: Mixture(shares=()), "at least one share"),
    (lambda a, b: Mixture(shares=(a,), temperature=0.0), "Mixture.temperature is 0.0; it must be above 0"),
    (lambda a, b: Mixture(shares=(a.replace(weight=1.0),), limit=3), "temperature need shares without weights"),
    (lambda a, b: Mixture(shares=(a,), columns={"text": "x"}), "Mixture: set columns on its sources"),
    (lambda a, b: Share(name="m", source=Mixture(shares=(a,))), "the share 'm' is a Mixture; list its shares"),
    (lambda a, b: Data(train=First(source=Mixture(shares=(a, b)), count=3)), "train: a Mixture must be the outermost"),
], ids=range(11))  # fmt: skip
def test_mistakes_are_one_line(make: Any, why: str) -> None:
    a, b = mixture(a=None, b=None).shares
    with pytest.raises(ValueError, match=re.escape(why)) as caught:
        make(a, b)
    assert "\n" not in str(caught.value)


def test_a_share_that_is_too_small_or_empty(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the share 'c' is 1.0e-07 of the mixture; the minimum is 1.5e-05"):
        planned(tmp_path, mixture(a=1e7, c=1.0), examples=4)
    empty = Share(name="empty", source=NumberedRows(first=0, count=0), weight=1.0)
    with pytest.raises(ValueError, match="the train/empty data has no usable example: it is empty"):
        planned(tmp_path, Mixture(shares=(*mixture(a=1.0).shares, empty)), examples=4)


# -- tasks as texts


class FewRows(Source):
    values: tuple[Any, ...]

    def raw(self) -> Any:
        for i, value in enumerate(self.values):
            yield Row(f"few:{i}", dict(value))

    def digest(self) -> str:
        return "few"


def test_tasks_are_written_as_texts() -> None:
    rows = FewRows(values=(
        Table({"s1": "A {dog}.", "s2": ["One.", "Two."], "label": 1}), Table({"s1": "x", "s2": "y", "label": "no"}),
        Table({"s1": "x", "s2": "y", "label": 7}), Table({"s1": "x", "label": 0}),
    ))  # fmt: skip
    task = TextToText(source=rows, reads="rte one: {s1} two: {s2}", writes="{label}", words={"0": "yes", "1": "no"})
    first, second, third, fourth = task.rows(("source", "target"))
    assert first.example == {"source": "rte one: A {dog}. two: One. Two.", "target": "no"}
    assert second.example == {"source": "rte one: x two: y", "target": "no"}
    assert third.problem.startswith("no word for the value '7'; ") and fourth.problem == "no column 's2'"
    several = TextToText(source=rows, reads="{s1}", writes="so: {s2}")
    assert next(several.rows(())).example == {"source": "A {dog}.", "target": ["so: One.", "so: Two."]}
    nested = FewRows(values=(Table({"translation": Table({"en": "a", "de": "b"})}),))
    form = TextToText(source=nested, reads="translate: {translation.en}", writes="{translation.de}")
    assert next(form.rows(())).example == {"source": "translate: a", "target": "b"}
    with pytest.raises(ValueError, match="few:0: no column 's3'"):
        next(TextToText(source=rows, reads="{s3}", writes="{label}").rows(()))
    for form in ("no column", "{s1", "{}"):
        with pytest.raises(ValueError, match="^TextToText: "):
            TextToText(source=rows, reads=form, writes="{label}")
