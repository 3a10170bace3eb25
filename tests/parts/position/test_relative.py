"""Relative positions with caches of few keys, and dropout of their sinusoids."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import anyformer as af
from anyformer.models import DecoderModel
from anyformer.parts.attention.attention import Attention
from anyformer.parts.embedding.text import TextEmbedding, Tokens
from anyformer.parts.init import Normal
from anyformer.parts.mask import Causal, Window
from anyformer.parts.position.bias import Alibi, BucketedBias, DistanceBias, RelativeVectors
from anyformer.parts.position.relative import RelativeSinusoids
from anyformer.parts.position.rotary import Rope
from anyformer.parts.position.segments import SegmentedSinusoids
from anyformer.stacks.block import Block
from anyformer.stacks.stack import Stack
from anyformer.stacks.sublayer import Sublayer
from anyformer.transforms.recompute import recompute
from small import close

H, D, T = 4, 32, 11
TEXT = TextEmbedding(tokens=Tokens(vocab_size=50))


def model_of(stack: Stack) -> Any:
    return af.build(DecoderModel(width=D, embedding=TEXT, decoder=stack, init={"*": Normal(std=0.5)})).eval()


@pytest.mark.parametrize("capacity", [None, 6, 20])
@pytest.mark.parametrize("position", [
    Rope(), Alibi(num_heads=H), BucketedBias(num_heads=H, both_ways=False), DistanceBias(num_heads=H, before=5),
    RelativeVectors(before=5), RelativeSinusoids(num_heads=H), SegmentedSinusoids(num_heads=H), SegmentedSinusoids(
        num_heads=H, first_apart=False),
], ids=repr)  # fmt: skip
@torch.no_grad()
def test_decoding_in_windows_equals_the_whole(position: Any, capacity: int | None) -> None:
    """Layers with a window (a ring if the state is static) next to a layer that caches all keys."""
    blocks = {
        name: Block(attention=Sublayer(op=Attention(num_heads=H, position=position, mask=mask)))
        for name, mask in (("near", Causal() & Window(size=2)), ("all", Causal()))
    }
    stack = Stack(layers=blocks, pattern=("near", "all"), depth=3)
    model = model_of(stack)
    ids = torch.randint(0, 50, (2, 6), generator=torch.Generator().manual_seed(0))
    whole, state = model(input_ids=ids).last_hidden_state, model.new_state(2, capacity)
    # the second step has 6 - window tokens, so that both stores have the same length
    pieces = [model(input_ids=piece, past_key_values=state).last_hidden_state for piece in ids.split((1, 4, 1), dim=1)]
    close(torch.cat(pieces, dim=1), whole, 1e-5)


@pytest.mark.parametrize("shared", [Alibi(num_heads=H), BucketedBias(num_heads=H), DistanceBias(num_heads=H, before=3)])
@pytest.mark.parametrize("capacity", [None, 20])
@torch.no_grad()
def test_a_shared_bias_reaches_windows(shared: Any, capacity: int | None) -> None:
    op = Attention(num_heads=H, mask=Causal() & Window(size=3))
    stack = Stack(layers=Block(attention=Sublayer(op=op)), depth=2, position=shared)
    model = model_of(stack)
    ids = torch.randint(0, 50, (2, T), generator=torch.Generator().manual_seed(0))
    whole, state = model(input_ids=ids).last_hidden_state, model.new_state(2, capacity)
    pieces = [model(input_ids=piece, past_key_values=state).last_hidden_state for piece in ids.split(2, dim=1)]
    close(torch.cat(pieces, dim=1), whole, 1e-5)


@pytest.mark.parametrize("factorized", [False, True])
def test_dropped_sinusoids_are_those_of_the_backward_pass(factorized: bool) -> None:
    """A layer that is run again in the backward pass draws the same dropout mask."""
    position = SegmentedSinusoids(num_heads=H, dropout=0.3, factorized=factorized)
    op = Attention(num_heads=H, position=position, mask=Causal(), dropout=0.3)
    found = []
    for change in (lambda model: model, recompute):
        model = change(model_of(Stack(layers=Block(attention=Sublayer(op=op, dropout=0.3)), depth=2)).train())
        torch.manual_seed(3)
        model(input_ids=torch.arange(2 * T).view(2, T)).last_hidden_state.square().mean().backward()
        found.append({name: parameter.grad for name, parameter in model.named_parameters()})
    for name, gradient in found[0].items():
        assert torch.allclose(gradient, found[1][name], rtol=1e-4, atol=1e-6), name
