"""A step's forward and backward pass captured in a CUDA graph.

The kernels of a small model take less time than launching them one by one from Python. A graph launches them at once:
the batch is copied to the captured inputs, and the gradients appear in the captured outputs. Branches taken in Python
are fixed at capture, so every graph is compared with ordinary passes, with other seeds too, before it is used. If they
differ, or a step cannot be captured, a message says why and training continues without capture.

If `record` is null, a few steps are timed (`LaunchClock`) and capture is used if it helps: if the host spends more than
half of the step's device time (`MAX_LAUNCH_SHARE`) on launching, and memory suffices.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from anyformer.kernels.capture import capture, graph_capture
from anyformer.objectives.batches import Batch
from anyformer.objectives.objective import Objective

Terms = dict[str, Tensor]
Pass = Callable[[Batch, Terms], Terms]  # (batch, divisors) -> terms; accumulates gradients in the parameters

WARMUP_PASSES = 3  # ordinary passes per batch shape before capture, which select and compile kernels
MAX_GRAPHS = 8  # most batch shapes to capture; each graph keeps its activations
UNTIMED_STEPS, TIMED_STEPS = 6, 5  # the first steps compile kernels and are not timed
MAX_LAUNCH_SHARE = 0.5  # capture if launching takes more than this share of the device time: a busy host would delay it
TOLERANCE = 1e-2  # relative tolerance of losses and gradient norms: same kernels, different summation order


def refusal(
    objective: Objective, device: torch.device, precision: str, processes: int, micro: int | None = None
) -> str | None:
    """Return why the steps of this training cannot be captured; None if they can."""
    if device.type != "cuda":
        return f"CUDA graphs need a GPU; the device is {device.type}"
    if processes > 1:
        return "CUDA graphs of several processes are not supported; use one process"
    if micro is not None:
        return "batch.micro makes several passes per step; a graph has one"
    if precision == "fp16":
        return "loss scaling of fp16 runs on the host; use bf16"
    if type(objective).before_step is not Objective.before_step:
        return f"{type(objective).__name__} changes from step to step"
    return None


class Measures(NamedTuple):
    """Times and memory of one step that was launched on an idle device."""

    host: float  # seconds until all kernels were launched
    device: float  # seconds from the first kernel to the last, waiting for the host included
    needed: int  # peak bytes of a step, in addition to those allocated between steps
    room: int  # free bytes between steps


def decide(steps: Sequence[Measures]) -> tuple[bool, str]:
    """Return whether to capture steps with these measures, and why."""
    host, device = (statistics.median(getattr(step, name) for step in steps) for name in ("host", "device"))
    times = f"launching a step takes {1000 * host:.1f} ms, the device {1000 * device:.1f} ms"
    if host < MAX_LAUNCH_SHARE * device:
        return False, f"steps are launched one kernel at a time: {times}"
    needed, room = max(step.needed for step in steps), min(step.room for step in steps)
    if 2 * needed > room:  # a captured step keeps its memory, and ordinary steps need theirs too
        short = f"that takes {2 * needed / 1e9:.1f} GB and {room / 1e9:.1f} GB are free"
        return False, f"steps are not captured, although {times}: {short}"
    return True, f"steps are captured in CUDA graphs: {times}"


Result = TypeVar("Result")


class LaunchClock:
    """Launches steps, and times them after the first UNTIMED_STEPS; `steps` has the measures."""

    def __init__(self) -> None:
        self.seen, self.steps = 0, list[Measures]()

    def __call__(self, launch: Callable[..., Result], *args: Any) -> Result:
        self.seen += 1
        if self.seen <= UNTIMED_STEPS:
            return launch(*args)
        torch.cuda.synchronize()  # a full queue would make the host wait
        before, (free, _) = torch.cuda.memory_allocated(), torch.cuda.mem_get_info()
        room = free + torch.cuda.memory_reserved() - before
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        start = time.perf_counter()
        result = launch(*args)
        host = time.perf_counter() - start
        end.record()
        end.synchronize()
        needed = torch.cuda.max_memory_allocated() - before
        self.steps.append(Measures(host, begin.elapsed_time(end) / 1000, needed, room))
        return result


class CapturedPass(NamedTuple):
    """A captured pass: its graph, inputs and outputs."""

    graph: Any
    batch: Batch
    divisors: Terms
    terms: Terms
    gradients: list[Tensor | None]

    def __call__(self, batch: Batch, divisors: Terms) -> Terms:
        for captured, new in ((self.batch, batch), (self.divisors, divisors)):
            for name, tensor in new.items():
                captured[name].copy_(tensor, non_blocking=True)
        self.graph.replay()
        return self.terms


class Recorder:
    """Runs `do`, and captures it in a CUDA graph after WARMUP_PASSES passes with the same batch shape. `seed(n)` seeds
    the random generators; `tell(message)` reports a failed capture."""

    def __init__(self, do: Pass, module: nn.Module, seed: Callable[[int], None], tell: Callable[[str], None]) -> None:
        self.do, self.module, self.seed, self.tell = do, module, seed, tell
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        self.seen: Counter[Any] = Counter()
        self.captured: dict[Any, CapturedPass] = {}
        self.given_up = False
        self.used_graph = False  # whether the last pass was a captured one

    def __call__(self, batch: Batch, divisors: Terms, step: int) -> Terms:
        shape = (*((name, tensor.shape, tensor.dtype) for name, tensor in batch.items()), *divisors)
        self.seen[shape] += 1
        if self.seen[shape] == WARMUP_PASSES + 1 and not self.given_up and len(self.captured) < MAX_GRAPHS:
            self.try_capture(shape, batch, divisors, step)
        self.used_graph = (captured := self.captured.get(shape)) is not None
        if captured is None:
            return self.do(batch, divisors)
        terms = captured(batch, divisors)
        for parameter, gradient in zip(self.parameters, captured.gradients, strict=True):
            parameter.grad = gradient
        return terms

    def try_capture(self, shape: Any, batch: Batch, divisors: Terms, step: int) -> None:
        kept = [buffer.clone() for buffer in self.module.buffers()]  # trial passes must not change statistics
        try:
            captured = self.capture_pass(batch, divisors)
            why = self.difference(captured, batch, divisors, step)
        except RuntimeError as error:
            why = str(error).strip().splitlines()[0]
        for buffer, before in zip(self.module.buffers(), kept, strict=True):
            buffer.copy_(before)
        self.clear_gradients()
        if why:
            self.given_up = True
            self.tell(f"the step was not captured, training continues without capture: {why}")
        else:
            self.captured[shape] = captured
        self.seed(step)

    def capture_pass(self, batch: Batch, divisors: Terms) -> CapturedPass:
        batch = {name: tensor.clone() for name, tensor in batch.items()}
        divisors = {name: tensor.clone() for name, tensor in divisors.items()}
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        draws = torch.cuda.default_generators[torch.cuda.current_device()]
        before = draws.clone_state()
        stream.wait_stream(torch.cuda.current_stream())
        with graph_capture():
            with torch.cuda.stream(stream):  # once in capture mode: other kernels may be selected
                self.do(batch, divisors)
            torch.cuda.current_stream().wait_stream(stream)
            self.clear_gradients()
            try:
                with capture(graph, capture_error_mode="thread_local"):  # other threads load batches
                    terms = self.do(batch, divisors)
            except RuntimeError:
                draws.graphsafe_set_state(before)  # after a failed capture the generator would raise
                raise
        return CapturedPass(graph, batch, divisors, terms, [p.grad for p in self.parameters])

    def difference(self, captured: CapturedPass, batch: Batch, divisors: Terms, step: int) -> str:
        """Describe the first difference between captured and ordinary passes with the same seeds; "" if they agree."""
        for number in (step, step + 1, step + 2):
            self.clear_gradients()
            self.seed(number)
            wanted = measures(self.do(batch, divisors), [p.grad for p in self.parameters])
            self.seed(number)
            actual = measures(captured(batch, divisors), captured.gradients)
            for name, value in wanted.items():
                if not abs(actual[name] - value) <= TOLERANCE * max(abs(value), 1e-6):
                    return f"{name} was {actual[name]:.6g} in the captured pass and {value:.6g} in an ordinary one"
        return ""

    def explain_nonfinite(self, batch: Batch, divisors: Terms, step: int) -> str:
        """Return the end of an error message: whether the gradient is finite in an ordinary pass of the same step. It
        uses the current weights, which the next step may have changed already."""
        self.clear_gradients()
        self.seed(step)
        self.do(batch, divisors)
        finite = all(bool(p.grad.isfinite().all()) for p in self.parameters if p.grad is not None)
        self.clear_gradients()
        if finite:
            return ", but only in the captured pass; in an ordinary pass the gradient is finite (try record=false)"
        return ", in an ordinary pass too"

    def clear_gradients(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None


def measures(terms: Terms, gradients: list[Tensor | None]) -> dict[str, float]:
    norm = nn.utils.get_total_norm([gradient for gradient in gradients if gradient is not None])
    return {name: float(value) for name, value in terms.items()} | {"the gradient norm": float(norm)}
