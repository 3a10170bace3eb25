"""Charformer's learned subwords against a loop over characters."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import anyformer as af
from anyformer.models import EncoderDecoderModel, EncoderModel
from anyformer.parts.attention.attention import Attention
from anyformer.parts.embedding.charformer import SubwordBlocks
from anyformer.parts.embedding.text import TextEmbedding, Tokens
from anyformer.parts.feedforward.mlp import MLP
from anyformer.parts.head.language import LMHead
from anyformer.parts.head.likely_spans import LikelySpans
from anyformer.parts.head.span import SpanHead
from anyformer.parts.init import Normal
from anyformer.parts.mask import Causal
from anyformer.parts.position.absolute import Learned
from anyformer.specs.part import Site
from anyformer.stacks.block import Block
from anyformer.stacks.stack import Stack
from anyformer.stacks.sublayer import Sublayer
from small import close

D, V = 6, 20
CHARACTERS = Tokens(vocab_size=V)
STACK = Stack(layers=Block(attention=Sublayer(op=Attention(num_heads=2))), depth=1)


def written_out(module: Any, ids: Tensor) -> Tensor:
    """(T,) ids of one text without pads -> (N, D)"""
    part, T = module.part, len(ids)
    x = module.tokens.weight[ids]
    if part.kernel:
        weight, half, zero = module.convolve.weight, part.kernel // 2, torch.zeros(D)
        around = [[x[i + j] if 0 <= i + j < T else zero for j in range(-half, half + 1)] for i in range(T)]
        x = torch.stack([sum(weight[..., j] @ near[j] for j in range(part.kernel)) for near in around])
        x = x + module.convolve.bias
    mean_of = [[x[i // b * b : i // b * b + b].mean(0) for b in range(1, part.blocks + 1)] for i in range(T)]
    P = torch.stack([torch.stack([module.score.weight[0] @ block for block in each]).softmax(0) for each in mean_of])
    if part.calibrate:
        P = (P @ P.T).softmax(-1) @ P
    chosen = torch.stack([sum(P[i, b] * mean_of[i][b] for b in range(part.blocks)) for i in range(T)])
    return torch.stack([chosen[i : i + part.downsample].mean(0) for i in range(0, T, part.downsample)])


@torch.no_grad()
@pytest.mark.parametrize("calibrate", [False, True])
@pytest.mark.parametrize("kernel, downsample", [(5, 3), (0, 1)])
def test_blocks_are_scored_mixed_and_shortened(kernel: int, downsample: int, calibrate: bool) -> None:
    """Texts of 11 and 6 characters in rows of 13, with pads on either side and in between."""
    torch.manual_seed(0)
    part = SubwordBlocks(tokens=CHARACTERS, kernel=kernel, calibrate=calibrate, downsample=downsample)
    module = part.build(Site(width=D))
    ids = torch.randint(0, V, (5, 13))
    mask = torch.ones(5, 13, dtype=torch.long)
    mask[1, 11:], mask[2, :7], mask[3, [0, 1, 4, 9, 12]], mask[4, :] = 0, 0, 0, 0
    x, ctx = module({"input_ids": ids, "attention_mask": mask})
    assert x.isfinite().all() and x.shape[1] == part.vectors(13) and not ctx.tokens[4].any()
    for row in range(4):
        expected = written_out(module, ids[row][mask[row] > 0])
        close(x[row][ctx.tokens[row]], expected, 1e-5)
        assert ctx.positions[row][ctx.tokens[row]].tolist() == list(range(len(expected)))
    assert ctx.tokens[2, -1] and ctx.tokens[1, 0] and (downsample > 1 or not ctx.tokens[1, -1])


def pair(**fields: Any) -> EncoderDecoderModel:
    """An encoder-decoder that reads and writes characters, like the paper's T5."""
    looks = Sublayer(op=Attention(num_heads=2, memory=True))
    writes = Block(attention=Sublayer(op=Attention(num_heads=2, mask=Causal())), looks=looks)
    return EncoderDecoderModel(
        width=D, embedding=SubwordBlocks(tokens=CHARACTERS, **fields), encoder=STACK, head=LMHead(vocab_size=V),
        decoder_embedding=TextEmbedding(tokens=CHARACTERS), decoder=Stack(layers=writes, depth=1),
        init={"*": Normal(std=1.0)},
    )  # fmt: skip


def test_a_pair_writes_what_it_writes_without_pads() -> None:
    model = af.build(pair(downsample=3), seed=0).eval()
    ids, mask = torch.randint(0, V, (2, 11), generator=torch.Generator().manual_seed(1)), torch.ones(2, 11).long()
    mask[1, :4] = 0
    options = {"max_new_tokens": 6, "decoder_start_token_id": 1, "eos_token_id": [], "pad_token_id": 0}
    both = af.generate(model, input_ids=ids, attention_mask=mask, **options)
    assert torch.equal(af.generate(model, input_ids=ids, attention_mask=mask, **options, use_cache=False), both)
    assert torch.equal(af.generate(model, input_ids=ids[1:, 4:], **options)[0], both[1])


def test_what_it_gives_and_what_it_costs() -> None:
    spec = EncoderModel(width=D, embedding=SubwordBlocks(tokens=CHARACTERS), encoder=STACK, init={"*": Normal(std=0.1)})
    assert af.count(spec).parameters == V * D + 5 * D * D + D + D + 4 * (D * D + D)
    deep = spec.replace(encoder=STACK.replace(layers=Block(feedforward=Sublayer(op=MLP(width=8)))))
    halves = af.override(deep, {"embedding.downsample": 4})
    difference = af.count(deep).flops(64) - af.count(halves).flops(64)
    assert difference == (32 - 16) * 2 * (2 * D * 8)  # half as many vectors in the stack
    with pytest.raises(ValueError, match="^embedding: SubwordBlocks lets a token see the future"):
        af.override(af.spec("gpt2"), {"embedding": SubwordBlocks(tokens=Tokens(vocab_size=50257))})
    for head in (SpanHead(), LikelySpans()):  # labels are indices of characters, which the stack does not see
        with pytest.raises(ValueError, match="head: .* needs a row of tokens, which SubwordBlocks does not give"):
            spec.replace(head=head)
    with pytest.raises(ValueError, match="SubwordBlocks.kernel is 4; it must be odd"):
        SubwordBlocks(tokens=CHARACTERS, kernel=4)
    placed = af.build(af.override(spec, {"embedding.position": Learned(length=8)}), seed=0)
    assert placed(input_ids=torch.zeros(1, 8, dtype=torch.long)).last_hidden_state.shape == (1, 4, D)
