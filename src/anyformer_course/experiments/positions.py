"""Positions: five properties of every position encoding, and its loss on texts longer than the training texts.

The properties are measured on the scores of one attention over a text of equal tokens, so that only positions differ:
scores distinguish all positions (unique), depend only on the distance (relative), do not change in a longer text
(consistent), are bounded (bounded), and exist for positions beyond the training length (extends). In addition, the five
properties of the lectures: every position has its own vector, a shift of all positions is one linear map of the
vectors, vectors of longer texts exist and are not larger, nothing is learned, and there is a form for several
dimensions. The last is true if there is such a Part; an encoding without position vectors has neither of the first two.

Then the same decoder is trained on texts of one length and its loss is measured on longer texts, always on the same
last tokens with more and more context before them [Press et al. 2022, figure 1]. The table of learned positions is long
enough for these texts, so that their loss can be measured: the vectors beyond the training length are untrained. Texts
of 32 tokens show little about ALiBi, whose flattest head falls by 1 / 256 per token and hardly distinguishes positions
there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from anyformer.counting import count
from anyformer.lab.experiment import Form, Verdict
from anyformer.lab.training import LEARNED, guessing_loss, training_run
from anyformer.lab.trials import Place, Row, TrialGrid, Values
from anyformer.look import figures
from anyformer.look.trace import trace
from anyformer.models import Model
from anyformer.models.construct import build
from anyformer.parts.init import Normal
from anyformer.parts.position.absolute import Binary, Concatenated, Integer, Learned, Sinusoidal
from anyformer.parts.position.bias import Alibi, BucketedBias, RelativeVectors
from anyformer.parts.position.relative import RelativeSinusoids
from anyformer.parts.position.rotary import Rope, RopeModule
from anyformer.runtime.context import Context
from anyformer.specs.codec import override
from anyformer_course.lab.runs import each_loss, held_out, mean, texts, writer

CLAIM = (
    "sinusoids and rotary positions have all five properties of the lectures, learned positions lack three; encodings "
    "inside attention are relative, added vectors are not; but at four times the training length, with every seed, "
    "ALiBi loses at most 3 %, and sinusoids, rotary positions and learned positions at least 10 %"
)
FORMS = {
    "tiny": Form(0.2, 0.1, {"depth": 1, "width": 16, "steps": 2, "batch": 2, "length": 16, "text": "made-up"}),
    "small": Form(
        2, 0.5, {"depth": 2, "width": 48, "steps": 400, "batch": 8, "length": 64, "text": "made-up", "seeds": 3}
    ),
    "full": Form(
        90, 3, {"depth": 4, "width": 192, "steps": 1500, "batch": 64, "length": 128, "text": "library", "seeds": 3}
    ),
}
HEADS, TIMES = 4, (1, 2, 4)
ROWS = 64  # number of texts at every length
PROPERTIES = ("unique", "relative", "consistent", "bounded", "extends")
LECTURE = ("own vector", "linear shift", "longer texts", "nothing learned", "several dimensions")
GRID = {"learned": "AxialLearned", "sinusoidal": "Sinusoidal2D", "rope": "AxialRope", "bucketed": "GridBias"}
ADDED = ("learned", "sinusoidal", "integer", "binary", "concatenated")
SCHEMES = ("none", *ADDED, "rope", "alibi", "bucketed", "shaw", "transformer-xl")
FAILS = ("learned", "sinusoidal", "rope")  # by the claim they lose much on longer texts
COMPARED = ("none", "alibi", *FAILS)  # these have several seeds
trials = TrialGrid(
    "{scheme}-{seed}",
    data=True,
    scheme=SCHEMES,
    seed="seeds",
    where=lambda each: each["scheme"] in COMPARED or not each["seed"],
)


def model_spec(scheme: str, width: int, depth: int, length: int, table: int | None = None) -> Model:
    """Return a decoder for texts of `length` tokens; `table` is the number of learned positions (default: `length`)."""
    added = {
        "learned": Learned(length=table or length),
        "sinusoidal": Sinusoidal(length=length),
        "integer": Integer(),
        "binary": Binary(bits=min(16, width)),
        "concatenated": Concatenated(scheme=Sinusoidal(length=length), width=16),
    }
    inside = {
        "rope": Rope(),
        "alibi": Alibi(num_heads=HEADS),
        "bucketed": BucketedBias(num_heads=HEADS, max_distance=max(length, 64), both_ways=False),
        "shaw": RelativeVectors(before=length - 1, after=0),
        "transformer-xl": RelativeSinusoids(num_heads=HEADS),
    }
    changes = {"embedding.position": added.get(scheme), "decoder.layers.attention.op.position": inside.get(scheme)}
    # scale token vectors to the norm of sinusoids, which would dominate them otherwise [Vaswani et al. 2017]
    return writer(width, depth, HEADS, table or length, changes | {"embedding.scale": width**0.5}, scaled=True)


def work(values: Values, place: Place) -> list[Row]:
    length = values["length"]
    model = model_spec(values["scheme"], values["width"], values["depth"], length, table=TIMES[-1] * length)
    rows: list[Row] = [properties(model_spec(values["scheme"], 32, 1, 32), 32) | lecture_properties(values["scheme"])]
    run = training_run(
        values["scheme"],
        model,
        texts(place, values["text"], values["data"]),
        place.device,
        steps=values["steps"],
        batch=values["batch"],
        length=length,
        lr=3e-3 if values["width"] < 100 else 1e-3,
        seed=values["seed"],
    )
    trainer = place.train(run)
    ids = held_out(trainer, ROWS, TIMES[-1] * length)
    with trainer.eval_mode():
        rows.append({"guessing": guessing_loss(trainer)})
        for times in TIMES:
            # the same tokens are predicted, with longer and longer contexts
            loss = each_loss(trainer.model(input_ids=ids[:, -times * length :]).logits, ids[:, -times * length :])
            rows.append({"times": times, "loss": float(loss[:, -length // 2 :].mean())})
    return rows


# -- properties -------------------------------------------------------------------------------------------------------


@torch.no_grad()
def properties(spec: Model, length: int, eps: float = 1e-4) -> Row:
    """Return each property as True or False, for a one-layer decoder with random weights."""
    model = build(override(spec, {"init": {"*": Normal(std=0.3)}}), seed=0).double().eval()

    def scores(number: int) -> Tensor | None:
        """Return log attention weights (H, T, T) relative to each token's weight on itself; -inf in the future."""
        try:
            run = trace(model, keep=["decoder.layers.0.attention.op.weights"], input_ids=torch.ones(1, number).long())
        except ValueError:
            return None
        base = run["decoder.layers.0.attention.op.weights"][0].double().log()
        return base - base.diagonal(dim1=-2, dim2=-1)[..., None]

    base, longer = scores(length), scores(4 * length)
    assert base is not None
    past = torch.ones(length, length).tril().bool()
    spread = float(base[:, past].std()) + 1e-12
    last = base[:, -1]  # scores of the last token for every position
    apart = (last[:, :, None] - last[:, None, :]).abs().amax(0) + torch.eye(length) * 1e9
    along = [torch.diagonal(base, -offset, 1, 2).std(-1) for offset in range(1, length - 1)]
    return {
        "unique": bool(apart.min() > eps * spread) and spread > eps,
        "relative": bool(torch.stack(along).max() < eps * spread + 1e-9),
        "consistent": longer is not None and bool(((longer[:, :length, :length] - base)[:, past]).abs().max() < eps),
        "bounded": longer is not None
        and bool(
            longer[-1][torch.ones(4 * length, 4 * length).tril().bool()].abs().max() <= 2 * base[-1][past].abs().max()
        ),
        "extends": longer is not None,
    }


@torch.no_grad()
def position_vectors(scheme: str, length: int, number: int) -> Tensor | None:
    """Return the vectors (number, D) that an encoding for texts of `length` adds to tokens; for rotary positions, the
    rotated query of pairs (1, 0). None if the encoding has no position vectors, or not that many."""
    if scheme == "rope":
        index = torch.arange(number)
        cos, sin = RopeModule(Rope(), 32).tables(Context(index, index[None]), torch.float64)
        return torch.cat((cos, sin), -1)[0, 0]
    if scheme not in ADDED:
        return None
    model = build(override(model_spec(scheme, 32, 1, length), {"init": {"*": Normal(std=0.3)}}), seed=0).double().eval()
    silence = {"embedding.tokens": lambda tokens, _: torch.zeros_like(tokens)}
    try:
        run = trace(model, keep=["embedding"], change=silence, input_ids=torch.ones(1, number).long())
    except ValueError:
        return None
    return run["embedding"][0].double()


def is_shift_linear(vectors: Tensor, shift: int = 3, eps: float = 1e-3) -> bool:
    """Whether the matrix that maps every second vector to the vector `shift` positions later also maps the others."""
    before, after = vectors[:-shift], vectors[shift:]
    matrix = torch.linalg.pinv(before[::2], rtol=1e-6) @ after[::2]
    error = (before[1::2] @ matrix - after[1::2]).norm()
    return bool(error < eps * (after[1::2] - after.mean(0)).norm())


def lecture_properties(scheme: str, length: int = 128) -> Row:
    """Return each property as True or False, or as None if the encoding has no position vectors."""
    vectors, longer = position_vectors(scheme, length, length), position_vectors(scheme, length, 4 * length)
    spec = model_spec(scheme, 32, 1, length)
    learned = any(".position." in f".{address}." for address in count(spec).parts)
    row: Row = {"nothing learned": not learned, "several dimensions": scheme in GRID}
    if vectors is None:
        extends = properties(model_spec(scheme, 32, 1, 16), 16)["extends"] and scheme != "none"
        return row | {"own vector": None, "linear shift": None, "longer texts": extends}
    apart = torch.cdist(vectors, vectors) + torch.eye(length) * 1e9
    bounded = longer is not None and bool(longer.abs().max() <= 2 * vectors.abs().max())
    return row | {
        "own vector": bool(apart.min() > 1e-6),
        "linear shift": is_shift_linear(vectors),
        "longer texts": bounded,
    }


# -- results ----------------------------------------------------------------------------------------------------------


def table(rows: Sequence[Row]) -> dict[str, Row]:
    """Return scheme -> its properties and, for the first seed, its loss at each multiple of the training length."""
    properties: dict[str, Row] = {scheme: {} for scheme in SCHEMES}
    for row in (row for row in rows if not row["seed"]):
        entry = properties[row["scheme"]]
        entry |= {name: row[name] for name in (*LECTURE, *PROPERTIES) if name in row}
        entry |= {f"loss x{row['times']}": row["loss"]} if "times" in row else {}
    return properties


def loss_increase(rows: Sequence[Row], scheme: str) -> list[float]:
    """Return the relative increase of the loss at the longest texts, for every seed."""
    losses = {(row["seed"], row["times"]): row["loss"] for row in rows if row["scheme"] == scheme and "times" in row}
    near = {seed: loss for (seed, times), loss in losses.items() if times == 1}
    return [losses[seed, TIMES[-1]] / near[seed] - 1 for seed in near]


def claim(rows: Sequence[Row]) -> Verdict:
    properties = table(rows)
    shares = {scheme: loss_increase(rows, scheme) for scheme in SCHEMES}
    figures = {f"loss increase, {scheme}": mean(each) for scheme, each in shares.items()}
    most, least = max(shares["alibi"]), {scheme: min(shares[scheme]) for scheme in FAILS}
    relative = [scheme for scheme, row in properties.items() if row["relative"]]
    inside = {scheme for scheme in SCHEMES if scheme not in ADDED}
    has = {scheme: [name for name in LECTURE if row[name]] for scheme, row in properties.items()}
    asked = len(has["sinusoidal"]) == len(has["rope"]) == len(LECTURE) and len(has["learned"]) <= len(LECTURE) - 3
    guessing = {row["trial"]: row["guessing"] for row in rows if "guessing" in row}
    worst = max(row["loss"] / guessing[row["trial"]] for row in rows if row.get("times") == 1)
    longer = most <= 0.03 and min(least.values()) >= 0.1
    holds = asked and longer and not properties["learned"]["extends"] and set(relative) == inside
    return Verdict(
        holds,
        {
            **figures,
            "largest loss increase, alibi": most,
            **{f"smallest loss increase, {scheme}": value for scheme, value in least.items()},
            **{
                f"loss increase by seed, {scheme}": ", ".join(f"{each:.3f}" for each in shares[scheme])
                for scheme in COMPARED
            },
            "relative": ", ".join(relative),
            **{f"properties of the lectures, {scheme}": ", ".join(each) or "none" for scheme, each in has.items()},
            "largest loss / loss of guessing": worst,
        },
        worst <= LEARNED,
    )


def plot(rows: Sequence[Row]) -> Any:
    properties = table(rows)
    figure, axes = figures.new(2, 1, 16, 5)
    names = (*LECTURE, *PROPERTIES)
    shown = torch.tensor([[float(row[name] or 0) for name in names] for row in properties.values()])
    axes[0, 0].imshow(shown.numpy(), cmap="Blues", vmin=0, vmax=1.5, aspect="auto")
    axes[0, 0].set_xticks(range(len(names)), names, rotation=30, fontsize=8)
    axes[0, 0].set_yticks(range(len(properties)), list(properties))
    for i, row in enumerate(properties.values()):
        for j, name in enumerate(names):
            answer = "-" if row[name] is None else "yes" if row[name] else "no"
            axes[0, 0].text(j, i, answer, ha="center", va="center", fontsize=8)
    for number, (scheme, row) in enumerate(properties.items()):
        points = [(times, row[f"loss x{times}"]) for times in TIMES if f"loss x{times}" in row]
        axes[0, 1].plot(*zip(*points), marker="o", label=scheme, color=f"C{number}")
    axes[0, 1].set(xscale="log", yscale="log", xlabel="multiple of the training length", title="loss, last tokens")
    axes[0, 1].set_xticks(TIMES, [f"{times}" for times in TIMES])
    axes[0, 1].legend(frameon=False, fontsize=7)
    axes[0, 1].grid(alpha=0.3)
    return figure
