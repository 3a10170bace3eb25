"""Random descriptions of all Parts: each is refused with one line, or builds and passes the checks of every model. A
failing description is shrunk and printed with the command that repeats the check."""

from __future__ import annotations

import itertools
import json
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from anyformer.specs.codec import decode
from anyformer.specs.part import Part, hints
from architectures import generator
from architectures.generator import NEVER_DRAWN, PARTS, SOURCES, _mentioned, concrete, description, kinds
from architectures.lines import EXCUSED, LINES, broken, explodes, learns, random_model

SHRINKING = 60  # seconds after the first failure to search for a smaller one
COMMAND = "PYTHONPATH=src:tests:tests/families python -m architectures.repeat"


class Enough(BaseException):
    """Stops hypothesis, which does not catch BaseExceptions."""


def search(number: int, count: int, folder: Path) -> Counter[str]:
    """Check `count` descriptions of one seed. Return the number of right ones, and of refused ones by reason."""
    tally: Counter[str] = Counter()
    wrong: list[tuple[str, str]] = []  # [(smallest failing description, problem)], or empty
    started = 0.0

    def check(data: dict[str, Any]) -> None:
        nonlocal started
        if started and time.monotonic() - started > SHRINKING:
            raise Enough
        try:
            spec = decode(data)
            random_model(spec)
        except ValueError as error:
            tally[f"refused: {reason(error)}"] += 1
            found = badly_refused(error)
        except Exception as error:
            found = f"not refused in one line, but {type(error).__name__}: {error}"
        else:
            found = broken(spec, folder)
            exploded = found is not None and explodes(spec)
            tally["built, and its numbers grow beyond fp32" if exploded else "built and right"] += 1
            found = None if exploded else found
        if found:
            started, text = started or time.monotonic(), json.dumps(data)
            if not wrong or len(text) <= len(wrong[0][0]):
                wrong[:] = [(text, found)]
            raise AssertionError(found)

    options = settings(
        max_examples=count, database=None, deadline=None, phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck), report_multiple_bugs=False,
    )  # fmt: skip
    print(f"seed {number}, {count} descriptions")
    try:
        seed(number)(options(given(description())(check)))()
    except (Exception, Enough):
        if not wrong:
            raise
        pytest.fail(f"{wrong[0][1]}\n\n{COMMAND} <<'JSON'\n{wrong[0][0]}\nJSON\n(seed {number})", pytrace=False)
    return tally


def reason(error: ValueError) -> str:
    """The message of a refusal without addresses and numbers, for counting."""
    return re.sub(r"\d+", "N", re.sub(r"^\w+(\.\w+)+: ", "", str(error).split(", got ")[0]))


def badly_refused(error: ValueError) -> str | None:
    """The problem of a refusal that is not one line, or not from this package; None if it is fine."""
    text = str(error)
    if "\n" in text or not 15 < len(text) < 400 or "this description cannot be built" in text:
        return f"refused, but not in one helpful line: {text}"
    return None


@pytest.mark.parametrize("number", range(1))
def test_random_descriptions(number: int, tmp_path: Path, record_property: Any) -> None:
    record_property("tally", dict(search(number, 10, tmp_path)))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("number", range(100, 120))
def test_two_thousand_random_descriptions(number: int, tmp_path: Path, record_property: Any) -> None:
    record_property("tally", dict(search(number, 100, tmp_path)))


def test_seeds_do_not_depend_on_the_order_of_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    names, every = generator.kinds(Part), Part.kinds
    by_module = sorted(every, key=lambda name: every[name].__module__, reverse=True)
    monkeypatch.setattr(Part, "kinds", {name: every[name] for name in by_module})
    assert generator.kinds(Part) == names


@pytest.mark.slow  # 90 seconds; it tests the generator, not the package
def test_every_kind_of_part_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random descriptions contain every Part, or some slot could have drawn it."""
    wanted = {name for name, kind in Part.kinds.items() if concrete(kind) and kind.__module__.startswith(PARTS)}
    missing = wanted - NEVER_DRAWN.keys()

    def choose(draw: Any, names: list[str]) -> str:
        missing.difference_update(names, *(inner(name) for name in names))
        return chosen(draw, names)

    def inner(name: str) -> list[str]:
        """The Parts in slots of `name` that accept only one Part."""
        slots = [base for hint in hints(Part.kinds[name]).values() for base in _mentioned(hint)]
        return [found[0] for found in map(kinds, slots) if len(found) == 1]

    chosen = generator.choose
    monkeypatch.setattr(generator, "choose", choose)

    def note(data: dict[str, Any]) -> None:
        missing.difference_update(re.findall(r'"kind": "(\w+)"', json.dumps(data)))
        if not missing:
            raise Enough

    few = settings(
        max_examples=8, database=None, deadline=None, phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    try:
        for number, source in itertools.product(range(8), (*SOURCES, None)):
            seed(number)(few(given(description(source))(note)))()
    except Enough:
        return
    pytest.fail(f"never drawn: {sorted(missing)}", pytrace=False)


def test_what_is_never_drawn_has_a_reason() -> None:
    assert all(len(why) > 20 for why in NEVER_DRAWN.values()) and NEVER_DRAWN.keys() <= Part.kinds.keys()
    assert all(rule.kind in Part.kinds and set(rule.lines) <= LINES.keys() for rule in EXCUSED)


def test_what_explodes_is_told_from_what_is_wrong() -> None:
    """The outputs of three state-space layers without a norm reach 1e28 in fp32; with norms they are small."""
    state = {"kind": "DualState", "num_heads": 2, "taps": 4, "step_low": 1.0, "norm": {"kind": "BatchNorm"}}
    layer = {
        "kind": "Block", "first": {"kind": "Sublayer", "op": state},
        "second": {"kind": "Sublayer", "op": {"kind": "SelectiveState", "width": 8, "states": 1, "activation": "relu"}},
        "third": {"kind": "Sublayer", "op": {"kind": "DualState", "num_heads": 2}},
    }  # fmt: skip
    plain = {
        "kind": "EncoderModel", "width": 16, "init": {"*": {"kind": "Normal", "std": 0.1}},
        "embedding": {"kind": "Vectors", "position": {"kind": "Integer"}},
        "encoder": {"kind": "Stack", "depth": 3, "layers": layer},
    }  # fmt: skip
    assert explodes(decode(plain))
    normed = {name: {**step, "pre_norm": {"kind": "LayerNorm"}} for name, step in layer.items() if name != "kind"}
    assert not explodes(decode({**plain, "encoder": {**plain["encoder"], "layers": {"kind": "Block", **normed}}}))


TEXT = {"kind": "TextEmbedding", "tokens": {"kind": "Tokens", "vocab_size": 40}}
SOUND = {
    "kind": "WaveformEmbedding",
    "stem": {"kind": "ConvolutionStem", "widths": [8], "kernels": [4], "strides": [3], "norm": "layer"},
}  # fmt: skip
NYSTROM = {"kind": "NystromAttention", "num_heads": 2, "length": 12, "landmarks": 4}
MLP = {"kind": "MLP", "width": 8}
ADAPTER = {"kind": "SpeechNeck", "adapter": {"kind": "ConvolutionAdapter", "width": 16, "depth": 1}}
CHOICE = {"kind": "MultipleChoiceHead", "pool": {"kind": "Pool", "take": {"kind": "LastOccurrence", "token": 3}}}


def encoder(embedding: Any, op: Any, neck: Any = None, head: Any = None) -> Any:
    layers = {"kind": "Block", "first": {"kind": "Sublayer", "op": op}}
    return decode(
        {"kind": "EncoderModel", "width": 16, "init": {"*": {"kind": "Normal", "std": 0.1}}, "embedding": embedding,
         "encoder": {"kind": "Stack", "depth": 1, "layers": layers, "neck": neck}, "head": head}
    )  # fmt: skip


@pytest.mark.parametrize("line, spec", [
    ("N4", encoder(TEXT, NYSTROM)), ("N4", encoder(SOUND, MLP, ADAPTER)), ("T5", encoder(TEXT, MLP, head=CHOICE)),
])  # fmt: skip
def test_lines_see_what_they_are_for(line: str, spec: Any, tmp_path: Path) -> None:
    """Descriptions that are known to fail a check do fail it, if they are not excused."""
    assert broken(spec, tmp_path) is None
    assert (broken(spec, tmp_path, excuses=()) or "").startswith(line)


def test_what_has_nothing_to_learn_is_not_asked_to(tmp_path: Path) -> None:
    idle = encoder({"kind": "Vectors"}, {"kind": "Unused", "part": MLP})
    assert not learns(random_model(idle)) and broken(idle, tmp_path) is None
