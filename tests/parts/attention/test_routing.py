"""Routing attention against its formula: clusters that select tokens and, in the causal form, tokens that select a
cluster."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import anyformer as af
from anyformer import families
from anyformer.parts.attention.routing import RoutingAttention
from anyformer.specs.part import Site
from anyformer.transforms.recompute import recompute
from small import Weights, close, context, filled, numbers
from tiny import CONFIGS

D, H, K, T = 12, 3, 4, 13
OP = "decoder.layers.attention.op"


def module_of(**fields: Any) -> Any:
    part = RoutingAttention(**{"num_heads": H, "clusters": 4, "window": 3, **fields})
    module = filled(part.build(Site(width=D, address="here")))
    module.centres.copy_(numbers(H, part.clusters, K, seed=5))
    return module


def normed(layer: Any, x: torch.Tensor) -> torch.Tensor:
    """(B, H, T, K) with mean 0 and variance 1."""
    found = layer(x).unflatten(-1, (H, K)).transpose(1, 2)
    found = found - found.mean(-1, keepdim=True)
    return found / (found.square().mean(-1, keepdim=True) + 1e-5).sqrt()


def by_hand(module: Any, x: torch.Tensor) -> torch.Tensor:
    part, (B, T, _) = module.part, x.shape
    q, v = normed(module.q, x), module.v(x).unflatten(-1, (H, K)).transpose(1, 2)
    k = q if part.causal else normed(module.k, x)
    centres = module.centres / module.centres.norm(dim=-1, keepdim=True)
    out = torch.zeros(B, H, T, K)
    for b, h in torch.cartesian_prod(torch.arange(B), torch.arange(H)).tolist():
        seen: list[list[torch.Tensor]] = [[] for _ in range(T)]

        def mixed(t: int, keys: list[int], b: int = b, h: int = h) -> torch.Tensor:
            weights = torch.stack([q[b, h, t] @ k[b, h, s] / K**0.5 for s in keys]).softmax(0)
            return weights @ v[b, h, keys]

        near_q, near_k = (t[b, h] @ centres[h].T for t in (q, k))
        if part.causal:
            cluster = near_q.argmax(-1).tolist()
            for t in range(T):
                seen[t].append(mixed(t, [s for s in range(t + 1) if cluster[s] == cluster[t]][-part.window - 1 :]))
        else:
            for c in range(part.clusters):
                queries, keys = (t[:, c].argsort(descending=True)[: part.window].tolist() for t in (near_q, near_k))
                for t in queries:
                    seen[t].append(mixed(t, keys))
        for t in range(T):
            out[b, h, t] = torch.stack(seen[t]).mean(0) if seen[t] else 0.0
    return module.o(out.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("causal", [False, True])
def test_formula(causal: bool) -> None:
    module, x = module_of(causal=causal), numbers(2, T, D)
    expected, shown = by_hand(module, x), Weights()
    for kernel in ("auto", "eager"):
        close(module(x, context(T, kernel=kernel)), expected, 1e-5)
    close(module(x, context(T, taps=shown)), expected, 1e-5)
    sums = shown[0].sum(-1)
    assert bool(((sums - 1).abs() < 1e-5).logical_or(sums == 0).all()) and bool((sums > 0).all()) == causal


@pytest.mark.parametrize("causal", [False, True])
def test_one_cluster_is_plain_attention(causal: bool) -> None:
    module, x = module_of(clusters=1, window=T, causal=causal), numbers(2, T, D)
    q, v = normed(module.q, x), module.v(x).unflatten(-1, (H, K)).transpose(1, 2)
    k = q if causal else normed(module.k, x)
    out = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    close(module(x, context(T)), module.o(out.transpose(1, 2).flatten(2)), 1e-5)


@pytest.mark.slow
def test_compiled() -> None:
    """In training, when the centres move."""
    x = numbers(2, T, D)
    torch._dynamo.reset()
    plain, compiled = module_of(decay=0.5).train(), module_of(decay=0.5).train()
    run = torch.compile(lambda x: compiled(x, context(T)), fullgraph=True, backend="aot_eager")
    for _ in range(3):
        close(run(x), plain(x, context(T)), 1e-5)
    close(compiled.centres, plain.centres)


def test_centres_follow_what_is_near() -> None:
    """One step of k-means over queries and keys without pads, applied when the next pass begins."""
    module, x = module_of(decay=0.75).train(), numbers(2, T, D)
    before, real = module.centres.clone(), torch.ones(2, T, dtype=torch.bool)
    real[1, 8:] = False
    module(x, context(T, is_token=real))
    assert torch.equal(module.centres, before)
    expected = before.clone()
    for h in range(H):
        vectors = torch.cat([normed(layer, x)[:, h][real] for layer in (module.q, module.k)])
        nearest = (vectors @ F.normalize(before[h], dim=-1).T).argmax(-1)
        for c in nearest.unique().tolist():
            expected[h, c] = 0.75 * before[h, c] + 0.25 * vectors[nearest == c].mean(0)
    module(x, context(T))
    close(module.centres, expected)
    module.eval()(x, context(T))
    close(module.centres, expected)


def test_a_layer_that_is_run_again_in_the_backward_pass_gets_the_same_centres() -> None:
    op = RoutingAttention(num_heads=4, clusters=3, window=2, decay=0.5, causal=True)
    spec = af.override(families.find("gpt2").read(CONFIGS["gpt2"]), {OP: op})
    ids, found = torch.randint(5, 50, (2, 12)), []
    for trained in (af.build(spec), recompute(af.build(spec))):
        for _ in range(2):
            torch.manual_seed(0)
            trained.train()(input_ids=ids, labels=ids).loss.backward()
        found.append({name: p.grad for name, p in trained.named_parameters()} | dict(trained.named_buffers()))
    for name, value in found[0].items():
        assert value is not None, name
        close(found[1][name], value, 1e-5)


@pytest.mark.parametrize("fields, line", [({"decay": 1.5}, "decay is 1.5"), ({"clusters": 0}, "clusters is 0")])
def test_refused(fields: dict[str, Any], line: str) -> None:
    with pytest.raises(ValueError, match=f"^RoutingAttention.{line}"):
        RoutingAttention(num_heads=2, **fields)
