"""Drawings of architectures from their descriptions, in the style of [Vaswani et al. 2017]: the stream runs from bottom
to top, norms are drawn where they are applied, and each box shows the kind of its Part and its number of parameters.

    part_labels      name and phrases of a Part      text_width   width of text
    outline_reader   description to outline          outline      the contents of a picture
    compose          outline to figure               figure       shapes and how they combine
    cards            the box of one Part             svg          figure to SVG
    flow             the length of the stream        compare      two outlines side by side
"""

from __future__ import annotations

import dataclasses
import functools
import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from anyformer.checkpoint import spec as find
from anyformer.counting import count
from anyformer.drawing.compare import side_by_side
from anyformer.drawing.compose import draw_outline
from anyformer.drawing.figure import Figure
from anyformer.drawing.outline import ModelOutline
from anyformer.drawing.outline_reader import read
from anyformer.drawing.svg import THEMES, Theme, to_svg
from anyformer.models import Model, TransformerModule
from anyformer.specs.messages import nearest

ENDINGS = (".svg", ".png", ".html")


@dataclasses.dataclass(frozen=True)
class Drawing:
    """A drawing of one or two models. Notebooks display it."""

    title: str
    figure: Figure = dataclasses.field(repr=False)
    theme: Theme = "auto"

    @functools.cached_property
    def svg(self) -> str:
        return to_svg(self.figure, self.title, self.theme)

    @property
    def html(self) -> str:
        """The picture as an HTML page."""
        css = "body{margin:0;display:grid;place-items:center;min-height:100vh}svg{max-width:100%;max-height:100vh}"
        scheme = {"auto": "light dark"}.get(self.theme, self.theme)
        return (
            f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{html.escape(self.title)}</title>\n'
            f"<style>:root{{color-scheme:{scheme}}}{css}</style>\n{self.svg}</html>\n"
        )

    def save(self, path: str | Path) -> None:
        """Save the picture as .svg, .png or .html, depending on the suffix of `path`."""
        ending = check_ending(path)
        if ending == ".png":
            Path(path).write_bytes(self.png())
        else:
            Path(path).write_text(self.html if ending == ".html" else self.svg, encoding="utf-8")

    def png(self, scale: float = 2) -> bytes:
        """Return the picture as PNG, with `scale` pixels per unit. Needs cairosvg."""
        cairosvg = load_cairosvg()
        theme: Theme = "light" if self.theme == "auto" else self.theme  # a PNG has one theme
        return cairosvg.svg2png(to_svg(self.figure, self.title, theme).encode(), scale=scale)

    def _repr_svg_(self) -> str:
        return self.svg


def draw(*models: Any, theme: Theme = "auto", titles: Sequence[str] = ()) -> Drawing:
    """Draw one model, or two side by side with their differences marked. Each is a description or a model, or the name,
    file or folder of one."""
    if theme not in THEMES:
        raise ValueError(f"no theme {theme!r}; {nearest(str(theme), THEMES)}")
    if not 1 <= len(models) <= 2:
        raise ValueError(f"draw takes one or two models, not {len(models)}")
    outlines = [outline(model, title) for model, title in zip(models, (*titles, "", ""))]
    figure = draw_outline(outlines[0]) if len(outlines) == 1 else side_by_side(*outlines)
    return Drawing(" and ".join(each.title for each in outlines), figure, theme)


def outline(model: Any, title: str = "") -> ModelOutline:
    if isinstance(model, (str, Path)):
        title = title or (Path(model).resolve().name if Path(model).exists() else str(model))
        model = find(model)
    spec = model.spec if isinstance(model, TransformerModule) else model
    if not isinstance(spec, Model):
        raise ValueError(f"cannot draw an object of type {type(model).__name__}; give a description, a model or a name")
    return read(spec, title or spec.architecture or spec.family or type(spec).__name__, count(spec))


def check_ending(path: str | Path) -> str:
    """Return the suffix of `path`; raise if it is not .svg, .png or .html."""
    ending = Path(path).suffix.lower()
    if ending not in ENDINGS:
        raise ValueError(f"{path}: the name of a drawing must end in {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}")
    return ending


def load_cairosvg() -> Any:
    """Import cairosvg, which converts SVG to PNG."""
    try:
        import cairosvg
    except (ImportError, OSError) as error:  # OSError: the C library cairo is missing
        why = "" if isinstance(error, ImportError) else f" ({str(error).splitlines()[0]})"
        raise ValueError(f"a .png needs cairosvg: pip install 'anyformer[draw]'{why}; .svg and .html do not") from None
    return cairosvg
