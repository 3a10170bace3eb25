"""Files of the web that are stored as they are published."""

from __future__ import annotations

import dataclasses
import hashlib
import http.client
import urllib.request


@dataclasses.dataclass(frozen=True)
class WebFile:
    """A file by its address and the SHA-256 of its content: it is read whole and unchanged, or not at all."""

    url: str
    sha256: str

    def read(self) -> bytes:
        try:
            with urllib.request.urlopen(self.url, timeout=60) as answer:
                content: bytes = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise ConnectionError(f"{self.url} cannot be reached: {error}") from None
        found = hashlib.sha256(content).hexdigest()
        if found != self.sha256:
            raise ValueError(f"{self.url} is not what was published: its SHA-256 is {found}, not {self.sha256}")
        return content
