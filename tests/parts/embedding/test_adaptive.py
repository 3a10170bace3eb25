"""Vocabularies in clusters against torch's adaptive softmax, and mixtures of softmaxes against their formula."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import anyformer as af
from anyformer import families
from anyformer.parts.embedding.adaptive import AdaptiveTokens
from anyformer.parts.head.adaptive import AdaptiveHead, MixtureHead
from small import close, compiled_equals_eager, context, made
from tiny import CONFIGS

D, V, CUTOFFS, WIDTHS = 16, 30, (8, 18), (16, 8, 4)
HEAD = AdaptiveHead(vocab_size=V, cutoffs=CUTOFFS, widths=WIDTHS, shift=False)
TOKENS = AdaptiveTokens(vocab_size=V, cutoffs=CUTOFFS, widths=WIDTHS)


def test_adaptive_softmax_is_torchs() -> None:
    head, x, labels = made(HEAD, D), torch.randn(2, 5, D), torch.randint(0, V, (2, 5))
    theirs = torch.nn.AdaptiveLogSoftmaxWithLoss(D, V, [*CUTOFFS], div_value=2.0)
    first, *rest = head.out.clusters
    with torch.no_grad():
        theirs.head.weight.copy_(torch.cat((first.table, head.others.weight)))
        for tail, cluster in zip(theirs.tail, rest, strict=True):
            tail[0].weight.copy_(cluster.project.T)
            tail[1].weight.copy_(cluster.table)
    close(head.scores(x).flatten(0, 1), theirs.log_prob(x.flatten(0, 1)))
    labels[0, 0] = -100
    loss = head.loss(x, context(5), labels)
    assert int(loss.weight) == 9
    close(loss.mean, theirs(x.flatten(0, 1)[1:], labels.flatten()[1:]).loss)


def test_one_softmax_over_all_clusters() -> None:
    head, x = made(HEAD.replace(hierarchical=False), D), torch.randn(2, 5, D)
    tables = [c.table if c.project is None else c.table @ c.project.T for c in head.out.clusters]
    close(head.scores(x), F.linear(x, torch.cat(tables)))
    assert head.others is None


def test_tokens_are_those_of_their_cluster() -> None:
    tokens, ids = made(TOKENS.replace(scale=2.0), D), torch.arange(V)[None]
    tables = [c.table if c.project is None else c.table @ c.project.T for c in tokens.clusters]
    close(tokens(ids), 2 * torch.cat(tables)[None])
    compiled_equals_eager(tokens, ids)
    with pytest.raises(ValueError, match="token id 30 is outside the vocabulary of 30"):
        tokens(ids + 1)


def test_a_mixture_of_softmaxes() -> None:
    head, x = made(MixtureHead(vocab_size=V, softmaxes=3, scale=0.5, shift=False), D), torch.randn(2, 5, D)
    vectors = torch.tanh(F.linear(x / 2, head.each.weight)).unflatten(-1, (3, D))
    each = F.linear(vectors, head.out.weight).softmax(-1)  # (B, T, 3, V)
    shares = F.linear(x / 2, head.mix.weight).softmax(-1)
    expected = torch.einsum("btc,btcv->btv", shares, each)
    close(head.scores(x).exp(), expected)
    labels = torch.randint(0, V, (2, 5))
    close(head.loss(x, context(5), labels).mean, F.nll_loss(expected.log().flatten(0, 1), labels.flatten()))
    compiled_equals_eager(head.scores, x)


def gpt2(**changes: Any) -> Any:
    config = {**CONFIGS["gpt2"], "vocab_size": V, "n_embd": D, "n_head": 2}
    return af.override(families.find("gpt2").read(config), {"ties": (), **changes})


def test_a_vocabulary_grows_at_its_end() -> None:
    """New tokens are added to the last cluster; tied tables remain tied."""
    ties = [[f"head.out.clusters.{leaf}", f"embedding.tokens.clusters.{leaf}"]
            for leaf in ("0.table", "1.table", "1.project", "2.table", "2.project")]  # fmt: skip
    head = HEAD.replace(shift=True)
    model = af.build(gpt2(**{"embedding.tokens": TOKENS, "head": head, "ties": ties})).eval()
    before = model(input_ids=torch.arange(V)[None, :8], use_cache=False).logits
    model.resize_token_embeddings(V + 5)
    assert model.head.out.clusters[2].table is model.embedding.tokens.clusters[2].table
    after = model(input_ids=torch.arange(V)[None, :8], use_cache=False).logits
    close(after[..., : CUTOFFS[1]], before[..., : CUTOFFS[1]])
    assert after.shape[-1] == V + 5


def test_mistakes() -> None:
    for wrong, line in (
        ({"widths": (16, 8)}, "widths has 2 values.* 3 clusters"),
        ({"cutoffs": (18, 8)}, "cutoffs are 18, 8; they must increase"),
        ({"cutoffs": (8, 30)}, "cutoffs are 8, 30; .*below vocab_size 30"),
        ({"widths": (16, 0, 1)}, "it must be at least 1"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=line):
            TOKENS.replace(**wrong)
        with pytest.raises(ValueError, match=line):
            HEAD.replace(**wrong)
    with pytest.raises(ValueError, match="width and padding_index must not be set"):
        TOKENS.replace(width=8)
    with pytest.raises(ValueError, match="no bias or unused_bias"):
        HEAD.replace(bias=True)
