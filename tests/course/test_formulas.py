"""The textbook formulas for parameters and FLOPs."""

from __future__ import annotations

import anyformer as af
from anyformer_course import show
from anyformer_course.formulas import parameter_formulas, token_formulas


def test_formulas() -> None:
    """They omit biases and norms, and count a tied table twice."""
    counted = af.count(af.spec("gpt2"))
    parameters = {row.about: row for row in parameter_formulas(counted)}
    assert parameters["feed-forward"].lecture == 12 * 8 * 768**2 and parameters["attention"].lecture == 12 * 4 * 768**2
    assert parameters["vocabulary"].lecture == 2 * 50257 * 768 and parameters["vocabulary"].ratio == 0.5
    assert 1 < parameters["feed-forward"].ratio < 1.01 and 1 < parameters["attention"].ratio < 1.01
    tokens = {row.about: row for row in token_formulas(counted, 512)}
    assert all(row.ratio == 1 for row in tokens.values())
    assert tokens["training"].exact == 3 * tokens["forward"].exact == 3 * counted.flops(512) // 512
    assert tokens["training, recomputed"].lecture == 4 * tokens["forward"].lecture


def test_show_formulas() -> None:
    parameters, tokens = show("formulas", "gpt2", length=512).tables
    assert [row[1] for row in parameters.rows][:3] == ["2 d 4d", "4 d^2", "2 V d"]
    assert {"2 2 n d", "x 3", "x 4"} <= {row[1] for row in tokens.rows}
    assert parameters.rows[2][4] == 0.5
