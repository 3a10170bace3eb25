"""What the course adds to `anyformer`: commands, experiments and their results, pictures, and
generated data.

pyproject.toml declares the same as entry points, which work if the distribution is installed. If the package is only on
the path, `register` does it; `python -m anyformer_course` is then the command `anyformer`.
"""

from __future__ import annotations

from anyformer.specs import extensions

EXTENSIONS = {
    "commands": {"course": "anyformer_course.cli.course", "show": "anyformer_course.cli.show"},
    "experiments": {"course": "anyformer_course.experiments"},
    "results": {"course": "anyformer_course.results:load_result"},
    "pictures": {"course": "anyformer_course.pictures.lectures:PICTURES"},
    "data": {"course": "anyformer_course.data.origins:ORIGINS"},
}


def register() -> None:
    for group, points in EXTENSIONS.items():
        for name, value in points.items():
            extensions.register(group, value, name)
