"""Parameter counts from descriptions alone: what transformers builds, and what the papers print."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from catalogue import (
    Case,
    cases,
    make_inputs,
    over,
    over_catalogue,
    published,
    settings,
    spec_of,
    time_axis,
)

import anyformer as af
from anyformer import families
from anyformer.block import Block
from anyformer.cli.listing import listed
from anyformer.construct import skeleton
from anyformer.state import State, declarations


@over_catalogue("", settings, run=True)
def test_count_of_every_case(case: Case) -> None:
    model, _ = published(case)
    assert af.count(spec_of(case)).parameters == sum(p.numel() for p in model.parameters())


FIRST = {next(iter(family.sizes)) for _, family in families.names()}  # of each family; the others in `make test-all`
LISTED = {row["name"]: row["parameters"] for row in listed()}
over_names = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in FIRST else pytest.mark.slow) for name, _ in families.names()]
)


@over_names
def test_count_of_every_named_description(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    family = dict(families.names())[name]
    spec = af.spec(name)
    ours = af.count(spec).parameters
    assert ours == LISTED[name], "python -m anyformer.cli.listing writes the table of names anew"
    size = family.sizes[name]
    if size.published is not None:
        print(f"{name}: {ours:,} parameters, published {size.published:,.0f}, ratio {ours / size.published:.3f}")
        assert abs(ours / size.published - 1) <= 0.05
    if spec.architecture and family.library == "transformers":
        config = transformers.AutoConfig.for_model(spec.family, **size.config)
        with torch.device("meta"):
            theirs = getattr(transformers, spec.architecture)(config)
        theirs.tie_weights()
        expected = sum(p.numel() for p in theirs.parameters())
        if size.config.get("tie_word_embeddings") is False and config.tie_word_embeddings:
            # T5 1.1: transformers ties it until a checkpoint has an output matrix of its own, as all published ones do
            expected += theirs.get_output_embeddings().weight.numel()
        assert ours == expected


def test_counting_allocates_nothing() -> None:
    psutil = pytest.importorskip("psutil")
    af.count(af.spec("gpt2"))
    before = psutil.Process().memory_info().rss
    assert af.count(af.spec("gpt3-175b")).parameters > 170e9
    assert psutil.Process().memory_info().rss - before < 200e6


def built(spec: Any) -> tuple[list[tuple[str, int]], int, list[int]]:
    """What counting gives, from the whole model: sizes by address, idle parameters, bytes of the decoding state."""
    model: Any = skeleton(spec)
    parts, seen, tied = [], set(), {name for name, _ in spec.ties}
    for address, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) not in seen and address not in tied:
            seen.add(id(parameter))
            parts.append((address, parameter.numel()))
    sparse = [module for module in model.modules() if hasattr(module, "unused")]
    shares = {p: module.unused for module in sparse for p in module.parameters(recurse=False)}  # what is tied, once
    idle = sum(round(p.numel() * share) for p, share in shares.items())
    return parts, idle, [each.nbytes(2, 7, torch.bfloat16, 5) for _, each in declarations(model)]


def counted(spec: Any) -> tuple[list[tuple[str, int]], int, list[int]]:
    found = af.count(spec)
    state = [each.nbytes(2, 7, torch.bfloat16, 5) for each in found.remembered]
    assert found.active == found.parameters - found.idle
    return list(found.parts.items()), found.idle, state


@over_catalogue("", settings)
def test_one_layer_of_each_kind_counts_for_all_in_every_case(case: Case) -> None:
    assert counted(spec_of(case)) == built(spec_of(case))


@over_names
def test_one_layer_of_each_kind_counts_for_all_in_every_name(name: str) -> None:
    assert counted(af.spec(name)) == built(af.spec(name))


@over([case for case in cases() if spec_of(case).writes and "G1" not in case.skip], settings)
def test_state_is_what_a_pass_leaves_behind(case: Case) -> None:
    """Windows, latents, recurrences, and what is made of an encoder's places, which are fewer than what it read."""
    spec = spec_of(case)
    model, inputs = af.build(spec).eval(), make_inputs(case, batch=3, length=23)
    with torch.no_grad():
        out = model(**inputs, use_cache=True)
    held = next(value for value in out.values() if isinstance(value, State))  # of some under two names
    first, given = spec.embedding.inputs[0], inputs.get("encoder_hidden_states")
    source = inputs[first].shape[time_axis(spec)] if spec.pair else 0 if given is None else given.shape[1]
    assert af.count(spec).state(3, held.length, source_length=source) == held.nbytes


def test_layers_that_are_not_alike_are_counted_each() -> None:
    """A layer of another kind among equals; a projection for all layers, which the first one holds."""
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
    with pytest.raises(ValueError, match=r"ties: no parameters head.out.weight and embedding.tokens.wight"):
        af.count(af.spec("gpt2").replace(ties=(("head.out.weight", "embedding.tokens.wight"),)))
