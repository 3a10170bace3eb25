"""Synthesizers against their formulas; pads, documents and the past change nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from anyformer.parts.attention.synthesizer import Synthesizer
from anyformer.parts.mask import FULL
from small import close, context, made

D, H, K, L, T = 12, 3, 5, 10, 6  # heads need not divide the width
KINDS = [(scores, products) for scores in ("dense", "random", "factorized") for products in ("none", "plus", "alpha")]
over_kinds = pytest.mark.parametrize("scores, products", KINDS)


def module_of(scores: Any, products: Any, mask: Any = FULL) -> Any:
    part = Synthesizer(num_heads=H, head_width=K, length=L, scores=scores, products=products, rank=2, mask=mask)
    return made(part, D)


def by_heads(x: torch.Tensor) -> torch.Tensor:
    return x.unflatten(-1, (H, K)).transpose(1, 2)


@over_kinds
def test_formula(scores: str, products: str) -> None:
    """Softmax of the synthesised scores, of their sum with the products, or of a learned mixture."""
    module, x = module_of(scores, products), torch.randn(2, T, D)
    if scores == "dense":
        found = torch.einsum("bhtk,hkl->bhtl", by_heads(torch.relu(module.inner(x))), module.places)[..., :T]
    elif scores == "random":
        found = module.table[None, :, :T, :T]
    else:
        found = torch.einsum("htr,hsr->hts", module.rows, module.columns)[None, :, :T, :T]
    if products != "none":
        dots = torch.einsum("bhtk,bhsk->bhts", by_heads(module.q(x)), by_heads(module.k(x))) / K**0.5
        share = torch.sigmoid(module.share) if products == "alpha" else None
        found = dots + found if share is None else (1 - share) * dots + share * found
    mixed = torch.einsum("bhts,bhsk->bthk", found.softmax(-1).expand(2, -1, -1, -1), by_heads(module.v(x)))
    close(module(x, context(T)), module.o(mixed.flatten(2)))


def test_texts_end() -> None:
    with pytest.raises(ValueError, match="here reads texts of at most 10 tokens, got 12"):
        module_of("random", "none")(torch.randn(1, 12, D), context(12))
