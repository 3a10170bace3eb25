"""Every row of the modifications table: its counts are the paper's, and its model behaves as every model must."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import anyformer as af
from anyformer.data import JSONLines
from anyformer.lab.trials import Place, Row
from anyformer.parts.feedforward.mlp import MLP
from anyformer.parts.residual import Scaled
from anyformer.specs.part import Site
from anyformer.stacks.block import Block
from anyformer.stacks.sublayer import Sublayer
from anyformer.stacks.timed import TimedStack
from anyformer.train.run import Pretrained, Run, read_run
from anyformer_course.experiments import modifications as experiment
from anyformer_course.lab import function_task
from anyformer_course.lab.narang_changes import TableSize, activation
from anyformer_course.lab.narang_table import ROWS, PaperRow, count_row, row_named
from architectures.lines import broken, check, inputs_of, random_model
from small import close, context, filled

# a small model with two layers per stack
SMALL = TableSize(
    width=36, inner=96, heads=6, head_width=6, depth=2, vocabulary=100, length=64, narrow=8, cutoffs=(20, 50),
    softmaxes=3, experts=2, keys=6, found=3, taps=5,
)  # fmt: skip
ACTIVATIONS = {"GeLU", "Swish", "ELU", "GLU", "GeGLU", "ReGLU", "SeLU", "SwiGLU", "LiGLU", "Sigmoid", "Softplus"}
OWN = [  # rows with Parts, or with an order of layers, that no other row has
    "Fixup", "Block sharing + factorized & shared embeddings", "Adaptive softmax", "Mixture of softmaxes",
    "Transparent attention",
    "Dynamic convolution", "Evolved Transformer", "Synthesizer (dense plus alpha)", "Synthesizer (factorized)",
    "Synthesizer (random)", "Universal Transformer", "Mixture of experts", "Switch Transformer", "Funnel Transformer",
    "Weighted Transformer", "Product key memory",
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_parameters_are_the_papers(row: PaperRow) -> None:
    """Parameters are within 2 % of the paper's, or a note explains the difference."""
    off = abs(af.count(row.describe()).parameters / 1e6 / row.parameters - 1)
    assert off <= 0.02 or row.note, f"{off:.1%} off without a note"
    assert off > 0.02 or not row.note, f"{off:.1%} off, which needs no note"


@pytest.mark.parametrize("name", [
    "Vanilla Transformer", "Factorized Embedding", "Factorized & shared embeddings", "Adaptive input embeddings",
    "Mixture of softmaxes", "Weighted Transformer", "Product key memory",
])  # fmt: skip
def test_operations_are_the_papers(name: str) -> None:
    """Operations are within 1 % of the paper's if lookups are counted as products, as on a TPU."""
    row = row_named(name)
    assert count_row(row)[1] / 1e12 == pytest.approx(row.operations, rel=0.01)


@pytest.mark.parametrize("row", [
    pytest.param(row, id=row.name, marks=pytest.mark.slow if row.name in ACTIVATIONS - {"GeLU", "SwiGLU"} else ())
    for row in ROWS if row.name not in OWN
])  # fmt: skip
def test_every_row_learns(row: PaperRow, tmp_path: Path) -> None:
    """The loss falls (T5) and every parameter gets a gradient (N8). The other rows are in the next test."""
    spec = row.describe(SMALL)
    check("N8", spec, tmp_path)
    check("T5", spec, tmp_path)


@pytest.mark.parametrize("row", [
    pytest.param(row, id=row.name, marks=() if row.name in OWN else pytest.mark.slow)
    for row in ROWS if row.name not in ACTIVATIONS
])  # fmt: skip
def test_rows_keep_the_lines(row: PaperRow, tmp_path: Path) -> None:
    """All checks of random architectures, for rows that are not only an activation."""
    assert broken(row.describe(SMALL), tmp_path) is None


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN)
def test_compiled_is_eager(name: str) -> None:
    """N9 for a forward pass with its loss."""
    torch._dynamo.reset()
    spec = row_named(name).describe(SMALL)
    model, inputs = random_model(spec), inputs_of(spec, labels=True)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=False)
    with torch.no_grad():
        found, expected = (made(**inputs, use_cache=False) for made in (compiled, model))
    close(found.logits, expected.logits, 1e-5)
    close(found.loss, expected.loss, 1e-5)


def test_losses_of_the_paper_fall_alike() -> None:
    """The final loss is an eighth to a fifth below the early loss; a mistyped number would be outside."""
    assert all(1.125 < row.early_loss / row.final_loss < 1.25 and 1.7 < row.final_loss < 2.4 for row in ROWS)


def test_rows_differ() -> None:
    """All rows have different descriptions, and the error for an unknown name suggests the nearest."""
    assert len({row.describe(SMALL) for row in ROWS}) == len(ROWS) == len({row.name for row in ROWS})
    assert activation("elu") != activation("selu")
    with pytest.raises(ValueError, match="did you mean 'SwiGLU'"):
        row_named("SwiGlue")


def test_only_an_adaptive_softmax_has_two_levels() -> None:
    heads = {row.name: getattr(row.describe(SMALL).head, "hierarchical", None) for row in ROWS}
    assert {name: two for name, two in heads.items() if two is not None} == {
        "Adaptive softmax": True, "Adaptive softmax without projection": True, "Adaptive input embeddings": False,
        "Factorized & shared embeddings": False, "Block sharing + factorized & shared embeddings": False,
    }  # fmt: skip


def test_the_last_stage_of_the_funnel_ends_with_the_norm() -> None:
    stages = row_named("Funnel Transformer").describe().encoder.stages
    assert [stage.depth for stage in stages] == [4, 4, 4]
    assert [stage.norm is not None for stage in stages] == [False, False, True]


def test_taps_of_the_evolved_transformer() -> None:
    """So et al. 2019, figure 3: the two branches and the output; separable except in the encoder's branches."""
    spec = row_named("Evolved Transformer").describe()
    reads, writes = (stack.layers.steps["convolution"].op for stack in (spec.encoder, spec.decoder))
    taps = [[(each.kernel, each.separable) for each in (op.left, op.right, op.out)] for op in (reads, writes)]
    assert taps == [[(1, False), (3, False), (9, True)], [(11, True), (7, True), (7, True)]]


def test_each_step_of_the_universal_transformer_has_a_vector() -> None:
    """The time vector is added before the step, whichever layer runs."""
    step = Sublayer(op=MLP(width=8, activation="identity", bias=False), residual=Scaled(skip=0.0))
    stack = filled(TimedStack(layers=Block(one=step), depth=2, order=(0, 1, 0)).build(Site(width=6, depth=2)))
    x = expected = torch.randn(1, 4, 6)
    for vector, layer in zip(stack.timing, (0, 1, 0), strict=True):
        op = stack.layers[layer].one.op
        expected = op.down(op.up(expected + vector))
    close(stack(x, context(4))[0], expected)


# -- experiment -------------------------------------------------------------------------------------------------------


def test_ranks_are_compared_as_scipy_does() -> None:
    stats = pytest.importorskip("scipy.stats")
    ours, theirs = [3.0, 1.0, 2.0, 2.0, 5.0, 4.0], [1.0, 1.0, 3.0, 2.0, 9.0, 2.0]
    assert abs(experiment.correlation(ours, theirs) - stats.spearmanr(ours, theirs).statistic) < 1e-12


def test_trials_are_every_row_and_the_first_one_again() -> None:
    values = experiment.FORMS["full"].values
    trials = experiment.trials(**values)
    assert [trial.values["row"] for trial in trials[: len(ROWS)]] == [row.name for row in ROWS]
    assert [(trial.values["row"], trial.values["seed"]) for trial in trials[len(ROWS) :]] == [
        ("Vanilla Transformer", seed) for seed in range(1, 5)
    ]
    assert len({trial.name for trial in trials}) == len(trials)
    for row in ROWS:  # every row can be built at the trained sizes
        row.describe(experiment.size(values["width"], values["depth"], values["tokens"]))


def small_trainings(better: int) -> list[Row]:
    """Rows of which `better` are below the vanilla Transformer's 2.0 by more than twice its deviation of 0.1."""
    vanilla = [{"row": ROWS[0].name, "seed": seed, "final": loss} for seed, loss in enumerate((1.9, 2.0, 2.1))]
    others = [{"row": row.name, "seed": 0, "final": 1.75 if i < better else 1.85} for i, row in enumerate(ROWS[1:])]
    usual = {"steps per second": 2.0, "parameters": 7, "early": 3.0, "guessing": 3.0}
    return [{**usual, **row} for row in (*vanilla, *others)]


def test_most_modifications_are_not_better_by_more_than_the_seeds_differ() -> None:
    """A row is better below 1.8; failed trainings are not better; half of the rows are not "fewer than half"."""
    half = len(ROWS[1:]) // 2
    verdict = experiment.claim(small_trainings(half))
    assert verdict.holds and verdict.figures["better than vanilla"] == half
    assert not experiment.claim(small_trainings(half + 1)).holds
    untrained = [{**row, "guessing": 2.2} for row in small_trainings(half)]  # 2.1 is more than 90 % of it
    assert verdict.learned and not experiment.claim(untrained).learned
    rows = small_trainings(2)
    rows[3] |= {"steps per second": 1.0}
    rows[-1] = {"row": rows[-1]["row"], "seed": 0, "failed": "NaN"}
    figures = experiment.claim(rows).figures
    assert (figures["modifications"], figures["failed"]) == (len(ROWS) - 1, 1)
    assert figures["better, as small and as fast"] == ROWS[2].name
    assert figures[f"steps per second / vanilla's, {ROWS[1].name}"] == 0.5
    bars = experiment.plot(rows).axes[0].patches
    assert len(bars) == len(ROWS) - 1 and bars[0].get_width() == pytest.approx(-0.25)


def test_a_claim_tells_of_the_task_but_is_not_of_it() -> None:
    """A lower loss agrees with a higher SuperGLUE score; a row whose fine-tuning failed has no figure."""
    rows = [
        {"row": row.name, "final": row.final_loss, "task loss": 9 - row.superglue / 10,
         "task accuracy": row.superglue / 100}
        for row in ROWS[1:]
    ]  # fmt: skip
    figures = experiment.task_figures([{"row": ROWS[0].name, "final": 2.0}, *rows])
    assert figures["rank correlation, task and SuperGLUE"] == pytest.approx(1)
    assert figures["rank correlation, task and our final loss"] == pytest.approx(
        experiment.correlation([row.final_loss for row in ROWS[1:]], [-row.superglue for row in ROWS[1:]])
    )
    right = [figures[f"task accuracy, {end}"] for end in ("lowest", "highest")]
    assert right == pytest.approx([0.5395, 0.7677])


FUNCTIONS = """
class A:
    def first(self, x: int = 3, *more) -> None:
        def inside(y):
            return y

        return inside(x)
    def pair(self, both: tuple[int, int]): pass

def second(
    a, b,
):
    return a
"""


def test_parameters_are_taken_out_of_functions() -> None:
    assert [*function_task.without_parameters(FUNCTIONS)] == [
        ("first\n        def inside(y):\n            return y\n\n        return inside(x)", "self, x, *more"),
        ("second\n    return a", "a, b"),
    ]


def test_functions_that_are_asked_for_were_not_learnt_from(tmp_path: Path) -> None:
    texts = [f"def same(a):\n    return 0\ndef own{i}(b{i}):\n    return {i}\n" for i in range(60)]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    data = function_task.functions(
        JSONLines(path=str(tmp_path / "texts.jsonl")), 50, 8, Place(tmp_path, tmp_path, "cpu")
    )
    learnt, asked = ([row.example for row in source.rows(("source", "target"))] for source in (data.train, data.valid))
    assert (len(learnt), len(asked)) == (50, 3)  # three of 60 texts are held out, each with one function
    assert not {row["source"] for row in learnt} & {row["source"] for row in asked}
    assert all(row["target"] == f"b{row['source'].split()[0][3:]}" for row in asked)


def test_an_answer_is_right_where_every_token_is() -> None:
    labels = torch.tensor([[3, 1, -100], [3, 2, 1], [4, 1, -100], [2, 1, -100]])
    predicted = torch.tensor([[3, 1, 2], [3, 2, 2], [4, 1, 1], [3, 1, 1]])
    batches = [SimpleNamespace(batches=[{"labels": labels}])]
    trainer: Any = SimpleNamespace(
        valid=lambda: nullcontext(batches), eval_mode=nullcontext, autocast=nullcontext, to_device=lambda batch: batch,
        model=lambda labels: SimpleNamespace(logits=torch.nn.functional.one_hot(predicted, 5)),
    )  # fmt: skip
    assert function_task.share_right(trainer) == 0.5


def test_a_row_is_trained_and_fine_tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fine-tuning starts from the weights of span corruption; if it diverges, the pre-training figures remain."""
    values = experiment.trials(**{**experiment.FORMS["tiny"].values, "steps": 2, "tuning": 2})[0].values
    [row] = experiment.work(values, Place(tmp_path / "a", tmp_path / "shared", "cpu"))
    assert 0 < row["final"] < 9 and 0 < row["task loss"] < 9 and 0 <= row["task accuracy"] <= 1
    run, task = (read_run(tmp_path / "a" / name / "run.json") for name in ("run", "task"))
    assert task.model == Pretrained(path=str(tmp_path / "a" / "run")) and (run.steps, task.steps) == (2, 2)

    def diverge(self: Place, run: Run, *callbacks: Any, name: str) -> None:
        raise FloatingPointError("NaN")

    monkeypatch.setattr(Place, "train", diverge)
    assert experiment.fine_tune(run, tmp_path / "a" / "run", values, Place(tmp_path, tmp_path / "shared", "cpu")) == {
        "task failed": "NaN"
    }


def test_ratios_of_speed_are_to_the_nearest_first_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """benchmarks/modifications_speed.py reports a row that fails and continues with the other rows."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import modifications_speed as speed

    monkeypatch.setattr(speed, "AGAIN", 2)
    rates = iter([4.0, 5.0, None, 8.0, 4.0, 2.0])

    def measure(row: PaperRow, options: object) -> dict[str, object]:
        rate = next(rates)
        if rate is None:
            raise RuntimeError("out of memory")
        return {"steps per second": rate, "captured": True}

    monkeypatch.setattr(speed, "measure", measure)
    out = tmp_path / "steps.json"
    asked = ["GeLU", "Fixup", "SwiGLU"]
    monkeypatch.setattr("sys.argv", ["", "--tiny", "--out", str(out), "--rows", *asked])
    speed.main()
    rows = json.loads(out.read_text())["rows"]
    first = ROWS[0].name
    assert [row["name"] for row in rows] == [first, "GeLU", "Fixup", first, "SwiGLU", first]
    assert [row["ratio"] for row in rows] == [1.0, 1.25, None, 1.0, 0.5, 1.0]
    assert rows[2]["error"] == "RuntimeError: out of memory" and rows[1]["paper ratio"] == round(3.58 / 3.5, 3)


def test_a_step_of_the_speed_table_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import modifications_speed as speed

    found = speed.measure(row_named("Switch Transformer"), SimpleNamespace(tiny=True, device="cpu", batch=2))
    slowest, fastest = found["slowest and fastest"]
    assert 0 < slowest <= found["steps per second"] <= fastest and not found["captured"]
