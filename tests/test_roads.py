"""Calls run down the layers of pyproject.toml, as imports do. What runs up is what a lower layer asks of whatever Part
it was given, by a method that every Part has, and the call-backs that are named here."""

import functools
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import anyformer as af
from anyformer.recipes.shared.own_text import from_text
from anyformer.specs.part import Part
from anyformer.train import start
from conftest import REPO

SOURCES = Path(af.__file__).parent


def climbs(run: Callable[[], Any]) -> set[tuple[str, str]]:
    """(file that calls, function of a higher layer that is called) while something runs."""
    layers = tomllib.loads((REPO / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]["layers"]
    height = {name.strip(): -i for i, layer in enumerate(layers) for name in layer.split("|")}
    found = set()

    @functools.cache
    def file(path: str) -> str:
        return str(Path(path).relative_to(SOURCES)) if Path(path).is_relative_to(SOURCES) else ""

    def called(frame: FrameType, event: str, _: Any) -> None:
        callee = file(frame.f_code.co_filename) if event == "call" else ""
        caller = frame.f_back
        while callee and caller is not None:
            if above := file(caller.f_code.co_filename):
                at, to = (height.get(name.split("/")[0].removesuffix(".py"), 1) for name in (above, callee))
                if to > at:
                    found.add((above, frame.f_code.co_name))
                return
            caller = caller.f_back

    sys.setprofile(called)
    try:
        run()
    finally:
        sys.setprofile(None)
    # `__torch_function__`: torch calls it wherever something is filled
    return {(at, name) for at, name in found if not hasattr(Part, name) and name not in OF_PARTS}


OF_PARTS = {"check", "build", "reaches", "__torch_function__"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    sizes = {"width": 16, "decoder.depth": 2, "decoder.layers.feedforward.op.width": 32}
    heads = {f"decoder.layers.attention.op.{name}": size for name, size in (("num_heads", 2), ("head_width", 8))}
    af.save(af.build(af.override(af.spec("gpt2"), {**sizes, **heads})), tmp_path / "model", format="hf")
    return tmp_path / "model"


def test_a_weight_goes_down(folder: Path) -> None:
    # the family that reads the names is handed to what fills the model
    assert climbs(lambda: af.load(folder)) == {("weights/filling.py", "match")}


def test_a_run_is_set_up_from_above(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("one two three four five six seven\n" * 200)
    run = from_text(str(tmp_path / "text.txt"))
    # texts are read in pieces by whoever wants them, and long work tells how far it is
    assert climbs(lambda: start.setup(run, tmp_path / "run", device="cpu")) == {
        ("inputs/long.py", "_between"), ("data/prepare.py", "line"),
    }  # fmt: skip
