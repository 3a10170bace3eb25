"""`python -m anyformer`, the same as `anyformer`."""

from anyformer.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
