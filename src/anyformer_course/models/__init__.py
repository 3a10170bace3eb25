"""Two small models that come with the course: `load("docs")` and `load("dates")`.

`docs` is a GPT that was trained on the topics of Python's documentation. `dates` is the encoder-decoder of 2017; it
translates dates to ISO form. `python -m anyformer_course.models NAME` trains and writes one of them; README.md has the
figures.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from anyformer.specs.messages import nearest, quote

NAMES = ("docs", "dates")


def folder(name: str) -> Path:
    """Return the folder of a model: description, half-precision weights and tokenizer."""
    if name not in NAMES:
        raise ValueError(f"the course has no model {quote(name)}; {nearest(name, NAMES)}")
    return Path(__file__).with_name(name)


def load(name: str) -> tuple[Any, Any]:
    """Return a model in float32 and its processor."""
    import anyformer as af

    return af.load(folder(name), dtype="float32"), af.processor(folder(name))
