"""Files on the web whose content must match a published SHA-256."""

from __future__ import annotations

import dataclasses
import hashlib
import http.client
import urllib.request


@dataclasses.dataclass(frozen=True)
class WebFile:
    """The URL of a file and the SHA-256 of its content. `read` raises unless the content matches."""

    url: str
    sha256: str

    def read(self) -> bytes:
        try:
            with urllib.request.urlopen(self.url, timeout=60) as answer:
                content: bytes = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise ConnectionError(f"{self.url} cannot be reached: {error}") from None
        digest = hashlib.sha256(content).hexdigest()
        if digest != self.sha256:
            raise ValueError(f"{self.url} has changed: its SHA-256 is {digest}, not the published {self.sha256}")
        return content
