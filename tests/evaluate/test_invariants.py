"""The catalogue suite and the random descriptions find planted mistakes; for af.check see test_part_checks.py."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import catalogue
import pytest
import test_numerics as numerics
import torch
from catalogue import Case

from anyformer.evaluate import invariants
from anyformer.evaluate.model_outputs import DoesNotApply
from anyformer.evaluate.part_checks import place, random_model
from anyformer.specs.part import Part
from architectures import lines
from faults import Batched, Forgets, Idles, Leaks, Miscounted, Overflows, Packed, Padded, Plain, Unsaved

CASE = Case("planted", "Planted", {})
FOUND: dict[type[Part], tuple[Callable[..., None], tuple[Any, ...], str]] = {  # test of the catalogue, its values, line
    Leaks: (numerics.test_n1_causality, (), "N1"),
    Padded: (numerics.test_n4_padding_changes_nothing, ("left",), "N4"),
    Packed: (numerics.test_n7_packed_documents_equal_separate_ones, (), "N7"),
    Forgets: (numerics.test_g1_cached_decoding_equals_no_cache, (), "G1"),
    Batched: (numerics.test_n3_a_batch_is_its_rows, (), "N3"),
    Idles: (numerics.test_n8_seeds_recomputation_and_gradients, (), "N8"),
    # random weights without norms overflow fp16, so random descriptions are not checked in half precision
    Overflows: (numerics.test_n2_kernels_agree_in_float16, (), ""),
    Unsaved: (numerics.test_l5_saved_is_loaded, (), "L5"),
    Miscounted: (numerics.test_counted_is_built, (), "counting"),
}


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Callable[[type[Part]], Any]:
    """Returns a description with a Part; the catalogue suite takes it for the case `CASE`."""

    def put(kind: type[Part]) -> Any:
        spec, _ = place(kind())
        model = random_model(spec)
        for module in (catalogue, numerics):
            monkeypatch.setattr(module, "spec_of", lambda case: spec)
        monkeypatch.setattr(numerics, "shared", lambda case: model)
        dtypes = lambda dtype=torch.float32: copy.deepcopy(model).to(dtype)  # noqa: E731
        monkeypatch.setattr(numerics, "ours", lambda case, **options: dtypes(**options))
        return spec

    return put


@pytest.mark.parametrize("kind", FOUND, ids=lambda kind: kind.__name__)
def test_a_planted_mistake_is_found(kind: type[Part], plant: Any, tmp_path: Path) -> None:
    test, values, line = FOUND[kind]
    for planted in (Plain, kind):
        spec, folder = plant(planted), tmp_path / planted.__name__
        paths = (folder / "catalogue",) if kind is Unsaved else ()
        checks = [(test, (CASE, *values, *paths)), (lines.check, (line, spec, folder / "random"))]
        for check, arguments in checks if line else checks[:1]:
            try:
                check(*arguments)
            except pytest.skip.Exception as error:
                pytest.fail(f"not checked: {error}")
            except (AssertionError, FloatingPointError):
                assert planted is not Plain, "a sound Part fails"
                continue
            assert planted is Plain, "the mistake is not found"


BY_ID = {case.id: case for case in catalogue.every_case()}
NOT_APPLICABLE = [
    ("CLIPModel", invariants.check_packing, "no output per token"),
    ("SiglipModel", invariants.check_packing, "no output per token"),
    ("CLIPVisionModel", invariants.check_causality, "reads no tokens"),
    ("Wav2Vec2Model", invariants.check_causality, "reads no tokens"),
    ("ParakeetEncoder", invariants.check_causality, "another length"),
]


@pytest.mark.parametrize(("name", "check", "reason"), NOT_APPLICABLE)
def test_models_without_an_ability_are_told_apart(name: str, check: Callable[..., float], reason: str) -> None:
    case = BY_ID[name]
    with pytest.raises(DoesNotApply, match=reason):
        check(catalogue.shared(case), catalogue.make_inputs(case))


@pytest.mark.parametrize("name", ["T5ForConditionalGeneration", "BartModel", "Conformer-conformer"])
def test_packing_is_checked_whatever_the_inputs(name: str) -> None:
    """An encoder-decoder whose two texts have different lengths, and an encoder that reads vectors."""
    case = BY_ID[name]
    assert invariants.check_packing(catalogue.shared(case), catalogue.make_inputs(case)) < invariants.TOLERANCE
