"""Speed and quality: what efficient mixers save and lose, on recall over a distance and on text.

Two-layer decoders that differ only in the mixer learn from texts of one length. Half of the texts are palindromes
(abcd|dcba), whose answers are far from their letters; half are in a made-up language, in which the last few letters
matter most. The comparison needs a full attention that is really trained: it must recall nearly everything with every
seed. The cost is the number of operations per token, without masked pairs of tokens, in a text of that length and in a
long text (`lab/forward_cost.py`). No other mixer beats a mixer on the frontier in both cost and quality [Tay et
al. 2020]. The small and the full form leave out the Synthesizer, which does not cost less, blocks (a window without
overlap) and Mamba-2 (close to Mamba).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from anyformer.counting import count
from anyformer.lab.experiment import Form, Verdict
from anyformer.lab.trials import Place, Row, TrialGrid, Values
from anyformer.look import figures
from anyformer.models import Model
from anyformer.specs.codec import decode, kinds
from anyformer_course.lab.forward_cost import forward_cost
from anyformer_course.lab.recall import answer_accuracy, palindromes, row_length, train_on
from anyformer_course.lab.runs import LANGUAGE, each_loss, mean, writer

CLAIM = (
    "with every seed full attention recalls at least 95 % and is at most 2 points below the best mixer that costs less "
    "on long texts; at least half of the efficient mixers are 20 points below it; on text at least half of them lose "
    "at most 5 %"
)
HEADS, DEPTH, ASKED = 4, 2, 256
LANGUAGE_TEXTS = 8000  # most different texts of the made-up language, which are slow to generate
SEES: dict[str, Any] = {"num_heads": HEADS, "mask": {"kind": "Causal"}}


def near(kind: str, **fields: int) -> dict[str, Any]:
    """Return attention to a part of the past."""
    masks = [{"kind": "Causal"}, {"kind": kind, **fields}]
    return {"kind": "Attention", "num_heads": HEADS, "mask": {"kind": "All", "masks": masks}}


def mixers(width: int, length: int, reach: int) -> dict[str, dict[str, Any]]:
    """Return all mixers. Except for "full" and "compressed", their reach or state does not grow with the text."""
    return {
        "full": {"kind": "Attention", **SEES},
        "window": near("Window", size=reach),
        "strided": near("Strided", stride=reach),
        "blocks": {"kind": "BlockAttention", **SEES, "size": reach},
        "compressed": {"kind": "CompressedAttention", "num_heads": HEADS},
        "linear": {"kind": "LinearAttention", **SEES},
        "performer": {"kind": "LinearAttention", **SEES, "features": {"kind": "SoftmaxFeatures", "count": 32}},
        "synthesizer": {"kind": "Synthesizer", **SEES, "length": length},
        "reformer": {
            "kind": "LSHAttention",
            "num_heads": HEADS,
            "chunk": reach,
            "buckets": [4],
            "causal": True,
            "own_bucket": True,
        },
        "routing": {"kind": "RoutingAttention", "num_heads": HEADS, "clusters": 4, "window": reach, "causal": True},
        "convolution": {"kind": "LightweightConvolution", "num_heads": HEADS, "kernel": reach - 1, "causal": True},
        "mamba": {"kind": "SelectiveState", "width": 2 * width},
        "mamba-2": {"kind": "DualState", "num_heads": HEADS, "head_width": width // 2, "states": 16},
        "rwkv": {"kind": "TimeMix"},
        "s4": {"kind": "S4"},
    }


MIXERS = tuple(mixers(32, 64, 4))
LEFT_OUT = ("blocks", "synthesizer", "mamba-2")
COMPARED = [name for name in MIXERS if name not in LEFT_OUT]
CHEAP = ["full", "window", "linear", "performer", "convolution", "rwkv"]
FORMS = {
    "tiny": Form(0.3, 0.2, {
        "mixers": list(MIXERS), "width": 16, "steps": 2, "batch": 4, "size": 8, "letters": 4, "long": 64
    }),
    "medium": Form(4, 1.5, {
        "mixers": CHEAP, "width": 64, "steps": 500, "batch": 32, "size": 8, "letters": 8, "long": 2048, "seeds": 3
    }),
    "full": Form(600, 3, {
        "mixers": COMPARED, "width": 128, "steps": 1000, "batch": 128, "size": 32, "letters": 16, "long": 16384,
        "seeds": 3,
    }),
}  # fmt: skip
trials = TrialGrid("{mixer}-seed-{seed}", seed="seeds", mixer="mixers")


def model_spec(name: str, width: int, length: int, reach: int) -> Model:
    kinds()  # registers all kinds, so that `decode` finds them by name
    changes = {"decoder.layers.attention.op": decode(mixers(width, length, reach)[name])}
    return writer(width, DEPTH, HEADS, length, changes, scaled=True)


@cache
def token_cost(name: str, width: int, length: int, reach: int) -> float:
    """Return the operations per token, with kernels that skip masked pairs."""
    spec = model_spec(name, width, length, reach)
    counted = count(spec)
    return (forward_cost(spec, length).flops - counted.flops(length) + counted.needed_flops(length)) / length


def language_texts(number: int, length: int, seed: int) -> list[str]:
    return [text[:length] for text in LANGUAGE.texts(number, length, seed)]


def work(values: Values, place: Place) -> list[Row]:
    name, width, shape = values["mixer"], values["width"], (values["size"], values["letters"])
    length, reach = 2 * values["size"] + 1, values["size"] // 2  # two layers reach half of the farthest distance
    number = values["steps"] * values["batch"] // 2

    def texts() -> list[str]:
        language = itertools.cycle(language_texts(min(number, LANGUAGE_TEXTS), length, seed=0))
        halves = zip(palindromes(number, *shape, seed=0), language)
        return [text for both in halves for text in both]

    spec = model_spec(name, width, row_length(length), reach)
    trainer = train_on(place, "both", texts, length, spec, values, lr=min(0.3 / width, 6e-3))
    row: Row = {"recall": mean(answer_accuracy(trainer, palindromes(ASKED, *shape, seed=1)))}
    ids = [trainer.tokenizer.encode(text) for text in language_texts(ASKED, length, seed=1)]
    asked = torch.tensor(ids, device=trainer.device)
    with trainer.eval_mode():
        row["loss"] = float(each_loss(trainer.model(input_ids=asked).logits, asked).mean())
    lengths = {"cost": length, "long cost": values["long"]}
    return [row | {field: token_cost(name, width, tokens, reach) for field, tokens in lengths.items()}]


# -- results ----------------------------------------------------------------------------------------------------------


def by_mixer(rows: Sequence[Row], field: str) -> dict[str, list[float]]:
    """Return mixer -> values, one per seed."""
    names = dict.fromkeys(row["mixer"] for row in rows)
    return {name: [row[field] for row in rows if row["mixer"] == name] for name in names}


def frontier(costs: dict[str, float], qualities: dict[str, float]) -> list[str]:
    """Return the mixers that no other mixer beats in both cost and quality, the cheapest first."""
    best: list[str] = []
    for name in sorted(costs, key=lambda each: (costs[each], -qualities[each])):
        if not best or qualities[name] > qualities[best[-1]]:
            best.append(name)
    return best


def claim(rows: Sequence[Row]) -> Verdict:
    recall, losses = by_mixer(rows, "recall"), by_mixer(rows, "loss")
    costs = {name: mean(each) for name, each in by_mixer(rows, "long cost").items()}
    cheaper = [name for name in costs if costs[name] < costs["full"]]
    behind = min(
        (own - other for name in cheaper for own, other in zip(recall["full"], recall[name], strict=True)), default=0.0
    )
    others = [name for name in costs if name != "full"]
    forgets = [name for name in others if mean(recall[name]) <= mean(recall["full"]) - 0.2]
    equal = [name for name in others if mean(losses[name]) <= 1.05 * mean(losses["full"])]
    shown = {name: mean(each) for name, each in recall.items()}
    best = {name: -mean(each) for name, each in losses.items()}
    trained = min(recall["full"]) >= 0.95
    return Verdict(
        trained and behind >= -0.02 and len(forgets) >= len(others) / 2 and len(equal) >= len(others) / 2,
        {
            **{f"{name}: recall, loss, long cost": f"{shown[name]:.3f}, {-best[name]:.3f}, {costs[name]:,.0f}"
               for name in costs},
            "full attention's lowest recall with a seed": min(recall["full"]),
            "full attention's smallest lead in recall with a seed": behind,
            "20 points below in recall": ", ".join(forgets),
            "within 5 % on text": ", ".join(equal),
            "frontier of recall": ", ".join(frontier(costs, shown)),
            "frontier of text": ", ".join(frontier(costs, best)),
        },
    )  # fmt: skip


def plot(rows: Sequence[Row]) -> Any:
    figure, axes = figures.new(2, 2, 13, 9)
    for i, cost in enumerate(("cost", "long cost")):
        costs = {name: mean(each) for name, each in by_mixer(rows, cost).items()}
        for j, (field, sign) in enumerate((("recall", 1), ("loss", -1))):
            axis, each = axes[i, j], {name: mean(values) for name, values in by_mixer(rows, field).items()}
            for name in costs:
                axis.plot(costs[name], each[name], "o", color="C0")
                axis.annotate(name, (costs[name], each[name]), fontsize=8)
            edge = frontier(costs, {name: sign * value for name, value in each.items()})
            axis.plot([costs[name] for name in edge], [each[name] for name in edge], color="C1", drawstyle="steps-post")
            length = "training length" if cost == "cost" else f"{rows[0]['long']:,} tokens"
            axis.set(xscale="log", xlabel=f"operations per token, {length}")
            axis.set(title="answers recalled" if field == "recall" else "loss on text (nats per letter)")
            axis.grid(alpha=0.3)
    return figure
