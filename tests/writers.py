"""Tiny models that generate text, for the tests of generation."""

from __future__ import annotations

import functools
from typing import Any

import torch

import anyformer as af
from anyformer.specs.codec import override

V = 40
SIZES = {"width": 32, "decoder.depth": 2, "decoder.layers.attention.op.num_heads": 4,
         "decoder.layers.feedforward.op.width": 48}  # fmt: skip


@functools.cache
def decoder(vocab_size: int = V, length: int = 32, seed: int = 0) -> Any:
    words = {"embedding.tokens.vocab_size": vocab_size, "head.vocab_size": vocab_size}
    spec = override(af.spec("gpt2"), {**SIZES, **words, "embedding.position.length": length})
    return sharpened(af.build(spec, seed=seed))


@functools.cache
def pair(seed: int = 0) -> Any:
    words = {"embedding.tokens.vocab_size": V, "decoder_embedding.tokens.vocab_size": V, "head.vocab_size": V}
    return sharpened(
        af.build(override(af.spec("t5-small"), {**words, "encoder.depth": 1, "decoder.depth": 1}), seed=seed)
    )


@torch.no_grad()
def sharpened(model: Any) -> Any:
    """Replace the matrices with larger random ones, so that the next token depends on the previous ones."""
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(len(name))))
            parameter.mul_(1.0 / parameter.shape[-1] ** 0.5)
    return model.eval()


def ids(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(5, V, shape, generator=torch.Generator().manual_seed(seed))
