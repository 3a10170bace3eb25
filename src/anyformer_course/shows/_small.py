"""Single Parts and small models with fixed seeds, for the worked examples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from anyformer import families
from anyformer.models import Model
from anyformer.runtime.context import Context
from anyformer.specs.codec import override
from anyformer.specs.part import Part, Site


def module(part: Part, width: int, seed: int = 0, std: float | None = None) -> nn.Module:
    """Build one Part for vectors of `width` numbers. If `std` is given, all matrices are normal with this deviation."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        built = part.build(Site(width=width, address="part"))
        for parameter in built.parameters():
            if std is not None and parameter.dim() > 1:
                nn.init.normal_(parameter, std=std)
    return built.eval()


def context(length: int) -> Context:
    """Return the context of one text without padding."""
    index = torch.arange(length)
    return Context(index=index, positions=index[None])


def number(words: list[str]) -> tuple[list[str], Tensor]:
    """Return the different words in order of appearance, and the text as their numbers (1, T)."""
    vocabulary = list(dict.fromkeys(words))
    return vocabulary, torch.tensor([[vocabulary.index(word) for word in words]])


def decoder(
    vocab_size: int, *, width: int = 32, depth: int = 2, heads: int = 2, changes: Mapping[str, Any] | None = None
) -> Model:
    """Return a small GPT-2 without dropout, with `changes` by address."""
    config = {
        "architectures": ["GPT2LMHeadModel"], "vocab_size": vocab_size, "n_positions": 128, "n_embd": width,
        "n_layer": depth, "n_head": heads, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
        "bos_token_id": 0, "eos_token_id": 0, "initializer_range": width**-0.5,
    }  # fmt: skip
    return override(families.find("gpt2").read(config), changes or {})
