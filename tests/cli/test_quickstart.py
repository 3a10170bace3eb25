"""The first things a new user runs: the quickstart, and the code in README.md."""

from __future__ import annotations

import dataclasses
import re
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer as af
from anyformer import cli, families
from anyformer.cli import quickstart
from anyformer.kernels import hardware
from anyformer.recipes import recipe
from anyformer.recipes.shared import sources

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text() if (ROOT / "README.md").is_file() else ""


SMALL = ["steps=12", "evaluate.every=6", "data.train.source.library=false", "data.valid.source.library=false",
         "model.decoder.depth=2", "batch.examples=2"]  # fmt: skip


def test_quickstart_in_a_small_form(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    """The complete quickstart: parts, vocabulary, training with baselines and samples, report, generated text. It needs
    none of the abilities that a machine may lack."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(hardware.HIDING, ",".join(hardware.ABILITIES))
    dates: Any = sources.origin_of("dates")
    few = dataclasses.replace(dates, generate=partial(dates.generate, most=400))
    monkeypatch.setitem(sources.ORIGINS, "dates", few)
    torch.set_num_threads(1)
    quickstart.main(["--dates-steps", "2", *(word for change in SMALL for word in ("--set", change))])
    out, err = capsys.readouterr()
    assert err == ""
    assert re.search(r"^decoder\.layers\.attention\.op +Attention +296,448$", out, re.MULTILINE)
    found = re.search(r"to beat on the validation texts, in nats per token: unigram (\S+), bigram (\S+)", out)
    assert found and 3 < float(found[2]) < float(found[1]) < 6.9
    assert re.search(r"step 12: loss \d\.\d+, validation loss \d\.\d+, [\d,]+ tokens/s, \d+ % of peak", out)
    assert out.count("| The following functions") == 2
    folder = tmp_path / "runs" / "quickstart"
    assert (folder / "curve.png").read_bytes().startswith(b"\x89PNG")
    page = (folder / "report.html").read_text()
    assert "bigram baseline" in page and "data:image/png;base64," in page and "Content-Security-Policy" in page
    assert not re.search(r"(src|href)=[\"']?(http|//)", page)
    written = out.partition("$ anyformer generate")[2].splitlines()[1]
    assert written and af.load(folder).spec.decoder.depth == 2
    dates = out.partition("DATE, on dates that were not in the training data\n")[2].splitlines()
    assert len(dates[:5]) == 5 and all(re.search(r"(exact|wrong: \d{4}-\d\d-\d\d)$", line) for line in dates[:5])
    assert re.search(r"validation loss \S+, exact_match [\d.]+", out)
    assert (folder.with_name("dates") / "attention.png").read_bytes().startswith(b"\x89PNG")
    assert quickstart.unused_folder(folder) == folder.with_name("quickstart-2")  # a second run gets a new folder


@pytest.mark.slow
def test_the_translator_of_the_quickstart_learns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """At least 95 % of held-out dates are exactly right, and the decoder reads the year where the source has it."""
    quickstart.learn_dates(tmp_path / "quickstart", "cpu", time.monotonic() + 1200, None)
    out, _ = capsys.readouterr()
    assert float(re.findall(r"exact_match (\S+),", out)[-1]) >= 95
    assert len(re.findall(r"exact$", out, re.MULTILINE)) >= 4
    model, read = af.load(tmp_path / "dates"), af.processor(tmp_path / "dates")
    inputs = {**read("14 July 1789"), "decoder_input_ids": torch.tensor([read.tokenizer.encode_target("1789-07-14")])}
    inputs["decoder_input_ids"] = torch.cat([torch.tensor([[model.spec.start_token]]), inputs["decoder_input_ids"]], 1)
    address = "decoder.layers.1.cross.op.weights"
    weights = af.trace(model, keep=address, **inputs)[address][0].mean(0)  # (T, S), the mean of the heads
    assert weights[:4, 8:12].sum(-1).min() > 0.5  # the four digits of the year


def test_quickstart_draws_a_tree_on_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    quickstart.show_parts(recipe("quickstart").model)
    out, _ = capsys.readouterr()
    assert "decoder.layers.attention.op" in out and "└── " in out and "889,344" in out


def test_the_part_it_swaps_can_be_built() -> None:
    swapped = af.build(af.override(recipe("quickstart").model, quickstart.GATED))
    assert swapped(input_ids=torch.tensor([[1, 2, 3]])).logits.shape == (1, 3, 1024)


def test_the_tour_in_the_readme_runs(tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tour,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(tour.strip().splitlines()) <= 14  # ten lines, and the imports
    monkeypatch.chdir(tmp_path)
    scope: dict[str, object] = {}
    exec(compile(tour, "README.md", "exec"), scope)
    assert capsys.readouterr().out == "124439808\n"
    ids = torch.tensor([[464, 3280, 318]])
    transformers = pytest.importorskip("transformers")
    theirs = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "tiny-gpt2")
    with torch.no_grad():
        assert torch.allclose(theirs(ids).logits, scope["model"](input_ids=ids).logits, atol=1e-5)  # type: ignore[operator]
    assert af.load(tmp_path / "gated").spec == af.spec(tmp_path / "gated")


def test_the_readme_names_every_family_and_every_verb() -> None:
    missing = [name for name in families.catalogue() if f"`{name}`" not in README]
    assert not missing, f"families that README.md does not name: {missing}"
    assert all(f"anyformer {verb}" in README for verb in cli.VERBS)
