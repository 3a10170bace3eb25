"""Convert figures to SVG: plain shapes, system fonts, light and dark themes."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping
from typing import Literal, get_args

from anyformer.drawing.figure import ARROW, PLUS, Box, Figure, FigureText, Mark, Plus, Point, Polyline

FONTS = "'Helvetica Neue',Helvetica,Arial,'Liberation Sans','DejaVu Sans',sans-serif"
MARGIN = 28.0
COLORED = ("skip", "memory", "tie", "bias")  # lines with their own color
Theme = Literal["auto", "light", "dark"]
THEMES: tuple[Theme, ...] = get_args(Theme)

# role -> "fill edge", or one color
LIGHT = {
    "ground": "#ffffff", "ink": "#1d2430", "faint": "#5a6473", "wire": "#2b3442", "skip": "#6b7686",
    "differs": "#c2185b", "memory": "#b4560e", "tie": "#8a5cc2", "bias": "#4d7f8f",
    "input": "#ffffff #9aa4b2", "embedding": "#fbe3e6 #c9808b", "position": "#e3f1f4 #6fa5b3",
    "norm": "#fbf6d3 #c7b654", "mixer": "#fde7cf #d79a4e", "cross": "#fbd3b4 #c9732b",
    "feedforward": "#dbeaf9 #6a9bd1", "experts": "#e4f0dd #7fae67", "router": "#ffffff #7fae67",
    "expert": "#ffffff #a9bfa0", "expert on": "#a5d18c #4f8a35", "head": "#e9e2f6 #9a81c9", "stack": "#eef1f5 #8a96a6",
    "resize": "#e9ecef #939ca8", "row": "rgba(255,255,255,.6) rgba(0,0,0,.2)",
    "frame": "#f7f8fa #a8b1bd", "panel": "#ffffff #c3cad3",
    "kind0": "#4878a8 #4878a8", "kind1": "#d98b3a #d98b3a", "kind2": "#5f9e58 #5f9e58", "kind3": "#a35fa3 #a35fa3",
    "kind4": "#b04a4a #b04a4a", "kind5": "#6f8f93 #6f8f93",
}  # fmt: skip
DARK = {
    "ground": "#14181f", "ink": "#eef1f5", "faint": "#a3adba", "wire": "#d5dbe3", "skip": "#98a3b1",
    "differs": "#ff8ab5", "memory": "#f0a35e", "tie": "#c3a1f0", "bias": "#8cc3d2",
    "input": "#1c222b #76808e", "embedding": "#4a2a30 #c9808b", "position": "#1f3a42 #6fa5b3",
    "norm": "#3f3a16 #b9a94c", "mixer": "#4b3417 #d79a4e", "cross": "#5a3212 #dd8a45",
    "feedforward": "#1d3550 #6a9bd1", "experts": "#24381b #7fae67", "router": "#14181f #7fae67",
    "expert": "#14181f #6d8263", "expert on": "#4f8a35 #a5d18c", "head": "#362b4d #9a81c9", "stack": "#262d37 #8a96a6",
    "resize": "#2b313a #939ca8", "row": "rgba(0,0,0,.25) rgba(255,255,255,.2)",
    "frame": "#1a1f27 #566070", "panel": "#14181f #48515e",
    "kind0": "#6ea0d2 #6ea0d2", "kind1": "#e9a55c #e9a55c", "kind2": "#7fbf77 #7fbf77", "kind3": "#c588c5 #c588c5",
    "kind4": "#d67676 #d67676", "kind5": "#93b3b7 #93b3b7",
}  # fmt: skip


def rules(colors: Mapping[str, str], scope: str) -> str:
    """Return the style sheet of one theme, limited to the class `scope` because a page can have several drawings."""
    styles = {
        "text": f"font:15px {FONTS};fill:{colors['ink']}",
        ".note": f"fill:{colors['faint']}",
        ".shape": f"fill:{colors['faint']};font-style:italic",
        ".differs": f"fill:{colors['differs']}",
        ".ground": f"fill:{colors['ground']}",
        ".line": f"fill:none;stroke:{colors['wire']};stroke-width:1.8",
        ".plus": f"fill:{colors['ground']};stroke:{colors['wire']};stroke-width:1.8",
        ".line.fan": f"stroke:{colors['expert'].split()[1]};stroke-width:1.2",
        ".line.fan.on": f"stroke:{colors['expert on'].split()[1]};stroke-width:2",
        ".line.either": "stroke-dasharray:6 4",
        ".line.zoom": f"stroke:{colors['skip']};stroke-width:1;stroke-dasharray:3 4",
    }
    dashes = {"memory": ";stroke-width:2.4", "tie": ";stroke-dasharray:2 5", "bias": ";stroke-dasharray:6 4"}
    for kind in COLORED:
        styles[f".line.{kind}"] = f"stroke:{colors[kind]}{dashes.get(kind, '')}"
    for kind in ("wire", *COLORED):
        styles[f".head-{kind}"] = f"fill:{colors[kind]}"
    for role, pair in colors.items():
        fill, _, edge = pair.partition(" ")
        if edge:
            styles[f".{role.replace(' ', '.')} > rect"] = f"fill:{fill};stroke:{edge}"
    styles[".changed > rect"] = f"stroke:{colors['differs']};stroke-width:2.5"
    return "".join(f".{scope} {name}{{{css}}}" for name, css in styles.items())


def style(theme: Theme) -> str:
    scope = f"af-{theme}"
    if theme == "auto":
        return f"{rules(LIGHT, scope)}@media (prefers-color-scheme:dark){{{rules(DARK, scope)}}}"
    return rules(DARK if theme == "dark" else LIGHT, scope)


def to_svg(figure: Figure, title: str, theme: Theme = "auto") -> str:
    """Return the figure as one self-contained SVG picture."""
    width, height = figure.width + 2 * MARGIN, figure.height + 2 * MARGIN
    size = f'width="{number(width)}" height="{number(height)}" viewBox="0 0 {number(width)} {number(height)}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="af-{theme}" role="img" {size}>',
        f"<title>{html.escape(title)}</title><style>{style(theme)}</style>",
        f'<rect class="ground" width="{number(width)}" height="{number(height)}"/>',
    ]
    marks = [mark.shift(MARGIN, MARGIN) for mark in figure.marks]
    marks.sort(key=lambda mark: ORDER.index(layer(mark)))  # frames are below lines, and lines are below cards
    return "\n".join([*lines, *(line for mark in marks for line in shape(mark)), "</svg>\n"])


ORDER = ("frame", "panel", "line", "card", "fan", "inner", "plus", "words")


def layer(mark: Mark) -> str:
    if isinstance(mark, Box):
        kind = mark.kind.split()[0]
        return kind if kind in ORDER else "inner" if kind in ("router", "expert", "row") else "card"
    if isinstance(mark, Polyline):
        return "fan" if mark.kind.startswith("fan") else "line"
    return "plus" if isinstance(mark, Plus) else "words"


def shape(mark: Mark) -> Iterator[str]:
    if isinstance(mark, Box):
        tip = f"<title>{html.escape(mark.tip)}</title>" if mark.tip else ""
        sides = {"x": mark.x, "y": mark.y, "width": mark.width, "height": mark.height, "rx": mark.radius}
        size = " ".join(f'{name}="{number(value)}"' for name, value in sides.items())
        yield f'<g class="box {mark.kind}">{tip}<rect {size}/>{"".join(map(words, mark.words))}</g>'
    elif isinstance(mark, FigureText):
        yield words(mark)
    elif isinstance(mark, Plus):
        x, y, r = number(mark.x), number(mark.y), number(PLUS)
        yield f'<circle class="plus" cx="{x}" cy="{y}" r="{r}"/>'
        yield f'<path class="line" d="M{number(mark.x - 6)} {y}h12M{x} {number(mark.y - 6)}v12"/>'
    else:
        yield from line(mark)


def words(mark: FigureText) -> str:
    style = "" if mark.size == 15 else f"font-size:{number(mark.size)}px;"
    style += "font-weight:bold" if mark.bold else ""
    css = f' style="{style}"' if style else ""
    anchor = "" if mark.anchor == "start" else f' text-anchor="{mark.anchor}"'
    at = f'x="{number(mark.x)}" y="{number(mark.y)}"'
    kinds = {kind for _, kind in mark.spans}
    if len(kinds) == 1:
        kind = f' class="{kinds.pop()}"' if kinds != {""} else ""
        return f"<text {at}{anchor}{kind}{css}>{html.escape(''.join(span for span, _ in mark.spans))}</text>"
    texts = [(html.escape(span), kind) for span, kind in mark.spans]
    spans = "".join(f'<tspan class="{kind}">{span}</tspan>' if kind else span for span, kind in texts)
    return f'<text xml:space="preserve" {at}{anchor}{css}>{spans}</text>'


def line(mark: Polyline, radius: float = 8) -> Iterator[str]:
    """Yield a path with round corners. The arrowhead is a separate triangle: not every SVG viewer draws markers."""
    points = [*mark.points]
    if mark.arrow:
        (x, y), (px, py) = points[-1], points[-2]
        length = max(abs(x - px), abs(y - py), 1e-6)
        dx, dy = (x - px) / length, (y - py) / length
        points[-1] = (x - dx * ARROW * 0.8, y - dy * ARROW * 0.8)
        ends = [
            (x, y),
            (x - dx * ARROW - dy * 4.6, y - dy * ARROW + dx * 4.6),
            (x - dx * ARROW + dy * 4.6, y - dy * ARROW - dx * 4.6),
        ]
        kind = mark.kind if mark.kind in COLORED else "wire"
        yield f'<path class="head-{kind}" d="M{"L".join(pair(p) for p in ends)}z"/>'
    path = f"M{pair(points[0])}"
    for before, corner, after in zip(points, points[1:], points[2:], strict=False):
        path += f"L{pair(toward(corner, before, radius))}Q{pair(corner)} {pair(toward(corner, after, radius))}"
    kind = "" if mark.kind == "wire" else f" {mark.kind}"
    yield f'<path class="line{kind}" d="{path}L{pair(points[-1])}"/>'


def toward(corner: Point, other: Point, radius: float) -> Point:
    """Return the point on the way from `corner` to `other` at distance `radius`, or half way if that is nearer."""
    dx, dy = other[0] - corner[0], other[1] - corner[1]
    length = max((dx * dx + dy * dy) ** 0.5, 1e-6)
    share = min(radius / length, 0.5)
    return corner[0] + dx * share, corner[1] + dy * share


def pair(point: Point) -> str:
    return f"{number(point[0])} {number(point[1])}"


def number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
