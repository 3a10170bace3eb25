"""Draw the pictures of the first page: an architecture and an attention map. Its third picture is a plot of the lab.

    python docs/images/make.py

The attention map is of the translator in the course; `anyformer lab run in-context-regression` draws the
third picture, docs/results/plots/in-context-regression.png.
"""

from __future__ import annotations

from pathlib import Path

from anyformer import cli
from anyformer.look.inputs import scene
from anyformer_course import extension, models
from anyformer_course.pictures.alignment import alignment

HERE = Path(__file__).resolve().parent
DATE = "Tuesday, 14 July 1789"


def main() -> None:
    extension.register()
    cli.dispatch(["draw", "transformer-base", "-o", str(HERE / "architecture.svg")])
    alignment(scene(str(models.folder("dates")), DATE, dtype="float32")).savefig(HERE / "attention.png", dpi=80)


if __name__ == "__main__":
    main()
