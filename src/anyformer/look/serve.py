"""The page over HTTP, for this machine alone: what a view needs is computed when it asks."""

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
LARGEST = 1_000_000  # bytes of a question


class Server(ThreadingHTTPServer):
    """One model and the run that is looked at; questions are answered one after another."""

    daemon_threads = True

    def __init__(self, scene: Scene, port: int) -> None:
        self.inside, self.lock = Inside(scene), threading.Lock()
        try:
            super().__init__((HOST, port), Handler)
        except OSError as error:
            raise ValueError(f"port {port} cannot be used ({error.strerror}); give another with --port") from None
        self.hosts = {f"{name}:{self.server_port}" for name in (HOST, "localhost")}

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away in the middle of an answer is no error."""
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
        """What a view asked, or in {"why": ...} why there is no answer."""
        if name not in ANSWERS:
            raise KeyError(f"no question {quote(name)}; {nearest(name, ANSWERS)}")
        with self.lock:
            try:
                return ANSWERS[name](self, question)
            except (ValueError, TypeError, LookupError) as error:
                return {"why": str(error)}

    def write(self, question: Data) -> Data:
        self.inside = self.inside.longer(int(question["position"]), int(question["number"]))
        return self.inside.opening()


def whole_numbers(given: Any) -> list[int] | None:
    if given is None:
        return None
    if not isinstance(given, list) or not all(isinstance(i, int) for i in given):
        raise ValueError("give whole numbers, with commas between them")
    return given


ANSWERS: dict[str, Callable[[Server, Data], Data]] = {
    "write": lambda server, asked: server.write(asked),
    "lens": lambda server, asked: server.inside.lens(whole_numbers(asked["positions"]) or []),
    "contributions": lambda server, asked: server.inside.contributions(
        whole_numbers(asked["positions"]) or [], asked.get("token")
    ),
    "neurons": lambda server, asked: server.inside.neurons(whole_numbers(asked["positions"]) or [], asked.get("token")),
    "change": lambda server, asked: server.inside.change(
        str(asked["at"]),
        str(asked["action"]),
        whole_numbers(asked.get("heads")),
        whole_numbers(asked.get("positions")),
        float(asked.get("scale") or 0.0),
        int(asked.get("place", -1)),
    ),
    "table": lambda server, asked: server.inside.table(str(asked["by"]), int(asked.get("place", -1))),
    "heads": lambda server, asked: server.inside.head_kinds(),
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
                asked = dict(urllib.parse.parse_qsl(path.query))
                self.send(200, self.server.map(int(asked["map"]), int(asked["head"])), "application/octet-stream")
            except (ValueError, LookupError) as error:
                self.send(400, f"no such map: {error}".encode(), "text/plain; charset=utf-8")
        else:
            self.send(404, b"not found", "text/plain; charset=utf-8")

    def do_POST(self) -> None:
        """Questions are JSON: another site's form cannot send that without being asked first, and is refused."""
        size = self.headers.get("Content-Length", "")
        if not self.is_local():
            return
        if self.headers.get_content_type() != "application/json" or not size.isdecimal() or int(size) > LARGEST:
            self.close_connection = True
            return self.send(400, b"a question is JSON", "text/plain; charset=utf-8")
        try:
            question = json.loads(self.rfile.read(int(size)))
            if not isinstance(question, dict):
                raise ValueError("a question is a JSON object")
            found = self.server.answer(urllib.parse.urlsplit(self.path).path.removeprefix("/api/"), question)
        except (ValueError, KeyError, RecursionError) as error:
            return self.send(400, json.dumps({"why": str(error)}).encode(), "application/json")
        self.send(200, json.dumps(found, ensure_ascii=False).encode(), "application/json")

    def is_local(self) -> bool:
        """A name that someone else pointed at this machine is no name of ours."""
        if self.headers.get("Host") in self.server.hosts:
            return True
        self.close_connection = True
        self.send(403, b"this page is only for this machine", "text/plain; charset=utf-8")
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
