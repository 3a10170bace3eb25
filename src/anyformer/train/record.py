"""A step's forward and backward pass recorded on a GPU and launched at once, as CUDA's graphs allow.

A small model's kernels take less time than Python takes to ask for them one by one. A recording asks once: a batch is
copied to where the recorded one lay, and the gradients are found where the recorded ones were written. What Python
decides on the way was decided once and for all, so that every recording is held against ordinary passes, with other
seeds too, before anything is learnt from it; where they differ, or nothing can be recorded, training goes on as it did.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from anyformer.kernels.recording import graph_capture
from anyformer.objectives.objective import Batch, Objective

Terms = dict[str, Tensor]
Pass = Callable[[Batch, Terms], Terms]  # (batch, divisors) -> terms; the gradients are in the parameters

WARM = 3  # ordinary passes over batches of one shape before it is recorded: kernels are chosen and compiled in them
MOST = 8  # shapes, since each keeps its activations
CLOSE = 1e-2  # of losses, and of the length of the gradient: the same kernels, but sums in another order


def refusal(
    objective: Objective, device: torch.device, precision: str, processes: int, micro: int | None = None
) -> str | None:
    """Why this training cannot be recorded."""
    if device.type != "cuda":
        return f"a recording is launched on a GPU, and this is on {device.type}"
    if processes > 1:
        return "processes wait for each other within a step; a recording is of one alone"
    if micro is not None:
        return "batch.micro adds up gradients over several passes; a recording is of a step's only one"
    if precision == "fp16":
        return "loss scaling decides on the host; take bf16"
    if type(objective).before_step is not Objective.before_step:
        return f"{type(objective).__name__} changes something from step to step"
    return None


class Recording(NamedTuple):
    """One pass, to be launched again: what it reads, and what it leaves behind."""

    graph: Any
    batch: Batch
    divisors: Terms
    terms: Terms
    gradients: list[Tensor | None]

    def __call__(self, batch: Batch, divisors: Terms) -> Terms:
        for here, given in ((self.batch, batch), (self.divisors, divisors)):
            for name, tensor in given.items():
                here[name].copy_(tensor, non_blocking=True)
        self.graph.replay()
        return self.terms


class Recorder:
    """`do` as it is, until batches of a shape were seen often enough to be recorded. `seed(n)` sets what is random, by
    n; `tell` hears what could not be recorded."""

    def __init__(self, do: Pass, module: nn.Module, seed: Callable[[int], None], tell: Callable[[str], None]) -> None:
        self.do, self.module, self.seed, self.tell = do, module, seed, tell
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        self.seen: Counter[Any] = Counter()
        self.recordings: dict[Any, Recording] = {}
        self.given_up = False
        self.launched = False  # whether the last pass was a recording's

    def __call__(self, batch: Batch, divisors: Terms, step: int) -> Terms:
        shape = (*((name, tensor.shape, tensor.dtype) for name, tensor in batch.items()), *divisors)
        self.seen[shape] += 1
        if self.seen[shape] == WARM + 1 and not self.given_up and len(self.recordings) < MOST:
            self.try_to_record(shape, batch, divisors, step)
        self.launched = (recording := self.recordings.get(shape)) is not None
        if recording is None:
            return self.do(batch, divisors)
        terms = recording(batch, divisors)
        for parameter, gradient in zip(self.parameters, recording.gradients, strict=True):
            parameter.grad = gradient
        return terms

    def try_to_record(self, shape: Any, batch: Batch, divisors: Terms, step: int) -> None:
        kept = [buffer.clone() for buffer in self.module.buffers()]  # passes on trial must leave nothing behind
        try:
            recording = self.record(batch, divisors)
            why = self.unlike(recording, batch, divisors, step)
        except RuntimeError as error:
            why = str(error).strip().splitlines()[0]
        for buffer, before in zip(self.module.buffers(), kept, strict=True):
            buffer.copy_(before)
        self.forget()
        if why:
            self.given_up = True
            self.tell(f"not recorded, it goes on step by step: {why}")
        else:
            self.recordings[shape] = recording
        self.seed(step)

    def record(self, batch: Batch, divisors: Terms) -> Recording:
        batch = {name: tensor.clone() for name, tensor in batch.items()}
        divisors = {name: tensor.clone() for name, tensor in divisors.items()}
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        draws = torch.cuda.default_generators[torch.cuda.current_device()]
        before = draws.clone_state()
        stream.wait_stream(torch.cuda.current_stream())
        with graph_capture():
            with torch.cuda.stream(stream):  # once where nothing is asked of a tensor: other kernels may be chosen
                self.do(batch, divisors)
            torch.cuda.current_stream().wait_stream(stream)
            self.forget()
            try:
                with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # batches are made ready meanwhile
                    terms = self.do(batch, divisors)
            except RuntimeError:
                draws.graphsafe_set_state(before)  # one that was left in the middle draws nothing any more
                raise
        return Recording(graph, batch, divisors, terms, [p.grad for p in self.parameters])

    def unlike(self, recording: Recording, batch: Batch, divisors: Terms, step: int) -> str:
        """In what the recording differs from ordinary passes with the same draws."""
        for number in (step, step + 1, step + 2):
            self.forget()
            self.seed(number)
            wanted = measures(self.do(batch, divisors), [p.grad for p in self.parameters])
            self.seed(number)
            found = measures(recording(batch, divisors), recording.gradients)
            for name, value in wanted.items():
                if not abs(found[name] - value) <= CLOSE * max(abs(value), 1e-6):
                    return f"{name} was {found[name]:.6g} in the recording and {value:.6g} in the pass itself"
        return ""

    def alone(self, batch: Batch, divisors: Terms, step: int) -> str:
        """Whether a gradient that is not finite is the recording's alone: the step once more without it, with the
        weights of now (the next step may have been launched before this one's numbers were read)."""
        self.forget()
        self.seed(step)
        self.do(batch, divisors)
        finite = all(bool(p.grad.isfinite().all()) for p in self.parameters if p.grad is not None)
        self.forget()
        if finite:
            return ", and of its recording alone: without it the gradient is finite (try record=false)"
        return ", without its recording too"

    def forget(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None


def measures(terms: Terms, gradients: list[Tensor | None]) -> dict[str, float]:
    length = nn.utils.get_total_norm([gradient for gradient in gradients if gradient is not None])
    return {name: float(value) for name, value in terms.items()} | {"the length of the gradient": float(length)}
