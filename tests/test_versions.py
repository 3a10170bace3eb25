"""Lower bounds: every dependency has one, and `make test-lowest` installs exactly that version."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

REPO = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
NOT_INSTALLED = {"dev", "docs"}  # extras that `make test-lowest` does not need


def requirements(extras: set[str]) -> list[Requirement]:
    optional = PROJECT["optional-dependencies"]
    lines = [*PROJECT["dependencies"], *(line for name in sorted(extras) for line in optional[name])]
    return [each for each in map(Requirement, lines) if each.name != PROJECT["name"]]


def pins(file: str) -> dict[str, Version]:
    lines = re.findall(r"^([A-Za-z0-9_.-]+)==(\S+)", (REPO / file).read_text(), re.M)
    return {canonicalize_name(name): Version(version) for name, version in lines}


def lower_bound(requirement: Requirement) -> Version:
    (bound,) = [each.version for each in requirement.specifier if each.operator == ">="]
    return Version(bound)


@pytest.mark.parametrize("requirement", requirements(set(PROJECT["optional-dependencies"])), ids=str)
def test_every_dependency_has_a_lower_bound_below_the_pinned_version(requirement: Requirement) -> None:
    assert lower_bound(requirement) <= pins("constraints.txt")[canonicalize_name(requirement.name)]


def test_the_lowest_environment_has_the_lower_bounds() -> None:
    installed = pins("constraints-lowest.txt")
    for requirement in requirements(set(PROJECT["optional-dependencies"]) - NOT_INSTALLED):
        assert installed[canonicalize_name(requirement.name)] == lower_bound(requirement), requirement
