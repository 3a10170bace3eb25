"""In-context regression: random draws, the loss computed by hand, and a small model close to the Bayes estimator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import anyformer as af
from anyformer.data import Data, Loader, Numbers, Plan, prepare
from anyformer.evaluate.regression import curves
from anyformer.kernels.random_bits import normal
from anyformer.objectives.regress import Regress, seeds_of
from anyformer.parts.init import Normal
from anyformer.recipes.regression import model as described
from anyformer.recipes.regression import run as recipe
from anyformer.specs.codec import override
from anyformer.train.start import setup

SMALL = {"width": 32, "decoder.depth": 2, "decoder.layers.attention.op.head_width": 8,
         "decoder.layers.feedforward.op.width": 64}  # fmt: skip


def small(objective: Regress, **changes: Any) -> Any:
    return af.override(described(objective), {**SMALL, **changes})


def test_normal_numbers() -> None:
    """Moments of 400,000 numbers; columns and neighbouring seeds are independent; a row depends only on its seed."""
    numbers = normal(torch.arange(50_000), 8)
    flat = numbers.double().flatten()
    wanted = ((1, 0.0), (2, 1.0), (3, 0.0), (4, 3.0))
    for power, moment in wanted:
        assert float(flat.pow(power).mean()) == pytest.approx(moment, abs=0.06 if power > 2 else 0.01)
    both = torch.corrcoef(torch.cat((numbers[:-1], numbers[1:]), 1).T)
    assert float((both - torch.eye(16)).abs().max()) < 0.02
    assert torch.equal(normal(torch.tensor([7, 5]), 3), numbers[[7, 5], :3])
    assert not torch.equal(normal(torch.tensor([-7]), 3), numbers[7:8, :3])


def test_compiled_the_same_is_drawn() -> None:
    """Drawing is one operation that the compiler does not trace into."""
    assert normal(torch.zeros(4, dtype=torch.long, device="meta"), 7).shape == (4, 7)
    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(lambda seeds: normal(seeds, 5) + 1, backend=backend, fullgraph=True)
    seeds = torch.arange(6) * 10**15
    assert torch.equal(compiled(seeds), normal(seeds, 5) + 1)
    assert torch.ops.anyformer.normal.default in [node.target for node in graphs[0].graph.nodes]


def test_what_is_drawn() -> None:
    """Every sequence is a linear function: the residual of least squares is the noise."""
    objective = Regress(width=3, context=59, noise=0.5)
    drawn = objective.draw(torch.arange(2000))
    points, values = drawn["points"].double(), drawn["values"].double()
    assert points.shape == (2000, 60, 3) and values.shape == (2000, 60)
    beta = torch.linalg.lstsq(points, values[..., None]).solution
    left = (points @ beta)[..., 0] - values
    assert float(left.square().sum(1).mean() / (60 - 3)) == pytest.approx(0.25, rel=0.02)
    assert float(beta.square().sum((1, 2)).mean()) == pytest.approx(1 + 0.25 * 3 / 56, rel=0.05)
    assert float(points.var()) == pytest.approx(1, rel=0.02)
    still = objective.replace(noise=0.0).draw(torch.arange(2000))
    assert torch.equal(still["points"], drawn["points"])
    assert float((still["values"] - drawn["values"]).var()) == pytest.approx(0.25, rel=0.02)


def test_the_loss_by_hand() -> None:
    objective = Regress(width=2, context=4)
    net = objective.module(af.build(small(objective), seed=0)).eval()
    batch = {"number": torch.tensor([0, 1, 2]), "seeds": torch.tensor([5, 5, 9])}
    drawn = objective.draw(seeds_of(batch))
    with torch.no_grad():
        out = net(**drawn)
        loss = objective.losses(net, batch)["loss"]
    assert out.predictions.shape == (3, 5)
    torch.testing.assert_close(loss / objective.weights(batch)["loss"], F.mse_loss(out.predictions, drawn["values"]))
    torch.testing.assert_close(out.loss, F.mse_loss(out.predictions, drawn["values"]))


def test_pairs_that_are_hidden_count_nothing() -> None:
    objective = Regress(width=2, context=4)
    net = af.build(small(objective), seed=0).eval()
    drawn, mask = objective.draw(torch.arange(2)), torch.tensor([[1] * 5, [1] * 3 + [0] * 2])
    alone = net(points=drawn["points"][1:, :3], values=drawn["values"][1:, :3])
    out = net(**drawn, attention_mask=mask)
    torch.testing.assert_close(out.predictions[1:, :3], alone.predictions)
    each = (out.predictions - drawn["values"]).square()
    torch.testing.assert_close(out.loss, (each[0].sum() + each[1, :3].sum()) / 8)


def test_a_value_is_told_from_those_before() -> None:
    objective = Regress(width=2, context=4)
    net, drawn = af.build(small(objective), seed=0).eval(), objective.draw(torch.arange(2))
    other = {**drawn, "values": drawn["values"].clone()}
    other["values"][:, 2] += 1
    before, after = net(**drawn).predictions, net(**other).predictions
    assert torch.equal(before[:, :3], after[:, :3]) and not torch.isclose(before[:, 3:], after[:, 3:]).any()


def test_dice_are_those_of_the_place(tmp_path: Path) -> None:
    """Each time a number is seen, it gives a new function, which depends on the seed and the step, not on processes."""
    objective = Regress(width=2, context=4)
    source, other = Numbers(count=8), Numbers(count=8, first=8)
    splits = prepare(Data(train=source, valid=other), objective, None, tmp_path)

    def seeds(rank: int = 0, world_size: int = 1, seed: int = 0, steps: range = range(4)) -> list[int]:
        loader = Loader(Plan(splits.train, seed=seed, examples=8), objective, rank=rank, world_size=world_size)
        batches = [batch for step in steps for batch in loader.make(step).batches]
        return [int(i) for batch in batches for i in seeds_of(batch)]

    first = seeds()
    assert len(set(first)) == 32 and first == seeds()
    assert sorted(seeds(0, 2) + seeds(1, 2)) == sorted(first)
    assert first[8:] == seeds(steps=range(1, 4))
    assert not set(first) & set(seeds(seed=1))
    valid = Loader(Plan(splits.valid, seed=0, examples=8, once=True), objective).make(0).batches[0]
    assert valid["number"].tolist() == list(range(8, 16)) and not set(first) & set(seeds_of(valid).tolist())


@pytest.mark.slow
def test_a_small_model_learns_from_context(tmp_path: Path) -> None:
    """Train the smallest form of the recipe for 200 steps: after each number of pairs, the error comes close to that of
    the Bayes estimator."""
    torch.set_num_threads(1)
    objective = Regress(width=1, context=2, noise=0.5)
    changes = {
        "model": small(objective).replace(init={"*": Normal(std=0.2)}), "objective": objective, "steps": 200,
        "batch.examples": 64, "schedule.warmup": 20, "optimizer.lr": 5e-3, "precision": "fp32", "compile": False,
        "evaluate.every": 200, "keep.every": 200, "data.train.count": 64, "data.valid.count": 512,
    }  # fmt: skip
    trainer = setup(override(recipe(), changes), tmp_path, device="cpu").fit()
    errors = curves(trainer.model, objective, count=4096)
    assert trainer.scores["loss"] == pytest.approx(np.mean(errors["model"]), rel=0.15)
    for ours, bayes, limit in zip(errors["model"], errors["bayes"], (1.05, 1.2, 1.4), strict=True):
        assert 0.99 * bayes < ours < limit * bayes, errors  # without context: 1, 1.7 and 2.7
    again = af.load(tmp_path)
    assert curves(again, objective, count=512) == curves(trainer.model, objective, count=512)


@pytest.mark.parametrize(("call", "sentence"), [
    (lambda: Regress(noise=-1.0), "noise is -1.0; it must be at least 0"),
    (lambda: Regress(width=3).module(af.build(small(Regress(width=2)))), "the model reads points of 2 numbers"),
    (lambda: Regress().module(af.build(af.override(af.spec("gpt2"), {"decoder.depth": 0, "width": 16}))),
     "regression in context needs a model with a PairHead"),
    (lambda: af.build(small(Regress(width=2)))(points=torch.zeros(1, 2, 3), values=torch.zeros(1, 2)),
     r"points must be \(batch, pairs, 2\), got \(1, 2, 3\)"),
    (lambda: af.build(small(Regress(width=2)))(points=torch.zeros(1, 2, 2)), "values are missing"),
    (lambda: af.build(small(Regress(width=2)))(points=torch.zeros(1, 2, 2), values=torch.zeros(1, 1)),
     r"values.*shape \(1, 2\).*got \(1, 1\)"),
])  # fmt: skip
def test_mistakes(call: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        call()
