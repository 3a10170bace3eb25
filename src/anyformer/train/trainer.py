"""The training loop.

A step does not depend on how its batch is split: the weight of each loss term is first summed over all micro-batches
and processes, and the loss of every micro-batch is divided by this total. Random numbers of a step (dropout) come from
generators seeded by (seed, step, process), so a step depends only on its number and the weights.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from anyformer.data import StepBatches
from anyformer.data.lock import FolderLock
from anyformer.evaluate import mean_losses
from anyformer.kernels import hardware
from anyformer.kernels.capture import without_reading
from anyformer.models import TransformerModule
from anyformer.objectives.batches import Batch
from anyformer.objectives.objective import LOSS_METRICS, Objective
from anyformer.runtime.nonfinite import first_nonfinite
from anyformer.specs.messages import amount, quote
from anyformer.train import parallel
from anyformer.train.average import Average
from anyformer.train.interrupt import end_after_step
from anyformer.train.loss_step import LossStep, PendingStep, copy_to_host, seed_all
from anyformer.train.optim import clip
from anyformer.train.record import TIMED_STEPS, LaunchClock, Recorder, decide, refusal
from anyformer.train.resume import Checkpoints, Saved, fill, gather_model
from anyformer.train.run import Pretrained, Run
from anyformer.transforms.adapters import save_adapter
from anyformer.transforms.compile import compile_blocks
from anyformer.transforms.fuse import fuse
from anyformer.transforms.half_weights import HalfWeights
from anyformer.transforms.recompute import recompute
from anyformer.transforms.stream import narrow_stream

Feed = Callable[[int], AbstractContextManager[Iterable[StepBatches]]]  # first step -> the batches of each step
PROGRESS_INTERVAL = 30.0  # seconds between progress lines without a terminal
DTYPES = {"bf16": torch.bfloat16, "bf16-stream": torch.bfloat16, "fp16": torch.float16}


@dataclasses.dataclass(frozen=True)
class StepResult:
    """The numbers of one step."""

    step: int  # number of steps done, including this one
    loss: float
    terms: dict[str, float]
    norm: float  # gradient norm before clipping
    lr: float
    examples: int
    tokens: int
    seconds: float  # since the previous step


class Callback:
    """Hooks into training. Every method is optional; `trainer.stop(reason)` ends the run after the current step."""

    def on_start(self, trainer: Trainer) -> None: ...
    def on_step(self, trainer: Trainer, result: StepResult) -> None: ...
    def on_evaluate(self, trainer: Trainer, scores: dict[str, float]) -> None: ...
    def on_sample(self, trainer: Trainer, text: str) -> None: ...
    def on_save(self, trainer: Trainer, folder: Path) -> None: ...
    def on_stop(self, trainer: Trainer) -> None: ...
    def on_message(self, line: str) -> None: ...


class Trainer:
    """Trains `model` as `run` describes: `fit()` starts from the newest checkpoint in `folder`, if there is one.

    `feed(step)` returns the batches from a step on, `valid()` the batches of one evaluation. `objective` is the run's
    objective with its tokenizer. `identity` has digests of the data, the tokenizer and the description: a checkpoint
    with different digests is refused.
    """

    def __init__(
        self,
        run: Run,
        folder: Path,
        *,
        model: TransformerModule,
        feed: Feed,
        objective: Objective | None = None,
        valid: Callable[[], AbstractContextManager[Iterable[StepBatches]]] | None = None,
        tokenizer: Any = None,
        identity: Mapping[str, str] | None = None,
        device: str | torch.device = "cpu",
        layout: parallel.Layout | None = None,
        callbacks: Iterable[Callback] = (),
        metrics: Callable[[Trainer, dict[str, float]], dict[str, float]] | None = None,
    ) -> None:
        self.run, self.folder, self.model, self.feed, self.valid = run, folder, model, feed, valid
        self.layout = layout or parallel.Layout(run.mesh, hardware.device(device))
        self.tokenizer, self.identity, self.device = tokenizer, dict(identity or {}), self.layout.device
        self.callbacks, self.metrics = list(callbacks), metrics
        self.checkpoints = Checkpoints(folder, run.keep.last, run.keep.best, pieces=self.layout.sharded)
        self.objective = objective or run.objective
        module = self.objective.module(model)
        if self.layout.sharded and run.precision == "fp16":
            raise ValueError("fp16 needs full gradients to find overflows: with mesh.shard or mesh.tensor use bf16")
        if not self.layout.sharded:  # sharded layers keep their own weights
            fuse(module, training=True)
        if run.precision == "bf16-stream":
            narrow_stream(module)
        if run.compile is True:
            compile_blocks(module)
        for pattern in run.recompute:
            recompute(module, pattern)
        self.core = LossStep(self.objective, module)
        placed = self.layout.place(self.core)
        self.call: Any = torch.compile(placed) if run.compile == "whole" else placed
        self.recorder: Recorder | None = None
        processes = parallel.world_size()
        self.launch_clock: LaunchClock | None = None  # set until it is known whether capture helps
        if run.record:
            self.recorder = Recorder(self.forward_backward, module, self.seed_step, self.tell)
        elif run.record is None and not refusal(self.objective, self.device, run.precision, processes, run.batch.micro):
            self.launch_clock = LaunchClock()
        self.half_weights: HalfWeights | None = None
        if run.precision in DTYPES and self.device.type == "cuda" and processes == 1:
            self.half_weights = HalfWeights(module)
        self.optimizers = run.optimizer.make(module)
        self.average = Average(module, run.ema) if run.ema is not None else None
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=run.precision == "fp16")
        self.step = self.examples = self.tokens = self.evals_without_gain = 0
        self.steps = run.steps  # the last step; a Deadline changes it
        self.seconds = self.clock = 0.0
        self.best: float | None = None
        self.score: float | None = None  # score of the current weights; lower is better
        self.last: StepResult | None = None
        self.splits: Any = None  # the prepared data, for reports
        self.epochs: Callable[[int], dict[str, float]] = lambda steps: {}  # per source of a mixture
        self.fresh = True  # whether the folder had no run before
        self.lock: FolderLock | None = None  # on the folder, until the run ends
        self.scores: dict[str, float] = {}
        self.reason = ""  # why the run stopped before its last step
        self.stop_request = ""  # why this process wants to stop; shared with the numbers of the next step
        self.interrupted = False

    @property
    def module(self) -> nn.Module:
        """The module that is trained: the model, or the objective's module around it."""
        return self.core.module

    def stop(self, reason: str) -> None:
        if parallel.world_size() > 1:
            self.stop_request = self.stop_request or reason
        else:
            self.reason = self.reason or reason

    # -- the loop -------------------------------------------------------------------------------------------------

    def fit(self) -> Trainer:
        try:
            self.begin()
            self.learn_with_callbacks()
        except OSError as error:
            raise self.checkpoints.explain_disk_full(error, self.step) from None
        finally:
            if self.lock is not None:
                self.lock.release()
        if self.interrupted:
            raise KeyboardInterrupt
        return self

    def begin(self) -> None:
        """Restore the newest complete checkpoint."""
        saved, faults = self.checkpoints.newest(self.layout.like(self.core.module))
        for fault in faults:
            self.tell(f"skipped: {fault}")
        if saved is not None:
            self.restore(saved)
        elif not self.fresh:
            self.tell(f"{self.folder} has no checkpoint: training starts at step 0")
        self.core.train()

    def learn_with_callbacks(self) -> None:
        """Train the remaining steps, with the callbacks."""
        started: list[Callback] = []  # `on_stop` is called only for callbacks that started
        with end_after_step(self):
            try:
                for callback in self.callbacks:
                    callback.on_start(self)
                    started.append(callback)
                self.check_patience()  # a run that ended by patience does not continue when it is resumed
                if self.step < self.steps and not self.reason:
                    self.learn()
            finally:
                for callback in started:
                    callback.on_stop(self)

    def learn(self) -> None:
        run, pending = self.run, None
        self.clock = time.perf_counter()
        with self.feed(self.step) as batches:
            for ready in batches:
                launched = self.launch(ready)
                self.step += 1
                if pending is not None:  # the device computes the next step while this step's numbers are read
                    self.finish_step(pending)
                pending = launched
                last = self.step >= self.steps
                evaluate = self.valid is not None and (last or self.step % run.evaluate.every == 0)
                save = last or self.step % run.keep.every == 0 or bool(self.reason)
                if self.device.type == "cpu" or evaluate or save:
                    self.finish_step(pending)
                    pending = None
                self.score = None
                better = self.evaluate_now() if evaluate else False
                over = last or (pending is None and bool(self.reason))
                if save or over or (better and run.keep.best):
                    self.save()
                if evaluate or save:
                    self.clock = time.perf_counter()  # evaluating and saving do not count as time of the steps
                if over:
                    return

    def launch(self, ready: StepBatches) -> PendingStep:
        """Launch one step without waiting for the device. If `record` is null, the first steps are timed to decide
        whether to capture the rest."""
        clock = self.launch_clock
        if clock is None:
            return self.launch_step(ready)
        launched = clock(self.launch_step, ready)
        if len(clock.steps) == TIMED_STEPS:
            helps, why = decide(clock.steps)
            self.tell(why)
            if helps:
                self.recorder = Recorder(self.forward_backward, self.module, self.seed_step, self.tell)
            self.launch_clock = None
        return launched

    def launch_step(self, ready: StepBatches) -> PendingStep:
        """Launch forward, backward and the optimizer step."""
        self.seed_step(ready.step)
        self.objective.before_step(self.module, ready.step)
        divisors = self.divisors(ready)
        total: dict[str, Tensor] = {}
        for i, (batch, real) in enumerate(zip(ready.batches, ready.real, strict=True), 1):
            with self.layout.sync_context(last=i == len(ready.batches)):
                if self.recorder is not None and len(ready.batches) == 1:
                    terms = self.recorder(self.to_device(batch), divisors, ready.step)
                else:
                    terms = self.forward_backward(self.to_device(batch), divisors, float(real))
            for name, value in terms.items():
                total[name] = total.get(name, 0.0) + value
        self.layout.sum_gradients()
        for optimizer in self.optimizers:
            self.scaler.unscale_(optimizer)  # does nothing if loss scaling is off
        norm = clip(self.optimizers.parameters, self.run.clip)
        requests = self.layout.count_requests(bool(self.stop_request))
        sums = self.layout.sum_over_processes(torch.stack((*total.values(), requests)))
        numbers = torch.cat((sums, norm.detach().float().reshape(1)))
        lr = self.optimizers.set_rate(self.run.schedule.factor(ready.step, self.steps))
        self.update_weights(numbers)
        self.optimizers.zero_grad()
        self.layout.broadcast_statistics()
        if self.average is not None:
            self.average.update(ready.step)
        numbers, arrived = copy_to_host(numbers)
        captured = self.recorder is not None and self.recorder.used_graph
        return PendingStep(ready.step + 1, ready, divisors, list(total), numbers, lr, arrived, captured)

    def update_weights(self, numbers: Tensor) -> None:
        """Run the optimizer step. It is skipped if a number is not finite: with loss scaling this is normal; otherwise
        the run ends with the weights from before the step."""
        if self.scaler.is_enabled():
            for optimizer in self.optimizers:
                self.scaler.step(optimizer)
            self.scaler.update()
            return
        nonfinite = ~numbers.isfinite().all()
        for optimizer in self.optimizers:
            if optimizer.defaults.get("fused"):
                optimizer.found_inf = nonfinite.float()  # decided on the device
                optimizer.step()
            elif not bool(nonfinite):
                optimizer.step()

    def finish_step(self, pending: PendingStep) -> None:
        """Read a step's numbers and report them; FloatingPointError if they are not finite."""
        *terms, requests, norm = pending.read()
        if requests:
            self.reason = self.reason or self.stop_request or "another process was asked to stop"
        loss = sum(terms)
        now = time.perf_counter()
        seconds, self.clock = now - self.clock, now
        if not np.isfinite(loss) or (not np.isfinite(norm) and not self.scaler.is_enabled()):
            raise FloatingPointError(self.explain(pending, loss))
        self.examples += pending.ready.examples
        self.tokens += pending.ready.tokens
        self.seconds += seconds
        self.last = StepResult(
            pending.step,
            loss,
            dict(zip(pending.names, terms)),
            norm,
            pending.lr,
            pending.ready.examples,
            pending.ready.tokens,
            seconds,
        )
        self.notify("on_step", self.last)

    # -- pieces of a step -----------------------------------------------------------------------------------------

    def forward_backward(self, batch: Batch, divisors: dict[str, Tensor], real: float = 1.0) -> dict[str, Tensor]:
        """Run forward and backward: return the loss terms and accumulate gradients in the parameters."""
        nothing = contextlib.nullcontext()
        with nothing if self.half_weights is None else self.half_weights(DTYPES[self.run.precision]):
            with self.autocast(), without_reading() if self.run.compile else nothing:
                terms = self.call(batch, divisors)
                loss = sum(terms.values(), torch.zeros((), device=self.device)) * real
            self.scaler.scale(loss).backward()
        return {name: value.detach().float() * real for name, value in terms.items()}

    def divisors(self, ready: StepBatches) -> dict[str, Tensor]:
        """Return the total weight of each loss term in the whole step; 1 for a term that no example has."""
        counts: dict[str, float] = {}
        for batch, real in zip(ready.batches, ready.real, strict=True):
            for name, weight in self.objective.weights(batch).items():
                counts[name] = counts.get(name, 0.0) + weight * real
        # filled on the device: a copy from pageable memory would wait until the device is idle
        values = [torch.full((), value, dtype=torch.float64, device=self.device) for value in counts.values()]
        totals = self.layout.sum_over_processes(torch.stack(values))
        return dict(zip(counts, torch.where(totals > 0, totals, 1.0).float().unbind()))

    def seed_step(self, step: int) -> None:
        seed_all(self.run.seed, step, self.layout.data_rank)

    def to_device(self, batch: Batch) -> Batch:
        return {name: tensor.to(self.device, non_blocking=True) for name, tensor in batch.items()}

    def autocast(self) -> torch.autocast:
        dtype = DTYPES.get(self.run.precision)
        return torch.autocast(self.device.type, dtype=dtype, enabled=dtype is not None)

    def explain(self, pending: PendingStep, loss: float) -> str:
        """Return an error message with the address of the first nonfinite number, found by running the step again."""
        weights = [name for name, p in self.core.module.named_parameters() if not bool(p.isfinite().all())]
        where = weights[0] if weights else None
        for batch in pending.ready.batches if where is None else ():
            self.seed_step(pending.step - 1)
            rerun = functools.partial(self.core, self.to_device(batch), pending.divisors)
            with self.autocast(), torch.compiler.set_stance("force_eager"):  # hooks do not run inside compiled blocks
                where = first_nonfinite(self.core.module, rerun) if where is None else rerun() and where
        where = parallel.first_value(where)
        name = "the loss" if not np.isfinite(loss) else "the gradient"
        cause = f"the first values that are not finite appear in {where or 'the backward pass'}"
        if where is None and pending.captured and self.recorder is not None:
            batch = self.to_device(pending.ready.batches[0])
            cause += self.recorder.explain_nonfinite(batch, pending.divisors, pending.step - 1)
        newest = self.checkpoints.newest_step()
        kept = f"the checkpoint of step {newest} is good" if newest is not None else "no checkpoint was written yet"
        return f"step {pending.step}: {name} is not finite; {cause}; {kept}"

    # -- evaluation -----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def eval_mode(self) -> Iterator[None]:
        """Disable dropout and gradients, and use the averaged weights if there are any."""
        self.core.eval()
        try:
            with torch.no_grad(), self.average.swap_in() if self.average else contextlib.nullcontext():
                yield
        finally:
            self.core.train()

    @contextlib.contextmanager
    def full_model(self) -> Iterator[None]:
        """Make `model` usable in every process: if its parameters are sharded, a gathered copy replaces it."""
        kept = self.model
        try:
            if self.layout.sharded:
                self.model = gather_model(kept, self.device)
            yield
        finally:
            self.model = kept

    def evaluate(self) -> dict[str, float]:
        """Return the objective's loss over the validation split, its terms if there are several, and the metrics."""
        assert self.valid is not None
        with self.eval_mode(), self.valid() as batches:
            with self.autocast():
                most = self.run.evaluate.batches
                means = mean_losses(
                    self.core, self.objective, batches, self.device, most, self.layout.sum_over_processes
                )
            scores = {"loss": sum(means.values()), **(means if len(means) > 1 else {})}
            if self.metrics is not None:
                with self.full_model():
                    scores |= self.metrics(self, scores)
        return scores

    def lower_is_better(self, name: str) -> bool:
        """Whether a lower value of this score is better."""
        metrics = self.objective.task.metrics
        if metrics is not None and name in metrics.functions:
            return metrics.lower_is_better
        return name.endswith("loss") or name in LOSS_METRICS

    def evaluate_now(self) -> bool:
        """Evaluate and update early stopping. Returns whether the score is the best so far."""
        self.scores = self.evaluate()
        wanted = self.run.evaluate.best
        if wanted not in self.scores:
            raise ValueError(f"evaluate.best: no score {quote(wanted)}; the scores are {', '.join(self.scores)}")
        value = self.scores[wanted]
        self.score = value if self.lower_is_better(wanted) else -value
        better = self.score == self.score and (self.best is None or self.score < self.best)  # NaN is never better
        self.best = self.score if better else self.best
        self.evals_without_gain = 0 if better else self.evals_without_gain + 1
        self.check_patience()
        self.notify("on_evaluate", self.scores)
        return better

    def check_patience(self) -> None:
        """Stop if validation has not improved for too long; the result is the same in all processes."""
        options = self.run.evaluate
        if options.patience is not None and self.evals_without_gain >= options.patience:
            times = amount(options.patience, "evaluation")
            self.reason = self.reason or f"{times} without a better {options.best} (evaluate.patience)"

    # -- checkpoints ----------------------------------------------------------------------------------------------

    def save(self) -> None:
        score = self.score if self.run.keep.best else None  # without a score the newest checkpoint is the run's model
        values = {
            "examples": self.examples,
            "tokens": self.tokens,
            "seconds": self.seconds,
            "score": score,
            "scores": self.scores,
            "best": self.best,
            "waited": self.evals_without_gain,
            "identity": self.identity,
            "scaler": self.scaler.state_dict(),
        }
        tensors: dict[str, dict[str, Tensor]] = {"optimizer": self.optimizers.state()}
        if self.average is not None or self.run.lora is not None or self.core.module is not self.model:
            tensors["weights"] = {name: tensor.clone() for name, tensor in self.core.module.state_dict().items()}
        if self.average is not None:
            tensors["average"] = {name: tensor.clone() for name, tensor in self.average.shadow.items()}
        with self.average.swap_in() if self.average else contextlib.nullcontext():
            folder = self.checkpoints.save(self.step, self.model, values, **tensors)
            if self.run.lora is not None:
                self.save_adapter()
        self.notify("on_save", folder)

    def save_adapter(self) -> None:
        """Save the adapter in PEFT's layout, next to the checkpoints, whose weights include it."""
        base = self.run.model.path if isinstance(self.run.model, Pretrained) else None
        try:
            with parallel.atomic_folder(self.folder / "adapter") as folder:
                save_adapter(self.model, folder, base, parallel.full_tensor, write=parallel.rank() == 0)
        except ValueError as error:  # the weights are saved anyway
            self.tell(f"the adapter was not saved as a separate file: {error}")

    def restore(self, saved: Saved) -> None:
        identity = saved.values["identity"]
        for name in sorted({*identity, *self.identity}):
            if identity.get(name) != self.identity.get(name):
                advice = "resume it with the same one, or start a new run in another folder"
                raise ValueError(f"the {name} is not the one that {saved.folder} was trained with: {advice}")
        fill(self.core.module, saved.tensors["weights"])
        self.optimizers.load(saved.tensors.get("optimizer", {}))
        if self.average is not None:
            self.average.load(saved.tensors["average"])
        if self.scaler.is_enabled():
            self.scaler.load_state_dict(saved.values["scaler"])
        for name in ("step", "examples", "tokens", "seconds", "best"):
            setattr(self, name, saved.values[name])
        self.evals_without_gain = saved.values["waited"]
        self.scores = saved.values.get("scores", {})  # checkpoints of earlier versions have none

    # -- callbacks ------------------------------------------------------------------------------------------------

    def notify(self, event: str, *values: Any) -> None:
        for callback in self.callbacks:
            getattr(callback, event)(self, *values)

    def tell(self, line: str) -> None:
        for callback in self.callbacks:
            callback.on_message(line)
