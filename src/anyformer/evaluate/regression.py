"""In-context regression: compare a model with statistical estimators.

B sequences, N points, P numbers per point. Every estimator predicts the value of each point from the pairs before it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from anyformer.models import TransformerModule
from anyformer.objectives.regress import Regress

Estimator = Callable[[Tensor, Tensor], Tensor]  # points (B, N, P), values (B, N) -> (B, N)


def moments(points: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return X'X (B, N, P, P) and X'y (B, N, P) of the pairs before each point."""
    square = points[..., None] * points[..., None, :]
    product = points * values[..., None]
    return square.cumsum(1) - square, product.cumsum(1) - product


def ridge(points: Tensor, values: Tensor, weight: float) -> Tensor:
    """Ridge regression: (X'X + weight I) beta = X'y."""
    square, product = moments(points, values)
    square = square + weight * torch.eye(points.shape[-1], dtype=points.dtype, device=points.device)
    return (torch.linalg.solve(square, product) * points).sum(-1)


def least_squares(points: Tensor, values: Tensor) -> Tensor:
    """Least squares; if the pairs before a point do not determine the solution, the one of minimum norm."""
    square, product = moments(points, values)
    few = min(points.shape[-1] + 1, points.shape[1])  # with more pairs the solution is unique, unless points repeat
    beta, singular = torch.linalg.solve_ex(square[:, few:], product[:, few:])
    if singular.any():
        few, beta = points.shape[1], beta[:, :0]
    inverse = torch.linalg.pinv(square[:, :few], rtol=1e-12, hermitian=True)
    return (torch.cat(((inverse @ product[:, :few, :, None])[..., 0], beta), 1) * points).sum(-1)


def neighbours(points: Tensor, values: Tensor, count: int = 3) -> Tensor:
    """Return the mean value of the `count` nearest earlier points, or of fewer; 0 if there is none."""
    N = points.shape[1]
    before = torch.arange(N, device=points.device)
    far = torch.cdist(points, points).masked_fill(before >= before[:, None], float("inf"))  # (B, N, N)
    nearest = far.topk(min(count, N), largest=False)
    known = nearest.values.isfinite()
    chosen = values[:, None].expand(far.shape).gather(2, nearest.indices) * known
    return chosen.sum(-1) / known.sum(-1).clamp(min=1)


def closeness(points: Tensor, scale: float) -> Tensor:
    """(B, N, P) -> (B, N, N): the logarithm of the kernel exp(-distance^2 / 2 scale^2)."""
    return torch.cdist(points, points).square() / (-2 * scale**2)


def smoother(points: Tensor, values: Tensor, scale: float) -> Tensor:
    """Return the kernel-weighted mean of the values before each point [Nadaraya 1964; Watson 1964]: attention with the
    kernel's logarithm as scores. 0 if there is no earlier point."""
    later = torch.ones(points.shape[1], points.shape[1], dtype=torch.bool, device=points.device).triu()
    weights = closeness(points, scale).masked_fill(later, float("-inf")).softmax(-1).nan_to_num(0.0)
    return (weights * values[:, None]).sum(-1)


def gaussian_process(points: Tensor, values: Tensor, scale: float, noise: float) -> Tensor:
    """Kernel ridge regression on the pairs before each point: optimal for smooth functions of many random waves."""
    near, predictions = closeness(points, scale).exp(), [torch.zeros_like(values[:, 0])]
    square = near + noise**2 * torch.eye(near.shape[-1], dtype=near.dtype, device=near.device)
    for n in range(1, values.shape[1]):
        weights = torch.linalg.solve(square[:, :n, :n], values[:, :n])
        predictions.append((near[:, n, :n] * weights).sum(-1))
    return torch.stack(predictions, 1)


def estimators(objective: Regress) -> dict[str, Estimator]:
    """Return the Bayes estimator for the functions that this objective draws, and other estimators."""
    scale, noise = objective.scale, objective.noise
    weight = objective.width * noise**2
    named: dict[str, Estimator] = {
        "bayes": lambda points, values: ridge(points, values, weight),
        "least squares": least_squares,
        "neighbours": neighbours,
    }
    if scale is not None:
        named["bayes"] = lambda points, values: gaussian_process(points, values, scale, noise)
    return named


@torch.no_grad()
def curves(
    model: TransformerModule | None, objective: Regress, count: int = 2**17, batch: int = 4096, seed: int = 0
) -> dict[str, list[float]]:
    """Return the mean squared error after 0, 1, ..., `context` pairs, including the noise of the value, on the same
    `count` sequences: of the model, of Bayes (for linear functions, ridge with width x noise^2), of least squares and
    of the 3 nearest neighbours. Seeds here are small and those of training have 63 bits, so these sequences are new."""
    device = torch.device("cpu") if model is None else model.device
    predictors = estimators(objective)
    if model is not None:
        was_training, evaluated = model.training, model.eval()
        predictors = {"model": lambda x, y: evaluated(points=x.float(), values=y.float()).predictions, **predictors}
    sums = {name: torch.zeros(objective.context + 1, dtype=torch.float64, device=device) for name in predictors}
    for start in range(0, count, batch):
        seeds = torch.arange(start, min(start + batch, count), device=device) + seed * 2**32
        points, values = (each.double() for each in objective.draw(seeds).values())
        for name, predict in predictors.items():
            sums[name] += (predict(points, values) - values).square().sum(0)
    if model is not None:
        model.train(was_training)
    return {name: (total / count).tolist() for name, total in sums.items()}
