"""Encoders generate badly: a masked language model that writes from left to right, against a GPT.

Both have the same layers but for the mask of attention, so size and compute per step are equal. Both learn from the
same texts for the same number of steps, one to predict the next byte, one to predict 15 % masked bytes. Both then
continue the same held-out prompts, one sampled byte at a time. The masked model writes in two ways: with one mask after
the text so far, or with masks at all places that are still empty [Wang and Cho 2019]. A third model, a GPT trained on
other texts with its own seed, reads the continuations: the judge's loss is high for a text that it does not expect. The
share of 4-grams that occur in real text is a second measurement. As a control that the masked model has learned, it
fills single masks in real text, which must be easier than the GPT's next byte.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from anyformer.data import Data, Held, PythonDocs, Source, TextFiles
from anyformer.lab.experiment import Form, Verdict
from anyformer.lab.training import training_run
from anyformer.lab.trials import Place, Row, TrialGrid, Values
from anyformer.look import figures
from anyformer.models import EncoderModel, Model
from anyformer.objectives.causal import NextToken
from anyformer.objectives.masked import Masked
from anyformer.objectives.objective import Objective
from anyformer.parts.mask import FULL
from anyformer.specs.codec import override
from anyformer.train.trainer import Trainer
from anyformer_course.lab.runs import LANGUAGE, READER, READER_SIZE, each_loss, held_out, mean, writer

CLAIM = (
    "with every seed, the judge's loss of the masked model's texts, in the better of its two ways of writing, is at "
    "least 0.3 nats per byte above its loss of the GPT's texts, and fewer of their 4-grams occur in real text; judged "
    "if, filling single masks, the masked model has a lower loss than the GPT has at the next byte"
)
FORMS = {
    "tiny": Form(
        0.2, 0.1,
        {"width": 16, "depth": 1, "steps": 2, "batch": 2, "prompt": 8, "new": 8, "number": 4, "text": "made-up"},
    ),
    "medium": Form(
        5, 1,
        {"width": 64, "depth": 2, "steps": 1000, "batch": 16, "prompt": 24, "new": 40, "number": 32, "text": "made-up",
         "seeds": 2},
    ),
    "full": Form(
        240, 3,
        {"width": 256, "depth": 4, "steps": 5000, "batch": 64, "prompt": 64, "new": 64, "number": 256,
         "text": "library", "seeds": 4},
    ),
}  # fmt: skip
LENGTH, HEADS, GRAM = 128, 4, 4
WAYS = ("one mask", "all masks")  # of the masked model
trials = TrialGrid("seed-{seed}", seed="seeds", data=True)


def model_spec(width: int, depth: int, masked: bool = False) -> Model:
    """Return a GPT-2 over bytes with the special tokens of BERT; if `masked`, an encoder of the same layers, in which
    tokens see both sides."""
    gpt: Any = writer(width, depth, HEADS, LENGTH, scaled=True, vocab_size=READER_SIZE)
    if not masked:
        return gpt
    encoder = override(gpt.decoder, {"layers.attention.op.mask": FULL})
    head = gpt.head.replace(shift=False)
    return EncoderModel(width=width, embedding=gpt.embedding, encoder=encoder, head=head, init=gpt.init, ties=gpt.ties)


def halves(place: Place, text: str, path: str | None) -> tuple[Data, Data]:
    """Return the texts of the two writers and of the judge. One text in twenty is in neither: it is held out."""
    source: Source
    if path is not None:
        source = TextFiles(path=path, unit="paragraph")
    elif text == "made-up":
        source = place.texts(text, lambda: LANGUAGE.texts(1000, 24, 0))
    else:
        source = PythonDocs()
    rest, unseen = Held(source=source), Held(source=source, out=True)
    own, other = (Data(train=Held(source=rest, one_in=2, out=out), valid=unseen) for out in (False, True))
    return own, other


def work(values: Values, place: Place) -> list[Row]:
    texts, others = halves(place, values["text"], values["data"])

    def train(name: str, data: Data, objective: Objective, seed: int) -> Trainer:
        run = training_run(
            name, model_spec(values["width"], values["depth"], isinstance(objective, Masked)), data, place.device,
            steps=values["steps"], batch=values["batch"], length=LENGTH, lr=min(0.1 / values["width"], 3e-3),
            objective=objective, vocabulary=READER, seed=seed,
        )  # fmt: skip
        return place.train(run, name=name)

    gpt = train("gpt", texts, NextToken(), values["seed"])
    masked = train("masked", texts, Masked(), values["seed"])
    judge = train("judge", others, NextToken(), 100 + values["seed"])
    mask = masked.tokenizer.mask_token_id
    real = held_out(judge, values["number"], values["prompt"] + values["new"])
    prompt = real[:, : values["prompt"]]
    draw = torch.Generator(real.device).manual_seed(values["seed"])
    written = {
        "real": real,
        "gpt": write_on(scores_of(gpt), prompt, values["new"], draw),
        **{way: write_on(scores_of(masked), prompt, values["new"], draw, mask, way == WAYS[1]) for way in WAYS},
    }
    known = grams(held_out(judge, 4096, 512))
    nats = scores_of(judge)
    rows = [
        {
            "writer": name,
            "judge": float(each_loss(nats(ids), ids)[:, values["prompt"] - 1 :].mean()),
            "known": known_share(ids[:, values["prompt"] :], known),
            "sample": gpt.tokenizer.decode(ids[0, values["prompt"] :].tolist()),
        }
        for name, ids in written.items()
    ]
    filled = single_mask_loss(scores_of(masked), real, mask, draw)
    following = float(each_loss(scores_of(gpt)(real), real).mean())
    return [*rows, {"filled": filled, "next byte": following}]


def scores_of(trainer: Trainer) -> Callable[[Tensor], Tensor]:
    """Return a function from ids (B, T) to logits (B, T, V)."""

    def scores(ids: Tensor) -> Tensor:
        with trainer.eval_mode(), trainer.autocast():
            return trainer.model(input_ids=ids).logits.float()

    return scores


def write_on(
    scores: Callable[[Tensor], Tensor],
    prompt: Tensor,
    new: int,
    draw: torch.Generator,
    mask: int | None = None,
    every: bool = False,
) -> Tensor:
    """Return prompts (B, P) continued by `new` sampled tokens. A model with a `mask` predicts the token at the first
    mask: after the text so far is one mask or, with `every`, a mask at each place that is still empty."""
    ids = prompt
    for left in range(new, 0, -1):
        masks = 0 if mask is None else left if every else 1
        logits = scores(torch.nn.functional.pad(ids, (0, masks), value=mask or 0))
        at = ids.shape[1] - (mask is None)
        chosen = torch.multinomial(logits[:, at].softmax(-1), 1, generator=draw)
        ids = torch.cat([ids, chosen], 1)
    return ids


def single_mask_loss(scores: Callable[[Tensor], Tensor], ids: Tensor, mask: int, draw: torch.Generator) -> float:
    """Return the loss of one masked token per row; all other tokens are visible."""
    at = torch.randint(1, ids.shape[1] - 1, (len(ids), 1), generator=draw, device=ids.device)
    logits = scores(ids.scatter(1, at, mask)).gather(1, at[..., None].expand(-1, -1, READER_SIZE))
    return float(torch.nn.functional.cross_entropy(logits[:, 0], ids.gather(1, at)[:, 0]))


def grams(ids: Tensor) -> set[tuple[int, ...]]:
    """Return the different sequences of GRAM consecutive tokens."""
    return {tuple(gram) for row in ids.tolist() for gram in zip(*(row[i:] for i in range(GRAM)), strict=False)}


def known_share(ids: Tensor, known: set[tuple[int, ...]]) -> float:
    """Return the share of sequences of GRAM tokens that are in `known`."""
    found = [
        tuple(gram) in known for row in ids.tolist() for gram in zip(*(row[i:] for i in range(GRAM)), strict=False)
    ]
    return sum(found) / len(found)


# -- results ----------------------------------------------------------------------------------------------------------


def by_writer(rows: Sequence[Row], field: str) -> dict[str, list[float]]:
    """Return writer -> value of every seed."""
    values: dict[str, list[float]] = {}
    for row in rows:
        if field in row:
            values.setdefault(row["writer"], []).append(row[field])
    return values


def claim(rows: Sequence[Row]) -> Verdict:
    losses, known = by_writer(rows, "judge"), by_writer(rows, "known")
    best = [min(pair) for pair in zip(*(losses[way] for way in WAYS), strict=True)]
    most = [max(pair) for pair in zip(*(known[way] for way in WAYS), strict=True)]
    gaps = [masked - gpt for masked, gpt in zip(best, losses["gpt"], strict=True)]
    fewer = all(masked < gpt for masked, gpt in zip(most, known["gpt"], strict=True))
    controls = [(row["filled"], row["next byte"]) for row in rows if "filled" in row]
    return Verdict(
        min(gaps) >= 0.3 and fewer,
        {
            **{f"judge's loss, {name}": mean(each) for name, each in losses.items()},
            **{f"4-grams of real text, {name}": mean(each) for name, each in known.items()},
            "masked minus GPT, smallest of all seeds": min(gaps),
            "loss of single masks, masked model": mean([filled for filled, _ in controls]),
            "loss of the next byte, GPT": mean([following for _, following in controls]),
        },
        all(filled < following for filled, following in controls),
    )


def plot(rows: Sequence[Row]) -> Any:
    figure, axes = figures.new(2, 1, 11, 3.5)
    fields = (("judge", "judge's loss of the text (nats per byte)"), ("known", "4-grams that occur in real text"))
    for axis, (field, title) in zip(axes[0], fields, strict=True):
        for number, (name, values) in enumerate(by_writer(rows, field).items()):
            axis.plot(values, [name] * len(values), "o", color=f"C{number}")
        axis.set_title(f"{title}, one point per seed", fontsize=9)
        axis.invert_yaxis()
        axis.grid(alpha=0.3)
    return figure
