"""Efficient attention: what length costs in time and memory, of full attention and of those that go without T x T.

Two layers of width 256 with 4 heads of every mixer read one text, fp32, and where they write, take one step behind it.
Memory is what a pass needs at its highest, beyond the model: the bytes of all tensors that live at once, added up as
they come and go on a CPU, and by the allocator on CUDA. An exponent is the slope of a line through the logarithms, over
the last three doublings: 1 is linear, 2 quadratic. Encoders read texts whole and have no step.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from anyformer import families
from anyformer.counting.step import Live
from anyformer.lab.experiment import Form, Verdict
from anyformer.lab.trials import Place, Row, Trial, Values
from anyformer.look import figures
from anyformer.models import Model
from anyformer.models.construct import build
from anyformer.parts.attention.linear import LinearAttention, SoftmaxFeatures
from anyformer.parts.attention.set_transformer import InducedAttention, LunaAttention, Seeds
from anyformer.runtime.mask import CAUSAL
from anyformer.specs.codec import override

CLAIM = (
    "the time of full attention grows with an exponent of at least 1.4, that of every other with at most 1.25; what "
    "Performer, Mamba and RWKV remember does not grow"
)
FORMS = {
    "tiny": Form(0.1, 0.1, {"lengths": [64, 128]}),
    "small": Form(1, 0.3, {"lengths": [2**n for n in range(10, 14)]}),
    "full": Form(8, 1, {"lengths": [2**n for n in range(10, 17)]}),
}
WINDOW, LATENTS, HEADS, WIDTH, DEPTH, WORDS = 512, 64, 4, 256, 2, 500


def encoder(model_type: str, **config: Any) -> Callable[[int], Model]:
    shape = {
        "vocab_size": WORDS,
        "hidden_size": WIDTH,
        "num_hidden_layers": DEPTH,
        "num_attention_heads": HEADS,
        "intermediate_size": 2 * WIDTH,
        "hidden_dropout_prob": 0.0,
    }
    return lambda length: families.find(model_type).read(
        {**shape, "max_position_embeddings": length + 2, **config}  # the first two are RoBERTa's padding
    )


def nystromformer(length: int) -> Model:
    """Its landmarks are means of the segments of a text of exactly this length."""
    return encoder("nystromformer", architectures=["NystromformerModel"], segment_means_seq_len=length)(length)


def through(op: Any) -> Callable[[int], Model]:
    """RoBERTa with another mixer."""
    plain = encoder("roberta", architectures=["RobertaModel"])
    return lambda length: override(plain(length), {"encoder.layers.attention.op": op})


def perceiver(length: int) -> Model:
    shape = {"num_latents": LATENTS, "d_latents": WIDTH, "d_model": WIDTH, "num_self_attends_per_block": DEPTH}
    return families.find("perceiver").read({**shape, "vocab_size": WORDS, "max_position_embeddings": length})


def decoder(**changes: Any) -> Callable[[int], Model]:
    shape = {"vocab_size": WORDS, "n_embd": WIDTH, "n_layer": DEPTH, "n_head": HEADS, "n_inner": 2 * WIDTH}
    return lambda length: override(
        families.find("gpt2").read({**shape, "architectures": ["GPT2Model"], "n_positions": length}), changes
    )


def recurrent(model_type: str, architecture: str, **config: Any) -> Callable[[int], Model]:
    shape = {"vocab_size": WORDS, "hidden_size": WIDTH, "num_hidden_layers": DEPTH}
    return lambda length: families.find(model_type).read({**shape, "architectures": [architecture], **config})


PERFORMER = LinearAttention(num_heads=HEADS, features=SoftmaxFeatures(count=128), mask=CAUSAL)
MODELS: dict[str, Callable[[int], Model]] = {
    "full": decoder(),
    "longformer": encoder("longformer", architectures=["LongformerModel"], attention_window=WINDOW),
    "big_bird": encoder("big_bird", architectures=["BigBirdModel"]),
    "linformer": encoder("linformer"),
    "nystromformer": nystromformer,
    "induced": through(InducedAttention(num_heads=HEADS, points=Seeds(num_heads=HEADS, count=LATENTS))),
    "luna": through(LunaAttention(num_heads=HEADS, tokens=LATENTS)),
    "perceiver": perceiver,
    "performer": decoder(**{"decoder.layers.attention.op": PERFORMER}),
    "mamba": recurrent("mamba", "MambaModel"),
    "rwkv": recurrent("rwkv", "RwkvModel", context_length=2**20),
}
REMEMBER = ("performer", "mamba", "rwkv")  # as much, however long the text
WRITE = ("full", *REMEMBER)


def trials(lengths: list[int]) -> list[Trial]:
    return [Trial(f"{name}-{length}", {"model": name, "tokens": length}) for name in MODELS for length in lengths]


# -- what is measured -------------------------------------------------------------------------------------------------


@torch.no_grad()
def work(values: Values, place: Place) -> list[Row]:
    length, device = values["tokens"], place.device
    model = build(MODELS[values["model"]](length), seed=0).to(device).eval()
    ids = torch.randint(5, WORDS - 5, (1, length), generator=torch.Generator().manual_seed(0)).to(device)
    writes = values["model"] in WRITE

    def read() -> Any:
        return model(input_ids=ids, use_cache=False) if writes else model(input_ids=ids)

    with freed_is_kept():
        read()  # whatever is made once
        found: Row = {"bytes": highest(read, device, model), "seconds": seconds(read, device)}
        if writes:
            state, token = model.new_state(1, capacity=length), ids[:, :1]

            def write() -> Any:
                assert isinstance(state.past, torch.Tensor)
                state.past.fill_(length - 1)  # as if all but the last token were read
                return model(input_ids=token, past_key_values=state)

            write()
            found |= {"step": seconds(write, device, least=30), "state": state.nbytes}
    return [found]


M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # glibc's mallopt, with what it begins with: 128 KiB and 65,536


@contextlib.contextmanager
def freed_is_kept() -> Iterator[None]:
    """What is freed is used again, as other allocators do. glibc gives large blocks back and gets fresh pages, and past
    16k tokens the time to clear those is what a pass would show."""
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if libc is None or not hasattr(libc, "mallopt"):
        yield
        return
    libc.mallopt(M_MMAP_MAX, 0)
    libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
    try:
        yield
    finally:
        libc.mallopt(M_MMAP_MAX, 2**16)
        libc.mallopt(M_TRIM_THRESHOLD, 2**17)
        libc.malloc_trim(0)


def highest(run: Callable[[], Any], device: str, model: nn.Module) -> int:
    """Bytes beyond those of the model. On a CPU tensors are counted and not the pages of the process, whose number
    depends on what the allocator kept of earlier passes; what a kernel needs inside itself is not seen."""
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        return torch.cuda.max_memory_allocated() - before
    with Live((*model.parameters(), *model.buffers())) as live:
        run()
    return live.most


def seconds(run: Callable[[], Any], device: str, least: int = 3, budget: float = 10.0) -> float:
    """The median of runs, one where it takes long."""
    times: list[float] = []
    while len(times) < least or (sum(times) < budget / 10 and len(times) < 200):
        begin = time.perf_counter()
        run()
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
        if sum(times) > budget:
            break
    return statistics.median(times)


# -- what it shows ----------------------------------------------------------------------------------------------------


def exponent(rows: Sequence[Row], name: str, field: str) -> float:
    own = [row for row in rows if row["model"] == name and row.get(field)]
    points = [(math.log(row["tokens"]), math.log(row[field])) for row in own if 8 * row["tokens"] >= own[-1]["tokens"]]
    return statistics.linear_regression(*zip(*points)).slope if len(points) > 1 else math.nan


def claim(rows: Sequence[Row]) -> Verdict:
    times = {name: exponent(rows, name, "seconds") for name in MODELS}
    found = {f"exponent of time, {name}": value for name, value in times.items()}
    found |= {f"exponent of memory, {name}": exponent(rows, name, "bytes") for name in MODELS}
    steps = {name: exponent(rows, name, "step") for name in WRITE}
    found |= {f"exponent of a step, {name}": value for name, value in steps.items()}
    flat = all(len({row["state"] for row in rows if row["model"] == name}) == 1 for name in REMEMBER)
    slower = max(value for name, value in times.items() if name != "full")
    return Verdict(times["full"] >= 1.4 and slower <= 1.25 and flat, found)


def plot(rows: Sequence[Row]) -> Any:
    figure, axes = figures.new(3, 1, 15, 4.5)
    kinds = {"seconds": "a forward pass, s", "bytes": "its highest memory, bytes", "step": "one step behind it, s"}
    for axis, (field, title) in zip(axes[0], kinds.items(), strict=True):
        for number, name in enumerate(MODELS):
            points = [(row["tokens"], row[field]) for row in rows if row["model"] == name and row.get(field)]
            if points:
                axis.loglog(*zip(*points), marker="o", markersize=3, label=name, base=2, color=f"C{number}")
        axis.set_yscale("log", base=10)
        axis.set(xlabel="tokens", title=title)
        axis.grid(alpha=0.3)
    axes[0, 0].legend(frameon=False, fontsize=8)
    return figure
