"""A real browser for the tests of pages, if one is installed."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
PATIENCE = 200_000  # milliseconds: a browser on a busy machine may be slow


@contextlib.contextmanager
def opened(address: str | Path, *, scheme: str = "light", width: int = 1480) -> Iterator[tuple[Any, list[str]]]:
    """Open a page at an address or in a file; yield it and a list of its errors and its requests to other servers."""
    if CHROMIUM is None:
        pytest.skip("needs chromium (Debian's package of that name)")
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    url = address.as_uri() if isinstance(address, Path) else address
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=PATIENCE)
        page = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900}).new_page()
        page.set_default_timeout(PATIENCE)
        wrong: list[str] = []
        page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", lambda dialog: (wrong.append(f"dialog {dialog.message}"), dialog.dismiss()))
        home = url.split("/api")[0].rstrip("/")
        here = (home, "data:")
        page.on("request", lambda request: None if request.url.startswith(here) else wrong.append(request.url))
        try:
            page.goto(url)
            yield page, wrong
        finally:
            browser.close()
