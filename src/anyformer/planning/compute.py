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


# -- scaling laws: loss in nats a token of dense language models, each on its own text ---------------------------------
# All constants were compared with texts that quote the papers' equations.


def hoffmann_loss(parameters: float, tokens: float) -> float:
    """L = E + A / N^alpha + B / D^beta, N with embeddings [Hoffmann et al. 2022, equation 10]."""
    return 1.69 + 406.4 / parameters**0.34 + 410.7 / tokens**0.28


def kaplan_loss(parameters: float, tokens: float) -> float:
    """L = ((N_c / N)^(alpha_N / alpha_D) + D_c / D)^alpha_D, N without embeddings [Kaplan et al. 2020, equation 1.5];
    with endless data or an endless model it is (N_c / N)^0.076 or (D_c / D)^0.095."""
    return ((8.8e13 / parameters) ** (0.076 / 0.095) + 5.4e13 / tokens) ** 0.095


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


def hoffmann(compute: float) -> Optimum:
    """Where `hoffmann_loss` is least with 6 N D = C [equation 4, the third approach]. Its rounded constants give a
    smaller model and more tokens than the rule of 20 a parameter: 32B and 3.0T for 5.88e23."""
    parameters = (0.34 * 406.4 / (0.28 * 410.7) * (compute / 6) ** 0.28) ** (1 / (0.34 + 0.28))
    return Optimum("Hoffmann's fit", parameters, compute / (6 * parameters))


def kaplan(compute: float) -> Optimum:
    """The size grows with C to the 0.73, 1.3e9 parameters (embeddings apart) at a petaflop-day [Kaplan et al. 2020];
    the tokens are what is left."""
    parameters = 1.3e9 * (compute / PETAFLOP_DAY) ** 0.73
    return Optimum("Kaplan", parameters, compute / (6 * parameters))


LAWS = (chinchilla, hoffmann, kaplan)
