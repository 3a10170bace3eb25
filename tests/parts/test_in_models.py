"""Settings of Parts that mix tokens or place them, each in a small model: pads and packed documents, steps, gradients.

test_swapping.py has every kind with its usual settings; here are those that run other code. Formulas are in the test
file of each kind.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import anyformer as af
from anyformer.evaluate import invariants
from anyformer.evaluate.invariants import TOLERANCE
from anyformer.models import EncoderModel, Model
from anyformer.specs.part import Part
from small import close, compiled_equals_eager
from swaps import V, plain, stirred

H, p = 4, af.parts
READS, PACKS, WRITES = "reads", "reads packed documents", "reads packed documents and writes step by step"
CAUSAL: dict[str, Any] = {"num_heads": H, "mask": p.Causal()}
PLACES = {"num_heads": H, "position": p.RelativeSinusoids(num_heads=H)}
LSH: dict[str, Any] = {"num_heads": H, "chunk": 4, "rounds": 2, "buckets": (4,)}
BRANCHES: dict[str, Any] = {
    "left": p.Convolved(width=16, kernel=4, activation="relu"), "right": p.Convolved(width=8, kernel=3, separable=True),
    "out": p.Convolved(width=6, kernel=5, separable=True),
}  # fmt: skip
SEEDS = p.Seeds(num_heads=2, count=4, feedforward=p.MLP(width=20, activation="relu"))
RANDOM = p.RandomFeatures(count=256)  # with 32, a sum near zero has larger rounding errors

# a Part, and what a model with it can do besides passing over padding
OPS: list[tuple[Part, str]] = [
    (p.RoutingAttention(num_heads=H, clusters=3, window=3), READS),
    *[(p.RoutingAttention(num_heads=H, clusters=3, window=window, causal=True), WRITES) for window in (3, 20)],
    (p.SinkhornAttention(num_heads=H, length=32, block=4, rounds=3), READS),
    (p.LSHAttention(**LSH), READS), (p.LSHAttention(**LSH, own_bucket=True, after=1), PACKS),
    (p.LSHAttention(**LSH, own_bucket=True, causal=True), WRITES),
    (p.RecurrentAttention(**PLACES, segment=4, kept=3), WRITES),
    (p.RecurrentAttention(num_heads=H, segment=3, kept=0, bias="o"), WRITES),
    (p.RecurrentAttention(**PLACES, segment=4, kept=2, compressed=3, rate=2, by="mean"), WRITES),
    (p.RecurrentAttention(num_heads=H, segment=2, kept=4, compressed=2, rate=2, by="max"), WRITES),
    (p.RecurrentAttention(**PLACES, segment=3, kept=0, compressed=2, rate=3), WRITES),
    (p.InducedAttention(num_heads=H, points=SEEDS), READS), (p.LunaAttention(num_heads=H, tokens=4), READS),
    (p.LunaAttention(num_heads=H, tokens=4, handed_on=False), READS),
    *[(p.Synthesizer(num_heads=H, head_width=5, length=32, scores=scores, products=products, rank=2), PACKS)
      for scores in ("dense", "random", "factorized") for products in ("none", "plus", "alpha")],
    (p.Synthesizer(**CAUSAL, length=32, scores="random"), WRITES),
    (p.PoolingAttention(num_heads=H, window=2, far=5, kernel=3, stride=2), READS),
    *[(p.LinearAttention(**CAUSAL, features=features, gate=True), WRITES)
      for features in (RANDOM, RANDOM.replace(kernel="arccos"), p.EluFeatures(), p.SoftmaxFeatures(count=24))],
    *[(p.LinearAttention(**CAUSAL, features=features), WRITES)
      for features in (p.EluFeatures(), p.SoftmaxFeatures(count=24))],
    *[(p.LightweightConvolution(num_heads=H, kernel=5, dynamic=dynamic), PACKS) for dynamic in (False, True)],
    *[(p.LightweightConvolution(num_heads=H, kernel=5, dynamic=dynamic, causal=True), WRITES)
      for dynamic in (False, True)],
    (p.LightweightConvolution(num_heads=H, kernel=4), PACKS), (p.BranchedConvolution(**BRANCHES), PACKS),
    (p.BranchedConvolution(**BRANCHES, causal=True), WRITES),
    *[(p.Attention(num_heads=H, num_kv_heads=2, mask=mask), WRITES) for mask in (
        p.Causal(), p.Causal() & p.Window(size=4), p.Window(size=4) & p.Causal(),
        p.Causal() & (p.Window(size=3) | p.Global(first=2)),
        p.Causal() & p.Window(size=1), p.Causal() & p.Window(size=40), p.Causal() & p.Window(size=4) & p.Window(size=6),
    )],
    *[(p.Attention(**CAUSAL, position=position), WRITES) for position in (
        p.Rope(), p.Rope(interleaved=True, fraction=0.5), p.Alibi(num_heads=H),
        p.BucketedBias(num_heads=H, both_ways=False), p.DistanceBias(num_heads=H, before=5),
        *[p.Disentangled(num_heads=H, reach=6, **more) for more in ({}, {"buckets": 4}, {"by_query": False})],
        p.RelativeVectors(before=5), p.RelativeVectors(before=5, values=False),
    )],
]  # fmt: skip
ABSOLUTE = [(part, WRITES) for part in (
    p.Learned(length=64), p.Sinusoidal(length=64), p.Integer(scale=0.1), p.Binary(bits=6),
)]  # fmt: skip
over_parts = pytest.mark.parametrize(
    ("part", "abilities"), [*OPS, *ABSOLUTE], ids=lambda value: type(value).__name__ if isinstance(value, Part) else ""
)


def model_with(part: Part) -> Any:
    """A causal model with one layer, or a bidirectional one of an op that reads the whole text."""
    slot = "embedding.position" if (part, WRITES) in ABSOLUTE else "decoder.layers.attention.op"
    spec: Model = af.override(plain(), {"decoder.depth": 2 if isinstance(part, p.LunaAttention) else 1})
    if part.sees == "all":
        spec = EncoderModel(**{("encoder" if name == "decoder" else name): value for name, value in spec.items()})
        slot = slot.replace("decoder", "encoder")
    return stirred(af.override(spec, {slot: part})).eval()


def text(length: int = 24) -> torch.Tensor:
    return torch.randint(1, V, (2, length), generator=torch.Generator().manual_seed(length))


@over_parts
def test_pads_documents_steps_and_gradients(part: Part, abilities: str) -> None:
    model, ids = model_with(part), text()
    inputs = {"input_ids": ids}
    assert invariants.check_padding(model, inputs, pads=7) <= TOLERANCE
    if abilities == READS:
        with pytest.raises(ValueError, match=r"^encoder\.layers\.0\.attention\.op.*: documents cannot be packed"):
            model(**inputs, document_ids=torch.zeros_like(ids))
    else:
        assert invariants.check_packing(model, inputs, kernels=("auto",)) <= TOLERANCE
    if abilities == WRITES:
        assert invariants.check_cached_decoding(model, inputs, cuts=(0, 9, 10, 11, 17, *range(18, 25))) <= TOLERANCE
        assert invariants.check_padded_prompts(model, inputs) <= TOLERANCE
    model.train()(**inputs).logits.square().mean().backward()
    for name, parameter in model.named_parameters():
        # a constant added to all scores of a row changes nothing: a key bias has no gradient
        assert parameter.grad is not None and (name.endswith("k.bias") or parameter.grad.any()), name


@pytest.mark.slow
@over_parts
def test_compiled_equals_eager(part: Part, abilities: str) -> None:
    model, ids = model_with(part), text(13)
    options = {"use_cache": False} if model.spec.writes else {}
    with torch.no_grad():
        compiled_equals_eager(lambda ids: model(input_ids=ids, **options).logits, ids, tolerance=1e-5)
        if abilities == WRITES:
            step, state = torch.compile(model, fullgraph=True, backend="aot_eager"), model.new_state(2, capacity=20)
            expected = model(input_ids=ids, use_cache=False).logits
            model(input_ids=ids[:, :9], past_key_values=state)
            for t in range(9, 13):
                close(step(input_ids=ids[:, t : t + 1], past_key_values=state).logits, expected[:, t : t + 1], 1e-5)
