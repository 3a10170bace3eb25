"""Calls go down the layers of pyproject.toml, as imports do. The only calls that go up are methods that every Part has,
and the callbacks that are listed here."""

import functools
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from cases.llava import CONFIG

import anyformer as af
from anyformer import families
from anyformer.recipes.shared.own_text import from_text
from anyformer.specs.part import Part
from anyformer.train import start
from conftest import REPO

SOURCES = Path(af.__file__).parent


def climbs(run: Callable[[], Any]) -> set[tuple[str, str]]:
    """Run a function; return all pairs (calling file, called function of a higher layer)."""
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
    # torch calls `__torch_function__` wherever a tensor is filled
    return {(at, name) for at, name in found if not hasattr(Part, name) and name not in OF_PARTS}


def longest_path(run: Callable[[], Any], end: str = "") -> tuple[int, int]:
    """Run a function; return the largest number of modules in a chain of calls, and the largest number of times that a
    chain re-enters a module. `end`: only count chains that end in files whose path starts with it."""
    modules = returns = 0
    root = f"{SOURCES}/"

    def called(frame: FrameType, event: str, _: Any) -> None:
        nonlocal modules, returns
        if event != "call" or not frame.f_code.co_filename.startswith(root + end):
            return
        chain: list[str] = []
        caller: FrameType | None = frame
        while caller is not None:
            if (path := caller.f_code.co_filename).startswith(root) and path not in chain[-1:]:
                chain.append(path)
            caller = caller.f_back
        modules, returns = max(modules, len({*chain})), max(returns, len(chain) - len({*chain}))

    sys.setprofile(called)
    try:
        run()
    finally:
        sys.setprofile(None)
    return modules, returns


OF_PARTS = {"check", "build", "reaches", "__torch_function__"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    sizes = {"width": 16, "decoder.depth": 2, "decoder.layers.feedforward.op.width": 32}
    heads = {f"decoder.layers.attention.op.{name}": size for name, size in (("num_heads", 2), ("head_width", 8))}
    af.save(af.build(af.override(af.spec("gpt2"), {**sizes, **heads})), tmp_path / "model", format="hf")
    return tmp_path / "model"


def test_a_weight_goes_down(folder: Path) -> None:
    # the family, which knows the names of the weights, is passed to the function that fills the model
    assert climbs(lambda: af.load(folder)) == {("weights/filling.py", "match")}


def test_a_run_is_set_up_from_above(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("one two three four five six seven\n" * 200)
    run = from_text(str(tmp_path / "text.txt"))
    # callbacks: an iterator over pieces of text, and progress messages
    assert climbs(lambda: start.setup(run, tmp_path / "run", device="cpu")) == {
        ("inputs/long.py", "_characters"), ("data/prepare.py", "line"),
        ("parts/init.py", "state_dict"),  # overridden by models, to omit tied names
    }  # fmt: skip


@torch.no_grad()
def test_calls_go_through_few_modules(folder: Path) -> None:
    """Limits of (modules, re-entries) for forward and generate of GPT-2, for loading weights, and for LLaVA."""
    model, ids = af.load(folder), torch.arange(5)[None]
    llava = af.build(families.find("llava").read(CONFIG, "LlavaForConditionalGeneration")).eval()
    image = {"input_ids": torch.tensor([[5, CONFIG["image_token_index"]]]), "pixel_values": torch.rand(1, 3, 8, 8)}
    found = {
        "forward": longest_path(lambda: model(input_ids=ids)),
        "load": longest_path(lambda: af.load(folder), "weights/"),
        "generate": longest_path(lambda: af.generate(model, input_ids=ids, max_new_tokens=3)),
        "llava": longest_path(lambda: llava(**image)),
    }
    limits = {"forward": (12, 6), "load": (8, 4), "generate": (12, 6), "llava": (16, 6)}
    assert all(found[name][0] <= most and found[name][1] <= back for name, (most, back) in limits.items()), found
