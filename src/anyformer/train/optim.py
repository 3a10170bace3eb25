"""Optimizers and learning-rate schedules as descriptions, and the torch optimizers they build.

Every optimizer is torch's, except that Muon computes in fp32 if bf16 is slow. Weight decay applies to matrices only,
not to biases, norms and other vectors.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from anyformer.kernels import hardware
from anyformer.specs.field_types import Chance, Count, Fraction, Natural, NonNegative, Positive
from anyformer.specs.messages import quote
from anyformer.specs.part import Part
from anyformer.train.parallel import full_tensor, group_by_mesh, mesh_of

Named = list[tuple[str, nn.Parameter]]  # (address, parameter)


class Optimizer(Part, abstract=True):
    """An optimizer. `lr` is the highest learning rate; the schedule scales it at every step."""

    lr: Positive = 1e-3
    weight_decay: NonNegative = 0.0

    def make(self, module: nn.Module) -> Optimizers:
        """Build the torch optimizers for all parameters that require a gradient."""
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        if not named:
            raise ValueError("nothing to train: no parameter requires a gradient; freeze fewer addresses")
        return Optimizers(named, self.optimizers(named), self.lr)

    def optimizers(self, named: Named) -> list[torch.optim.Optimizer]:
        raise NotImplementedError

    def groups(self, named: Named) -> list[dict[str, Any]]:
        """Return two parameter groups: matrices with weight decay, and the rest without; each in order of address."""
        decayed = [p for _, p in named if p.dim() >= 2]
        rest = [p for _, p in named if p.dim() < 2]
        groups = [{"params": decayed, "weight_decay": self.weight_decay}, {"params": rest, "weight_decay": 0.0}]
        return [group for group in groups if group["params"]]


class AdamW(Optimizer, called=("Adam",)):
    """Adam with decoupled weight decay [Loshchilov and Hutter 2019]."""

    lr: Positive = 3e-4
    betas: tuple[Chance, Chance] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: NonNegative = 0.1

    def optimizers(self, named: Named) -> list[torch.optim.Optimizer]:
        fused = all(p.device.type in ("cpu", "cuda") for _, p in named)  # a resumed run makes the same choice
        options: dict[str, Any] = {"lr": self.lr, "betas": self.betas, "eps": self.eps}
        return [torch.optim.AdamW(self.groups(named), fused=fused, **options)]


class Adafactor(Optimizer):
    """Adam with second moments factored into a row and a column [Shazeer and Stern 2018]. The rate is relative to the
    RMS of the weights, and updates are clipped to an RMS of `threshold`."""

    lr: Positive = 1e-2
    decay: float = -0.8  # the decay of the second moment is 1 - step^decay
    threshold: float = 1.0

    def optimizers(self, named: Named) -> list[torch.optim.Optimizer]:
        if any(mesh_of(p) is not None for _, p in named):
            raise ValueError("Adafactor needs full gradients: with mesh.shard or mesh.tensor use AdamW or Muon")
        return [torch.optim.Adafactor(self.groups(named), lr=self.lr, beta2_decay=self.decay, d=self.threshold)]


class Muon(Optimizer):
    """Orthogonalized momentum for the matrices of the layers [Jordan et al. 2024], and AdamW for embeddings, heads and
    vectors. Updates are scaled so that one learning rate fits both [Liu et al. 2025]."""

    lr: Positive = 3e-4
    momentum: float = 0.95
    weight_decay: NonNegative = 0.1
    matrices: str = "*.layers.*"  # pattern of addresses whose matrices use Muon
    betas: tuple[float, float] = (0.9, 0.95)  # of AdamW
    eps: float = 1e-8

    def optimizers(self, named: Named) -> list[torch.optim.Optimizer]:
        inner = [pair for pair in named if pair[1].dim() == 2 and fnmatch.fnmatchcase(pair[0], self.matrices)]
        if not inner:
            raise ValueError(f"Muon.matrices: {quote(self.matrices)} matches no matrix of this model")
        rest = [pair for pair in named if all(pair[1] is not p for _, p in inner)]
        slow = all(p.device.type == "cpu" for _, p in inner) and not hardware.has("bf16")
        kind = Fp32Muon if slow else torch.optim.Muon
        optimizers: list[torch.optim.Optimizer] = [
            kind(
                [p for _, p in inner],
                lr=self.lr,
                momentum=self.momentum,
                weight_decay=self.weight_decay,
                adjust_lr_fn="match_rms_adamw",
            )
        ]
        if rest:
            others = AdamW(lr=self.lr, betas=self.betas, eps=self.eps, weight_decay=self.weight_decay)
            optimizers += others.optimizers(rest)
        return optimizers


class Fp32Muon(torch.optim.Muon):
    """torch's Muon with the matrix products of its Newton-Schulz steps in fp32 instead of bf16: the same except for
    rounding, with the same state."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        assert closure is None
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                momentum = self.state[p].setdefault("momentum_buffer", torch.zeros_like(p.grad))
                momentum.lerp_(p.grad, 1 - group["momentum"])
                update = orthogonal(p.grad.lerp(momentum, group["momentum"]), group)
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(update, alpha=-0.2 * group["lr"] * math.sqrt(max(p.shape)))  # [Liu et al. 2025]


def orthogonal(matrix: Tensor, group: dict[str, Any]) -> Tensor:
    """Return the matrix with its singular values moved close to 1, by the same iteration as torch's Muon."""
    a, b, c = group["ns_coefficients"]
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.float().T if tall else matrix.float()
    x = x / x.norm().clamp(min=group["eps"])
    for _ in range(group["ns_steps"]):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x


class Optimizers:
    """One or more torch optimizers used as one. Their state is saved by parameter address, not by order."""

    def __init__(self, named: Named, each: list[torch.optim.Optimizer], lr: float) -> None:
        self.each, self.lr = each, lr
        self.names = {id(p): name for name, p in named}
        self.parameters = [p for _, p in named]
        for optimizer in each:  # all parameters of a foreach step must have the same mesh
            optimizer.param_groups = [
                {**group, "params": params}
                for group in optimizer.param_groups
                for params in group_by_mesh(group["params"])
            ]

    def __iter__(self) -> Any:
        return iter(self.each)

    def set_rate(self, factor: float) -> float:
        """Set the learning rate to `factor` times the highest rate, and return it."""
        for optimizer in self.each:
            for group in optimizer.param_groups:
                group["lr"] = self.lr * factor
        return self.lr * factor

    def zero_grad(self) -> None:
        for optimizer in self.each:
            optimizer.zero_grad(set_to_none=True)

    def state(self) -> dict[str, Tensor]:
        """Return the state of all optimizers as {"address/name": tensor}."""
        tensors: dict[str, Tensor] = {}
        for optimizer in self.each:
            for parameter, values in optimizer.state.items():
                for key, value in values.items():
                    assert isinstance(value, Tensor), f"{type(optimizer).__name__} keeps {key} as {type(value)}"
                    tensors[f"{self.names[id(parameter)]}/{key}"] = value
        return tensors

    def load(self, state: dict[str, Tensor]) -> None:
        """Load the result of `state`; ValueError if it belongs to other parameters."""
        kept: dict[str, dict[str, Tensor]] = {}
        for name, tensor in state.items():
            address, _, key = name.rpartition("/")
            kept.setdefault(address, {})[key] = tensor
        unknown = sorted(kept.keys() ^ set(self.names.values())) if kept else []
        if unknown:
            raise ValueError(f"the optimizer state belongs to another model: see {unknown[0]}")
        for optimizer in self.each:
            state_dict = optimizer.state_dict()
            order = [p for group in optimizer.param_groups for p in group["params"]]
            state_dict["state"] = {i: kept[self.names[id(p)]] for i, p in enumerate(order) if self.names[id(p)] in kept}
            optimizer.load_state_dict(state_dict)  # moves each tensor to its device


# -- schedules --------------------------------------------------------------------------------------------------------


class Schedule(Part, called=("learning rate schedule", "learning rate scheduler"), abstract=True):
    """The share of the highest learning rate at step n (from 0) of `steps`. It rises linearly over the first `warmup`
    steps; no step has rate 0."""

    warmup: Natural = 0

    def factor(self, n: int, steps: int) -> float:
        if n < self.warmup:
            return (n + 1) / self.warmup
        return self.after_warmup(n - self.warmup, max(steps - self.warmup, 1))

    def after_warmup(self, n: int, steps: int) -> float:
        """Return the factor at step n of the `steps` after the warmup."""
        raise NotImplementedError


class Constant(Schedule):
    """Constant at the highest rate."""

    def after_warmup(self, n: int, steps: int) -> float:
        return 1.0


class Linear(Schedule):
    """Linear decay towards `floor` of the highest rate."""

    floor: Fraction = 0.0

    def after_warmup(self, n: int, steps: int) -> float:
        return self.floor + (1 - self.floor) * max(1 - n / steps, 0.0)


class Cosine(Schedule):
    """Cosine decay towards `floor` of the highest rate [Loshchilov and Hutter 2017], reached at the last step, or after
    `over` steps; constant after that."""

    floor: Fraction = 0.0
    over: Count | None = None

    def factor(self, n: int, steps: int) -> float:
        return super().factor(n, self.over or steps)

    def after_warmup(self, n: int, steps: int) -> float:
        return self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * min(n / steps, 1.0)))


class WSD(Schedule, called=("warmup-stable-decay",)):
    """Warmup, stable, decay: constant until the last `decay` steps [Hu et al. 2024]. Shape `sqrt` is
    1 - sqrt(completed share of the decay) [Hagele et al. 2024]."""

    decay: Count
    floor: Fraction = 0.0
    shape: Literal["linear", "cosine", "sqrt"] = "sqrt"

    def after_warmup(self, n: int, steps: int) -> float:
        over = min(max((n - (steps - self.decay)) / self.decay, 0.0), 1.0)
        shapes = {"linear": 1 - over, "cosine": 0.5 * (1 + math.cos(math.pi * over)), "sqrt": 1 - math.sqrt(over)}
        return self.floor + (1 - self.floor) * shapes[self.shape]


class Noam(Schedule, called=("inverse square root",)):
    """width^-1/2 min(n^-1/2, n warmup^-3/2), n from 1 [Vaswani et al. 2017]: the highest rate is
    lr / sqrt(width warmup), so that lr 1 is the paper's."""

    warmup: Count = 4000
    width: Count

    def factor(self, n: int, steps: int) -> float:
        return self.width**-0.5 * min((n + 1) ** -0.5, (n + 1) * self.warmup**-1.5)


def clip(parameters: Iterable[nn.Parameter], max_norm: float | None) -> Tensor:
    """Clip the gradient over all parameters to `max_norm`. Returns its norm before clipping."""
    groups = group_by_mesh(p for p in parameters if p.grad is not None)
    norms = [full_tensor(nn.utils.get_total_norm([p.grad for p in group if p.grad is not None])) for group in groups]
    norm = norms[0] if len(norms) == 1 else torch.stack(norms).norm()
    if max_norm is not None:
        for group in groups:
            nn.utils.clip_grads_with_norm_(group, max_norm, norm)
    return norm
