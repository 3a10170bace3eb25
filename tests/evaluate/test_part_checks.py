"""af.check: deliberately broken Parts fail the check for their fault, and correct Parts pass."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import anyformer as af
from anyformer import cli
from anyformer.parts.mask import Causal, Window
from anyformer.runtime.context import Context
from anyformer.specs.part import Part
from faults import (
    Batched,
    Faulty,
    Forgets,
    Idles,
    Leaks,
    Miscounted,
    Overflows,
    Packed,
    Padded,
    Plain,
    SeesMore,
    Unsaved,
)  # fmt: skip
from swaps import plain


class Raises(Faulty, sees="itself"):
    def mix(self, x: Tensor, ctx: Context, module: Any) -> Tensor:
        return x[:, :, "here"]  # the error names this line


BROKEN = [
    (Leaks, "causality", "off by"), (SeesMore, "causality", "off by"), (Padded, "padding", "off by"),
    (Packed, "packing", "off by"), (Forgets, "cached decoding", "off by"), (Batched, "rows", "off by"),
    (Idles, "gradients", "no gradient: decoder.layers.0.feedforward.op.unused_scale"),
    (Overflows, "half precision", "float16"), (Unsaved, "saving", "some state was not saved"),
    (Miscounted, "counting", "5,202 parameters are counted and 5,193 are built"),
]  # fmt: skip
ALSO = {  # faults that other checks also find
    Leaks: {"padding", "packing"}, SeesMore: {"padding", "packing", "cached decoding"}, Batched: {"cached decoding"},
    Unsaved: {"gradients"}, Miscounted: {"gradients"},
}  # fmt: skip


@pytest.mark.parametrize(("kind", "name", "reason"), BROKEN)
def test_a_broken_part_fails_the_check_of_its_fault(kind: type[Part], name: str, reason: str) -> None:
    report = af.check(kind())
    assert not report.passed and report[name].result == "failed" and reason in report[name].reason, str(report)
    assert {check.name for check in report.failures} - {name} <= ALSO.get(kind, set()), str(report)


SOUND: list[Any] = [
    Plain, af.parts.RMSNorm(), af.parts.Rope(), Causal() & Window(size=3), af.parts.Sinusoidal(length=80),
    af.parts.LMHead(vocab_size=40), plain(), af.parts.GRU(),
]  # fmt: skip


@pytest.mark.parametrize("part", SOUND, ids=lambda part: getattr(part, "__name__", type(part).__name__))
def test_sound_parts_pass_in_the_slot_they_fit(part: Any) -> None:
    report = af.check(part)
    assert {check.result for check in report.checks} == {"passed"}, str(report)


def test_what_sees_all_is_checked_in_an_encoder() -> None:
    report = af.check(af.parts.LinformerAttention(num_heads=4, length=16, projected=4))
    assert report.passed and report.address == "encoder.layers.attention.op"
    for name in ("causality", "packing", "cached decoding"):
        assert report[name].result == "does not apply" and report[name].reason


def test_what_fits_nowhere_is_one_line() -> None:
    with pytest.raises(ValueError, match="PatchEmbedding fits no slot of a small text model"):
        af.check(af.parts.PatchEmbedding(image_size=(8, 8), patch_size=(4, 4)))
    with pytest.raises(ValueError, match="takes a Part .*, got int"):
        af.check(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="models with one stack that reads text"):
        af.check(af.spec("vit-b16"))


# -- errors in a user's Part ------------------------------------------------------------------------------------------

LINES = Path(__file__).read_text().splitlines()
LINE = next(i for i, line in enumerate(LINES, 1) if line.endswith("# the error names this line"))


def test_an_error_names_the_part_its_file_and_line() -> None:
    place = f"Raises at decoder.layers.0.feedforward.op (test_part_checks.py:{LINE})"
    report = af.check(Raises)
    assert report["rows"].result == "failed" and report["rows"].reason.endswith(f", in {place}")
    model = af.build(af.override(plain(), {"decoder.layers.feedforward.op": Raises()}))
    with pytest.raises(TypeError) as raised:
        model(input_ids=torch.arange(5)[None])
    assert raised.value.__notes__ == [place]
    with pytest.raises(ValueError) as ours:
        model(input_ids=torch.tensor([[99]]))
    assert not hasattr(ours.value, "__notes__")


SOURCE = '''
from torch import nn
from anyformer.parts.op import Op

class {name}(Op, sees="itself"):
    """Adds two shapes."""

    wide: int{default}

    def build(self, site):
        return {name}Module(self, site.width)

class {name}Module(nn.Module):
    def __init__(self, part, width):
        super().__init__()
        self.o = nn.Linear(width, part.wide)

    def forward(self, x, ctx):
        return self.o(x) + x
'''


def test_check_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ANYFORMER_DEBUG", raising=False)
    file = tmp_path / "adding_widths.py"
    file.write_text(SOURCE.format(name="AddsWidths", default=""))
    assert cli.main(["check", str(file)]) == 2
    out, err = capsys.readouterr()
    assert "AddsWidths is not checked: give --set wide=VALUE" in err and not out
    assert cli.main(["check", str(file), "--set", "wide=16"]) == 0
    out, _ = capsys.readouterr()
    assert out.startswith("AddsWidths at decoder.layers.feedforward.op") and "failed" not in out
    assert cli.main(["check", str(file), "--set", "wide=7", "--part", "AddsWidths", "--json"]) == 1
    (report,) = json.loads(capsys.readouterr().out)
    where = "in AddsWidths at decoder.layers.0.feedforward.op (adding_widths.py:19)"
    assert not report["passed"] and any(each["reason"].endswith(where) for each in report["checks"])
    for arguments, line in ((["--part", "AddWidths"], "did you mean 'AddsWidths'?"), (["--set", "wid=3"], "'wide'")):
        assert cli.main(["check", str(file), *arguments]) == 2
        assert line in capsys.readouterr().err
    # in another verb: the Part is named, and not called a bug of anyformer
    monkeypatch.chdir(tmp_path)
    op = 'decoder.layers.feedforward.op={"kind": "AddsWidths", "wide": 7}'
    assert cli.main(["count", "gpt2", "--length", "4", "--import", "adding_widths", "--set", op]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "bug" not in err
    assert "AddsWidths at decoder.layers.0.feedforward.op (adding_widths.py:19): RuntimeError" in err


def test_a_file_that_cannot_be_imported_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "torn.py").write_text("import math\nmath.sqrt(-1)\n")
    (tmp_path / "empty_of_parts.py").write_text("")
    for name, line in (("torn.py", "torn.py:2 cannot be imported (ValueError"), ("nowhere.py", "no such file"),
                       ("empty_of_parts.py", "defines no Part")):  # fmt: skip
        assert cli.main(["check", str(tmp_path / name)]) == 2
        err = capsys.readouterr().err
        assert line in err and err.count("\n") == 1
