"""Segment recurrence: against plain attention if every token is visible, and against the formula."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import anyformer as af
from anyformer import families
from anyformer.parts.attention.attention import Attention
from anyformer.parts.attention.transformer_xl import RecurrentAttention
from anyformer.parts.mask import Causal
from anyformer.parts.position.relative import RelativeSinusoids
from anyformer.parts.position.segments import SegmentedSinusoids
from small import Weights, close, context, made, numbers
from tiny import CONFIGS

D, H, K = 12, 3, 4
OP = "decoder.layers.attention.op"
PLACES = RelativeSinusoids(num_heads=H)
PARTS = {
    "kept": RecurrentAttention(num_heads=H, segment=4, kept=3, position=PLACES),
    "nothing kept": RecurrentAttention(num_heads=H, segment=3, kept=0, bias="o"),
    "mean": RecurrentAttention(num_heads=H, segment=4, kept=2, compressed=3, rate=2, by="mean", position=PLACES),
    "max": RecurrentAttention(num_heads=H, segment=2, kept=4, compressed=2, rate=2, by="max"),
    "convolution": RecurrentAttention(num_heads=H, segment=3, kept=0, compressed=2, rate=3, position=PLACES),
}
over_parts = pytest.mark.parametrize("kind", PARTS)


@pytest.mark.parametrize("segment, kept", [(5, 30), (32, 0)])
def test_a_memory_of_the_whole_past_is_attention_over_the_long_text(segment: int, kept: int) -> None:
    part = RecurrentAttention(num_heads=H, segment=segment, kept=kept, position=PLACES)
    module, plain = made(part, D), made(Attention(num_heads=H, mask=Causal(), position=PLACES), D, seed=1)
    plain.load_state_dict(module.state_dict())
    x = numbers(2, 23, D)
    expected = plain(x, context(23))
    for kernel in ("auto", "eager"):
        close(module(x, context(23, kernel=kernel)), expected, 1e-5)


def by_hand(module: Any, x: torch.Tensor) -> torch.Tensor:
    """Segment by segment, as published: queries attend to [compressed, kept, own segment up to the query]."""
    part, T = module.part, x.shape[1]
    L, c = part.segment, part.rate
    kept, older, out = x[:, :0], x[:, :0], []
    for begin in range(0, T, L):
        own = x[:, begin : begin + L]
        states = torch.cat((older, kept, own), 1)
        q, k, v = (layer(t).unflatten(-1, (H, K)) for layer, t in zip(
            (module.q, module.k, module.v), (own, states, states)))  # fmt: skip
        for i in range(own.shape[1]):
            last = older.shape[1] + kept.shape[1] + i
            scores = torch.zeros(x.shape[0], H, last + 1)
            for j in range(last + 1):
                query, bias = q[:, i], 0.0
                if module.position is not None:
                    steps = (last - j) / 10000 ** (torch.arange(0, D, 2) / D)
                    waves = torch.stack((steps.sin(), steps.cos()), -1).flatten()
                    r = module.position.project(waves).unflatten(-1, (H, K))
                    bias = ((query + module.position.v) * r).sum(-1)
                    query = query + module.position.u
                scores[:, :, j] = ((query * k[:, j]).sum(-1) + bias) / math.sqrt(K)
            out.append(torch.einsum("bhj,bjhk->bhk", scores.softmax(-1), v[:, : last + 1]).flatten(1))
        kept = torch.cat((kept, own), 1)
        gone = max(kept.shape[1] - part.kept, 0)
        if part.compressed and gone:
            for group in kept[:, :gone].split(c, 1):
                if module.compress.conv is not None:
                    short = module.compress.conv(group.mT)[..., 0]
                else:
                    short = group.mean(1) if part.by == "mean" else group.amax(1)
                older = torch.cat((older, short[:, None]), 1)[:, -part.compressed :]
        kept = kept[:, gone:]
    return module.o(torch.stack(out, 1))


@over_parts
def test_formula(kind: str) -> None:
    module = made(PARTS[kind], D)
    x = numbers(2, PARTS[kind].segment * 6, D)
    expected = by_hand(module, x)
    for kernel in ("auto", "eager"):
        close(module(x, context(x.shape[1], kernel=kernel)), expected, 1e-5)
    close(module(x[:, :-1], context(x.shape[1] - 1)), expected[:, :-1], 1e-5)
    shown = Weights()
    close(module(x, context(x.shape[1], taps=shown)), expected, 1e-5)
    close(shown[0].sum(-1), torch.ones(2, H, x.shape[1]))


@over_parts
def test_step_by_step(kind: str) -> None:
    """G1: pieces of any size, padded or not, with a state of fixed size; every parameter gets a gradient."""
    part = PARTS[kind].replace(num_heads=4, position=RelativeSinusoids(num_heads=4))
    model = af.build(af.override(families.find("gpt2").read(CONFIGS["gpt2"]), {OP: part})).eval()
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    ids, mask = torch.randint(5, 50, (2, 24), generator=generator), torch.ones(2, 24, dtype=torch.long)
    mask[0, :5] = 0
    pieces = ((0, 9), (9, 10), (10, 11), (11, 17), *((t, t + 1) for t in range(17, 24)))
    with torch.no_grad():
        whole = model(input_ids=ids, use_cache=False).logits
        for state in (model.new_state(2), model.new_state(2, capacity=24)):
            for start, end in pieces:
                close(model(input_ids=ids[:, start:end], past_key_values=state).logits, whole[:, start:end], 1e-5)
        whole, state = model(input_ids=ids, attention_mask=mask, use_cache=False).logits, model.new_state(2)
        for start, end in pieces:
            padded = {"input_ids": ids[:, start:end], "attention_mask": mask[:, :end], "past_key_values": state}
            close(model(**padded).logits[:, -1], whole[:, end - 1], 1e-5)
    assert model.new_state(1, capacity=24).nbytes == model.new_state(1, capacity=20).nbytes
    model.train()(input_ids=ids, labels=ids).loss.backward()
    learned = {name: p.grad for name, p in model.named_parameters() if ".op." in name}
    assert all(grad is not None and bool(grad.any()) for grad in learned.values()), learned


@pytest.mark.parametrize("fields, line", [
    ({"segment": 4, "kept": 3, "compressed": 2, "rate": 2}, "rate is 2; it must divide segment, 4, and kept, 3"),
    ({"position": RelativeSinusoids(num_heads=4)}, "position.num_heads is 4; it must be 3"),
    ({"position": SegmentedSinusoids(num_heads=H)}, "position is SegmentedSinusoids; use RelativeSinusoids"),
    ({"segment": 0}, "segment is 0"), ({"kept": -1}, "kept is -1"),
])  # fmt: skip
def test_refused(fields: dict[str, Any], line: str) -> None:
    with pytest.raises(ValueError, match=f"^RecurrentAttention.{line}"):
        RecurrentAttention(num_heads=H, **fields)
