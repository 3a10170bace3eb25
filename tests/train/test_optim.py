"""Optimizers compared with torch's optimizers, schedules compared with transformers' schedules."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch
from torch import nn

from anyformer.kernels import hardware
from anyformer.train import optim

OPTIMIZERS = [
    optim.AdamW(lr=1e-2, weight_decay=0.3),
    optim.Adafactor(lr=1e-2, weight_decay=0.3),
    optim.Muon(lr=1e-2, weight_decay=0.3, matrices="*inner*"),
]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(7, 6)
        self.inner = nn.Linear(6, 5)
        self.norm = nn.LayerNorm(5)
        self.frozen = nn.Linear(5, 5).requires_grad_(False)

    def loss(self, seed: int) -> torch.Tensor:
        ids = torch.randint(7, (4,), generator=torch.Generator().manual_seed(seed))
        return self.frozen(self.norm(self.inner(self.table(ids)))).square().mean()


def step(net: Net, made: optim.Optimizers, seed: int) -> None:
    net.loss(seed).backward()
    for each in made:
        each.step()
    made.zero_grad()


def by_hand(part: Any, net: Net) -> list[torch.optim.Optimizer]:
    """Return the torch optimizers for this net, written out by hand."""
    matrices, vectors = [net.table.weight, net.inner.weight], [net.inner.bias, net.norm.weight, net.norm.bias]
    if isinstance(part, optim.Adafactor):
        groups = [{"params": matrices, "weight_decay": 0.3}, {"params": vectors, "weight_decay": 0.0}]
        return [torch.optim.Adafactor(groups, lr=1e-2)]
    adam: dict[str, Any] = {"lr": 1e-2, "betas": (0.9, 0.95), "fused": True}
    if isinstance(part, optim.Muon):
        groups = [{"params": [net.table.weight], "weight_decay": 0.3}, {"params": vectors, "weight_decay": 0.0}]
        muon = torch.optim.Muon([net.inner.weight], lr=1e-2, weight_decay=0.3, adjust_lr_fn="match_rms_adamw")
        return [muon, torch.optim.AdamW(groups, **adam)]
    groups = [{"params": matrices, "weight_decay": 0.3}, {"params": vectors, "weight_decay": 0.0}]
    return [torch.optim.AdamW(groups, **adam)]


@pytest.mark.parametrize("part", OPTIMIZERS, ids=lambda part: type(part).__name__)
def test_an_optimizer_is_torchs_own_with_decay_on_matrices(
    part: optim.Optimizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "has", lambda ability: True)
    ours, theirs = Net(), Net()
    made, hand = part.make(ours), by_hand(part, theirs)
    before = theirs.frozen.weight.clone()
    for seed in range(5):
        step(ours, made, seed)
        theirs.loss(seed).backward()
        for each in hand:
            each.step()
            each.zero_grad()
    for (name, a), b in zip(ours.state_dict().items(), theirs.state_dict().values()):
        assert torch.equal(a, b), name
    assert torch.equal(ours.frozen.weight, before)


@pytest.mark.parametrize("part", OPTIMIZERS, ids=lambda part: type(part).__name__)
def test_a_state_goes_on_bit_for_bit_elsewhere(part: optim.Optimizer) -> None:
    net = Net()
    made = part.make(net)
    for seed in range(3):
        step(net, made, seed)
    kept = {name: tensor.clone() for name, tensor in made.state().items()}
    other = Net()
    other.load_state_dict(net.state_dict())
    again = part.make(other)
    again.load(kept)
    for seed in range(3, 6):
        step(net, made, seed)
        step(other, again, seed)
    assert all(torch.equal(a, b) for a, b in zip(net.state_dict().values(), other.state_dict().values()))
    kept.pop(next(name for name in kept if name.startswith("norm.bias/step") or name.startswith("inner.weight/")))
    missing = {name: value for name, value in kept.items() if not name.startswith("inner.weight/")}
    with pytest.raises(ValueError, match="the optimizer state belongs to another model"):
        part.make(Net()).load(missing)


@pytest.mark.parametrize("shape", [(6, 5), (5, 6), (64, 64), (96, 256), (256, 96)])
def test_muon_without_bf16_moves_weights_as_torchs_does(shape: tuple[int, int]) -> None:
    """Ten steps of each from the same weights: the iteration in fp64 to fp32's rounding, torch's to bf16's; a state of
    one is a state of the other."""
    torch.manual_seed(0)
    start, gradients = torch.randn(shape), [torch.randn(shape) for _ in range(10)]
    options: dict[str, Any] = {"lr": 1e-2, "weight_decay": 0.3, "adjust_lr_fn": "match_rms_adamw"}
    wide, theirs = (nn.Parameter(start.clone()) for _ in range(2))
    made = optim.Fp32Muon([wide], **options), torch.optim.Muon([theirs], **options)
    exact, momentum = start.double(), torch.zeros(shape, dtype=torch.float64)
    for gradient in gradients:
        for parameter, each in zip((wide, theirs), made):
            parameter.grad = gradient.clone()
            each.step()
        momentum = 0.95 * momentum + 0.05 * gradient
        x = 0.05 * gradient + 0.95 * momentum
        x = x / x.norm()
        for _ in range(5):
            x = 3.4445 * x - 4.7750 * (x @ x.T) @ x + 2.0315 * (x @ x.T) @ (x @ x.T) @ x
        exact = exact * (1 - 1e-2 * 0.3) - 1e-2 * 0.2 * math.sqrt(max(shape)) * x
    moved = (exact - start).norm()
    assert (wide.detach() - exact).norm() < 1e-5 * moved
    assert (theirs.detach() - exact).norm() < 2e-2 * moved
    mine, other = (each.state_dict() for each in made)
    assert torch.equal(mine["state"][0]["momentum_buffer"], other["state"][0]["momentum_buffer"])
    made[0].load_state_dict(other)
    made[1].load_state_dict(mine)


def test_muon_asks_for_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    for there, kind in ((True, torch.optim.Muon), (False, optim.Fp32Muon)):
        monkeypatch.setattr(hardware, "has", lambda ability, there=there: there)
        assert type(optim.Muon(matrices="*inner*").make(Net()).each[0]) is kind


def test_rates_and_mistakes() -> None:
    made = optim.Muon(lr=0.5, matrices="*inner*").make(Net())
    assert made.set_rate(0.25) == 0.125
    assert {group["lr"] for each in made for group in each.param_groups} == {0.125}
    with pytest.raises(ValueError, match="matches no matrix"):
        optim.Muon(matrices="*.layers.*").make(Net())
    with pytest.raises(ValueError, match="nothing to train"):
        optim.AdamW().make(Net().requires_grad_(False))
    with pytest.raises(ValueError, match="AdamW.betas"):
        optim.AdamW(betas=(0.9, 1.0))
    with pytest.raises(ValueError, match="lr is 0"):
        optim.Adafactor(lr=0.0)
    with pytest.raises(ValueError, match="at least 0 and at most 1"):
        optim.Cosine(floor=2.0)


def test_the_gradient_is_clipped_as_torch_does() -> None:
    a, b = Net(), Net()
    for net in (a, b):
        (net.loss(0) * 1000).backward()
    ours = optim.clip(a.parameters(), 0.5)
    theirs = nn.utils.clip_grad_norm_(list(b.parameters()), 0.5)
    assert ours == theirs > 0.5
    pairs = [(p.grad, q.grad) for p, q in zip(a.parameters(), b.parameters()) if p.grad is not None]
    assert pairs and all(torch.equal(x, y) for x, y in pairs)
    before = optim.clip(a.parameters(), None)
    assert before == pytest.approx(0.5, rel=1e-4) and optim.clip(a.parameters(), None) == before


# -- schedules


def published(name: str, **options: Any) -> Any:
    """Return factor(n) of a schedule in transformers."""
    optimization = pytest.importorskip("transformers.optimization")
    dummy = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    return getattr(optimization, name)(dummy, **options).lr_lambdas[0]


@pytest.mark.parametrize("seed", range(20))
def test_schedules_are_the_published_ones(seed: int) -> None:
    """After the warmup both are equal; our warmup is one step ahead, so that the first step does not have rate 0."""
    draw = random.Random(seed)
    warmup, decay = draw.randint(0, 30), draw.randint(1, 40)
    steps = warmup + decay + draw.randint(1, 100)
    floor = draw.choice([0.0, 0.1, 0.5])
    common = {"num_warmup_steps": warmup, "num_training_steps": steps}
    wsd = {**common, "num_decay_steps": decay, "min_lr_ratio": floor}
    pairs: list[tuple[optim.Schedule, Any]] = [
        (optim.Constant(warmup=warmup), published("get_constant_schedule_with_warmup", num_warmup_steps=warmup)),
        (optim.Linear(warmup=warmup), published("get_linear_schedule_with_warmup", **common)),
        (optim.Cosine(warmup=warmup), published("get_cosine_schedule_with_warmup", **common)),
        (optim.Cosine(warmup=warmup, floor=floor),
         published("get_cosine_with_min_lr_schedule_with_warmup", **common, min_lr_rate=floor)),
        *((optim.WSD(warmup=warmup, decay=decay, floor=floor, shape=ours),  # type: ignore[arg-type]
           published("get_wsd_schedule", **wsd, decay_type=theirs))
          for ours, theirs in (("linear", "linear"), ("cosine", "cosine"), ("sqrt", "1-sqrt"))),
    ]  # fmt: skip
    for ours, theirs in pairs:
        for n in range(steps):
            if n < warmup and isinstance(ours, optim.WSD) and floor:
                continue  # transformers' warmup begins at the floor here, and nowhere else
            assert ours.factor(n, steps) == pytest.approx(theirs(n + 1 if n < warmup else n), abs=1e-12), (ours, n)
            assert 0 < ours.factor(n, steps) <= 1  # no step is wasted


def test_linear_floor_and_noam_by_hand() -> None:
    linear = optim.Linear(warmup=2, floor=0.2)
    assert [linear.factor(n, 6) for n in range(7)] == pytest.approx([0.5, 1, 1, 0.8, 0.6, 0.4, 0.2])
    noam = optim.Noam(width=512, warmup=4000)
    assert noam.factor(0, 1) == pytest.approx(512**-0.5 * 4000**-1.5)
    assert noam.factor(3999, 1) == pytest.approx(1 / math.sqrt(512 * 4000))
    assert noam.factor(15999, 1) == pytest.approx(noam.factor(3999, 1) / 2)
    assert max(noam.factor(n, 1) for n in range(3900, 4100)) == noam.factor(3999, 1)
