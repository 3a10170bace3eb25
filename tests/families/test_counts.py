"""Parameter counts from descriptions alone: what transformers builds, and what the papers print."""

from __future__ import annotations

import pytest
import torch
from catalogue import Case, over_catalogue, published, spec_of

import anyformer as af
from anyformer import families


@over_catalogue()
def test_count_of_every_case(case: Case) -> None:
    model, _ = published(case)
    assert af.count(spec_of(case)).parameters == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name", [name for name, _ in families.names()])
def test_count_of_every_named_description(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    family = dict(families.names())[name]
    spec = af.spec(name)
    ours = af.count(spec).parameters
    size = family.sizes[name]
    if size.published is not None:
        print(f"{name}: {ours:,} parameters, published {size.published:,.0f}, ratio {ours / size.published:.3f}")
        assert abs(ours / size.published - 1) <= 0.05
    if spec.architecture:
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
