"""Efficient attention: operations and memory by length, of full attention and of mixers without T x T scores.

Two layers of every mixer, of width 256 with 4 heads, read one text; decoders then generate one token. The operations
and the peak memory in bytes are counted on the meta device (`lab/forward_cost.py`), so they do not depend on other
work of the machine or on a seed. Full attention is counted as one kernel; its memory is also counted with the scores
stored. An exponent is the slope of a line through the logarithms over the last three doublings: 1 is linear, 2
quadratic. Processor time is measured for short texts, but not judged.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch

from anyformer import families
from anyformer.counting import count
from anyformer.lab.experiment import Form, Verdict
from anyformer.lab.trials import Place, Row, TrialGrid, Values
from anyformer.look import figures
from anyformer.models import Model
from anyformer.models.construct import build
from anyformer.parts.attention.linear import LinearAttention, SoftmaxFeatures
from anyformer.parts.attention.set_transformer import InducedAttention, LunaAttention, Seeds
from anyformer.parts.mask import CAUSAL
from anyformer.specs.codec import override
from anyformer_course.lab.forward_cost import forward_cost
from anyformer_course.lab.runs import processor_seconds

CLAIM = (
    "the operations of full attention grow with an exponent of at least 1.8, of every other mixer with at most 1.1; "
    "memory grows with at most 1.1 if scores are not stored, and with at least 1.8 if full attention stores them; the "
    "cost of a step and the state of Performer, Mamba and RWKV do not grow"
)
FORMS = {
    "tiny": Form(0.1, 0.1, {"lengths": [64, 128], "timed": 64}),
    "small": Form(1, 0.5, {"lengths": [2**n for n in range(10, 15)], "timed": 2**12}),
    "full": Form(8, 1, {"lengths": [2**n for n in range(10, 18)], "timed": 2**16}),
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
        {**shape, "max_position_embeddings": length + 2, **config}  # RoBERTa reserves the first two for padding
    )


def nystromformer(length: int) -> Model:
    """Return a Nyströmformer. Its landmarks are means of segments of a text of exactly this length."""
    return encoder("nystromformer", architectures=["NystromformerModel"], segment_means_seq_len=length)(length)


def roberta(op: Any) -> Callable[[int], Model]:
    """Return RoBERTa with this mixer."""
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
    "induced": roberta(InducedAttention(num_heads=HEADS, points=Seeds(num_heads=HEADS, count=LATENTS))),
    "luna": roberta(LunaAttention(num_heads=HEADS, tokens=LATENTS)),
    "perceiver": perceiver,
    "performer": decoder(**{"decoder.layers.attention.op": PERFORMER}),
    "mamba": recurrent("mamba", "MambaModel"),
    "rwkv": recurrent("rwkv", "RwkvModel", context_length=2**20),
}
REMEMBER = ("performer", "mamba", "rwkv")  # mixers with a state of fixed size
WRITE = ("full", *REMEMBER)
trials = TrialGrid(
    "{model}-{tokens}", model=MODELS, tokens="lengths", derive=lambda each: {"timed": each["tokens"] <= each["timed"]}
)


def work(values: Values, place: Place) -> list[Row]:
    name, length = values["model"], values["tokens"]
    spec = MODELS[name](length)
    cost = forward_cost(spec, length)
    row: Row = {"flops": cost.flops, "bytes": cost.bytes}
    if name == "full":
        row["bytes with scores"] = forward_cost(spec, length, fused=False).bytes
    if name in WRITE:
        row |= {"step": forward_cost(spec, length, step=True).flops, "state": count(spec).state(1, length)}
    if values["timed"]:
        model = build(spec, seed=0).to(place.device).eval()
        ids = torch.randint(5, WORDS - 5, (1, length), generator=torch.Generator().manual_seed(0)).to(place.device)
        more: dict[str, Any] = {"use_cache": False} if name in WRITE else {}
        with torch.no_grad():
            row["seconds"] = processor_seconds(lambda: model(input_ids=ids, **more), place.device)
    return [row]


# -- results ----------------------------------------------------------------------------------------------------------


def exponent(rows: Sequence[Row], name: str, field: str) -> float:
    group = [row for row in rows if row["model"] == name and row.get(field)]
    points = [
        (math.log(row["tokens"]), math.log(row[field])) for row in group if 8 * row["tokens"] >= group[-1]["tokens"]
    ]
    return statistics.linear_regression(*zip(*points)).slope if len(points) > 1 else math.nan


def claim(rows: Sequence[Row]) -> Verdict:
    flops = {name: exponent(rows, name, "flops") for name in MODELS}
    memory = {name: exponent(rows, name, "bytes") for name in MODELS}
    scores = exponent(rows, "full", "bytes with scores")
    steps = {name: exponent(rows, name, "step") for name in WRITE}
    times = {name: exponent(rows, name, "seconds") for name in MODELS}
    others = max(value for name, value in flops.items() if name != "full")
    flat = all(
        len({row[field] for row in rows if row["model"] == name}) == 1
        for name in REMEMBER
        for field in ("step", "state")
    )
    holds = flops["full"] >= 1.8 and others <= 1.1 and scores >= 1.8 and max(memory.values()) <= 1.1 and flat
    return Verdict(
        holds,
        {
            **{f"exponent of operations, {name}": value for name, value in flops.items()},
            **{f"exponent of memory, {name}": value for name, value in memory.items()},
            "exponent of memory, full with scores stored": scores,
            **{f"exponent of a step, {name}": value for name, value in steps.items()},
            **{f"exponent of time, {name}": value for name, value in times.items() if not math.isnan(value)},
        },
    )


def plot(rows: Sequence[Row]) -> Any:
    figure, axes = figures.new(3, 1, 15, 4.5)
    kinds = {"flops": "operations of a pass", "bytes": "peak memory of a pass, bytes", "step": "operations of a step"}
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
