"""Experts and routers against a loop over tokens, written from the papers."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.kernels.grouped import gathered_linear, grouped_linear
from anyformer.parts.feedforward.base import FeedForward
from anyformer.parts.feedforward.clamped_mlp import ClampedGatedMLP
from anyformer.parts.feedforward.mlp import MLP, GatedMLP
from anyformer.parts.feedforward.moe import MoE, rebalance
from anyformer.parts.feedforward.product_keys import ProductKeyMemory
from anyformer.parts.feedforward.routers import GShard, NoisyTopK, Switch, TopK
from anyformer.runtime.context import Context
from anyformer.specs.part import Part, Site

D, E, B, T = 12, 6, 2, 7


def context(**more) -> Context:
    index = torch.arange(T)
    return Context(index=index, positions=index[None], **more)


def made(part: MoE, seed: int = 0, scale: float = 0.4):
    module = part.build(Site(width=D, address="moe"))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in module.parameters():
            tensor.copy_(torch.randn(tensor.shape, generator=generator) * scale)
    return module.eval()


def one_expert(module, part: MoE, e: int, x: Tensor) -> Tensor:
    inner = x @ module.experts.up[e]
    if module.experts.up_bias is not None:
        inner = inner + module.experts.up_bias[e]
    if isinstance(part.expert, ClampedGatedMLP):
        gate, up = inner.chunk(2)
        gate, up = torch.minimum(gate, torch.tensor(0.6)), up.clamp(-0.6, 0.6)
        inner = gate / (1 + torch.exp(-1.3 * gate)) * (up + 1)
    elif isinstance(part.expert, GatedMLP):
        gate, up = inner.chunk(2)
        inner = F.silu(gate) * up
    else:
        inner = F.gelu(inner)
    y = inner @ module.experts.down[e]
    return y if module.experts.down_bias is None else y + module.experts.down_bias[e]


ROUTERS = {
    "mixtral": TopK(top_k=2),
    "v2": TopK(top_k=3, normalize=False, scale=2.0, groups=3, top_groups=2, float32=True),
    "v3": TopK(top_k=2, score="sigmoid", groups=2, top_groups=1, group_best=2, correction=True, scale=2.5),
    "all": TopK(top_k=E),
    "gpt-oss": TopK(top_k=2, bias=True),
    "biased v2": TopK(top_k=2, bias=True, float32=True),
    "noisy": NoisyTopK(top_k=2),
}


CLAMPED = ClampedGatedMLP(width=9, alpha=1.3, limit=0.6)


@pytest.mark.parametrize("expert", [GatedMLP(width=9), GatedMLP(width=9, bias=True), MLP(width=9), CLAMPED], ids=repr)
@pytest.mark.parametrize("name", ROUTERS)
def test_experts_are_a_loop_over_tokens(name: str, expert) -> None:
    part = MoE(num_experts=E, router=ROUTERS[name], expert=expert, shared=MLP(width=5))
    module = made(part)
    if getattr(module.router, "correction", None) is not None:
        module.router.correction.copy_(torch.linspace(-1, 1, E))
    x = torch.randn(B, T, D, generator=torch.Generator().manual_seed(1), requires_grad=True)
    expected = []
    for token in x.flatten(0, 1):
        logits = module.router.weight @ token
        if getattr(module.router, "bias", None) is not None:
            logits = logits + module.router.bias
        if name == "noisy":
            scores, best = logits.topk(2)
            chosen = dict(zip(best.tolist(), scores.softmax(-1), strict=True))
        else:
            router = part.router
            scores = logits.sigmoid() if router.score == "sigmoid" else logits.softmax(-1)
            choice = scores + module.router.correction if router.correction else scores
            size = E // router.groups
            groups = [choice[g * size :][:size].detach() for g in range(router.groups)]
            ranks = [float(group.topk(router.group_best).values.sum()) for group in groups]
            best_groups = sorted(range(router.groups), key=lambda g: -ranks[g])[: router.top_groups]
            allowed = [e for e in range(E) if e // size in best_groups]
            best = sorted(allowed, key=lambda e: -float(choice[e]))[: router.top_k]
            total = sum(scores[e] for e in best) if router.normalize else 1.0
            chosen = {e: scores[e] / total * router.scale for e in best}
        shared = module.shared(token[None], context())[0]
        expected.append(sum(weight * one_expert(module, part, e, token) for e, weight in chosen.items()) + shared)
    wanted = torch.stack(expected).view_as(x)
    parameters = [x, *module.parameters()]
    loss = torch.randn(x.shape, generator=torch.Generator().manual_seed(2))
    grads = torch.autograd.grad((wanted * loss).sum(), parameters, allow_unused=True)
    with torch.no_grad():
        assert torch.allclose(module(x, context()), wanted, atol=1e-5)
    out = module(x, context())
    assert torch.allclose(out, wanted, atol=1e-5)
    for a, b in zip(torch.autograd.grad((out * loss).sum(), parameters, allow_unused=True), grads, strict=True):
        assert (a is None) == (b is None) or not torch.cat([g for g in (a, b) if g is not None]).any()
        assert a is None or b is None or torch.allclose(a, b, atol=1e-4)


def test_one_graph_whatever_the_routing() -> None:
    """Forward and backward compile to one graph each, which different tokens reuse."""
    for router in (*ROUTERS.values(), Switch(capacity=2), GShard(capacity=2)):
        torch._dynamo.reset()
        module = made(MoE(num_experts=E, router=router, expert=GatedMLP(width=9)))
        compiled = torch.compile(lambda x, m=module: m(x, context()), fullgraph=True, backend="aot_eager")
        with torch._dynamo.config.patch(error_on_recompile=True):
            for seed in range(3):
                x = torch.randn(B, T, D, generator=torch.Generator().manual_seed(seed), requires_grad=True)
                mine, theirs = compiled(x), module(x, context())
                assert torch.allclose(mine, theirs, atol=1e-6)
                learned = [x, *module.experts.parameters()]
                grads = [torch.autograd.grad(y.square().sum(), learned) for y in (mine, theirs)]
                assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(*grads, strict=True))


def test_a_switch_drops_who_comes_too_late() -> None:
    part = MoE(num_experts=2, router=Switch(capacity=2), expert=MLP(width=9))
    module = made(part)
    x = torch.randn(1, T, D).abs()
    with torch.no_grad():
        module.router.weight.copy_(torch.tensor([[1.0] * D, [-1.0] * D]))  # all tokens use the first expert
        out = module(x, context())
        assert out[:, :2].abs().min() > 0 and not out[:, 2:].any()
        # pads use no capacity, wherever they are
        is_token = torch.ones(1, T, dtype=torch.bool)
        is_token[:, :3] = False
        out = module(x, context(is_token=is_token))
        assert out[:, 3:5].abs().min() > 0 and not out[:, 5:].any() and not out[:, :3].any()
        # each document has its own capacity
        out = module(x, context(documents=torch.tensor([[0, 0, 0, 1, 1, 1, 2]])))
        assert [bool(row.any()) for row in out[0]] == [True, True, False, True, True, False, True]


@pytest.mark.parametrize("router", [Switch(capacity=2, limit="batch"), GShard(capacity=2, limit="batch", threshold=0)])
@torch.no_grad()
def test_a_limit_of_all_texts_together(router: Switch | GShard) -> None:
    """In training: B * capacity tokens per expert, the first tokens of all texts before the second tokens, pads not
    counted. In evaluation: no limit, so that no text depends on the others."""
    module = made(MoE(num_experts=3, router=router, expert=MLP(width=9)))
    x, is_token = torch.randn(B, T, D, generator=torch.Generator().manual_seed(3)), torch.ones(B, T, dtype=torch.bool)
    is_token[1, :3] = False  # pads before real tokens of other texts
    is_token[0, 6:] = False
    chosen = (x @ module.router.weight.T).topk(router.top_k, dim=-1).indices
    kept = module.train().router(x, context(is_token=is_token)).experts.view(B, T, router.top_k) < 3
    taken, dropped = [0, 0, 0], 0
    for t in range(T):
        for b in (b for b in range(B) if is_token[b, t]):
            for k, e in enumerate(chosen[b, t].tolist()):
                taken[e] += 1
                assert bool(kept[b, t, k]) == (taken[e] <= 2 * B)
                dropped += taken[e] > 2 * B
    assert dropped
    assert (module.eval().router(x, context(is_token=is_token)).experts < 3).all()


@pytest.mark.parametrize("capacity", [0, 2, 3, 20])
@torch.no_grad()
def test_two_experts_with_capacity(capacity: int) -> None:
    """GShard: token by token, first choice before second choice, while the expert has capacity."""
    part = MoE(num_experts=3, router=GShard(capacity=capacity), expert=MLP(width=9))
    module, x = made(part), torch.randn(B, T, D, generator=torch.Generator().manual_seed(3))
    padding, documents = torch.ones(B, T, dtype=torch.bool), torch.tensor([[0, 0, 0, 1, 1, 1, 1], [0] * 7])
    padding[1, 2:4] = False
    for more in ({}, {"is_token": padding}, {"documents": documents}):
        expected = torch.zeros(B, T, D)
        for b in range(B):
            taken = [0, 0, 0]
            real = [t for t in range(T) if "is_token" not in more or padding[b, t]]
            for t in real:
                if "documents" in more and t and documents[b, t] != documents[b, t - 1]:
                    taken = [0, 0, 0]
                scores = (module.router.weight @ x[b, t]).softmax(-1)
                first, second = scores.argsort(descending=True)[:2].tolist()
                for e in (first, second):
                    taken[e] += 1
                    if taken[e] <= capacity:
                        share = scores[e] / (scores[first] + scores[second])
                        expected[b, t] += share * one_expert(module, part, e, x[b, t])
        shown = torch.ones(B, T, 1) if "is_token" not in more else padding[..., None].float()
        assert torch.allclose(module(x, context(**more)) * shown, expected, atol=1e-6)


def test_a_second_expert_is_used_by_chance() -> None:
    """In training the second expert is used with probability 2 * share, at most 1; in evaluation always."""
    router = GShard(capacity=10**6).make(Site(width=D, address="router"), 2).train()
    with torch.no_grad():
        router.weight.zero_()[0, 0] = 1.0
    for score, share in ((2.0, 1 / (1 + 2.718281828**2)), (0.0, 0.5)):
        x = torch.zeros(40, 500, D)
        x[..., 0] = score
        ctx = Context(index=torch.arange(500), positions=torch.arange(500)[None])
        routing = router.train()(x, ctx)
        used = routing.weights.gt(0).float().mean(0)
        assert used[0] == 1 and abs(float(used[1]) - 2 * share) < 0.015  # 5 standard deviations of 20,000 draws
        assert torch.allclose(routing.weights[:, 1].max(), torch.tensor(share), atol=1e-5)
        assert router.eval()(x, ctx).weights.gt(0).all()
    always = GShard(threshold=0.0).make(Site(width=D, address="router"), 2).train()
    with torch.no_grad():
        always.weight.copy_(router.weight)
    assert always(x[:1, :5], Context(index=torch.arange(5), positions=torch.arange(5)[None])).weights.gt(0).all()
    with pytest.raises(ValueError, match="GShard.top_k is 1; it must be 2"):
        GShard(top_k=1)


def test_noise_is_learned_and_unequal_use_costs() -> None:
    part = MoE(num_experts=E, router=NoisyTopK(top_k=2), expert=MLP(width=9))
    module = part.build(Site(width=D))
    assert module.router.starts == {"weight": 0.0, "noise": 0.0}
    x = torch.randn(64, T, D)
    with torch.no_grad():
        for tensor in (module.router.weight, module.router.noise):
            tensor.zero_()
    ctx = context()
    routing = module.train().router(x, ctx)
    counts = torch.bincount(routing.experts.flatten(), minlength=E).float()
    assert counts.std() / counts.mean() < 0.3, "equal scores and noise: equal load"
    equal = [float(ctx.losses[name][0].detach()) for name in ("importance", "load")]
    with torch.no_grad():
        module.router.weight[0] = 3.0
    ctx = context()
    module.router(x.abs(), ctx)
    assert float(ctx.losses["importance"][0].detach()) > 10 * equal[0]
    assert float(ctx.losses["load"][0].detach()) > equal[1]
    sum(ctx.losses["load"]).backward()
    assert module.router.weight.grad.any() and module.router.noise.grad.any()
    module.eval()
    assert torch.equal(module.router(x, context()).experts, module.router(x, context()).experts)


def test_corrections_balance_without_a_loss() -> None:
    part = MoE(num_experts=E, router=TopK(top_k=1, score="sigmoid", correction=True), expert=MLP(width=9))
    module = made(part, scale=0.2)
    x = torch.randn(200, T, D) + 1

    def spread() -> float:
        counts = torch.bincount(module.router(x, context()).experts.flatten(), minlength=E).float()
        return float(counts.std() / counts.mean())

    with torch.no_grad():
        before = spread()
        for _ in range(200):
            rebalance(module, (module.router(x, context()).logits,), rate=0.02)
        assert spread() < before / 4


def test_grouped_products() -> None:
    x, weight = torch.randn(9, 4, requires_grad=True), torch.randn(3, 4, 5, requires_grad=True)
    ends = torch.tensor([2, 2, 7])  # the second group is empty; two rows are in no group
    expected = torch.cat((x[:2] @ weight[0], x[2:7] @ weight[2], torch.zeros(2, 5)))
    for run in (grouped_linear, gathered_linear):
        assert torch.allclose(run(x, weight, ends), expected, atol=1e-6)
        with torch.no_grad():
            assert torch.allclose(run(x, weight, ends), expected, atol=1e-6)
    double = [t.detach().double().requires_grad_() for t in (x, weight)]
    assert torch.autograd.gradcheck(lambda a, b: grouped_linear(a, b, ends), double)
    assert not grouped_linear(x, weight, torch.zeros(3, dtype=torch.long)).any()


@pytest.mark.parametrize("activation", ["gelu", "softplus"])  # autocast keeps the first and runs the second in fp32
def test_under_autocast_an_expert_is_a_feed_forward(activation: str) -> None:
    expert = MLP(width=16, activation=activation, bias=True)
    alone = made(MoE(num_experts=1, router=TopK(top_k=1), expert=expert))
    plain = expert.build(Site(width=D, address="mlp"))
    names = {"up.weight": "up", "up.bias": "up_bias", "down.weight": "down", "down.bias": "down_bias"}
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            found = getattr(alone.experts, names[name])[0]
            parameter.copy_(found.t() if found.dim() == 2 else found)
    x = torch.randn(B, T, D, generator=torch.Generator().manual_seed(1), requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        wanted, found = plain(x, context()), alone(x, context())
    exact = plain(x, context())
    error = (found.float() - exact).abs().max()
    assert error > 1e-4  # the product is not in fp32
    torch.testing.assert_close(found.float(), wanted.float(), atol=0.06, rtol=0)  # biases are added differently
    found.float().sum().backward()
    assert alone.experts.up.grad is not None and alone.experts.up.grad.dtype == torch.float32


def test_what_cannot_be_is_refused() -> None:
    site = Site(width=D, address="here")
    for router, line in (
        (TopK(top_k=2, groups=4), "6 experts do not make 4 equal groups"),
        (TopK(top_k=3, groups=3, top_groups=1), "1 groups of 2 experts are too few for top_k 3"),
        (TopK(top_k=2, groups=6, group_best=2), "1 groups of 1 experts are too few for .* group_best 2"),
    ):
        with pytest.raises(ValueError, match=f"^here.router: {line}"):
            MoE(num_experts=E, router=router, expert=MLP(width=9)).build(site)
    with pytest.raises(ValueError, match="router.top_k is 7; .* 6 experts"):
        MoE(num_experts=E, router=TopK(top_k=7), expert=MLP(width=9))
    with pytest.raises(ValueError, match="top_groups"):
        TopK(top_k=2, groups=2, top_groups=3)


class Squared(FeedForward, sees="itself"):
    """A kind that the library does not have."""

    def inner(self, up: Tensor) -> Tensor:
        return up * up


class OtherOp(Part, sees="itself"):
    """An op of a different package, without an inner function."""

    def build(self, site: Site) -> torch.nn.Module:
        return torch.nn.Identity()


def test_any_feed_forward_can_be_an_expert() -> None:
    """Only its inner function is called: it does not need a module."""
    module = made(MoE(num_experts=E, router=TopK(top_k=E, normalize=True), expert=Squared(width=5)))
    x = torch.randn(B, T, D, generator=torch.Generator().manual_seed(1))
    weights = (x @ module.router.weight.T).softmax(-1)
    inner = torch.einsum("btd,edf->btef", x, module.experts.up) + module.experts.up_bias
    outputs = torch.einsum("btef,efd->bted", inner * inner, module.experts.down) + module.experts.down_bias
    assert torch.allclose(module(x, context()), (weights[..., None] * outputs).sum(2), atol=1e-5)
    for other in (ProductKeyMemory(keys=4, top_k=2), OtherOp()):
        with pytest.raises(ValueError, match="FeedForward"):
            MoE(num_experts=2, router=TopK(), expert=other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("published", ["gpt_oss", "qwen3_moe", "qwen3_moe unnormalised"])
def test_the_router_is_the_published_one(published: str, dtype: torch.dtype) -> None:
    """gpt-oss computes the softmax of the chosen scores, Qwen3-MoE that of all, divided by the sum of the chosen. Both
    round the weights to the model's dtype; we round their products with the experts' outputs."""
    from transformers import GptOssConfig, Qwen3MoeConfig
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssTopKRouter
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeTopKRouter

    width, count, k = 48, 32, 4
    sizes = {"hidden_size": width, "num_local_experts": count, "num_experts_per_tok": k}
    if published == "gpt_oss":
        theirs, part = GptOssTopKRouter(GptOssConfig(**sizes)), TopK(top_k=k, bias=True)
    else:
        normalize = "unnormalised" not in published
        theirs = Qwen3MoeTopKRouter(Qwen3MoeConfig(**sizes, norm_topk_prob=normalize))
        part = TopK(top_k=k, normalize=normalize)
    mine = part.make(Site(width=width, address="router"), count)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
            mine.get_parameter(name).copy_(parameter)
    theirs, mine = theirs.to(dtype), mine.to(dtype)
    x = torch.randn(4, 500, width, generator=generator).to(dtype)
    with torch.no_grad():
        logits, weights, experts = theirs(x.flatten(0, 1))
        routing = mine(x, context())
    assert torch.equal(routing.logits, logits) and weights.dtype == dtype and routing.weights.dtype == torch.float32
    # as sets of (expert, weight): our experts of a token are in no particular order
    expected = torch.zeros(len(logits), count).scatter(1, experts, weights.float())
    found = torch.zeros(len(logits), count).scatter(1, routing.experts, routing.weights)
    assert torch.equal(expected > 0, found > 0)
    # half a unit in the last place
    assert torch.allclose(
        found, expected, rtol=0.51 * torch.finfo(dtype).eps if dtype != torch.float32 else 1e-6, atol=0
    )
