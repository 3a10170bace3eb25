"""Additional checks of diffusers models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from catalogue import Case, folder, make_inputs, published, shared, warnings_of
from safetensors.torch import load_file

import anyformer as af

diffusers = pytest.importorskip("diffusers")
WEIGHTS = "diffusion_pytorch_model.safetensors"


def round_trips(case: Case, kind: Any, at: Path) -> None:
    """L5: through our format and back into diffusers' `kind`, without a warning, with equal weights, outputs and
    fields."""
    model = shared(case)
    af.save(model, at / "ours")
    again = af.load(at / "ours")
    assert again.spec.replace(source={}) == model.spec.replace(source={})
    af.save(again, at / "hf", format="hf")
    with warnings_of("diffusers") as warnings_seen:
        opened, info = kind.from_pretrained(at / "hf", output_loading_info=True)
    assert not warnings_seen and not any(info.values()), (warnings_seen, info)
    stored = [load_file(each / WEIGHTS) for each in (folder(case), at / "hf")]
    assert stored[0].keys() == stored[1].keys() and all(torch.equal(stored[0][n], stored[1][n]) for n in stored[0])
    with torch.no_grad():
        assert torch.equal(opened(**make_inputs(case)).sample, published(case)[0](**make_inputs(case)).sample)
    before, after = (json.loads((each / "config.json").read_text()) for each in (folder(case), at / "hf"))
    assert {name: value for name, value in before.items() if after.get(name, value) != value} == {}
    assert before.keys() - after.keys() <= {"_name_or_path"}
