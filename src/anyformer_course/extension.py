"""What the course adds to `anyformer`: commands.

pyproject.toml declares the same as entry points, which work if the distribution is installed. If the package is only on
the path, `register` does it; `python -m anyformer_course` is then the command `anyformer`.
"""

from __future__ import annotations

from anyformer.specs import extensions

COMMANDS = {"course": "anyformer_course.cli.course", "show": "anyformer_course.cli.show"}


def register() -> None:
    for name, value in COMMANDS.items():
        extensions.register("commands", value, name)
