"""Draw the architecture of a description, in the style of "Attention is all you need": its parts, how often
they repeat, their parameters, and tied weights. Two names are drawn side by side with their differences marked.

Nothing is allocated. A .svg and a .html need nothing else; a .png needs cairosvg (pip install 'anyformer[draw]')."""

from __future__ import annotations

import argparse
from pathlib import Path

from anyformer.cli.count import check_exists, find_model
from anyformer.cli.settings import default_file, setting

THEMES = ("auto", "light", "dark")
MARK = b'class="af-'  # in every drawing of ours


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    what = "a name from `anyformer zoo`, a spec.json or run.json, or the folder of a model or a run; or two of them"
    add("names", metavar="NAME", nargs="+", help=what)
    add("-o", "--out", metavar="FILE", help="output file: .svg, .png or .html (default: NAME.svg)")
    themes = f"{', '.join(THEMES)} (auto: as the reader prefers)"
    add("--theme", metavar="NAME", default="auto", help=themes)
    add("--set", metavar="PATH=VALUE", action="append", default=[], help="set a value by its address; can be repeated")


def run(options: argparse.Namespace) -> None:
    from anyformer.specs.messages import nearest

    if options.theme not in THEMES:
        raise ValueError(f"no theme {options.theme!r}; {nearest(options.theme, THEMES)}")
    if len(options.names) > 2:
        raise ValueError(f"give one NAME, or two to draw side by side, not {len(options.names)}")
    changes = dict(map(setting, options.set))
    paths = [Path(name).expanduser() for name in options.names]
    titles = [path.resolve().name if path.exists() else str(path) for path in paths]
    out = Path(options.out or default_file(f"{'-'.join(titles)}.svg", MARK)).expanduser()

    for name in options.names:
        check_exists(name)

    from anyformer.cli.terminal import spinner

    with spinner(f"drawing {' and '.join(options.names)}"):
        from anyformer.drawing import check_ending, draw, load_cairosvg
        from anyformer.specs.codec import override

        if check_ending(out) == ".png":
            load_cairosvg()
        specs = [override(find_model(name), changes) for name in options.names]
        draw(*specs, theme=options.theme, titles=titles).save(out)
    print(out)
