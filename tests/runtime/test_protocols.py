from typing import Any, Protocol, runtime_checkable

from torch import nn


@runtime_checkable
class HasChild(Protocol):
    @property
    def child(self) -> Any: ...


def test_a_protocol_does_not_find_children_of_modules() -> None:
    """On every Python (see conftest.py): a check that works only before Python 3.12 must fail here too."""
    assert not isinstance(nn.ModuleDict({"child": nn.Identity()}), HasChild)
    assert isinstance(Counted(), HasChild)


class Counted(nn.Module):
    child = 3
