"""A decoding step, and the reading of a prompt, recorded once and run again: as CUDA graphs, or compiled.

A step of one token does little work in many small calls, and most of its time goes by between them. With a static
state its shapes and addresses stay, so that the whole step can be recorded: into a CUDA graph, by the programs of
transforms/decode_kernels.py, which takes a second or two and is done without being asked; by torch.compile on any
device where `compile=True` asks for it, which takes up to minutes the first time (on CUDA both are recorded, and the
faster one stays). The first prompt is read by the ordinary path, and its state adopted; where all that is remembered
are keys and values, later prompts of up to MOST_TOKENS are read by a graph as well, one for each power of 2 that their
length is below.
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
from anyformer.kernels.triton_launch import compile_ahead, launch_errors, start_compiler
from anyformer.models import Call, TransformerModule, position_limit
from anyformer.parts.embedding.text import TokensModule, check_ids
from anyformer.parts.position.absolute import Sinusoidal
from anyformer.runtime.state import State, Static
from anyformer.specs.part import walk
from anyformer.transforms.decode_kernels import decode_kernels
from anyformer.transforms.pack import SHARE, PackedStep

ENOUGH = 16  # tokens to write: for fewer, recording takes longer than it saves
REPEATED = 4  # the number of such a text from which it is worth it nevertheless
ROOM = 128  # a state's capacity is a multiple of this, so that texts of about one length share a recording
BURST = 16  # steps between two looks at what was written, where an end token may have ended the text
KEPT = 4  # recordings of one model
TIMED = 8  # steps by which two recordings are compared
LITTLE = 2**28  # bytes
MOST_TOKENS = 8192  # of a prompt, in all rows, that is read by a graph: more keep a device busy without one
SHORTEST = 16  # tokens that a graph of a prompt reads at least
BACKEND = "inductor"  # of torch.compile

log = logging.getLogger(__name__)


def capture_decode_step(stepper: Stepper, max_length: int, more: int, compiled: bool | None) -> None:
    """Makes the stepper's single steps recorded ones, where that helps: `compiled` True wants it and torch.compile,
    False does not want it, None leaves it to the device."""
    if stepper.recording is not None:
        return
    capacity = capacity_for(max_length)
    why = why_unwanted(stepper.model, stepper.rows, capacity, more, compiled)
    why = why or obstacle(stepper, max_length, bool(compiled))
    if why is None:
        stepper.recording = find_recording(stepper, capacity, bool(compiled))
        stepper.state = stepper.recording.begin(stepper)
    elif compiled:
        raise ValueError(f"compile=True: {why}")
    else:
        packed = "" if compiled is False else pack_step(stepper, capacity, more)
        stepper.model.notes["decoding"] = f"one call a step: {why}{packed}"


def pack_step(stepper: Stepper, capacity: int, more: int) -> str:
    """Large layers multiply by packed weights while a step runs, where that is faster and the copies have room; what
    there is to say about it."""
    model, rows = stepper.model, stepper.rows
    step = PackedStep.of(nn.ModuleList(getattr(model, name) for name in (*model.spec.left_to_right, "head")), rows)
    missing = step.missing_bytes()
    if missing and not worth_preparing(model, rows, capacity, more):
        return f"; weights are packed from {ENOUGH} tokens on"
    if missing > hardware.free_memory() // SHARE:
        return f"; weights are not packed: {missing / 1e6:,.0f} MB are more than 1/{SHARE} of the free memory"
    if not step.layers:
        return ""
    stepper.around = step
    total = sum(layer.weight.nbytes for layer in step.layers)
    return f"; {len(step.layers)} large layers are packed, which takes {total / 1e6:,.0f} MB beside the weights"


def why_unwanted(model: TransformerModule, rows: int, capacity: int, more: int, compiled: bool | None) -> str | None:
    """Why a text is not to be written, and its prompt not read, by a recording: few tokens are not worth one, unless
    such texts come again and again."""
    if compiled:
        return None
    if compiled is False or model.device.type != "cuda":
        return "compile=False" if compiled is False else f"the device is {model.device.type}; compile=True compiles it"
    return None if worth_preparing(model, rows, capacity, more) else f"fewer than {ENOUGH} tokens to write"


def worth_preparing(model: TransformerModule, rows: int, capacity: int, more: int) -> bool:
    return more >= ENOUGH or recordings(model).short[rows, capacity] >= REPEATED


def capacity_for(length: int) -> int:
    return -(-length // ROOM) * ROOM


def read_prompt(
    stepper: Stepper, ids: Tensor, mask: Tensor | None, max_length: int, more: int, compiled: bool | None
) -> Tensor | None:
    """The scores (B, V) after a prompt (B, T), read by the graph of a recording that an earlier text made; None where
    there is none for it."""
    model, (rows, T), capacity = stepper.model, ids.shape, capacity_for(max_length)
    bucket = max(SHORTEST, 1 << max(T - 1, 0).bit_length())
    bucket = min(bucket, position_limit(model.spec) or bucket)
    plain = stepper.use_cache and not (stepper.source or stepper.wants_hidden or stepper.pair or stepper.chunk)
    if more < ENOUGH:
        recordings(model).short[rows, capacity] += 1
    if not plain or rows * bucket > MOST_TOKENS or stepper.labels:
        return None
    if why_unwanted(model, rows, capacity, more, compiled) or model_obstacle(model, max_length):
        return None
    start_compiler()
    recording = recordings(model).get(recording_key(model, rows, capacity, bool(compiled)))
    tokens = getattr(model.embedding, "tokens", None)
    if recording is None or not recording.reads_prompts(bucket) or not isinstance(tokens, TokensModule):
        return None
    check_ids(ids, tokens.num_embeddings)  # a graph looks at no values
    scores = recording.read_prompt(ids, mask, bucket)
    if bool(recording.buffers.broken):  # a score is NaN: the ordinary path says where that began
        return None
    stepper.rows, stepper.mask, stepper.length = rows, mask, T
    stepper.recording, stepper.state = recording, recording.state
    return scores


def obstacle(stepper: Stepper, max_length: int, compiled: bool) -> str | None:
    """Why this text cannot be written by a recorded step."""
    model, state = stepper.model, stepper.state
    if compiled and BACKEND == "inductor" and not hardware.has("compiler"):
        return hardware.NO_COMPILER
    if state is None:
        return "needs use_cache"
    if state.capacity is not None:
        return "the given past_key_values is static; give a growing one"
    if stepper.wants_hidden:
        return "contrastive search looks at hidden states"
    if stepper.source:
        return f"{next(iter(stepper.source))} is read at every step"
    return model_obstacle(model, max_length)


def model_obstacle(model: TransformerModule, max_length: int) -> str | None:
    """Why a text of so many tokens cannot be read or written by recordings of this model, as it is now."""
    if any(part.length_dependent for _, part in walk(model.spec)):
        return "dynamic rotary positions depend on the length of the text"
    read = [part for name in model.spec.left_to_right for _, part in walk(getattr(model.spec, name))]
    if any(isinstance(part, Sinusoidal) and part.length < max_length for part in read):
        return "the text is longer than the model's table of positions"
    if any(module._forward_hooks or module._forward_pre_hooks for module in model.modules()):
        return "a module has a hook, which a recording does not call"
    return None


class RecordingCache(dict):
    """Recordings belong to one model in memory: copies of it start without. `short` counts texts of few new tokens, by
    rows and capacity."""

    def __init__(self) -> None:
        super().__init__()
        self.short: Counter[tuple[int, int]] = Counter()

    def __deepcopy__(self, memo: Any) -> RecordingCache:
        return RecordingCache()

    def __reduce__(self) -> Any:
        return RecordingCache, ()


def recordings(model: TransformerModule) -> RecordingCache:
    return model.__dict__.setdefault("recordings", RecordingCache())


def recording_key(
    model: TransformerModule,
    rows: int,
    capacity: int,
    compiled: bool,
    state: State | None = None,
    labels: tuple[str, ...] = (),
) -> Any:
    """What a recording depends on. Without a state: that of a text without pads inside it, and without a memory."""
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
        tuple((tensor.data_ptr(), tensor.dtype, tensor._version if compiled else 0) for tensor in tensors),
    )


def find_recording(stepper: Stepper, capacity: int, compiled: bool) -> DecodeRecording:
    """The recording that fits this text: one made before, or a new one."""
    model, state = stepper.model, stepper.state
    assert state is not None
    key = recording_key(model, stepper.rows, capacity, compiled, state, tuple(stepper.labels))
    kept = recordings(model)
    if key not in kept:
        # the oldest go; what states hold between two texts is never more than the weights, or little
        room = max(LITTLE, sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers())))
        while kept and (len(kept) >= KEPT or sum(each.state.nbytes for each in kept.values()) > room):
            kept.pop(next(iter(kept)))
        kept[key] = DecodeRecording(stepper, capacity, compiled)
        log.info("decoding: %s", model.notes["decoding"])
    return kept[key]


@dataclasses.dataclass
class Buffers:
    """What a recorded step reads and writes, at addresses that stay. B rows, L capacity, V vocabulary."""

    inputs: dict[str, Tensor]  # the token to read (B, 1); its segment (B, 1)
    written: Tensor  # (B, L) the likeliest token after each step
    count: Tensor  # (B,) how many
    broken: Tensor  # () whether a score was NaN
    scores: Tensor | None = None  # (B, V) after the last step


class StepGraph(NamedTuple):
    """A recorded step: how it is run, where it leaves its scores (B, V), and what it is."""

    run: Callable[[], None]
    scores: Tensor
    how: str


class DecodeRecording:
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
        self.prompts: dict[int, PromptRecording] = {}  # by the number of tokens
        self.begin(stepper)  # gives memory, which has its own size, a place
        step: Callable[[], Tensor] = self.step
        if compiled:
            # torch keeps what it compiled by code object, few of each: a copy is this recording's own, and goes with it
            own = types.FunctionType(DecodeRecording.step.__code__.replace(), globals())
            step = types.MethodType(own, self)
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
        """The step by programs, where there are some."""
        try:
            with decode_kernels(self.model, self.state.rows) as used:
                return self.graph(self.step, stepper, f"a CUDA graph, {used}")
        except launch_errors() as error:  # a device with less room than the programs need
            return self.graph(self.step, stepper, f"a CUDA graph of plain modules: {error}")

    def seconds(self, graph: StepGraph, stepper: Stepper) -> float:
        """Of a few steps; each is the first one, for there may be no room for more."""
        total, start, end = 0.0, *(torch.cuda.Event(enable_timing=True) for _ in range(2))
        for _ in range(TIMED):
            self.begin(stepper)
            start.record()
            graph.run()
            end.record()
            end.synchronize()
            total += start.elapsed_time(end) / 1000
        return total

    def options(self) -> dict[str, Any] | None:
        """Of the compiler: on a CPU no Python between the calls, and weights in the layout they are read in."""
        wanted = BACKEND == "inductor" and self.model.device.type == "cpu"
        return {"cpp_wrapper": True, "freezing": True} if wanted else None

    def step(self) -> Tensor:
        """Reads one token of each row; the scores (B, V) of the next, and the likeliest in its place."""
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
        """The step as a CUDA graph; run on another stream a few times first, so that nothing is left to set up."""
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
        """Takes over what the stepper has read. The state stays this recording's own."""
        buffers = self.buffers
        assert stepper.state is not None
        self.state.adopt(stepper.state)
        for name, labels in stepper.labels.items():
            buffers.inputs[name].copy_(labels[:, -1:])
        buffers.count.zero_()
        buffers.broken.zero_()
        return self.state

    def reads_prompts(self, tokens: int) -> bool:
        """Whether a graph can read a prompt of so many tokens into the state: keys and values are all it holds, and no
        window of them is shorter than its room."""
        on_cuda, stores = self.model.device.type == "cuda", self.state.stores.values()
        return on_cuda and tokens <= (self.state.capacity or 0) and all(type(store) is Static for store in stores)

    def read_prompt(self, ids: Tensor, mask: Tensor | None, bucket: int) -> Tensor:
        """The scores (B, V) after a prompt (B, T) whose pads, if it has some, stand before its rows."""
        if bucket not in self.prompts:
            self.prompts[bucket] = PromptRecording(self, bucket)
        self.buffers.count.zero_()
        self.buffers.broken.zero_()
        return self.prompts[bucket].read(ids, mask)

    def read(self, tokens: Tensor) -> Tensor:
        """The scores (B, V) after one more token (B,) of each row."""
        self.buffers.inputs[f"{self.prefix}input_ids"].copy_(tokens[:, None])
        self.buffers.count.zero_()
        self.run()
        assert self.buffers.scores is not None
        return self.buffers.scores.to(torch.float32, copy=True)

    def likeliest(self, count: int) -> Tensor:
        """The likeliest tokens (B, count) of so many steps, each reading what the one before wrote."""
        start = self.buffers.count[:1].clone()
        for _ in range(count):
            self.run()
        return self.buffers.written[:, start + torch.arange(count, device=start.device)]


class PromptRecording:
    """A prompt of at most so many tokens as a CUDA graph: pads behind it are read as well, which no token before them
    sees, and their keys are written over by the tokens that follow."""

    def __init__(self, recording: DecodeRecording, length: int) -> None:
        rows, device = recording.state.rows, recording.model.device
        self.model, self.prefix, self.state, self.broken = (
            recording.model, recording.prefix, recording.state, recording.buffers.broken
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
        """The ordinary pass over a growing state, which the static one then takes over."""
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
        """The scores (B, V) after a prompt (B, T)."""
        T = ids.shape[1]
        if mask is None:
            self.ids[:, :T] = ids
            self.lengths.fill_(T)
        else:  # pads stand before the rows, and go behind them
            self.lengths.copy_(mask.sum(1))
            places = torch.arange(T, device=ids.device) + (T - self.lengths)[:, None]
            self.ids[:, :T] = ids.gather(1, places.clamp(max=T - 1))
        self.graph.replay()
        return self.scores.clone()


def highest(scores: Tensor, pieces: int = 64) -> tuple[Tensor, Tensor]:
    """(B, V) -> the highest score of each row, and its token; in two rounds, for a row alone is one program's work."""
    B, V = scores.shape
    width = -(-V // pieces)
    best, place = F.pad(scores, (0, pieces * width - V), value=float("-inf")).view(B, pieces, width).max(-1)
    top, piece = best.max(-1)
    return top, place.gather(1, piece[:, None])[:, 0] + piece * width


def write(job: Search) -> dict[str, Any]:
    """Greedy texts where nothing but the tokens is asked for: the steps follow each other without a look in between."""
    recording, s = job.stepper.recording, job.settings
    ends, room = job.ended.eos, job.max_length - job.prompt_length
    fill = s.pad if s.pad is not None and 0 <= s.pad < job.scores.shape[1] else 0
    looks = job.stream is not None or job.ids.device.type == "cpu"  # where looking costs nothing, or is wanted
    burst = room if not s.eos and job.stream is None else 1 if looks else BURST
    tokens = job.scores.argmax(-1, keepdim=True)  # (B, 1)
    recording.buffers.inputs[f"{recording.prefix}input_ids"].copy_(tokens)
    while True:
        ending = torch.isin(tokens, ends).long()
        after = ending.cumsum(1) > ending  # an end token came before
        shown = tokens.masked_fill(after, fill)
        if job.stream is not None:
            job.stream(shown[:, -1])
        if tokens.shape[1] >= room or (s.eos and bool(ending.any(1).all())):
            break
        tokens = torch.cat((tokens, recording.likeliest(min(burst, room - tokens.shape[1]))), dim=1)
    return {"sequences": job.with_prompt(torch.cat((job.ids, shown[:, : int((~after).any(0).sum())]), dim=1))}
