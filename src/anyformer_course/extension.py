"""What the course adds to `anyformer`: experiments of the lab and their results, pictures, and generated data.

pyproject.toml declares the same as entry points, which work if the distribution is installed. If the package is only on
the path, `register` does it; `python -m anyformer_course` is then the command `anyformer`.
"""

from __future__ import annotations

from anyformer.specs import extensions

EXTENSIONS = {
    "experiments": "anyformer_course.experiments",
    "results": "anyformer_course.results:stored",
    "pictures": "anyformer_course.pictures.lectures:PICTURES",
    "data": "anyformer_course.data.origins:ORIGINS",
}


def register() -> None:
    for group, value in EXTENSIONS.items():
        extensions.register(group, value)
