"""`python -m anyformer_course ...` is `anyformer ...` for a checkout that is not installed."""

import sys

from anyformer.cli import main
from anyformer_course.extension import register

if __name__ == "__main__":
    register()
    sys.exit(main())
