"""Commands run in the tests' own process."""

from __future__ import annotations

import pytest

from anyformer import cli
from terminals import Run


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest) -> Run:
    """Run `anyformer VERB ...`, with the VERB of the test's module; return the exit code, stdout and stderr."""
    verb = getattr(request.module, "VERB", ())

    def call(*arguments: object) -> tuple[int, str, str]:
        code = cli.main([*verb, *map(str, arguments)])
        return code, *capsys.readouterr()

    return call
