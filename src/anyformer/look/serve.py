"""Serve the page over HTTP to this machine only. The data of a view are computed on demand."""

from __future__ import annotations

import json
import sys
import threading
import urllib.parse
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from anyformer.look.page import render_page
from anyformer.look.views import Data, Inside, Scene
from anyformer.specs.messages import nearest, quote

HOST = "127.0.0.1"
MAX_BYTES = 1_000_000  # size of a request


class Server(ThreadingHTTPServer):
    """Serves one model and one run. Requests are answered one after another."""

    daemon_threads = True

    def __init__(self, scene: Scene, port: int) -> None:
        self.inside, self.lock = Inside(scene), threading.Lock()
        try:
            super().__init__((HOST, port), Handler)
        except OSError as error:
            raise ValueError(f"port {port} cannot be used ({error.strerror}); choose another with --port") from None
        self.hosts = {f"{name}:{self.server_port}" for name in (HOST, "localhost")}

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore browsers that disconnect in the middle of an answer."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.server_port}/"

    def page(self) -> str:
        with self.lock:
            return render_page(self.inside.opening(), served=True)

    def map(self, index: int, head: int) -> bytes:
        with self.lock:
            maps = self.inside.weights(index)
        if not 0 <= head < len(maps):
            raise ValueError(f"no head {head}; there are {len(maps)}")
        return maps[head].contiguous().numpy().tobytes()

    def answer(self, name: str, question: Data) -> Data:
        """Return the data for a view, or {"why": ...} with the reason why there are none."""
        if name not in ANSWERS:
            raise KeyError(f"no view {quote(name)}; {nearest(name, ANSWERS)}")
        with self.lock:
            try:
                return ANSWERS[name](self, question)
            except (ValueError, TypeError, LookupError) as error:
                return {"why": str(error)}

    def write(self, question: Data) -> Data:
        self.inside = self.inside.longer(int(question["position"]), int(question["number"]))
        return self.inside.opening()


def whole_numbers(value: Any) -> list[int] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(i, int) for i in value):
        raise ValueError("give whole numbers separated by commas")
    return value


ANSWERS: dict[str, Callable[[Server, Data], Data]] = {
    "write": lambda server, question: server.write(question),
    "lens": lambda server, question: server.inside.lens(whole_numbers(question["positions"]) or []),
    "contributions": lambda server, question: server.inside.contributions(
        whole_numbers(question["positions"]) or [], question.get("token")
    ),
    "neurons": lambda server, question: server.inside.neurons(
        whole_numbers(question["positions"]) or [], question.get("token")
    ),
    "change": lambda server, question: server.inside.change(
        str(question["at"]),
        str(question["action"]),
        whole_numbers(question.get("heads")),
        whole_numbers(question.get("positions")),
        float(question.get("scale") or 0.0),
        int(question.get("place", -1)),
    ),
    "table": lambda server, question: server.inside.table(str(question["by"]), int(question.get("place", -1))),
    "heads": lambda server, question: server.inside.head_kinds(),
}


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = urllib.parse.urlsplit(self.path)
        if not self.is_local():
            return
        if path.path == "/":
            self.send(200, self.server.page().encode(), "text/html; charset=utf-8")
        elif path.path == "/api/map":
            try:
                query = dict(urllib.parse.parse_qsl(path.query))
                self.send(200, self.server.map(int(query["map"]), int(query["head"])), "application/octet-stream")
            except (ValueError, LookupError) as error:
                self.send(400, f"no such map: {error}".encode(), "text/plain; charset=utf-8")
        else:
            self.send(404, b"not found", "text/plain; charset=utf-8")

    def do_POST(self) -> None:
        """Accept only JSON: a browser does not let other sites send JSON without permission."""
        size = self.headers.get("Content-Length", "")
        if not self.is_local():
            return
        if self.headers.get_content_type() != "application/json" or not size.isdecimal() or int(size) > MAX_BYTES:
            self.close_connection = True
            return self.send(400, b"the request must be JSON", "text/plain; charset=utf-8")
        try:
            question = json.loads(self.rfile.read(int(size)))
            if not isinstance(question, dict):
                raise ValueError("the request must be a JSON object")
            answer = self.server.answer(urllib.parse.urlsplit(self.path).path.removeprefix("/api/"), question)
        except (ValueError, KeyError, RecursionError) as error:
            return self.send(400, json.dumps({"why": str(error)}).encode(), "application/json")
        self.send(200, json.dumps(answer, ensure_ascii=False).encode(), "application/json")

    def is_local(self) -> bool:
        """Refuse requests with a foreign host name (DNS rebinding)."""
        if self.headers.get("Host") in self.server.hosts:
            return True
        self.close_connection = True
        self.send(403, b"this page can only be opened on this machine", "text/plain; charset=utf-8")
        return False

    def send(self, code: int, body: bytes, kind: str) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *message: Any) -> None:
        pass
