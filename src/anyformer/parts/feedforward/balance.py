"""What keeps experts equally busy: losses over the router logits of all layers, which a head reports and adds.

B batch, T tokens, N = B T, E experts.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from anyformer.runtime.context import Context
from anyformer.specs.checks import at_least
from anyformer.specs.part import Part


class Balance(Part, called=("load balancing loss", "auxiliary loss")):
    """`terms` are the named losses of a pass, `total` what is added to the loss of the labels."""

    def terms(self, ctx: Context) -> dict[str, Tensor]:
        raise NotImplementedError

    def total(self, terms: dict[str, Tensor]) -> Tensor:
        raise NotImplementedError


class PooledBalance(Balance):
    """E times the sum over the experts of (share of choices) (mean probability), both over all layers and tokens
    together; pads do not count (Mixtral)."""

    weight: float
    top_k: int

    def check(self) -> None:
        at_least(self, 1, "top_k")

    def terms(self, ctx: Context) -> dict[str, Tensor]:
        found = ctx.losses.get("router_logits", [])
        if not found:
            return {}
        probabilities = torch.stack([logits.softmax(-1).float() for logits in found])  # (layers, N, E)
        chosen = torch.zeros_like(probabilities).scatter(-1, probabilities.topk(self.top_k, dim=-1).indices, 1.0)
        if ctx.tokens is None:
            share, mean = chosen.mean((0, 1)), probabilities.mean((0, 1))
        else:
            real = ctx.tokens.reshape(1, -1, 1).float()
            count = real.sum().clamp(min=1) * len(found)
            share, mean = (chosen * real).sum((0, 1)) / count, (probabilities * real).sum((0, 1)) / count
        return {"aux_loss": (share * mean).sum() * share.shape[0]}

    def total(self, terms: dict[str, Tensor]) -> Tensor:
        return self.weight * sum(terms.values(), torch.zeros(()))


class SwitchBalance(Balance, called=("router z-loss",)):
    """The same for every text on its own, and the squared log-sum of the logits, which keeps them small [Fedus et al.
    2021; Zoph et al. 2022]; for the encoder and the decoder, where they have some layers without experts too."""

    weight: float
    z_weight: float
    encoder: bool = True
    decoder: bool = True

    def terms(self, ctx: Context) -> dict[str, Tensor]:
        out: dict[str, Tensor] = {}
        for side, on in (("encoder", self.encoder), ("decoder", self.decoder)):
            found = ctx.losses.get("router_logits" if side == "decoder" else "encoder_router_logits")
            z = balance = torch.zeros((), device=ctx.index.device)
            if on and found:
                logits = torch.cat(list(found), dim=1).float()  # (B, layers T, E)
                z = logits.logsumexp(-1).square().mean()
                chosen = torch.zeros_like(logits).scatter(-1, logits.argmax(-1, keepdim=True), 1.0)
                balance = (chosen.mean(1) * logits.softmax(-1).mean(1)).mean() * logits.shape[-1] ** 2
            out |= {f"{side}_z_loss": z, f"{side}_aux_loss": balance}
        return out

    def total(self, terms: dict[str, Tensor]) -> Tensor:
        z = terms["encoder_z_loss"] + terms["decoder_z_loss"]
        return self.z_weight * z + self.weight * (terms["encoder_aux_loss"] + terms["decoder_aux_loss"])


class VariationBalance(Balance):
    """How unequal importance and load of the experts were, a layer [Shazeer et al. 2017]; in training only."""

    importance: float = 0.1
    load: float = 0.1

    def terms(self, ctx: Context) -> dict[str, Tensor]:
        weights = {"importance": self.importance, "load": self.load}
        found = [weights[name] * each for name in weights for each in ctx.losses.get(name, [])]
        return {"aux_loss": torch.stack(found).sum()} if found else {}

    def total(self, terms: dict[str, Tensor]) -> Tensor:
        return sum(terms.values(), torch.zeros(()))


class EntropyBalance(Balance, called=("LIMoE", "entropy loss")):
    """For the tokens of one modality: `local` is the weight of the mean entropy of a token's probabilities, so that
    each is sure of its expert; `whole` that of what their mean lacks to the entropy of `experts` equally likely ones,
    so that together they use about as many [Mustafa et al. 2022]. Pads do not count; a mean over the layers."""

    local: float
    whole: float
    experts: float
    z_weight: float = 0.0  # of the squared log-sum of the logits

    def check(self) -> None:
        at_least(self, 0, "local", "whole", "z_weight")
        at_least(self, 1, "experts")

    def terms(self, ctx: Context) -> dict[str, Tensor]:
        found = ctx.losses.get("router_logits", [])
        if not found:
            return {}
        logits = torch.stack([each.flatten(0, -2).float() for each in found])  # (layers, N, E)
        real = logits.new_ones(logits.shape[1]) if ctx.tokens is None else ctx.tokens.flatten().to(logits.dtype)
        real = real / real.sum().clamp(min=1)  # (N,)
        probabilities = logits.softmax(-1)
        lacking = math.log(self.experts) - entropy(torch.einsum("n,lne->le", real, probabilities))
        return {
            "local_loss": (entropy(probabilities) @ real).mean(),
            "global_loss": lacking.clamp(min=0).mean(),
            "z_loss": (logits.logsumexp(-1).square() @ real).mean(),
        }

    def total(self, terms: dict[str, Tensor]) -> Tensor:
        weights = {"local_loss": self.local, "global_loss": self.whole, "z_loss": self.z_weight}
        return sum((weights[name] * term for name, term in terms.items()), torch.zeros(()))


def entropy(probabilities: Tensor) -> Tensor:
    """(..., E) -> (...)"""
    return -torch.xlogy(probabilities, probabilities).sum(-1)
