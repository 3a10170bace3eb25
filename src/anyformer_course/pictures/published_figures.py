"""Published models by date, and the lectures' charts of them, which compare the printed figures with our counts.

published.csv contains figures printed in papers: parameters N (and active parameters per token), training tokens D,
compute in FLOPs, the longest context in tokens, GLUE and SuperGLUE on the test sets. A cell is empty if the figure was
not published or is uncertain. `checked` lists figures that we compared with a source, and the source: an address, a
file of a repository, the paper itself ("paper"), another paper (its arXiv number), or model cards ("quoted")."""

from __future__ import annotations

import csv
import dataclasses
import functools
from collections.abc import Callable
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from anyformer_course.pictures.points import name_points

if TYPE_CHECKING:
    from anyformer.counting import Count

HUMANS = {"glue": 87.1, "superglue": 89.8}  # [Nangia and Bowman 2019; Wang et al. 2019]


@dataclasses.dataclass(frozen=True)
class PublishedModel:
    name: str
    date: str  # year and month of the paper
    kind: str  # encoder, decoder or encoder-decoder
    source: str
    zoo: str = ""  # its name in `anyformer zoo`
    note: str = ""
    checked: str = ""  # "parameters, context: source; tokens: source"; other figures are from `source`, unchecked
    parameters: float | None = None
    active: float | None = None  # active parameters per token; None: all
    tokens: float | None = None
    compute: float | None = None
    context: float | None = None
    glue: float | None = None
    superglue: float | None = None

    @property
    def time(self) -> float:
        """The date in years."""
        return int(self.date[:4]) + (int(self.date[5:]) - 1) / 12

    @property
    def estimate(self) -> float | None:
        """Training FLOPs as 6 N D, without the products of queries and keys [Kaplan et al. 2020]."""
        size = self.active or self.parameters
        return self.estimate_for(size) if size else None

    def estimate_for(self, size: float) -> float | None:
        """Return 6 N D, or 3 N D for an encoder-decoder: each token uses one half [Brown et al. 2020, table D.1]."""
        return (3 if self.kind == "encoder-decoder" else 6) * size * self.tokens if self.tokens else None


@functools.cache
def published_models() -> tuple[PublishedModel, ...]:
    text = {"name", "date", "kind", "source", "zoo", "note", "checked"}
    rows = csv.DictReader(files("anyformer_course.pictures").joinpath("published.csv").read_text("utf-8").splitlines())
    return tuple(
        PublishedModel(**{name: value if name in text else float(value) for name, value in row.items() if value})  # type: ignore[arg-type]
        for row in rows
    )


@functools.cache
def our_count(model: PublishedModel) -> Count:
    """Count the description in `anyformer zoo` that the row names."""
    from anyformer.counting import count
    from anyformer.families import find_description

    return count(find_description(model.zoo))


# -- charts -----------------------------------------------------------------------------------------------------------

Value = Callable[[PublishedModel], float | None]
Point = tuple[PublishedModel, float, float]  # (model, x, y)


def sizes() -> Any:
    """Draw parameters by date."""
    return _by_date(
        "parameters of published models, all experts counted",
        "parameters",
        {"published": lambda model: model.parameters},
        {"our count": lambda model: our_count(model).parameters},
    )


def compute() -> Any:
    """Draw the FLOPs of training by date."""
    return _by_date(
        "training compute (6 N D; 3 N D for an encoder-decoder)",
        "FLOPs",
        {"published": lambda model: model.compute, "6 N D": lambda model: None if model.compute else model.estimate},
        {"6 N D, our count of N": lambda model: model.estimate_for(our_count(model).active)},
    )


def context() -> Any:
    """Draw the longest context by date."""
    from anyformer.models import position_limit

    def limit(model: PublishedModel) -> float | None:
        spec = our_count(model).spec if model.context else None
        return None if spec is None else position_limit(spec)

    published: dict[str, Value] = {"published": lambda model: model.context}
    return _by_date("context length", "tokens", published, {"limit of our description": limit}, base=2)


def glue() -> Any:
    """Draw GLUE and SuperGLUE on the test sets, by date and by parameters."""
    from anyformer.look.figures import new

    figure, axes = new(2, 1, 14, 6)
    points: dict[Any, list[Point]] = {axis: [] for axis in axes[0]}
    for i, (name, label) in enumerate((("glue", "GLUE"), ("superglue", "SuperGLUE"))):
        scored = [model for model in published_models() if getattr(model, name) is not None]
        scores = [getattr(model, name) for model in scored]
        sizes = [our_count(model).parameters if model.zoo else model.parameters or 0 for model in scored]
        for axis, xs in ((axes[0, 0], [model.time for model in scored]), (axes[0, 1], sizes)):
            axis.scatter(xs, scores, s=16, color=f"C{i}", label=label)
            axis.axhline(HUMANS[name], color=f"C{i}", linewidth=0.7, linestyle=":", label=f"humans, {label}")
            points[axis] += zip(scored, xs, scores, strict=True)
    axes[0, 0].set_title("score on the test set, by date", fontsize=9)
    axes[0, 0].xaxis.get_major_locator().set_params(integer=True)
    axes[0, 0].legend(fontsize=8)
    axes[0, 1].set_title("by parameters (our count if the architecture is in the zoo)", fontsize=9)
    axes[0, 1].set_xscale("log")
    for axis, named in points.items():
        name_points(axis, [(model.name, x, y) for model, x, y in named], 5.5)
    return figure


def _by_date(title: str, unit: str, published: dict[str, Value], ours: dict[str, Value], base: int = 10) -> Any:
    """Draw a logarithmic chart: printed figures as dots, estimates from them as circles, our counts as crosses."""
    from anyformer.look.figures import new

    figure, axes = new(1, 1, 12, 8)
    axis, named = axes[0, 0], dict[PublishedModel, Point]()
    styles: list[dict[str, Any]] = [{"color": "C0"}, {"facecolors": "none", "edgecolors": "C0"}]
    crosses = {"color": "C1", "marker": "x"}
    series = [(*item, style, False) for item, style in zip(published.items(), styles, strict=False)]
    for label, value, style, zoo in (*series, *((*item, crosses, True) for item in ours.items())):
        models = (model for model in published_models() if model.zoo or not zoo)
        points = [(model, model.time, y) for model in models if (y := value(model)) is not None]
        axis.scatter([x for _, x, _ in points], [y for _, _, y in points], s=18, label=label, **style)
        named = {point[0]: point for point in points} | named
    axis.set_yscale("log", base=base)
    axis.set_ylabel(unit)
    axis.set_title(title, fontsize=10)
    axis.grid(alpha=0.3, linewidth=0.5)
    axis.legend(fontsize=8)
    name_points(axis, [(model.name, x, y) for model, x, y in named.values()], 5.5)
    return figure
