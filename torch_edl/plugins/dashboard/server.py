"""The HTTP server of the page, on the loopback address."""

from __future__ import annotations

import contextlib
import json
import sys
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from torch_edl.errors import EdlError, UsageError
from torch_edl.plugins.dashboard import page
from torch_edl.plugins.dashboard.access import HEADERS, Access
from torch_edl.plugins.dashboard.view import View

_JSON = "application/json"
# Seconds that a connection may be idle; a visible page sends a request every second.
_IDLE_S = 30.0
_MOST_NUMBER = 2**53
_QUERY_CHARS = 200


class PageServer(ThreadingHTTPServer):
    """Serves the page of a job on 127.0.0.1; works only while a browser sends requests.

    Args:
        port: port to listen on; 0 for a free one.

    Raises:
        UsageError: the port cannot be used.
    """

    daemon_threads = True

    def __init__(self, view: View, port: int = 0) -> None:
        try:
            super().__init__(("127.0.0.1", port), _Handler)
        except (OSError, OverflowError) as error:
            raise UsageError(
                f"--port {port}: {error}; choose another, or leave it out for a free one"
            ) from error
        self.view = view
        self.access = Access(self.server_port)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print the traceback of a request, unless the browser has closed its connection."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        """Address of the page, with the token."""
        return f"http://127.0.0.1:{self.server_port}/?token={self.access.token}"


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    protocol_version = "HTTP/1.1"
    timeout = _IDLE_S
    server_version = "torch-edl"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer a request of a browser."""
        access, url = self.server.access, urlsplit(self.path)
        query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        if not access.is_local(self.headers.get("Host")):
            self._text(HTTPStatus.FORBIDDEN, "this page is read at 127.0.0.1 or localhost\n")
        elif url.path == "/" and access.is_token(query.get("token", "")):
            self._answer(page.shell(), "text/html", cookie=access.set_cookie)
        elif not access.allows(self.headers.get("Cookie")):
            text = "open the address that torch-edl dashboard printed, with its token\n"
            self._text(HTTPStatus.FORBIDDEN, text)
        else:
            self._route(url.path, query)

    do_HEAD = do_GET

    def _route(self, path: str, query: dict[str, str]) -> None:
        view = self.server.view
        if path == "/":
            self._answer(page.shell(), "text/html")
        elif path in page.FILES:
            content, kind = page.FILES[path]
            self._answer(content(), kind)
        elif path == "/data":
            view.refresh(frequent_ids=query.get("ids") == "1")
            numbers = {name: _number(query, name) for name in ("after", "first")}
            generation = query.get("generation", "")
            self._json(view.page(**numbers, generation=generation))
        elif path == "/events":
            texts = {n: query.get(n, "")[:_QUERY_CHARS] for n in ("level", "kind", "text")}
            self._json(view.events(before=_number(query, "before", _MOST_NUMBER), **texts))
        elif path == "/log":
            try:
                self._json({"lines": view.log(query.get("process", "")[:_QUERY_CHARS])})
            except EdlError as error:
                self._json({"lines": [], "error": str(error)})
        else:
            self._text(HTTPStatus.NOT_FOUND, "there is no such page\n")

    def _json(self, value: Any) -> None:
        self._answer(json.dumps(value, allow_nan=False).encode(), _JSON)

    def _text(self, code: HTTPStatus, text: str) -> None:
        self._answer(text.encode(), "text/plain", code=code)

    def _answer(
        self, body: bytes, kind: str, *, code: HTTPStatus = HTTPStatus.OK, cookie: str = ""
    ) -> None:
        self.send_response(code)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        if cookie:
            self.send_header("Set-Cookie", cookie)
        self.end_headers()
        if self.command != "HEAD":
            with contextlib.suppress(ConnectionError):  # the browser has left
                self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: a request carries the token."""


def _number(query: dict[str, str], name: str, default: int = 0) -> int:
    text = query.get(name, "")[:20]
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdecimal() else default
