"""Write one long text from the sources of the installed Python packages, for experiments that need more text than the
standard library: python benchmarks/packages_text.py FILE [--megabytes 60]

Files are in a random but reproducible order, without tests. Repeated paragraphs (licences, copies) are left out.
"""

from __future__ import annotations

import argparse
import hashlib
import sysconfig
from pathlib import Path

LEFT_OUT = {"test", "tests", "testing", "transformers", "__pycache__"}  # the models of transformers repeat each other


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--megabytes", type=float, default=60.0)
    options = parser.parse_args()
    root = Path(sysconfig.get_paths()["purelib"])
    files = [path for path in root.rglob("*.py") if LEFT_OUT.isdisjoint(path.relative_to(root).parts)]
    files.sort(key=lambda path: hashlib.sha256(str(path.relative_to(root)).encode()).digest())
    seen, size = set[int](), 0
    with options.file.open("w", encoding="utf-8") as out:
        for path in files:
            for paragraph in path.read_text("utf-8", errors="ignore").split("\n\n"):
                text = paragraph.strip("\n")
                if text.strip() and hash(text) not in seen:
                    seen.add(hash(text))
                    size += out.write(text + "\n\n")
            if size > options.megabytes * 1e6:
                break
    print(f"{options.file}: {size / 1e6:.1f} million characters, {len(seen):,} paragraphs")


if __name__ == "__main__":
    main()
