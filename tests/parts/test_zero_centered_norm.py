"""ZeroCenteredRMSNorm and ScaledTokens: equal to Gemma 2's published layers in every dtype."""

from __future__ import annotations

import pytest
import torch

from anyformer.parts.embedding.scaled_tokens import ScaledTokens
from anyformer.parts.zero_centered_norm import ZeroCenteredRMSNorm
from anyformer.specs.part import Site

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.parametrize("dtype", DTYPES)
def test_norm_is_the_published_one(dtype: torch.dtype) -> None:
    gemma2 = pytest.importorskip("transformers.models.gemma2.modeling_gemma2")
    ours, theirs = ZeroCenteredRMSNorm(eps=1e-3).build(Site(width=96)), gemma2.Gemma2RMSNorm(96, eps=1e-3)
    assert ours.weight.eq(0).all()
    weight = torch.randn(96, generator=torch.Generator().manual_seed(0))
    for norm in (ours, theirs):
        norm.weight.data.copy_(weight)
        norm.to(dtype)
    x = torch.randn(5, 96, generator=torch.Generator().manual_seed(1)).to(dtype)
    assert ours(x).dtype == dtype
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-6 if dtype == torch.float32 else 0, atol=0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_token_factor_is_rounded_to_the_dtype_of_the_weights(dtype: torch.dtype) -> None:
    gemma2 = pytest.importorskip("transformers.models.gemma2.modeling_gemma2")
    ours = ScaledTokens(vocab_size=7, padding_index=2).build(Site(width=56))
    theirs = gemma2.Gemma2TextScaledWordEmbedding(7, 56, 2, embed_scale=56**0.5)
    ours.weight.data.copy_(theirs.weight)
    ids = torch.arange(7)[None]
    torch.testing.assert_close(ours.to(dtype)(ids), theirs.to(dtype)(ids), rtol=0, atol=0)
    assert list(ours.state_dict()) == ["weight"]


def test_tokens_have_one_scale() -> None:
    with pytest.raises(ValueError, match=r"ScaledTokens\.scale"):
        ScaledTokens(vocab_size=7, scale=2.0)
