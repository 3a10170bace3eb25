"""How much compute a training takes, and how it is best divided between a larger model and more tokens.

N parameters, D tokens, C FLOPs.
"""

from __future__ import annotations

import dataclasses

PETAFLOP_DAY = 1e15 * 86400


def estimate(parameters: float, tokens: float) -> float:
    """C = 6 N D [Kaplan et al. 2020]: 2 FLOPs a parameter and token forward, 4 backward; without what attention does
    between tokens. GPT-3's 3.14e23 is this."""
    return 6 * parameters * tokens


def hardware(devices: int, seconds: float, flops: float) -> float:
    """What devices could do in this time at `flops` a second each. Vaswani et al. [2017] give this and not 6 N D: 12
    hours (3.5 days for the big model) on 8 P100, taken as 9.5e12 a second."""
    return devices * seconds * flops


def epochs(tokens: float, corpus: float) -> float:
    """How often each token of a corpus is seen."""
    return tokens / corpus


@dataclasses.dataclass(frozen=True)
class Optimum:
    """The size and the number of tokens that a law would spend C FLOPs on."""

    law: str
    parameters: float
    tokens: float


def chinchilla(compute: float) -> Optimum:
    """Both grow with the root of C, 20 tokens a parameter [Hoffmann et al. 2022]: 70B and 1.4T for 5.88e23."""
    parameters = (compute / 120) ** 0.5
    return Optimum("Chinchilla", parameters, compute / (6 * parameters))


def kaplan(compute: float) -> Optimum:
    """The size grows with C to the 0.73, 1.3e9 parameters (embeddings apart) at a petaflop-day [Kaplan et al. 2020];
    the tokens are what is left."""
    parameters = 1.3e9 * (compute / PETAFLOP_DAY) ** 0.73
    return Optimum("Kaplan", parameters, compute / (6 * parameters))
