"""The compute of a training, and how scaling laws divide it between parameters and tokens.

N parameters, D tokens, C FLOPs.
"""

from __future__ import annotations

import dataclasses

PETAFLOP_DAY = 1e15 * 86400


def estimate(parameters: float, tokens: float) -> float:
    """Return C = 6 N D [Kaplan et al. 2020]: per parameter and token, 2 FLOPs forward and 4 backward. Attention scores
    are not counted. The published 3.14e23 of GPT-3 follow this formula."""
    return 6 * parameters * tokens


def hardware(devices: int, seconds: float, flops: float) -> float:
    """Return the FLOPs of devices that do `flops` per second. Vaswani et al. [2017] report this instead of 6 N D: 12
    hours (3.5 days for the big model) on 8 P100, estimated at 9.5e12 FLOP/s."""
    return devices * seconds * flops


def epochs(tokens: float, corpus: float) -> float:
    return tokens / corpus


# -- scaling laws: loss of dense language models in nats per token, each paper on its own data -------------------------
# All constants were compared with texts that quote the papers' equations.


def hoffmann_loss(parameters: float, tokens: float) -> float:
    """L = E + A / N^alpha + B / D^beta, N with embeddings [Hoffmann et al. 2022, equation 10]."""
    return 1.69 + 406.4 / parameters**0.34 + 410.7 / tokens**0.28


def kaplan_loss(parameters: float, tokens: float) -> float:
    """L = ((N_c / N)^(alpha_N / alpha_D) + D_c / D)^alpha_D, N without embeddings [Kaplan et al. 2020, equation 1.5].
    With infinite data it is (N_c / N)^0.076, with an infinite model (D_c / D)^0.095."""
    return ((8.8e13 / parameters) ** (0.076 / 0.095) + 5.4e13 / tokens) ** 0.095


def kaplan_run(parameters: float, steps: float) -> tuple[float, float]:
    """Return the loss and the FLOPs of `steps` steps with the critical batch size and unlimited data:
    L = (N_c / N)^0.077 + (S_c / S)^0.76, B = B_* / L^(1 / 0.21), C = 6 N B S [Kaplan et al. 2020, 1.6, 1.4 and 1.8]."""
    loss = (6.5e13 / parameters) ** 0.077 + (2.1e3 / steps) ** 0.76
    return loss, 6 * parameters * 2.1e8 / loss ** (1 / 0.21) * steps


def kaplan_loss_at(parameters: float, compute: float) -> float:
    """Return the loss of `kaplan_run` after C FLOPs."""
    low, high = 1e-3, 1e15
    for _ in range(80):  # bisection of the logarithm; FLOPs grow with the steps
        middle = (low * high) ** 0.5
        low, high = (middle, high) if kaplan_run(parameters, middle)[1] < compute else (low, middle)
    return kaplan_run(parameters, low)[0]


@dataclasses.dataclass(frozen=True)
class Optimum:
    """The parameters and tokens that a law recommends for C FLOPs."""

    law: str
    parameters: float
    tokens: float


def chinchilla(compute: float) -> Optimum:
    """20 tokens per parameter; both grow with sqrt(C) [Hoffmann et al. 2022]: 70B and 1.4T for 5.88e23."""
    parameters = (compute / 120) ** 0.5
    return Optimum("Chinchilla", parameters, compute / (6 * parameters))


def hoffmann(compute: float) -> Optimum:
    """The minimum of `hoffmann_loss` for 6 N D = C [equation 4, approach 3]. Its rounded constants give a smaller model
    and more tokens than 20 tokens per parameter: 32B and 3.0T for 5.88e23."""
    parameters = (0.34 * 406.4 / (0.28 * 410.7) * (compute / 6) ** 0.28) ** (1 / (0.34 + 0.28))
    return Optimum("Hoffmann's fit", parameters, compute / (6 * parameters))


def kaplan(compute: float) -> Optimum:
    """N = 1.3e9 (C / petaflop-day)^0.73, without embeddings [Kaplan et al. 2020]; D = C / (6 N)."""
    parameters = 1.3e9 * (compute / PETAFLOP_DAY) ** 0.73
    return Optimum("Kaplan", parameters, compute / (6 * parameters))


LAWS = (chinchilla, hoffmann, kaplan)
