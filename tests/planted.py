"""A model with hand-written weights: an induction circuit of two heads."""

from __future__ import annotations

from typing import Any

import torch

import anyformer as af
from anyformer.models import DecoderModel
from anyformer.parts.attention.attention import Attention
from anyformer.parts.embedding.text import TextEmbedding, Tokens
from anyformer.parts.head.language import LMHead
from anyformer.parts.init import Normal
from anyformer.parts.mask import Causal
from anyformer.parts.position.absolute import Learned
from anyformer.stacks.block import Block
from anyformer.stacks.stack import Stack
from anyformer.stacks.sublayer import Sublayer

WORDS, PLACES, HEADS = 11, 24, 2
SHARP = 40.0


def planted() -> Any:
    """The residual stream is [token, position, previous token, answer], each one-hot. Head 1 of layer 0 attends to the
    previous position and copies its token. Head 0 of layer 1 attends to positions whose previous token equals the
    current token and copies their token to the answer. The other two heads attend uniformly and add nothing."""
    width, K = 3 * WORDS + PLACES, PLACES
    spec = DecoderModel(
        width=width, length=PLACES,
        embedding=TextEmbedding(tokens=Tokens(vocab_size=WORDS), position=Learned(length=PLACES)),
        decoder=Stack(layers=Block(attention=Sublayer(op=Attention(
            num_heads=HEADS, head_width=K, bias="", mask=Causal(), scale=1.0))), depth=2),
        head=LMHead(vocab_size=WORDS), init={"*": Normal(std=0.02)},
    )  # fmt: skip
    model = af.build(spec, seed=0).eval()
    token, place = slice(0, WORDS), slice(WORDS, WORDS + PLACES)
    before, answer = slice(WORDS + PLACES, 2 * WORDS + PLACES), slice(2 * WORDS + PLACES, width)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.embedding.tokens.weight[:, token] = torch.eye(WORDS)
        model.embedding.position.weight[:, place] = torch.eye(PLACES)
        first, second = (layer.attention.op for layer in model.decoder.layers)
        one = slice(K, 2 * K)
        first.q.weight[one, place] = SHARP * torch.eye(PLACES).roll(-1, 0)  # position p attends to p - 1
        first.k.weight[one, place] = torch.eye(PLACES)
        first.v.weight[K : K + WORDS, token] = torch.eye(WORDS)
        first.o.weight[before, K : K + WORDS] = torch.eye(WORDS)
        second.q.weight[0:WORDS, token] = SHARP * torch.eye(WORDS)
        second.k.weight[0:WORDS, before] = torch.eye(WORDS)
        second.k.weight[0:WORDS, WORDS] = -2  # never attend to the first position, which has no previous token
        second.v.weight[0:WORDS, token] = torch.eye(WORDS)
        second.o.weight[answer, 0:WORDS] = torch.eye(WORDS)
        model.head.out.weight[:, answer] = 10 * torch.eye(WORDS)
    return model
