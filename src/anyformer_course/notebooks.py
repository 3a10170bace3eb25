"""Write a lesson as a notebook (nbformat 4): text cells, and one code cell per demonstration and per change.

`python -m anyformer_course.notebooks FOLDER` writes all of them, without outputs.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from anyformer_course import lesson

SETUP = "import torch\n\nimport anyformer as af\nfrom anyformer_course import Shown, Table, show"


def notebook(which: lesson.Lesson) -> dict[str, Any]:
    """Return the notebook of a lesson as JSON data."""
    head = f"# Lecture {which.number}. {which.title}\n\n{which.introduction}\n\nRun the cells from top to bottom."
    cells = [text_cell("title", head), code_cell("setup", SETUP)]
    for stop in which.stops:
        slides = ", ".join(f'"{title}"' for title in stop.slides)
        cells += [
            text_cell(f"{stop.number}-idea", f"## {stop.name} {stop.title}\n\nSlides: {slides}\n\n{stop.idea}"),
            code_cell(f"{stop.number}-show", stop.demonstration.code),
            text_cell(f"{stop.number}-see", f"**See:** {stop.see}\n\n**Try:** {stop.change}"),
            code_cell(f"{stop.number}-try", stop.changed.code),
        ]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def text_cell(name: str, text: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "id": name, "metadata": {}, "source": text.splitlines(keepends=True)}


def code_cell(name: str, code: str) -> dict[str, Any]:
    source = code.splitlines(keepends=True)
    return {"cell_type": "code", "id": name, "metadata": {}, "source": source, "execution_count": None, "outputs": []}


def write_notebook(which: lesson.Lesson, path: str | Path) -> None:
    if Path(path).suffix != ".ipynb":
        raise ValueError(f"--notebook {path}: the name must end in .ipynb")
    Path(path).write_text(json.dumps(notebook(which), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def write_all(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number in lesson.numbers():
        write_notebook(lesson.load(number), folder / f"{number}.ipynb")


if __name__ == "__main__":
    write_all(Path(sys.argv[1]))
