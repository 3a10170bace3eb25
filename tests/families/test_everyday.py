"""Nothing drops out of `make test` unnoticed: the cases of STANDS_FOR show every feature."""

from __future__ import annotations

import functools

import catalogue
import pytest
from catalogue import Case, every_case, family, over, spec_of
from everyday import STANDS_FOR, enough, features, states

from anyformer import families


@functools.cache
def shown(case: Case) -> frozenset[tuple[str, str]]:
    return features(spec_of(case)) | states(spec_of(case))


def test_every_feature_has_a_case_that_stands_for_it() -> None:
    """The cases of STANDS_FOR show every state kind, mixer, norm placement, position, head and model shape."""
    chosen = [case for case in every_case() if case.id in STANDS_FOR]
    assert len(chosen) == len(STANDS_FOR)
    everyday = frozenset().union(*map(shown, chosen))
    missing = {feature: case.id for case in every_case() for feature in shown(case) - everyday}
    assert not missing, f"add a row to STANDS_FOR in everyday.py for each of these: {missing}"
    kinds = {kind for kind, _ in everyday}
    assert kinds == {"model", "head", "part", "norms", "state"}


def test_every_case_that_stands_for_others_shows_something_of_its_own() -> None:
    """The table contains no unnecessary case."""
    chosen, seen = {case.id: case for case in every_case()}, set[tuple[str, str]]()
    for name in STANDS_FOR:
        assert shown(chosen[name]) - seen, f"{name} shows nothing that those above it do not"
        seen |= shown(chosen[name])


def test_every_family_runs_every_day(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a line depends on the family, one case of each family is not slow."""
    monkeypatch.setattr(catalogue, "FAST", False)
    rows = over(every_case(), family).args[1]
    everyday = {row.values[0].model_type for row in rows if not any(mark.name == "slow" for mark in row.marks)}
    published = {name for name, each in families.catalogue().items() if each.architectures}
    assert published <= everyday, published - everyday


@pytest.mark.parametrize(("news", "expected"), [
    ({"a": "x", "b": "xy", "c": "z"}, {"b", "c"}),
    ({"a": "x", "GPT2LMHeadModel": "xy", "c": "xyz"}, {"GPT2LMHeadModel", "c"}),  # declared cases come first
    ({"a": "", "GPT2LMHeadModel": ""}, set()),
    ({"a": "vwx", "b": "xyz", "c": "yz", "d": "vw"}, {"a", "b"}),
    ({}, set()),
], ids=lambda value: "-".join(sorted(value)) or "none")  # fmt: skip
def test_few_cases_show_everything(news: dict[str, str], expected: set[str]) -> None:
    assert enough(news) == expected
