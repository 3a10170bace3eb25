"""Look inside a model while it reads: `anyformer look MODEL INPUT`.

INPUT is a text, or the file of a picture or a recording for models that read those. The page shows the predictions at
every position, attention, the residual stream (logit lens), and the effect of changes inside the model on a
prediction. It is one self-contained file (-o), or with --serve a page on this machine that computes on demand."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Mapping
from typing import Any

from anyformer.cli import Mistake
from anyformer.cli.generate import DTYPES
from anyformer.cli.settings import MODEL, default_file, device_flag
from anyformer.look.picture import Picture
from anyformer.look.picture import pictures as find_pictures
from anyformer.specs.messages import nearest

PORT = 8017
MARK = b"anyformer"  # in the first bytes of every page and picture that we write
READS = {"text": "reads texts", "image": "reads images", "sound": "reads recordings"}


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", metavar="MODEL", nargs="?", help=MODEL)
    add("input", metavar="INPUT", nargs="?", help="a text, or the file of a picture or a recording")
    add("-o", "--output", metavar="PAGE.html", help="file of the page (default: look.html)")
    add("--other", metavar="INPUT", help="a second text, whose activations can be patched into the first")
    add("--target", metavar="TEXT", help="text for the decoder of an encoder-decoder model")
    add("--serve", action="store_true", help="serve the page on this machine instead of writing a file")
    add("--port", type=int, metavar="N", help=f"port of --serve (default: {PORT})")
    add("--picture", metavar="NAME", help="draw one of the figures in --list as PNG, SVG or PDF, instead of a page")
    add("--list", action="store_true", help="list the figures for --picture")
    add("--dtype", metavar="NAME", default="auto", help=f"{', '.join(DTYPES)}")
    device_flag(parser)
    add("--offline", action="store_true", help="do not use the network; read only local folders and the cache")


def run(options: argparse.Namespace) -> None:
    pictures: Mapping[str, Picture] = {}
    if options.list or options.picture is not None:
        pictures = find_pictures()
    if options.list:
        print("\n".join(f"{name:10} {picture.about}" for name, picture in pictures.items()))
        return
    check(options, pictures)
    if options.picture is not None and not pictures[options.picture].needs:
        draw(pictures[options.picture].draw(), options)
        return

    from anyformer.cli.terminal import spinner

    with spinner(f"reading {options.model}"):
        from anyformer.kernels import hardware
        from anyformer.look.inputs import blueprint, scene

        if options.picture is not None and pictures[options.picture].bare:
            shown = blueprint(options.model, options.input, offline=options.offline)
        else:
            shown = scene(
                options.model,
                options.input,
                other=options.other,
                target=options.target,
                device=hardware.device(options.device),
                dtype=options.dtype,
                offline=options.offline,
            )
    if options.picture is not None:
        needs = pictures[options.picture].needs
        if needs != shown.reads and not (needs == "text" and shown.model.spec.pair):
            raise ValueError(f"--picture {options.picture} needs a model that {READS[needs]}")
        draw(pictures[options.picture].draw(shown), options)
    elif options.serve:
        serve(shown, PORT if options.port is None else options.port)
    else:
        save(shown, options.output)


def check(options: argparse.Namespace, pictures: Mapping[str, Any]) -> None:
    """Raise errors that can be found before the model is loaded."""
    if options.picture is not None and options.picture not in pictures:
        raise ValueError(f"no picture {options.picture!r}; {nearest(options.picture, pictures)}")
    without_model = options.picture is not None and not pictures[options.picture].needs
    if without_model and options.model is not None:
        raise Mistake(f"--picture {options.picture} needs no model")
    bare = options.picture is not None and pictures[options.picture].bare
    if not without_model and (options.model is None or (options.input is None and not bare)):
        given = "MODEL, and optionally an image" if bare else "MODEL and INPUT"
        raise Mistake(f"give {given} (see `anyformer look --help`)")
    if options.dtype not in DTYPES:
        raise ValueError(f"no dtype {options.dtype!r}; {nearest(options.dtype, DTYPES)}")
    if options.serve and options.output is not None:
        raise Mistake("give -o FILE or --serve, not both")
    if options.port is not None and not options.serve:
        raise Mistake("--port needs --serve")
    if options.port is not None and not 0 <= options.port < 2**16:
        raise ValueError(f"--port is {options.port}; it must be from 0 to 65535")
    if options.output is not None and os.path.isdir(options.output):
        raise ValueError(f"{options.output} is a folder; give the name of a file")


def draw(figure: Any, options: argparse.Namespace) -> None:
    file = options.output or default_file(f"{options.picture}.png", MARK)
    if not file.endswith((".png", ".svg", ".pdf")):
        raise ValueError(f"{file}: a picture is .png, .svg or .pdf")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # matplotlib's font lacks some scripts
        figure.savefig(file, dpi=130, metadata={"Software": "anyformer"} if file.endswith(".png") else None)
    print(file)


def save(shown: Any, output: str | None) -> None:
    from anyformer.cli.terminal import spinner
    from anyformer.look.page import all_views, render_page
    from anyformer.look.views import Inside

    with spinner("looking"):
        page = render_page(all_views(Inside(shown)))
    file = output or default_file("look.html", MARK)
    with open(file, "w", encoding="utf-8") as out:
        out.write(page)
    print(file)


def serve(shown: Any, port: int) -> None:
    from anyformer.look.serve import Server

    server = Server(shown, port)
    print(server.address, flush=True)
    print("stop with Ctrl-C", file=sys.stderr)
    try:
        server.serve_forever()
    finally:
        server.server_close()
