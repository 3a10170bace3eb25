"""Decoding steps and prompts that are captured once and replayed: as CUDA graphs, or with torch.compile.

A step of one token launches many small kernels and spends most of its time between them. With a static state, shapes
and addresses stay the same, so that the whole step can be captured. On CUDA, a CUDA graph with the kernels of
transforms/decode_kernels.py is captured by default, which takes a second or two. With `compile=True`, torch.compile is
used on any device, which takes up to minutes the first time; on CUDA both are captured and the faster one is kept.
The first prompt is read without a graph, and its state is copied. If the state contains only keys and values, later
prompts of up to MAX_PROMPT_TOKENS are also read by a graph, one per power of 2 of their length.
"""

from __future__ import annotations

import dataclasses
import logging
import types
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.generation.search_state import Search
from anyformer.generation.stepper import Stepper
from anyformer.kernels import few_rows, hardware
from anyformer.kernels.capture import capture, graph_capture
from anyformer.kernels.packed import version_of
from anyformer.kernels.triton_launch import compile_ahead, launch_errors, start_compiler
from anyformer.models import Call, TransformerModule, position_limit
from anyformer.parts.base import child
from anyformer.parts.embedding.text import TokensModule, check_ids
from anyformer.parts.position.absolute import Sinusoidal
from anyformer.runtime.state import State
from anyformer.runtime.stores import Static
from anyformer.specs.part import walk
from anyformer.transforms.decode_kernels import decode_kernels
from anyformer.transforms.pack import SHARE, PackedStep

MIN_NEW_TOKENS = 16  # for shorter texts, capturing costs more than it saves
SHORT_CALLS_BEFORE_CAPTURE = 4  # after this many calls with short texts, capture anyway
CAPACITY_STEP = 128  # a state's capacity is a multiple of this, so that texts of similar length share a capture
STEPS_PER_EOS_CHECK = 16
MAX_CAPTURES = 4  # per model
TIMED_STEPS = 8  # to compare two captures
MIN_STATE_BYTES = 2**28  # the states of all captures may use this much memory, or as much as the weights use
MAX_PROMPT_TOKENS = 8192  # in all rows; larger prompts keep the GPU busy without a graph
MIN_PROMPT_TOKENS = 16  # length of the smallest prompt graph
BACKEND = "inductor"  # of torch.compile

log = logging.getLogger(__name__)


def capture_decode_step(stepper: Stepper, max_length: int, more: int, compiled: bool | None) -> None:
    """Capture the stepper's decoding step, if that helps. `compiled`: True uses torch.compile or raises ValueError,
    False never captures, None captures on CUDA only."""
    if stepper.captured is not None:
        return
    capacity = capacity_for(max_length)
    why = why_not_wanted(stepper.model, stepper.rows, capacity, more, compiled)
    why = why or obstacle(stepper, max_length, bool(compiled))
    if why is None:
        stepper.captured = find_capture(stepper, capacity, bool(compiled))
        stepper.state = stepper.captured.begin(stepper)
    elif compiled:
        raise ValueError(f"compile=True: {why}")
    else:
        packed = "" if compiled is False else pack_step(stepper, capacity, more)
        stepper.model.notes["decoding"] = f"one call per step: {why}{packed}"


def pack_step(stepper: Stepper, capacity: int, more: int) -> str:
    """Use packed weights of large layers in decoding steps, if that is faster and they fit; return a note about it."""
    model, rows = stepper.model, stepper.rows
    step = PackedStep.of(nn.ModuleList(getattr(model, name) for name in (*model.spec.left_to_right, "head")), rows)
    missing = step.missing_bytes()
    if missing and not worth_preparing(model, rows, capacity, more):
        return f"; weights are packed for {MIN_NEW_TOKENS} or more new tokens"
    if missing > hardware.free_memory() // SHARE:
        return f"; weights are not packed: they need {missing / 1e6:,.0f} MB, more than 1/{SHARE} of the free memory"
    if not step.forwards:
        return ""
    stepper.around = step
    total, count = sum(packed.module.weight.nbytes for packed in step.forwards), len(step.forwards)
    return f"; {count} large layers are packed, which takes {total / 1e6:,.0f} MB in addition to the weights"


def why_not_wanted(model: TransformerModule, rows: int, capacity: int, more: int, compiled: bool | None) -> str | None:
    """Return the reason not to capture this text, or None. A short text is captured only after several short texts."""
    if compiled:
        return None
    if compiled is False or model.device.type != "cuda":
        return "compile=False" if compiled is False else f"on {model.device.type}, use compile=True to compile the step"
    return None if worth_preparing(model, rows, capacity, more) else f"fewer than {MIN_NEW_TOKENS} new tokens"


def worth_preparing(model: TransformerModule, rows: int, capacity: int, more: int) -> bool:
    return more >= MIN_NEW_TOKENS or captures(model).short[rows, capacity] >= SHORT_CALLS_BEFORE_CAPTURE


def capacity_for(length: int) -> int:
    return -(-length // CAPACITY_STEP) * CAPACITY_STEP


def read_prompt(
    stepper: Stepper, ids: Tensor, mask: Tensor | None, max_length: int, more: int, compiled: bool | None
) -> Tensor | None:
    """Read a prompt (B, T) with the graph of an earlier text and return the scores (B, V); None if none fits."""
    model, (rows, T), capacity = stepper.model, ids.shape, capacity_for(max_length)
    bucket = max(MIN_PROMPT_TOKENS, 1 << max(T - 1, 0).bit_length())
    bucket = min(bucket, position_limit(model.spec) or bucket)
    plain = stepper.use_cache and not (stepper.source or stepper.wants_hidden or stepper.pair or stepper.chunk)
    if more < MIN_NEW_TOKENS:
        captures(model).short[rows, capacity] += 1
    if not plain or rows * bucket > MAX_PROMPT_TOKENS or stepper.labels:
        return None
    if why_not_wanted(model, rows, capacity, more, compiled) or model_obstacle(model, max_length):
        return None
    start_compiler()
    captured = captures(model).get(capture_key(model, rows, capacity, bool(compiled)))
    tokens = child(model.embedding, "tokens")
    if captured is None or not captured.reads_prompts(bucket) or not isinstance(tokens, TokensModule):
        return None
    check_ids(ids, tokens.num_embeddings)  # a graph cannot check values
    scores = captured.read_prompt(ids, mask, bucket)
    if bool(captured.buffers.broken):  # a score is NaN: the forward pass without a graph reports where
        return None
    stepper.rows, stepper.mask, stepper.length = rows, mask, T
    stepper.captured, stepper.state = captured, captured.state
    return scores


def obstacle(stepper: Stepper, max_length: int, compiled: bool) -> str | None:
    """Return the reason why this text's decoding step cannot be captured, or None."""
    model, state = stepper.model, stepper.state
    if compiled and BACKEND == "inductor" and not hardware.has("compiler"):
        return hardware.NO_COMPILER
    if state is None:
        return "needs use_cache"
    if state.capacity is not None:
        return "past_key_values is static; pass a growing state"
    if stepper.wants_hidden:
        return "contrastive search needs hidden states"
    if stepper.source:
        return f"{next(iter(stepper.source))} is read at every step"
    return model_obstacle(model, max_length)


def model_obstacle(model: TransformerModule, max_length: int) -> str | None:
    """Return the reason why a text of `max_length` tokens of this model cannot be captured, or None."""
    if any(part.length_dependent for _, part in walk(model.spec)):
        return "dynamic rotary positions depend on the length of the text"
    read = [part for name in model.spec.left_to_right for _, part in walk(getattr(model.spec, name))]
    if any(isinstance(part, Sinusoidal) and part.length < max_length for part in read):
        return "the text is longer than the model's table of positions"
    if any(module._forward_hooks or module._forward_pre_hooks for module in model.modules()):
        return "a module has a hook, which a captured step would not call"
    return None


class CaptureCache(dict):
    """The captures of one model. Copies of the model start without captures. `short` counts texts with fewer than
    MIN_NEW_TOKENS new tokens, by rows and capacity."""

    def __init__(self) -> None:
        super().__init__()
        self.short: Counter[tuple[int, int]] = Counter()

    def __deepcopy__(self, memo: Any) -> CaptureCache:
        return CaptureCache()

    def __reduce__(self) -> Any:
        return CaptureCache, ()


def captures(model: TransformerModule) -> CaptureCache:
    return model.__dict__.setdefault("captures", CaptureCache())


def capture_key(
    model: TransformerModule,
    rows: int,
    capacity: int,
    compiled: bool,
    state: State | None = None,
    labels: tuple[str, ...] = (),
) -> Any:
    """Return a key of everything that a capture depends on. `state` None: the key of a text without inner padding and
    without an encoder's memory."""
    tensors = [*model.parameters(), *model.buffers()]
    return (
        rows,
        capacity,
        compiled,
        BACKEND,
        model.kernel,
        state is None or state.holes is None,
        labels,
        None if state is None or state.memory is None else state.memory.shape,
        state is None or state.memory_is_token is None,
        tuple((tensor.data_ptr(), tensor.dtype, version_of(tensor) if compiled else 0) for tensor in tensors),
    )


def find_capture(stepper: Stepper, capacity: int, compiled: bool) -> CapturedDecoder:
    """Return the capture for this text: an earlier one that fits, or a new one."""
    model, state = stepper.model, stepper.state
    assert state is not None
    key = capture_key(model, stepper.rows, capacity, compiled, state, tuple(stepper.labels))
    kept = captures(model)
    if key not in kept:
        # drop the oldest captures until their states fit, see MIN_STATE_BYTES
        room = max(MIN_STATE_BYTES, sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers())))
        while kept and (len(kept) >= MAX_CAPTURES or sum(each.state.nbytes for each in kept.values()) > room):
            kept.pop(next(iter(kept)))
        kept[key] = CapturedDecoder(stepper, capacity, compiled)
        log.info("decoding: %s", model.notes["decoding"])
    return kept[key]


@dataclasses.dataclass
class Buffers:
    """Tensors at fixed addresses that a captured step reads and writes. B rows, L capacity, V vocabulary."""

    inputs: dict[str, Tensor]  # (B, 1) the token to read and its labels, such as its segment
    written: Tensor  # (B, L) the likeliest token after each step
    count: Tensor  # (B,) number of tokens in `written`
    broken: Tensor  # () True if a score was NaN
    scores: Tensor | None = None  # (B, V) after the last step


class StepGraph(NamedTuple):
    """A captured step: the function that runs it, its output scores (B, V), and a description."""

    run: Callable[[], None]
    scores: Tensor
    how: str


class CapturedDecoder:
    """A captured decoding step with its own state and buffers, and the captured prompts that share them."""

    def __init__(self, stepper: Stepper, capacity: int, compiled: bool) -> None:
        self.model, self.prefix = stepper.model, stepper.prefix
        device, rows = self.model.device, stepper.rows
        self.state = State.allocate(self.model, rows, capacity=capacity)
        names = [f"{self.prefix}input_ids", *stepper.labels]
        self.buffers = Buffers(
            {name: torch.zeros(rows, 1, dtype=torch.long, device=device) for name in names},
            torch.zeros(rows, capacity, dtype=torch.long, device=device),
            torch.zeros(rows, dtype=torch.long, device=device),
            torch.zeros((), dtype=torch.bool, device=device),
        )
        self.prompts: dict[int, CapturedPrompt] = {}  # by number of tokens
        self.begin(stepper)  # allocates the memory in the size of the encoder's output
        step: Callable[[], Tensor] = self.step
        if compiled:
            # torch caches few compiled versions per code object; a copy has its own cache, freed with this object
            function = types.FunctionType(CapturedDecoder.step.__code__.replace(), globals())
            step = types.MethodType(function, self)
            step = torch.compile(step, fullgraph=True, dynamic=False, backend=BACKEND, options=self.options())
        if device.type != "cuda":
            self.run, self.model.notes["decoding"] = self.call(step), "compiled"
            return
        graph = self.fused_graph(stepper)
        if compiled:
            other = self.graph(step, stepper, "a CUDA graph, compiled")
            graph = min(graph, other, key=lambda each: self.seconds(each, stepper))
        self.run, self.buffers.scores, self.model.notes["decoding"] = graph

    def fused_graph(self, stepper: Stepper) -> StepGraph:
        """Capture the step with decode kernels, or without them if they do not fit this GPU."""
        try:
            with decode_kernels(self.model, self.state.rows) as used:
                return self.graph(self.step, stepper, f"a CUDA graph, {used}")
        except launch_errors() as error:  # the GPU has too little shared memory for a kernel
            return self.graph(self.step, stepper, f"a CUDA graph of plain modules: {error}")

    def seconds(self, graph: StepGraph, stepper: Stepper) -> float:
        """Measure TIMED_STEPS steps. Each is the first of the text, because the state may be too small for more."""
        total, start, end = 0.0, *(torch.cuda.Event(enable_timing=True) for _ in range(2))
        for _ in range(TIMED_STEPS):
            self.begin(stepper)
            start.record()
            graph.run()
            end.record()
            end.synchronize()
            total += start.elapsed_time(end) / 1000
        return total

    def options(self) -> dict[str, Any] | None:
        """Options of torch.compile: on a CPU, no Python between kernels, and weights in the layout of the kernels."""
        wanted = BACKEND == "inductor" and self.model.device.type == "cpu"
        return {"cpp_wrapper": True, "freezing": True} if wanted else None

    def step(self) -> Tensor:
        """Read one token per row, write the likeliest next token to its buffer, and return the scores (B, V)."""
        buffers = self.buffers
        call = Call({**buffers.inputs, "logits_to_keep": 1}, self.state, kernel=self.model.kernel)
        scores, read = self.model(call)["logits"][:, -1], buffers.inputs[f"{self.prefix}input_ids"]
        if few_rows.HAS_TRITON and scores.is_cuda and not torch.compiler.is_compiling():
            few_rows.take_highest(scores.contiguous(), read, buffers.written, buffers.count, buffers.broken)
            return scores
        best, tokens = highest(scores.float())
        read.copy_(tokens[:, None])
        buffers.written.scatter_(1, buffers.count[:, None], tokens[:, None])
        buffers.count.add_(1)
        buffers.broken.logical_or_(best.isnan().any())
        return scores

    def call(self, step: Callable[[], Tensor]) -> Callable[[], None]:
        def run() -> None:
            self.buffers.scores = step()

        return run

    def graph(self, step: Callable[[], Tensor], stepper: Stepper, how: str) -> StepGraph:
        """Capture the step as a CUDA graph, after a few warm-up runs on a different stream."""
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with graph_capture():
            with torch.cuda.stream(stream):
                with compile_ahead():
                    step()
                for _ in range(3):
                    self.begin(stepper)
                    step()
            torch.cuda.current_stream().wait_stream(stream)
            with capture(graph):
                scores = step()
        return StepGraph(graph.replay, scores, how)

    # -- a text -------------------------------------------------------------------------------------------------------

    def begin(self, stepper: Stepper) -> State:
        """Copy the stepper's state into this object's static state, and return that."""
        buffers = self.buffers
        assert stepper.state is not None
        self.state.adopt(stepper.state)
        for name, labels in stepper.labels.items():
            buffers.inputs[name].copy_(labels[:, -1:])
        buffers.count.zero_()
        buffers.broken.zero_()
        return self.state

    def reads_prompts(self, tokens: int) -> bool:
        """Whether a graph can read a prompt of this many tokens: the state contains only keys and values, and no
        sliding window is shorter than its capacity."""
        on_cuda, stores = self.model.device.type == "cuda", self.state.stores.values()
        return on_cuda and tokens <= (self.state.capacity or 0) and all(type(store) is Static for store in stores)

    def read_prompt(self, ids: Tensor, mask: Tensor | None, bucket: int) -> Tensor:
        """Read a prompt (B, T), padded on the left if at all, and return the scores (B, V) after it."""
        if bucket not in self.prompts:
            self.prompts[bucket] = CapturedPrompt(self, bucket)
        self.buffers.count.zero_()
        self.buffers.broken.zero_()
        return self.prompts[bucket].read(ids, mask)

    def read(self, tokens: Tensor) -> Tensor:
        """Read one token (B,) per row and return the scores (B, V) after it."""
        self.buffers.inputs[f"{self.prefix}input_ids"].copy_(tokens[:, None])
        self.buffers.count.zero_()
        self.run()
        assert self.buffers.scores is not None
        return self.buffers.scores.to(torch.float32, copy=True)

    def likeliest(self, count: int) -> Tensor:
        """Run `count` greedy steps and return their tokens (B, count). Each step reads the token of the step before."""
        start = self.buffers.count[:1].clone()
        for _ in range(count):
            self.run()
        return self.buffers.written[:, start + torch.arange(count, device=start.device)]


class CapturedPrompt:
    """A CUDA graph that reads a prompt of at most `length` tokens, padded on the right. No earlier token attends to the
    padding, and later tokens overwrite its keys."""

    def __init__(self, captured: CapturedDecoder, length: int) -> None:
        rows, device = captured.state.rows, captured.model.device
        self.model, self.prefix, self.state, self.broken = (
            captured.model, captured.prefix, captured.state, captured.buffers.broken
        )  # fmt: skip
        self.ids = torch.zeros(rows, length, dtype=torch.long, device=device)
        self.lengths = torch.ones(rows, dtype=torch.long, device=device)
        self.graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with graph_capture():
            with torch.cuda.stream(stream):
                self.forward()
            torch.cuda.current_stream().wait_stream(stream)
            with capture(self.graph):
                self.scores = self.forward()

    def forward(self) -> Tensor:
        """Run a forward pass with a growing state, and copy that into the static state."""
        grown, length = self.model.new_state(), self.ids.shape[1]
        x, ctx, inputs, _ = self.model.hidden_states(Call({"input_ids": self.ids}, grown, kernel=self.model.kernel))
        last = x.gather(1, (self.lengths - 1)[:, None, None].expand(-1, 1, x.shape[2]))  # (B, 1, D)
        assert self.model.head is not None
        scores = self.model.head(last, ctx, inputs)["logits"][:, -1].float()
        for address, store in self.state.stores.items():
            for name, held in store.tensors.items():
                new, rest = held.split([length, held.shape[store.axes[name]] - length], store.axes[name])
                new.copy_(grown.stores[address].tensors[name])
                rest.zero_()
        assert isinstance(self.state.past, Tensor)
        self.state.past.copy_(self.lengths)
        self.broken.logical_or_(scores.isnan().any())
        return scores

    def read(self, ids: Tensor, mask: Tensor | None) -> Tensor:
        """Read a prompt (B, T), padded on the left if at all, and return the scores (B, V) after it."""
        T = ids.shape[1]
        if mask is None:
            self.ids[:, :T] = ids
            self.lengths.fill_(T)
        else:  # move the padding from the left to the right
            self.lengths.copy_(mask.sum(1))
            index = torch.arange(T, device=ids.device) + (T - self.lengths)[:, None]
            self.ids[:, :T] = ids.gather(1, index.clamp(max=T - 1))
        self.graph.replay()
        return self.scores.clone()


def highest(scores: Tensor, pieces: int = 64) -> tuple[Tensor, Tensor]:
    """Return the highest score (B,) of each row of scores (B, V), and its token (B,). It is found in two rounds,
    because a reduction over one row runs as a single thread block."""
    B, V = scores.shape
    width = -(-V // pieces)
    best, index = F.pad(scores, (0, pieces * width - V), value=float("-inf")).view(B, pieces, width).max(-1)
    top, piece = best.max(-1)
    return top, index.gather(1, piece[:, None])[:, 0] + piece * width


def decode(job: Search) -> dict[str, Any]:
    """Generate greedily if only the tokens are wanted: several steps run before the host checks for end tokens."""
    captured, s = job.stepper.captured, job.settings
    ends, room = job.ended.eos, job.max_length - job.prompt_length
    fill = s.pad if s.pad is not None and 0 <= s.pad < job.scores.shape[1] else 0
    every_step = job.stream is not None or job.ids.device.type == "cpu"  # on a CPU, reading a token costs nothing
    burst = room if not s.eos and job.stream is None else 1 if every_step else STEPS_PER_EOS_CHECK
    tokens = job.scores.argmax(-1, keepdim=True)  # (B, 1)
    captured.buffers.inputs[f"{captured.prefix}input_ids"].copy_(tokens)
    while True:
        ending = torch.isin(tokens, ends).long()
        after = ending.cumsum(1) > ending  # True after the first end token
        shown = tokens.masked_fill(after, fill)
        if job.stream is not None:
            job.stream(shown[:, -1])
        if tokens.shape[1] >= room or (s.eos and bool(ending.any(1).all())):
            break
        tokens = torch.cat((tokens, captured.likeliest(min(burst, room - tokens.shape[1]))), dim=1)
    return {"sequences": job.with_prompt(torch.cat((job.ids, shown[:, : int((~after).any(0).sum())]), dim=1))}
