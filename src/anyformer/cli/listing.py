"""Every named description in one table, so that `anyformer zoo` need not import them all to list them.

python -m anyformer.cli.listing        # writes zoo.json anew; a test says when that is due
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_name("zoo.json")


def read_rows() -> list[dict[str, Any]]:
    """The rows of the table, as they were when it was written."""
    return json.loads(TABLE.read_text())


def count_rows() -> list[dict[str, Any]]:
    """The same rows, from the descriptions themselves."""
    from anyformer import families
    from anyformer.counting import count

    return [
        {
            "name": name,
            "family": family.name,
            "parameters": count(family.read_size(name)).parameters,
            "published": size.published,
            "about": family.about,
            "note": size.note,
        }
        for family in families.catalogue().values()
        for name, size in family.sizes.items()
    ]


def write() -> None:
    TABLE.write_text("[\n" + ",\n".join(json.dumps(row) for row in count_rows()) + "\n]\n")


if __name__ == "__main__":
    write()
