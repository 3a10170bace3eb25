"""Statistical estimators: each is compared with scikit-learn's or torch's, pair by pair."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from anyformer.evaluate.regression import curves, least_squares, neighbours, ridge
from anyformer.objectives.regress import Regress

LENGTHS = range(1, 12)


def drawn() -> tuple[Tensor, Tensor]:
    made = Regress(width=3, context=11, noise=0.5).draw(torch.arange(4))
    return made["points"].double(), made["values"].double()


def test_ridge() -> None:
    linear = pytest.importorskip("sklearn.linear_model")
    points, values = drawn()
    predicted = ridge(points, values, 0.75)
    assert torch.equal(predicted[:, 0], torch.zeros(4, dtype=torch.float64))
    for row in range(4):
        for n in LENGTHS:
            theirs = linear.Ridge(alpha=0.75, fit_intercept=False).fit(points[row, :n].numpy(), values[row, :n].numpy())
            assert float(predicted[row, n]) == pytest.approx(
                theirs.predict(points[row, n : n + 1].numpy())[0], abs=1e-9
            )


def test_least_squares() -> None:
    """If several solutions fit, the one with the smallest norm, as LAPACK's."""
    points, values = drawn()
    predicted = least_squares(points, values)
    for row in range(4):
        for n in LENGTHS:
            beta = np.linalg.lstsq(points[row, :n].numpy(), values[row, :n].numpy(), rcond=None)[0]
            assert float(predicted[row, n]) == pytest.approx(float(points[row, n].numpy() @ beta), abs=1e-8)


def test_least_squares_with_equal_points() -> None:
    """Pairs that do not determine the solution: the one with the smallest norm."""
    points, values = torch.ones(1, 4, 2, dtype=torch.float64), torch.tensor([[1.0, 2.0, 3.0, 0.0]], dtype=torch.float64)
    assert least_squares(points, values)[0].tolist() == pytest.approx([0.0, 1.0, 1.5, 2.0])
    assert least_squares(0 * points, values)[0].tolist() == [0.0] * 4


def test_neighbours() -> None:
    near = pytest.importorskip("sklearn.neighbors")
    points, values = drawn()
    predicted = neighbours(points, values, 3)
    assert torch.equal(predicted[:, 0], torch.zeros(4, dtype=torch.float64))
    for row in range(4):
        for n in LENGTHS:
            theirs = near.KNeighborsRegressor(min(n, 3)).fit(points[row, :n].numpy(), values[row, :n].numpy())
            assert float(predicted[row, n]) == pytest.approx(
                theirs.predict(points[row, n : n + 1].numpy())[0], abs=1e-9
            )


def test_bayes_is_the_best() -> None:
    """No other ridge weight and no other estimator has a lower error; without a pair the error is 1 + noise^2."""
    objective = Regress(width=3, context=8, noise=0.5)
    errors = curves(None, objective, count=20_000)
    assert errors["bayes"][0] == pytest.approx(1.25, rel=0.03)
    made = objective.draw(torch.arange(20_000))
    points, values = made["points"].double(), made["values"].double()
    best = [(ridge(points, values, weight) - values).square().mean(0) for weight in (0.3, 0.75, 1.9)]
    for n in range(1, 9):
        assert errors["bayes"][n] < min(errors["least squares"][n], errors["neighbours"][n])
        assert best[1][n] < min(best[0][n], best[2][n])
    assert errors["bayes"] == sorted(errors["bayes"], reverse=True)
