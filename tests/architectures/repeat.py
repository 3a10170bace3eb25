"""Check one description from standard input: python -m architectures.repeat [LINE ...] < spec.json"""

from __future__ import annotations

import json
import sys
import tempfile
import traceback
from pathlib import Path

from anyformer.specs.codec import decode
from anyformer.specs.part import tree
from architectures.lines import LINES, check, excused

if __name__ == "__main__":
    spec = decode({name: value for name, value in json.load(sys.stdin).items() if name != "anyformer"})
    print(tree(spec))
    for line in sys.argv[1:] or LINES:
        try:
            with tempfile.TemporaryDirectory() as folder:
                check(line, spec, Path(folder))
            print(line, "holds")
        except Exception:
            print(line, "excused:" if line in excused(spec) else "broken:")
            traceback.print_exc()
