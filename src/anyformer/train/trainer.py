"""The loop: batches in, better weights out, and nothing lost when it is interrupted.

A step is the same whichever way its batch is cut: how much each loss term counts is summed over all micro-batches and
processes first, and every micro-batch's sums are divided by that. What is random in a step (dropout) is drawn from
generators that are seeded from (seed, step, process), so a step depends on nothing but its number and the weights.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from anyformer.data import Ready
from anyformer.data.lock import Lock
from anyformer.evaluate import mean_losses
from anyformer.evaluate.metrics import FALLING
from anyformer.kernels import hardware
from anyformer.models import TransformerModule
from anyformer.objectives.objective import Batch, Objective
from anyformer.runtime.nonfinite import first_nonfinite
from anyformer.specs.messages import quote
from anyformer.train import parallel
from anyformer.train.average import Average
from anyformer.train.interrupt import end_after_step
from anyformer.train.optim import clip
from anyformer.train.record import Recorder
from anyformer.train.resume import Checkpoints, Saved, fill, gathered
from anyformer.train.run import Pretrained, Run
from anyformer.transforms.adapters import save_adapter
from anyformer.transforms.fuse import fuse
from anyformer.transforms.recompute import recompute
from anyformer.transforms.stream import narrow_stream

Feed = Callable[[int], AbstractContextManager[Iterable[Ready]]]  # first step -> what each step learns from
EVERY = 30.0  # seconds between two lines of progress where there is no terminal
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # no room: on the disk, for this user, in this file system
DTYPES = {"bf16": torch.bfloat16, "bf16-stream": torch.bfloat16, "fp16": torch.float16}


@dataclasses.dataclass(frozen=True)
class Done:
    """The numbers of one step."""

    step: int  # steps done, this one included
    loss: float
    terms: dict[str, float]
    norm: float  # of the gradient, before it was clipped
    lr: float
    examples: int
    tokens: int
    seconds: float  # since the step before


class Callback:
    """What watches a training. Every method may be left out; `trainer.stop(why)` ends it after this step."""

    def started(self, trainer: Trainer) -> None: ...
    def stepped(self, trainer: Trainer, done: Done) -> None: ...
    def evaluated(self, trainer: Trainer, scores: dict[str, float]) -> None: ...
    def sampled(self, trainer: Trainer, text: str) -> None: ...
    def saved(self, trainer: Trainer, folder: Path) -> None: ...
    def stopped(self, trainer: Trainer) -> None: ...
    def announced(self, line: str) -> None: ...


class LossStep(nn.Module):
    """One micro-batch to loss terms: a single module, for whatever wraps one (compile, data parallel, sharding)."""

    def __init__(self, objective: Objective, module: nn.Module) -> None:
        super().__init__()
        self.objective, self.module = objective, module

    def forward(self, batch: Batch, divisors: dict[str, Tensor]) -> dict[str, Tensor]:
        sums = self.objective.losses(self.module, batch)
        return {name: total / divisors[name] for name, total in sums.items()}


@dataclasses.dataclass
class _Launched:
    """A step on its way: its numbers may still be on the device."""

    step: int
    ready: Ready
    divisors: dict[str, Tensor]
    names: list[str]
    numbers: Tensor  # the terms, how many processes wish to stop, the length of the gradient
    lr: float
    arrived: torch.cuda.Event | None = None  # when the numbers are on the host
    recorded: bool = False  # its gradients are those of a recording

    def read(self) -> list[float]:
        if self.arrived is not None:
            self.arrived.synchronize()
        return self.numbers.tolist()


class Trainer:
    """`fit()` trains `model` by `run`, from where the checkpoints in `folder` end.

    `feed(step)` gives the batches from a step on, `valid()` those of one evaluation. `objective` is the run's, knowing
    the tokenizer. `identity` says what the run was made from (data, tokenizer, description): a checkpoint of other
    things is refused.
    """

    def __init__(
        self,
        run: Run,
        folder: Path,
        *,
        model: TransformerModule,
        feed: Feed,
        objective: Objective | None = None,
        valid: Callable[[], AbstractContextManager[Iterable[Ready]]] | None = None,
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
        for pattern in run.recompute:
            recompute(module, pattern)
        if self.layout.sharded and run.precision == "fp16":
            raise ValueError("fp16 looks for overflows in whole gradients: with mesh.shard or mesh.tensor take bf16")
        if not self.layout.sharded:  # there each layer's weights lie in pieces of their own
            fuse(module, training=True)
        if run.precision == "bf16-stream":
            narrow_stream(module)
        self.core = LossStep(self.objective, module)
        placed = self.layout.place(self.core)
        self.call: Any = torch.compile(placed) if run.compile else placed
        self.recorder: Recorder | None = None
        if run.record:
            self.recorder = Recorder(self.passed, module, self.seeded, self.tell)
        self.optimizers = run.optimizer.make(module)
        self.average = Average(module, run.ema) if run.ema is not None else None
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=run.precision == "fp16")
        self.step = self.examples = self.tokens = self.waited = 0
        self.steps = run.steps  # the last one; what must be over in time moves it (see deadline.py)
        self.seconds = self.clock = 0.0
        self.best: float | None = None
        self.score: float | None = None  # of the weights as they are now
        self.last: Done | None = None
        self.splits: Any = None  # the prepared data, for reports
        self.epochs: Callable[[int], dict[str, float]] = lambda steps: {}  # of each source of a mixture
        self.fresh = True  # nobody began before
        self.lock: Lock | None = None  # on the folder, until it is done
        self.scores: dict[str, float] = {}
        self.reason = ""  # why it stopped before its last step
        self.wish = ""  # the same, of this process alone: the others hear of it with the next step's numbers
        self.interrupted = False

    @property
    def module(self) -> nn.Module:
        """What is trained: the model, or what the objective put around it."""
        return self.core.module

    def stop(self, why: str) -> None:
        if parallel.world_size() > 1:
            self.wish = self.wish or why
        else:
            self.reason = self.reason or why

    # -- the loop -------------------------------------------------------------------------------------------------

    def fit(self) -> Trainer:
        try:
            self.begin()
            self.watched()
        except OSError as error:
            raise self.disk_full(error) if error.errno in FULL else error from None
        finally:
            if self.lock is not None:
                self.lock.release()
        if self.interrupted:
            raise KeyboardInterrupt
        return self

    def begin(self) -> None:
        """From where the newest whole checkpoint ends."""
        saved, faults = self.checkpoints.newest(self.layout.like(self.core.module))
        for wrong in faults:
            self.tell(f"passed over: {wrong}")
        if saved is not None:
            self.restore(saved)
        elif not self.fresh:
            self.tell(f"{self.folder} has no checkpoint to go on from: it starts at step 0")
        self.core.train()

    def watched(self) -> None:
        """All steps that are left, with the callbacks."""
        started: list[Callback] = []  # one that cannot start ends the run, and has nothing to stop
        with end_after_step(self):
            try:
                for callback in self.callbacks:
                    callback.started(self)
                    started.append(callback)
                self.check_patience()  # a run that ended for this reason does not go on by itself
                if self.step < self.steps and not self.reason:
                    self.learn()
            finally:
                for callback in started:
                    callback.stopped(self)

    def learn(self) -> None:
        run, waiting = self.run, None
        self.clock = time.perf_counter()
        with self.feed(self.step) as batches:
            for ready in batches:
                launched = self.launch(ready)
                self.step += 1
                if waiting is not None:  # the device is busy with the next step while this one's numbers are read
                    self.settle(waiting)
                waiting = launched
                last = self.step >= self.steps
                evaluate = self.valid is not None and (last or self.step % run.evaluate.every == 0)
                save = last or self.step % run.keep.every == 0 or bool(self.reason)
                if self.device.type == "cpu" or evaluate or save:
                    self.settle(waiting)
                    waiting = None
                self.score = None
                better = self.evaluate_now() if evaluate else False
                over = last or (waiting is None and bool(self.reason))
                if save or over or (better and run.keep.best):
                    self.save()
                if evaluate or save:
                    self.clock = time.perf_counter()  # what is in between is not the steps' time
                if over:
                    return

    def launch(self, ready: Ready) -> _Launched:
        """Forward, backward and the optimisers' step; nothing waits for the device."""
        self.seeded(ready.step)
        self.objective.before(self.module, ready.step)
        divisors = self.divisors(ready)
        total: dict[str, Tensor] = {}
        for left, batch, real in zip(reversed(range(len(ready.batches))), ready.batches, ready.real, strict=True):
            with self.layout.accumulating(more=left > 0):
                if self.recorder is not None and len(ready.batches) == 1:
                    terms = self.recorder(self.moved(batch), divisors, ready.step)
                else:
                    terms = self.passed(self.moved(batch), divisors, float(real))
            for name, value in terms.items():
                total[name] = total.get(name, 0.0) + value
        self.layout.sum_gradients()
        for optimizer in self.optimizers:
            self.scaler.unscale_(optimizer)  # nothing where it is off
        norm = clip(self.optimizers.parameters, self.run.clip)
        sums = self.summed(torch.stack((*total.values(), self.layout.wishes(bool(self.wish)))))
        numbers = torch.cat((sums, norm.detach().float().reshape(1)))
        lr = self.optimizers.rate(self.run.schedule.factor(ready.step, self.steps))
        self.move(numbers)
        self.optimizers.zero_grad()
        self.layout.agree()
        if self.average is not None:
            self.average.update(ready.step)
        numbers, arrived = sent(numbers)
        launched = self.recorder is not None and self.recorder.launched
        return _Launched(ready.step + 1, ready, divisors, list(total), numbers, lr, arrived, launched)

    def move(self, numbers: Tensor) -> None:
        """The optimisers' step. What is not finite moves nothing: with loss scaling that is its daily work; otherwise
        the run ends, and the weights are those from before."""
        if self.scaler.is_enabled():
            for optimizer in self.optimizers:
                self.scaler.step(optimizer)
            self.scaler.update()
            return
        bad = ~numbers.isfinite().all()
        for optimizer in self.optimizers:
            if optimizer.defaults.get("fused"):
                optimizer.found_inf = bad.float()  # decided on the device
                optimizer.step()
            elif not bool(bad):
                optimizer.step()

    def settle(self, launched: _Launched) -> None:
        """Reads a step's numbers, stops where they are not finite, and tells them."""
        *terms, wishes, norm = launched.read()
        if wishes:
            self.reason = self.reason or self.wish or "another process was asked to"
        loss = sum(terms)
        now = time.perf_counter()
        seconds, self.clock = now - self.clock, now
        if not np.isfinite(loss) or (not np.isfinite(norm) and not self.scaler.is_enabled()):
            raise FloatingPointError(self.explain(launched, loss))
        self.examples += launched.ready.examples
        self.tokens += launched.ready.tokens
        self.seconds += seconds
        self.last = Done(
            launched.step,
            loss,
            dict(zip(launched.names, terms)),
            norm,
            launched.lr,
            launched.ready.examples,
            launched.ready.tokens,
            seconds,
        )
        self.notify("stepped", self.last)

    # -- pieces of a step -----------------------------------------------------------------------------------------

    def passed(self, batch: Batch, divisors: dict[str, Tensor], real: float = 1.0) -> dict[str, Tensor]:
        """Forward and backward: the terms, and the gradients are in the parameters."""
        with self.autocast():
            terms = self.call(batch, divisors)
            loss = sum(terms.values(), torch.zeros((), device=self.device)) * real
        self.scaler.scale(loss).backward()
        return {name: value.detach().float() * real for name, value in terms.items()}

    def divisors(self, ready: Ready) -> dict[str, Tensor]:
        """How much each term counts in the whole step; a term that nothing asks about has the sum 0."""
        counts: dict[str, float] = {}
        for batch, real in zip(ready.batches, ready.real, strict=True):
            for name, weight in self.objective.weights(batch).items():
                counts[name] = counts.get(name, 0.0) + weight * real
        # filled in on the device: a copy from ordinary memory would wait until the device has nothing left to do
        values = [torch.full((), value, dtype=torch.float64, device=self.device) for value in counts.values()]
        totals = self.summed(torch.stack(values))
        return dict(zip(counts, torch.where(totals > 0, totals, 1.0).float().unbind()))

    def seeded(self, step: int) -> None:
        seed_all(self.run.seed, step, self.layout.data_rank)

    def summed(self, values: Tensor) -> Tensor:
        return self.layout.summed(values)

    def moved(self, batch: Batch) -> Batch:
        return {name: tensor.to(self.device, non_blocking=True) for name, tensor in batch.items()}

    def autocast(self) -> torch.autocast:
        dtype = DTYPES.get(self.run.precision)
        return torch.autocast(self.device.type, dtype=dtype, enabled=dtype is not None)

    def explain(self, launched: _Launched, loss: float) -> str:
        """Where the first number that is not finite appeared, by running the step once more."""
        weights = [name for name, p in self.core.module.named_parameters() if not bool(p.isfinite().all())]
        where = weights[0] if weights else None
        for batch in launched.ready.batches if where is None else ():
            self.seeded(launched.step - 1)
            once_more = functools.partial(self.core, self.moved(batch), launched.divisors)
            with self.autocast():
                where = first_nonfinite(self.core.module, once_more) if where is None else once_more() and where
        where = parallel.first_of(where)
        what = "the loss" if not np.isfinite(loss) else "the gradient"
        place = f"the first values that are not finite appear in {where or 'its backward pass'}"
        if where is None and launched.recorded and self.recorder is not None:
            place += self.recorder.alone(self.moved(launched.ready.batches[0]), launched.divisors, launched.step - 1)
        newest = list(self.checkpoints.steps())[-1:]
        kept = f"the checkpoint of step {newest[0]} is good" if newest else "no checkpoint was written yet"
        return f"step {launched.step}: {what} is not finite; {place}; {kept}"

    # -- evaluation -----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """The weights that count (an average where there is one), nothing random, no gradients."""
        self.core.eval()
        try:
            with torch.no_grad(), self.average.swapped() if self.average else contextlib.nullcontext():
                yield
        finally:
            self.core.train()

    @contextlib.contextmanager
    def whole(self) -> Iterator[None]:
        """`model` can be used, in every process: where its parameters lie in pieces, a copy stands in its place."""
        kept = self.model
        try:
            if self.layout.sharded:
                self.model = gathered(kept, self.device)
            yield
        finally:
            self.model = kept

    def evaluate(self) -> dict[str, float]:
        """The objective's loss over the validation split, and each of its terms where there are several."""
        assert self.valid is not None
        with self.evaluating(), self.valid() as batches:
            with self.autocast():
                most = self.run.evaluate.batches
                means = mean_losses(self.core, self.objective, batches, self.device, most, self.summed)
            scores = {"loss": sum(means.values()), **(means if len(means) > 1 else {})}
            if self.metrics is not None:
                with self.whole():
                    scores |= self.metrics(self, scores)
        return scores

    def evaluate_now(self) -> bool:
        """Whether the scores are the best so far; patience is counted."""
        self.scores = self.evaluate()
        wanted = self.run.evaluate.best
        if wanted not in self.scores:
            raise ValueError(f"evaluate.best is {quote(wanted)}; there are {', '.join(self.scores)}")
        value = self.scores[wanted]
        self.score = value if wanted.endswith("loss") or wanted in FALLING else -value
        better = self.score == self.score and (self.best is None or self.score < self.best)  # NaN is never better
        self.best = self.score if better else self.best
        self.waited = 0 if better else self.waited + 1
        self.check_patience()
        self.notify("evaluated", self.scores)
        return better

    def check_patience(self) -> None:
        """Stops where validation has not improved for too long; all processes find the same."""
        options = self.run.evaluate
        if options.patience is not None and self.waited >= options.patience:
            times = f"{options.patience} evaluation{'s' if options.patience > 1 else ''}"
            self.reason = self.reason or f"{times} without a better {options.best} (evaluate.patience)"

    # -- checkpoints ----------------------------------------------------------------------------------------------

    def save(self) -> None:
        score = self.score if self.run.keep.best else None  # without one the newest checkpoint is the run's model
        values = {
            "examples": self.examples,
            "tokens": self.tokens,
            "seconds": self.seconds,
            "score": score,
            "best": self.best,
            "waited": self.waited,
            "identity": self.identity,
            "scaler": self.scaler.state_dict(),
        }
        tensors: dict[str, dict[str, Tensor]] = {"optimizer": self.optimizers.state()}
        if self.average is not None or self.run.lora is not None or self.core.module is not self.model:
            tensors["weights"] = {name: tensor.clone() for name, tensor in self.core.module.state_dict().items()}
        if self.average is not None:
            tensors["average"] = {name: tensor.clone() for name, tensor in self.average.shadow.items()}
        with self.average.swapped() if self.average else contextlib.nullcontext():
            folder = self.checkpoints.save(self.step, self.model, values, **tensors)
            if self.run.lora is not None:
                self.save_adapter()
        self.notify("saved", folder)

    def disk_full(self, error: OSError) -> OSError:
        """The same error with the file that was to be written, and how the run goes on."""
        path = Path(error.filename or self.folder)
        if path.parent.name.startswith(".saving-"):  # the temporary folder of a checkpoint
            path = path.parent.with_name(f"step-{self.step:08}") / path.name
        newest = list(self.checkpoints.steps())[-1:]
        goes_on = f"make room, and --resume goes on from step {newest[0]:,}" if newest else "make room and start again"
        return OSError(error.errno, f"{error.strerror or error}; {goes_on}", str(path))

    def save_adapter(self) -> None:
        """What was learnt alone, in PEFT's layout, beside the checkpoints that have it in their weights."""
        base = self.run.model.path if isinstance(self.run.model, Pretrained) else None
        try:
            with parallel.sealed(self.folder / "adapter") as folder:
                save_adapter(self.model, folder, base, parallel.whole, write=parallel.rank() == 0)
        except ValueError as error:  # the weights are saved
            self.tell(f"no file for the adapter alone: {error}")

    def restore(self, saved: Saved) -> None:
        identity = saved.values["identity"]
        for name in sorted({*identity, *self.identity}):
            if identity.get(name) != self.identity.get(name):
                line = "a run goes on with what it was started with; start another in a new folder"
                raise ValueError(f"{saved.folder} was trained with another {name}: {line}")
        fill(self.core.module, saved.tensors["weights"])
        self.optimizers.load(saved.tensors.get("optimizer", {}))
        if self.average is not None:
            self.average.load(saved.tensors["average"])
        if self.scaler.is_enabled():
            self.scaler.load_state_dict(saved.values["scaler"])
        for name in ("step", "examples", "tokens", "seconds", "best", "waited"):
            setattr(self, name, saved.values[name])

    # -- telling --------------------------------------------------------------------------------------------------

    def notify(self, event: str, *what: Any) -> None:
        for callback in self.callbacks:
            getattr(callback, event)(self, *what)

    def tell(self, line: str) -> None:
        for callback in self.callbacks:
            callback.announced(line)


def sent(numbers: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
    """Numbers on their way to the host, and when they will be there. Copied only when they are read, they would come
    behind the work of the next step, and the device would have nothing to do meanwhile."""
    if numbers.device.type != "cuda":
        return numbers, None
    host = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True).copy_(numbers, non_blocking=True)
    arrived = torch.cuda.Event()
    arrived.record()
    return host, arrived


def seed_all(seed: int, step: int, rank: int) -> None:
    """Every generator that code may draw from, as a function of where we are: there is no random state to keep."""
    number = int(np.random.SeedSequence([seed, step, rank]).generate_state(1, np.uint64)[0])
    # for a device that is not there torch.manual_seed writes the whole stack down, in every step
    (torch.manual_seed if torch.accelerator.is_available() else torch.default_generator.manual_seed)(number % 2**63)
    random.seed(number)
    np.random.seed(number % 2**32)
