"""The documentation and the library of the running Python, as text files."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np

from anyformer.data.text_files import PythonDocs

Progress = Callable[[int, int], object]


def write_texts(
    folder: Path,
    seed: int,
    progress: Progress,
    library: bool = True,
    folders: tuple[str, ...] = (".",),
    most: int | None = None,
) -> None:
    """Write one file per topic and, with `library`, per module, at most `most`, randomly distributed over `folders`."""
    rows = itertools.islice(PythonDocs(library=library).raw(), most)
    texts = [row.example["text"] for row in rows if row.example is not None]
    which = np.random.default_rng(seed).permutation(len(texts)) % len(folders)
    for name in folders:
        (folder / name).mkdir(exist_ok=True)
    for number, (text, i) in enumerate(zip(texts, which.tolist(), strict=True)):
        (folder / folders[i] / f"{number:05}.txt").write_text(text, "utf-8")
        progress(number + 1, len(texts))
