"""Losses that balance the load of experts: computed from the router logits of all layers, reported and added by a head.

B batch, T tokens, N = B T, E experts.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from anyformer.runtime.context import Context
from anyformer.specs.field_types import Count, NonNegative, OneOrMore
from anyformer.specs.part import Part


class Balance(Part, called=("load balancing loss", "auxiliary loss"), abstract=True):
    """A loss that balances the load of experts: `total`, the weighted sum of `terms`, is added to the labels' loss."""

    def terms(self, ctx: Context) -> dict[str, Tensor]:
        raise NotImplementedError

    def total(self, terms: dict[str, Tensor]) -> Tensor:
        raise NotImplementedError


class PooledBalance(Balance):
    """E times the sum over experts of (share of choices) * (mean probability), both over all layers and tokens
    together; pads do not count (Mixtral)."""

    weight: float
    top_k: Count

    def terms(self, ctx: Context) -> dict[str, Tensor]:
        layers = ctx.losses.get("router_logits", [])
        if not layers:
            return {}
        probabilities = torch.stack([logits.softmax(-1).float() for logits in layers])  # (layers, N, E)
        chosen = torch.zeros_like(probabilities).scatter(-1, probabilities.topk(self.top_k, dim=-1).indices, 1.0)
        if ctx.tokens is None:
            share, mean = chosen.mean((0, 1)), probabilities.mean((0, 1))
        else:
            real = ctx.tokens.reshape(1, -1, 1).float()
            count = real.sum().clamp(min=1) * len(layers)
            share, mean = (chosen * real).sum((0, 1)) / count, (probabilities * real).sum((0, 1)) / count
        return {"aux_loss": (share * mean).sum() * share.shape[0]}

    def total(self, terms: dict[str, Tensor]) -> Tensor:
        return self.weight * sum(terms.values(), torch.zeros(()))


class SwitchBalance(Balance, called=("router z-loss",)):
    """Like PooledBalance, but per text, plus the mean squared logsumexp of the logits, which keeps them small [Fedus et
    al. 2021; Zoph et al. 2022]. As published, a stack counts only if it also has layers without experts."""

    weight: float
    z_weight: float
    encoder: bool = True  # whether the encoder counts
    decoder: bool = True  # whether the decoder counts

    def terms(self, ctx: Context) -> dict[str, Tensor]:
        out: dict[str, Tensor] = {}
        for side, on in (("encoder", self.encoder), ("decoder", self.decoder)):
            layers = ctx.losses.get("router_logits" if side == "decoder" else "encoder_router_logits")
            z = balance = torch.zeros((), device=ctx.index.device)
            if on and layers:
                logits = torch.cat(list(layers), dim=1).float()  # (B, layers T, E)
                z = logits.logsumexp(-1).square().mean()
                chosen = torch.zeros_like(logits).scatter(-1, logits.argmax(-1, keepdim=True), 1.0)
                balance = (chosen.mean(1) * logits.softmax(-1).mean(1)).mean() * logits.shape[-1] ** 2
            out |= {f"{side}_z_loss": z, f"{side}_aux_loss": balance}
        return out

    def total(self, terms: dict[str, Tensor]) -> Tensor:
        z = terms["encoder_z_loss"] + terms["decoder_z_loss"]
        return self.z_weight * z + self.weight * (terms["encoder_aux_loss"] + terms["decoder_aux_loss"])


class VariationBalance(Balance):
    """The variation of the experts' importance and load in each layer [Shazeer et al. 2017]; only in training."""

    importance: float = 0.1
    load: float = 0.1

    def terms(self, ctx: Context) -> dict[str, Tensor]:
        weights = {"importance": self.importance, "load": self.load}
        losses = [weights[name] * each for name in weights for each in ctx.losses.get(name, [])]
        return {"aux_loss": torch.stack(losses).sum()} if losses else {}

    def total(self, terms: dict[str, Tensor]) -> Tensor:
        return sum(terms.values(), torch.zeros(()))


class EntropyBalance(Balance, called=("LIMoE", "entropy loss")):
    """For the tokens of one modality: `local` weights the mean entropy of each token's probabilities, so that a token
    is sure of its expert. `whole` weights how far the entropy of their mean is below log(`experts`), so that the
    tokens together use about that many experts [Mustafa et al. 2022]. Means over layers; pads do not count."""

    local: NonNegative
    whole: NonNegative
    experts: OneOrMore
    z_weight: NonNegative = 0.0  # weight of the mean squared logsumexp of the logits

    def terms(self, ctx: Context) -> dict[str, Tensor]:
        layers = ctx.losses.get("router_logits", [])
        if not layers:
            return {}
        logits = torch.stack([each.flatten(0, -2).float() for each in layers])  # (layers, N, E)
        real = logits.new_ones(logits.shape[1]) if ctx.tokens is None else ctx.tokens.flatten().to(logits.dtype)
        real = real / real.sum().clamp(min=1)  # (N,)
        probabilities = logits.softmax(-1)
        gap = math.log(self.experts) - entropy(torch.einsum("n,lne->le", real, probabilities))
        return {
            "local_loss": (entropy(probabilities) @ real).mean(),
            "global_loss": gap.clamp(min=0).mean(),
            "z_loss": (logits.logsumexp(-1).square() @ real).mean(),
        }

    def total(self, terms: dict[str, Tensor]) -> Tensor:
        weights = {"local_loss": self.local, "global_loss": self.whole, "z_loss": self.z_weight}
        return sum((weights[name] * term for name, term in terms.items()), torch.zeros(()))


def entropy(probabilities: Tensor) -> Tensor:
    """Entropy over the last dimension: (..., E) -> (...)."""
    return -torch.xlogy(probabilities, probabilities).sum(-1)
