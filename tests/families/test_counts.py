"""Parameter counts from descriptions only: equal to transformers' models and to the papers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from catalogue import (
    Case,
    cases,
    decoding,
    family_and_structure,
    make_inputs,
    over,
    over_catalogue,
    published,
    spec_of,
    structure,
    time_axis,
)

import anyformer as af
from anyformer import families
from anyformer.cli.listing import read_rows
from anyformer.models.construct import skeleton
from anyformer.parts.init import computed_tensors
from anyformer.runtime.state import State, declarations
from anyformer.stacks.block import Block


@over_catalogue("", structure, run=True)
def test_count_of_every_case(case: Case) -> None:
    counted, (model, _) = af.count(spec_of(case)), published(case)
    learned = trained_by_transformers(model)
    assert counted.parameters == learned
    assert counted.fixed == sum(p.numel() for p in model.parameters()) - learned


def trained_by_transformers(model: torch.nn.Module) -> int:
    """Return the number of trained parameters of a published model: without frozen ones, and without FSMT's sine
    tables, which its forward pass freezes."""
    sines = {p for m in model.modules() if "SinusoidalPosition" in type(m).__name__ for p in m.parameters()}
    return sum(p.numel() for p in model.parameters() if p.requires_grad and p not in sines)


FIRST = {next(iter(family.sizes)) for _, family in families.names()}  # of each family; others: `make test-all`
LISTED = {row["name"]: row["parameters"] for row in read_rows()}
over_names = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in FIRST else pytest.mark.slow) for name, _ in families.names()]
)


@over_names
def test_count_of_every_named_description(name: str) -> None:
    ours, size = af.count(af.spec(name)).parameters, dict(families.names())[name].sizes[name]
    assert ours == LISTED[name], "python -m anyformer.cli.listing writes the table of names again"
    if size.published is not None:
        print(f"{name}: {ours:,} parameters, published {size.published:,.0f}, ratio {ours / size.published:.3f}")
        assert abs(ours / size.published - 1) <= 0.05


@pytest.mark.slow  # every day: every structure (above), and that no listed count changes
@pytest.mark.parametrize(
    "name", [name for name, family in families.names() if family.library == "transformers" and family.architectures]
)
def test_named_descriptions_count_as_in_transformers(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    spec, size = af.spec(name), dict(families.names())[name].sizes[name]
    config = transformers.AutoConfig.for_model(spec.family, **size.config)
    with torch.device("meta"):
        theirs = getattr(transformers, spec.architecture)(config)
    theirs.tie_weights()
    expected = trained_by_transformers(theirs)
    if size.config.get("tie_word_embeddings") is False and config.tie_word_embeddings:
        # T5 1.1: transformers ties it unless the checkpoint has an output matrix, as all published ones do
        expected += theirs.get_output_embeddings().weight.numel()
    assert LISTED[name] == expected


# parameters of published checkpoints in the documentation of torchvision, timm, OpenAI and llava-hf
EXACT = {
    "vit-b16": 86_567_656, "vit-b32": 88_224_232, "vit-l16": 304_326_632, "vit-l32": 306_535_400,
    "vit-h14": 632_045_800, "deit-base": 87_338_192, "swin-tiny": 28_288_354, "swin-small": 49_606_258,
    "swin-base": 87_768_224, "resnet-18": 11_689_512, "resnet-34": 21_797_672, "resnet-50": 25_557_032,
    "resnet-101": 44_549_160, "resnet-152": 60_192_808, "clip-b32": 151_277_313, "clip-b16": 149_620_737,
    "llava-1.5-7b": 7_063_427_072, "llava-1.5-13b": 13_351_494_656,
}  # fmt: skip


@pytest.mark.parametrize("name", EXACT)
def test_pictures_are_read_by_as_many_parameters_as_published(name: str) -> None:
    assert af.count(af.spec(name)).parameters == EXACT[name]
    assert dict(families.names())[name].sizes[name].published == pytest.approx(EXACT[name], rel=0.03)


def test_counting_allocates_nothing() -> None:
    psutil = pytest.importorskip("psutil")
    af.count(af.spec("gpt2"))
    before = psutil.Process().memory_info().rss
    assert af.count(af.spec("gpt3-175b")).parameters > 170e9
    assert psutil.Process().memory_info().rss - before < 200e6


def built(spec: Any) -> tuple[list[tuple[str, int]], int, list[int]]:
    """Return the counts of the complete model: sizes by address, unused parameters, bytes of the decoding state."""
    model: Any = skeleton(spec)
    parts, seen, unlearned = [], set(), {*(name for name, _ in spec.ties), *computed_tensors(model)}
    for address, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) not in seen and address not in unlearned:
            seen.add(id(parameter))
            parts.append((address, parameter.numel()))
    sparse = [module for module in model.modules() if hasattr(module, "unused")]
    shares = {p: module.unused for module in sparse for p in module.parameters(recurse=False)}  # tied parameters once
    idle = sum(round(p.numel() * share) for p, share in shares.items())
    return parts, idle, [each.nbytes(2, 7, torch.bfloat16, 5) for _, each in declarations(model)]


def counted(spec: Any) -> tuple[list[tuple[str, int]], int, list[int]]:
    found = af.count(spec)
    state = [each.nbytes(2, 7, torch.bfloat16, 5) for each in found.remembered]
    assert found.active == found.parameters - found.idle
    return list(found.parts.items()), found.idle, state


@over_catalogue("", family_and_structure)
def test_one_layer_of_each_kind_counts_for_all_in_every_case(case: Case) -> None:
    assert counted(spec_of(case)) == built(spec_of(case))


@pytest.mark.slow
@over_names
def test_one_layer_of_each_kind_counts_for_all_in_every_name(name: str) -> None:
    assert counted(af.spec(name)) == built(af.spec(name))


@over([case for case in cases() if spec_of(case).writes and "G1" not in case.skip], decoding)
def test_state_is_what_a_pass_leaves_behind(case: Case) -> None:
    """Windows, latents, recurrences, and memories of an encoder that are shorter than its input."""
    spec = spec_of(case)
    model, inputs = af.build(spec).eval(), make_inputs(case, batch=3, length=23)
    with torch.no_grad():
        out = model(**inputs, use_cache=True)
    held = next(value for value in out.values() if isinstance(value, State))  # some under two names
    first, given = spec.embedding.inputs[0], inputs.get("encoder_hidden_states")
    source = inputs[first].shape[time_axis(spec)] if spec.pair else 0 if given is None else given.shape[1]
    assert af.count(spec).state(3, held.length, source_length=source) == held.nbytes


def test_layers_that_are_not_alike_are_counted_each() -> None:
    """A layer of another kind among equal ones; a projection for all layers, owned by the first one."""
    spec = af.override(af.spec("gpt2"), {"decoder.layers.3.feedforward.op.width": 96})
    assert counted(spec) == built(spec)
    assert af.count(spec).parts["decoder.layers.3.feedforward.op.up.weight"] == 96 * 768
    name = next(name for name, family in families.names() if family.name == "linformer")
    shared = af.override(af.spec(name), {"encoder.layers.attention.op.sharing": "layerwise"})
    assert counted(shared) == built(shared)
    assert sum("project" in address for address in af.count(shared).parts) < af.spec(name).encoder.depth


def test_of_layers_that_are_alike_one_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    build = Block.build
    monkeypatch.setattr(Block, "build", lambda block, site: made.append(site.address) or build(block, site))
    af.count(af.spec("gpt3-175b"))
    assert made == ["decoder.layers.0"]


def test_a_tie_to_nothing_is_a_mistake() -> None:
    with pytest.raises(ValueError, match=r"ties: .*head\.out\.weight.*embedding\.tokens\.wight"):
        af.count(af.spec("gpt2").replace(ties=(("head.out.weight", "embedding.tokens.wight"),)))


def test_a_stored_table_of_sines_is_not_a_parameter() -> None:
    """The big Transformer of 2017 has 213 million parameters. In addition, 2 x 1,024 x 1,024 sines are stored, which
    need memory but no gradients."""
    counted = af.count(af.spec("transformer-big"))
    assert (counted.parameters, counted.fixed) == (214_245_376, 2 * 1024 * 1024)
    for_reading, for_training = counted.memory(), counted.memory(training=True)
    assert for_reading.weights == for_training.weights == 4 * (counted.parameters + counted.fixed)
    assert for_training.gradients == 4 * counted.parameters and for_training.optimizer == 8 * counted.parameters
