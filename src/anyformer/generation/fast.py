"""A decoding step that is recorded once and run again, as a CUDA graph or compiled.

A step of one token does little work in many small calls, and most of its time goes by between them. With a static
state its shapes and addresses stay, so that the whole step can be recorded: into a CUDA graph, which takes no longer
than a few steps and is done without being asked; by torch.compile on any device where `compile=True` asks for it, which
takes up to minutes the first time. The prompt is read by the ordinary path, and its state adopted.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.generation.search_state import Search
from anyformer.generation.stepper import Stepper
from anyformer.kernels import hardware
from anyformer.kernels.recording import graph_capture
from anyformer.models import Call
from anyformer.parts.position.absolute import Sinusoidal
from anyformer.runtime.state import State
from anyformer.specs.part import walk

ENOUGH = 16  # tokens to write: for fewer, recording takes longer than it saves
ROOM = 128  # a state's capacity is a multiple of this, so that texts of about one length share a recording
BURST = 16  # steps between two looks at what was written, where an end token may have ended the text
KEPT = 4  # recordings of one model
LITTLE = 2**28  # bytes
BACKEND = "inductor"  # of torch.compile


def capture_decode_step(stepper: Stepper, max_length: int, more: int, compiled: bool | None) -> None:
    """Makes the stepper's single steps recorded ones, where that helps: `compiled` True wants it and torch.compile,
    False does not want it, None leaves it to the device."""
    if compiled is False or (compiled is None and (stepper.model.device.type != "cuda" or more < ENOUGH)):
        return
    why = obstacle(stepper, max_length, bool(compiled))
    if why is None:
        stepper.recording = find_recording(stepper, -(-max_length // ROOM) * ROOM, bool(compiled))
        stepper.state = stepper.recording.begin(stepper)
    elif compiled:
        raise ValueError(f"compile=True: {why}")


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
    if any(part.length_dependent for _, part in walk(model.spec)):
        return "dynamic rotary positions depend on the length of the text"
    read = [part for name in model.spec.left_to_right for _, part in walk(getattr(model.spec, name))]
    if any(isinstance(part, Sinusoidal) and part.length < max_length for part in read):
        return "the text is longer than the model's table of positions"
    if any(module._forward_hooks or module._forward_pre_hooks for module in model.modules()):
        return "a module has a hook, which a recording does not call"
    return None


class RecordingCache(dict):
    """Recordings belong to one model in memory: copies of it start without."""

    def __deepcopy__(self, memo: Any) -> RecordingCache:
        return RecordingCache()

    def __reduce__(self) -> Any:
        return RecordingCache, ()


def find_recording(stepper: Stepper, capacity: int, compiled: bool) -> DecodeRecording:
    """The recording that fits this text: one made before, or a new one."""
    model, state = stepper.model, stepper.state
    assert state is not None
    tensors = [*model.parameters(), *model.buffers()]
    key = (
        stepper.rows,
        capacity,
        compiled,
        BACKEND,
        model.kernel,
        state.holes is None,
        stepper.segments is None,
        None if state.memory is None else state.memory.shape,
        state.memory_padding is None,
        tuple((tensor.data_ptr(), tensor.dtype, tensor._version if compiled else 0) for tensor in tensors),
    )
    kept = model.__dict__.setdefault("recordings", RecordingCache())
    if key not in kept:
        # the oldest go; what states hold between two texts is never more than the weights, or little
        room = max(LITTLE, sum(tensor.nbytes for tensor in tensors))
        while kept and (len(kept) >= KEPT or sum(each.state.nbytes for each in kept.values()) > room):
            kept.pop(next(iter(kept)))
        kept[key] = DecodeRecording(stepper, capacity, compiled)
    return kept[key]


@dataclasses.dataclass
class Buffers:
    """What a recorded step reads and writes, at addresses that stay. B rows, L capacity, V vocabulary."""

    inputs: dict[str, Tensor]  # the token to read (B, 1); its segment (B, 1)
    written: Tensor  # (B, L) the likeliest token after each step
    count: Tensor  # (1,) how many
    broken: Tensor  # () whether a score was NaN
    scores: Tensor | None = None  # (B, V) after the last step


class DecodeRecording:
    def __init__(self, stepper: Stepper, capacity: int, compiled: bool) -> None:
        self.model, self.prefix = stepper.model, stepper.prefix
        device, rows = self.model.device, stepper.rows
        self.state = State.allocate(self.model, rows, capacity=capacity)
        names = [f"{self.prefix}input_ids", *(() if stepper.segments is None else ("token_type_ids",))]
        self.buffers = Buffers(
            {name: torch.zeros(rows, 1, dtype=torch.long, device=device) for name in names},
            torch.zeros(rows, capacity, dtype=torch.long, device=device),
            torch.zeros(1, dtype=torch.long, device=device),
            torch.zeros((), dtype=torch.bool, device=device),
        )
        self.begin(stepper)  # gives memory, which has its own size, a place
        step: Callable[[], Tensor] = self.step
        if compiled:
            # torch keeps what it compiled by code object, few of each: a copy is this recording's own, and goes with it
            own = types.FunctionType(DecodeRecording.step.__code__.replace(), globals())
            step = types.MethodType(own, self)
            step = torch.compile(step, fullgraph=True, dynamic=False, backend=BACKEND, options=self.options())
        self.run = self.graph(step) if device.type == "cuda" else self.call(step)

    def options(self) -> dict[str, Any] | None:
        """Of the compiler: on a CPU no Python between the calls, and weights in the layout they are read in."""
        wanted = BACKEND == "inductor" and self.model.device.type == "cpu"
        return {"cpp_wrapper": True, "freezing": True} if wanted else None

    def step(self) -> Tensor:
        """Reads one token of each row; the scores (B, V) of the next, and the likeliest in its place."""
        buffers = self.buffers
        call = Call({**buffers.inputs, "logits_to_keep": 1}, self.state, kernel=self.model.kernel)
        scores = self.model(call)["logits"][:, -1].float()
        best, tokens = highest(scores)
        buffers.inputs[f"{self.prefix}input_ids"].copy_(tokens[:, None])
        buffers.written.index_copy_(1, buffers.count, tokens[:, None])
        buffers.count.add_(1)
        buffers.broken.logical_or_(best.isnan().any())
        return scores

    def call(self, step: Callable[[], Tensor]) -> Callable[[], None]:
        def run() -> None:
            self.buffers.scores = step()

        return run

    def graph(self, step: Callable[[], Tensor]) -> Callable[[], None]:
        """The step as a CUDA graph; run on another stream a few times first, so that nothing is left to set up."""
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with graph_capture():
            with torch.cuda.stream(stream):
                for _ in range(3):
                    step()
            torch.cuda.current_stream().wait_stream(stream)
            with torch.cuda.graph(graph):
                self.buffers.scores = step()
        return graph.replay

    # -- a text -------------------------------------------------------------------------------------------------------

    def begin(self, stepper: Stepper) -> State:
        """Takes over what the stepper has read. The state stays this recording's own."""
        buffers = self.buffers
        assert stepper.state is not None
        self.state.adopt(stepper.state)
        if stepper.segments is not None:
            buffers.inputs["token_type_ids"].copy_(stepper.segments[:, -1:])
        buffers.count.zero_()
        buffers.broken.zero_()
        return self.state

    def read(self, tokens: Tensor) -> Tensor:
        """The scores (B, V) after one more token (B,) of each row."""
        self.buffers.inputs[f"{self.prefix}input_ids"].copy_(tokens[:, None])
        self.buffers.count.zero_()
        self.run()
        assert self.buffers.scores is not None
        return self.buffers.scores.clone()

    def likeliest(self, count: int) -> Tensor:
        """The likeliest tokens (B, count) of so many steps, each reading what the one before wrote."""
        start = self.buffers.count.clone()
        for _ in range(count):
            self.run()
        return self.buffers.written[:, start + torch.arange(count, device=start.device)]


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
