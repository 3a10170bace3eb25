"""The loop: T1 (accumulation is exact), T5 (logged is recomputed), precision, recomputation, averages, stopping."""

from __future__ import annotations

import contextlib
import itertools
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import anyformer as af
from anyformer import families
from anyformer.data import Data, StepBatches, TextFiles
from anyformer.objectives.causal import NextToken
from anyformer.objectives.objective import Objective
from anyformer.specs.codec import encode
from anyformer.train.loss_step import seed_all
from anyformer.train.optim import Adafactor, AdamW, Cosine, Muon
from anyformer.train.progress import Metrics, read_metrics
from anyformer.train.record import Recorder
from anyformer.train.run import Batch, Evaluate, Keep, Run
from anyformer.train.trainer import Callback, Trainer
from anyformer.transforms.half_weights import HalfWeights
from anyformer.weights import hub
from tiny import CONFIGS

PACKED = NextToken()


def small(**changes: Any) -> Any:
    return families.find("gpt2").read({**CONFIGS["gpt2"], "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
                                       **changes})  # fmt: skip


def run_of(**changes: Any) -> Run:
    base: dict[str, Any] = {
        "name": "test", "model": small(), "data": Data(train=TextFiles(path="nothing")), "objective": PACKED,
        "optimizer": AdamW(lr=1e-2), "schedule": Cosine(warmup=2), "batch": Batch(examples=6), "steps": 5,
        "keep": Keep(every=100), "evaluate": Evaluate(every=100),
    }  # fmt: skip
    return Run(**{**base, **changes})


def rows(step: int, num: int = 6, length: int = 12) -> list[dict[str, np.ndarray]]:
    """Texts of different lengths, new ones in each step."""
    draw = np.random.default_rng(step)
    return [{"input_ids": draw.integers(5, 50, draw.integers(3, length + 1)).astype(np.int32)} for _ in range(num)]


class Feed:
    """Batches as from a `Loader`, split into micro-batches of these sizes."""

    def __init__(self, *cuts: int, objective: Objective = PACKED, steps: int = 10**6) -> None:
        self.cuts, self.objective, self.steps = cuts or (6,), objective, steps

    def __call__(self, start: int = 0) -> Any:
        return contextlib.nullcontext(self.go(start))

    def go(self, start: int) -> Any:
        for step in range(start, self.steps):
            records, batches = rows(step), []
            for size in self.cuts:
                batches.append(self.objective.collate(records[:size], 0))
                records = records[size:]
            assert not records
            tokens = sum(len(record["input_ids"]) for record in rows(step))
            yield StepBatches(step, batches, [True] * len(batches), 6, tokens)


class Same(Feed):
    """The first step's batches in every step."""

    def go(self, start: int) -> Any:
        first = next(super().go(0))
        for step in range(start, 10**6):
            yield StepBatches(step, first.batches, first.real, first.examples, first.tokens)


class Log(Callback):
    def __init__(self) -> None:
        self.losses: list[float] = []
        self.norms: list[float] = []
        self.scores: list[float] = []

    def on_step(self, trainer: Trainer, done: Any) -> None:
        self.losses.append(done.loss)
        self.norms.append(done.norm)

    def on_evaluate(self, trainer: Trainer, scores: dict[str, float]) -> None:
        self.scores.append(scores["loss"])


def trainer_of(folder: Path, feed: Feed | None = None, callbacks: Any = (), **changes: Any) -> tuple[Trainer, Log]:
    run, log = run_of(**changes), Log()
    feed = feed or Feed()
    valid = Feed(steps=3, objective=feed.objective)
    model = af.build(run.model, seed=0)
    return Trainer(run, folder, model=model, feed=feed, valid=valid, callbacks=[log, *callbacks]), log


def weights(trainer: Trainer) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}


def same(a: dict[str, Tensor], b: dict[str, Tensor], tolerance: float = 0.0) -> None:
    for name, tensor in a.items():
        worst = float((tensor - b[name]).abs().max())
        assert worst <= tolerance, f"{name} is off by {worst:.1e}"


# -- T1


@pytest.mark.parametrize("cuts", [(3, 3), (1, 5), (1, 1, 1, 1, 1, 1), (4, 2)])
def test_t1_micro_batches_are_one_batch(tmp_path: Path, cuts: tuple[int, ...]) -> None:
    """Losses, gradients and weights are equal with different token counts and an uneven split."""
    (whole, a), (parts, b) = trainer_of(tmp_path / "a"), trainer_of(tmp_path / "b", Feed(*cuts))
    gradients = []
    for trainer, feed in ((whole, Feed()), (parts, Feed(*cuts))):
        ready = next(feed.go(0))
        divisors = trainer.divisors(ready)
        for batch in ready.batches:
            sum(trainer.core(batch, divisors).values()).backward()  # type: ignore[union-attr]
        gradients.append({name: p.grad.clone() for name, p in trainer.model.named_parameters()})
        trainer.optimizers.zero_grad()
    same(gradients[0], gradients[1], 2e-6)
    assert max(float(g.abs().max()) for g in gradients[0].values()) > 0.01
    whole.fit(), parts.fit()
    assert np.allclose(a.losses, b.losses, atol=2e-6) and np.allclose(a.norms, b.norms, atol=2e-5)
    same(weights(whole), weights(parts), 2e-4)  # Adam's first steps are signs, which rounding can flip


def test_t1_batches_that_are_not_real_count_nothing(tmp_path: Path) -> None:
    plain, a = trainer_of(tmp_path / "a")

    class Padded(Feed):
        def go(self, start: int) -> Any:
            for ready in super().go(start):
                yield StepBatches(
                    ready.step, [*ready.batches, ready.batches[0]], [True, False], ready.examples, ready.tokens
                )

    padded, b = trainer_of(tmp_path / "b", Padded())
    plain.fit(), padded.fit()
    assert a.losses == b.losses
    same(weights(plain), weights(padded))


# -- T5


def test_t5_logged_is_recomputed(tmp_path: Path) -> None:
    """Each logged loss is the mean of -log p over the step's labels, under the weights before the step."""
    before: list[dict[str, Tensor]] = []

    class Keeper(Callback):
        def on_start(self, trainer: Trainer) -> None:
            before.append(weights(trainer))

        def on_step(self, trainer: Trainer, done: Any) -> None:
            before.append(weights(trainer))

    trainer, log = trainer_of(tmp_path, Feed(2, 4), [Keeper(), Metrics()])
    trainer.fit()
    model = af.build(trainer.run.model)
    for step, loss in enumerate(log.losses):
        model.load_state_dict(before[step])
        total, count = 0.0, 0
        for record in rows(step):
            ids = torch.tensor(record["input_ids"]).long()[None]
            scores = model(input_ids=ids).logits.log_softmax(-1)[0, :-1]
            total -= float(scores.gather(1, ids[0, 1:, None]).sum().detach())
            count += ids.shape[1] - 1
        assert loss == pytest.approx(total / count, abs=1e-5)
    lines = [line for line in read_metrics(tmp_path) if "loss" in line]
    assert [line["loss"] for line in lines] == log.losses and [line["norm"] for line in lines] == log.norms
    rates = [1e-2 * trainer.run.schedule.factor(n, 5) for n in range(5)]
    assert [line["lr"] for line in lines] == rates
    tokens = np.cumsum([sum(len(record["input_ids"]) for record in rows(step)) for step in range(5)])
    assert [line["tokens"] for line in lines] == tokens.tolist()


def test_evaluation_is_the_mean_over_all_labels(tmp_path: Path) -> None:
    trainer, log = trainer_of(tmp_path, evaluate=Evaluate(every=5))
    trainer.fit()
    total, count = 0.0, 0
    trainer.model.eval()
    for step in range(3):
        for record in rows(step):
            ids = torch.tensor(record["input_ids"]).long()[None]
            with torch.no_grad():
                total += float(trainer.model(input_ids=ids, labels=ids).loss) * (ids.shape[1] - 1)
            count += ids.shape[1] - 1
    assert log.scores == [pytest.approx(total / count, abs=1e-6)]


@pytest.mark.parametrize("optimizer", [AdamW(lr=1e-2), Adafactor(lr=0.1), Muon(lr=1e-2)], ids=["adamw", "ada", "muon"])
def test_t5_one_batch_is_learnt_by_heart(tmp_path: Path, optimizer: Any) -> None:
    trainer, log = trainer_of(tmp_path, Same(), steps=60, optimizer=optimizer)
    trainer.fit()
    assert log.losses[0] > 3.5 and log.losses[-1] < 0.3


# -- precision, memory, compilation


@pytest.mark.parametrize("precision", ["bf16", "bf16-stream", "fp16"])
def test_half_precision_learns_as_fp32_does(tmp_path: Path, precision: str) -> None:
    exact, a = trainer_of(tmp_path / "a", steps=20)
    half, b = trainer_of(tmp_path / "b", steps=20, precision=precision)
    exact.fit(), half.fit()
    assert np.allclose(a.losses, b.losses, rtol=0.03) and a.losses != b.losses
    assert half.model.dtype == torch.float32


def test_fp16_scaling_skips_and_goes_on(tmp_path: Path) -> None:
    """If the loss scale is too high, gradients are infinite: steps are skipped until the scale is low enough."""
    trainer, log = trainer_of(tmp_path, steps=16, precision="fp16")
    trainer.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**26)
    before = weights(trainer)
    moved = []

    class Watch(Callback):
        def on_step(self, trainer: Trainer, done: Any) -> None:
            moved.append(any(not torch.equal(t, before[n]) for n, t in trainer.model.state_dict().items()))

    trainer.callbacks.append(Watch())
    trainer.fit()
    assert not moved[0] and moved[-1] and trainer.scaler.get_scale() < 2.0**26
    assert not np.isfinite(log.norms[0]) and all(np.isfinite(log.losses))


def test_fp16_gradients_are_unscaled_before_they_are_clipped(tmp_path: Path) -> None:
    """The reported norm and the gradient of the update belong to the loss, not to the scaled loss."""
    found: list[list[float]] = []
    for precision in ("fp32", "fp16"):
        trainer, log = trainer_of(tmp_path / precision, steps=3, precision=precision, clip=0.25)
        move, lengths = trainer.update_weights, []

        def measured(numbers: Tensor, trainer: Trainer = trainer, move: Any = move, to: list[float] = lengths) -> None:
            to.append(float(torch.stack([p.grad.norm() for p in trainer.optimizers.parameters]).norm()))
            move(numbers)

        trainer.update_weights = measured  # type: ignore[method-assign]
        trainer.fit()
        assert lengths == pytest.approx([0.25] * 3, rel=1e-3) and min(log.norms) > 0.5
        found.append(log.norms)
    assert found[1] == pytest.approx(found[0], rel=0.02)


def test_dropout_is_another_in_each_step_and_process(tmp_path: Path) -> None:
    """The same batch and the same weights in every step: only dropout differs."""
    found: list[list[float]] = []
    for rank in (0, 1, 0):
        folder = tmp_path / str(len(found))
        trainer, log = trainer_of(folder, Same(), model=small(resid_pdrop=0.2), evaluate=Evaluate(every=99))
        trainer.layout.data_rank = rank
        trainer.update_weights = lambda numbers: None  # type: ignore[method-assign]
        trainer.fit()
        found.append(log.losses)
    assert len({*found[0], *found[1]}) == 10 and found[0] == found[2]


def test_no_two_seeds_steps_and_processes_share_their_chance() -> None:
    drawn: dict[str, set[float]] = {"torch": set(), "numpy": set(), "python": set()}
    for numbers in itertools.product(range(5), repeat=3):
        seed_all(*numbers)
        drawn["torch"].add(float(torch.rand((), dtype=torch.float64)))
        drawn["numpy"].add(float(np.random.random()))
        drawn["python"].add(random.random())
    assert {name: len(found) for name, found in drawn.items()} == {"torch": 125, "numpy": 125, "python": 125}


def test_n8_recomputation_and_seeds(tmp_path: Path) -> None:
    """With dropout: recomputed = kept, the same seed = the same run, another seed = another."""
    noisy = {"model": small(resid_pdrop=0.2, attn_pdrop=0.2)}
    plain, a = trainer_of(tmp_path / "a", **noisy)
    again, b = trainer_of(tmp_path / "b", **noisy, recompute=("*.layers.*",))
    other, c = trainer_of(tmp_path / "c", **noisy, seed=1)
    for trainer in (plain, again, other):
        trainer.fit()
    assert a.losses == b.losses != c.losses
    same(weights(plain), weights(again))


@pytest.mark.parametrize("how", [True, "whole"])
def test_a_compiled_step_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: Any) -> None:
    compiled = torch.compile
    monkeypatch.setattr(torch, "compile", lambda module, **options: compiled(module, backend="aot_eager", **options))
    torch._dynamo.utils.counters.clear()
    short = {"steps": 3, "model": small(n_layer=2 if how is True else 1)}  # one layer compiles in half the time
    (eager, a), (quick, b) = trainer_of(tmp_path / "a", **short), trainer_of(tmp_path / "b", **short, compile=how)
    eager.fit(), quick.fit()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == (2 if how is True else 1)
    assert np.allclose(a.losses, b.losses, atol=1e-5)


def test_weights_cast_once_a_step_learn_the_same(tmp_path: Path) -> None:
    runs = []
    for cast in (False, True):
        trainer, log = trainer_of(tmp_path / str(cast), steps=3, precision="bf16")
        if cast:  # as on a GPU
            trainer.half_weights = HalfWeights(trainer.module)
        trainer.fit()
        runs.append((log.losses, weights(trainer)))
    assert runs[0][0] == runs[1][0]
    same(runs[0][1], runs[1][1], 0.0)


# -- averages, stopping, callbacks


def test_an_average_is_evaluated_and_saved(tmp_path: Path) -> None:
    trainer, log = trainer_of(tmp_path, ema=0.5, evaluate=Evaluate(every=5))
    seen = [weights(trainer)]

    class Keeper(Callback):
        def on_step(self, trainer: Trainer, done: Any) -> None:
            seen.append(weights(trainer))

    trainer.callbacks.append(Keeper())
    trainer.fit()
    average = {name: tensor.double() for name, tensor in seen[0].items()}
    for step, now in enumerate(seen[1:]):
        decay = min(0.5, (1 + step) / (10 + step))
        average = {name: decay * tensor + (1 - decay) * now[name].double() for name, tensor in average.items()}
    saved = af.load(tmp_path / "checkpoints" / "step-00000005")
    same(saved.state_dict(), average, 1e-6)
    same(weights(trainer), seen[-1])  # training continues with its own weights
    trainer.average, trainer.model = None, trainer.model.eval()
    trainer.model.load_state_dict(saved.state_dict())
    assert trainer.evaluate()["loss"] == pytest.approx(log.scores[0], abs=1e-6)


def test_it_stops_when_nothing_gets_better(tmp_path: Path) -> None:
    """With a learning rate of 1e-9 the loss hardly changes: no evaluation after the first is better."""
    trainer, log = trainer_of(tmp_path, steps=50, evaluate=Evaluate(every=2, patience=3), keep=Keep(every=100, last=9))
    values = iter([3.0, 2.0, 2.5, 2.0, 2.1, 0.0])
    trainer.evaluate = lambda: {"loss": next(values)}  # type: ignore[method-assign]
    trainer.fit()
    assert trainer.step == 10 and "3 evaluations without a better loss" in trainer.reason
    assert list(trainer.checkpoints.steps()) == [2, 4, 10] and trainer.checkpoints.best_step() == 4
    with pytest.raises(ValueError, match="evaluate.best: no score 'f1'; the scores are loss"):
        trainer_of(tmp_path / "b", evaluate=Evaluate(every=2, best="f1"))[0].fit()


def test_patience_and_the_average_go_on_after_a_pause(tmp_path: Path) -> None:
    """A run that is stopped after any step and resumed in this process ends with the same reason and average."""
    values = {2: 3.0, 4: 2.0, 6: 2.5, 8: 2.0, 10: 2.1, 12: 0.0}

    def part(folder: Path, stop: int | None = None) -> Trainer:
        options = {"ema": 0.8, "evaluate": Evaluate(every=2, patience=3), "keep": Keep(every=100, last=9)}
        trainer, _ = trainer_of(folder, steps=50, callbacks=[Pause(stop)], **options)
        trainer.evaluate = lambda: {"loss": values[trainer.step]}  # type: ignore[method-assign]
        return trainer.fit()

    whole = part(tmp_path / "whole")
    assert (whole.step, whole.best, whole.evals_without_gain) == (10, 2.0, 3)
    for stop in (3, 7):
        paused = part(tmp_path / str(stop), stop)
        assert (paused.step, paused.reason) == (stop, "a pause") and list(paused.checkpoints.steps())[-1] == stop
        rest = part(tmp_path / str(stop))
        assert (rest.step, rest.best, rest.evals_without_gain, rest.reason) == (10, 2.0, 3, whole.reason)
        assert (rest.examples, rest.tokens) == (whole.examples, whole.tokens)
        same(weights(rest), weights(whole))
        same(rest.average.shadow, whole.average.shadow)  # type: ignore[union-attr]
        assert best_of(rest.folder) == best_of(whole.folder) == "step-00000004"
        best = [af.load(trainer.folder / "checkpoints" / "step-00000004").state_dict() for trainer in (rest, whole)]
        same(*best)
    again = part(tmp_path / "7")  # killed right after its last checkpoint: no step remains
    assert (again.step, again.reason) == (10, whole.reason)
    assert any(not torch.equal(t, weights(whole)[n]) for n, t in whole.average.shadow.items())  # type: ignore[union-attr]


def best_of(folder: Path) -> str:
    """The checkpoint that every verb opens."""
    (folder / "run.json").write_text("{}")
    return hub.resolve(folder).name


def test_the_newest_is_used_where_no_best_is_kept(tmp_path: Path) -> None:
    values = iter([1.0, 2.0, 3.0])
    options = {"steps": 6, "evaluate": Evaluate(every=2), "keep": Keep(every=2, last=9, best=False)}
    trainer, _ = trainer_of(tmp_path, **options)
    trainer.evaluate = lambda: {"loss": next(values)}  # type: ignore[method-assign]
    trainer.fit()
    assert best_of(tmp_path) == "step-00000006"


def test_a_loss_that_is_no_number_is_never_the_best(tmp_path: Path) -> None:
    values = iter([float("nan"), 2.0, float("nan")])
    trainer, _ = trainer_of(tmp_path, steps=6, evaluate=Evaluate(every=2), keep=Keep(every=2, last=9))
    trainer.evaluate = lambda: {"loss": next(values)}  # type: ignore[method-assign]
    trainer.fit()
    assert trainer.best == 2.0 and best_of(tmp_path) == "step-00000004"


class Pause(Callback):
    def __init__(self, step: int | None) -> None:
        self.step = step

    def on_step(self, trainer: Trainer, done: Any) -> None:
        if done.step == self.step:
            trainer.stop("a pause")


# -- numbers that are not finite


@pytest.mark.parametrize("optimizer", [AdamW(lr=1e-2), Adafactor(lr=1e-2)], ids=["fused", "plain"])
def test_a_loss_that_is_not_finite_stops_the_run(tmp_path: Path, optimizer: Any) -> None:
    """NaN in step 4: training stops, the error names the first nonfinite address, and no bad checkpoint is written."""
    trainer, log = trainer_of(tmp_path, steps=8, keep=Keep(every=2, last=5), optimizer=optimizer)
    layer = trainer.model.decoder.layers[1].feedforward.op
    inner, calls = layer.forward, []

    def forward(*inputs: Any) -> Tensor:
        calls.append(1)
        out = inner(*inputs)
        return out * float("nan") if len(calls) >= 4 else out

    layer.forward = forward
    with pytest.raises(FloatingPointError) as error:
        trainer.fit()
    message = str(error.value)
    assert "step 4: the loss is not finite" in message and "decoder.layers.1.feedforward.op" in message
    assert "the checkpoint of step 2 is good" in message and "\n" not in message
    assert list(trainer.checkpoints.steps()) == [2] and len(log.losses) == 3
    assert all(bool(tensor.isfinite().all()) for tensor in trainer.model.state_dict().values())


def test_a_gradient_that_is_not_finite_stops_the_run(tmp_path: Path) -> None:
    trainer, _ = trainer_of(tmp_path)
    trainer.model.decoder.norm.weight.register_hook(lambda gradient: gradient * float("inf"))
    with pytest.raises(FloatingPointError, match="step 1: the gradient is not finite.*backward.*no checkpoint"):
        trainer.fit()
    assert all(bool(tensor.isfinite().all()) for tensor in trainer.model.state_dict().values())


@pytest.mark.parametrize("broken", ["the captured pass", "the step"])
def test_a_recorded_gradient_that_is_not_finite_is_looked_for_without_the_recording(
    tmp_path: Path, broken: str
) -> None:
    """NaN in step 3, the first captured step."""
    trainer, log = trainer_of(tmp_path, steps=8)

    class Launches(Recorder):  # runs the pass instead of a graph
        def __call__(self, batch: Any, divisors: Any, step: int) -> Any:
            self.used_graph = step >= 2
            terms = self.do(batch, divisors)
            if self.used_graph and broken == "the captured pass":
                self.parameters[-1].grad.fill_(float("nan"))
            return terms

    trainer.recorder = Launches(trainer.forward_backward, trainer.module, trainer.seed_step, trainer.tell)
    if broken == "the step":
        weight = trainer.model.decoder.norm.weight
        weight.register_hook(lambda gradient: gradient * (float("inf") if trainer.step >= 2 else 1.0))
    with pytest.raises(FloatingPointError, match="step 3: the gradient is not finite; .* backward pass") as error:
        trainer.fit()
    own = "in an ordinary pass the gradient is finite (try record=false)"
    assert (own in str(error.value)) == (broken == "the captured pass")
    assert ("in an ordinary pass too" in str(error.value)) == (broken == "the step")
    assert len(log.losses) == 2 and all(p.grad is None for p in trainer.module.parameters())


def test_a_second_network_is_trained_and_kept(tmp_path: Path) -> None:
    """An objective that wraps the model in a module: the whole module is trained; the folder opens as the model."""
    run = run_of(objective=Doubled(), steps=3)
    trainer = Trainer(run, tmp_path, model=af.build(run.model), feed=Feed(objective=run.objective))
    start = trainer.module.extra.detach().clone()  # type: ignore[union-attr, operator]
    trainer.fit()
    moved = trainer.module.extra.detach().clone()  # type: ignore[union-attr, operator]
    assert not torch.equal(start, moved)
    again = Trainer(run, tmp_path, model=af.build(run.model, seed=3), feed=Feed(objective=run.objective))
    saved, _ = again.checkpoints.newest()
    assert saved is not None
    again.restore(saved)
    assert torch.equal(again.module.extra, moved)  # type: ignore[arg-type]
    same(weights(trainer), weights(again))
    assert af.load(saved.folder).spec.decoder.depth == 2 and encode(run)["objective"] == {"kind": "Doubled"}


class Wrapped(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.extra = model, nn.Parameter(torch.ones(()))


class Doubled(NextToken):
    def module(self, model: nn.Module) -> nn.Module:
        return Wrapped(model)

    def losses(self, model: Any, batch: Any) -> dict[str, Tensor]:
        (value,) = super().losses(model.model, batch).values()
        return {"loss": value * model.extra.square()}
