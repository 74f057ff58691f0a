"""An HTTP server that answers as its script says: for what an API server does in bad moments."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit


@dataclass
class Request:
    method: str
    path: str
    query: dict[str, str]
    body: Any
    headers: dict[str, str]


@dataclass
class Answer:
    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    lines: Callable[[], Iterator[Any]] | None = None
    """Objects of a watch; the connection stays open until the iteration ends."""


@dataclass
class ScriptedApi:
    url: str
    requests: list[Request] = field(default_factory=list)
    answer: Callable[[Request], Answer] = lambda _: Answer(404, {"message": "no script"})


@contextmanager
def scripted_api() -> Iterator[ScriptedApi]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_request(self) -> None:
            parts = urlsplit(self.path)
            text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            request = Request(
                self.command,
                parts.path,
                dict(parse_qsl(parts.query)),
                json.loads(text) if text else None,
                dict(self.headers),
            )
            api.requests.append(request)
            answer = api.answer(request)
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            if answer.lines is None:
                body = answer.body if isinstance(answer.body, bytes) else None
                body = json.dumps(answer.body or {}).encode() if body is None else body
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
                return
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for line in answer.lines():
                data = line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n"
                self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")

        do_GET = do_POST = do_DELETE = do_PATCH = handle_request

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    api = ScriptedApi(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield api
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def kubeconfig(folder: Path, url: str = "https://127.0.0.1:1") -> Path:
    """A kubeconfig with the contexts ``here`` (of namespace ``ml``) and ``other``.

    Args:
        url: of the cluster; without one, no cluster answers.
    """
    contexts = [
        {"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "ml"}},
        {"name": "other", "context": {"cluster": "c", "user": "u"}},
    ]
    path = folder / "kubeconfig"
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "here",
                "contexts": contexts,
                "clusters": [{"name": "c", "cluster": {"server": url}}],
                "users": [{"name": "u", "user": {"token": "t0ken"}}],
            }
        )
    )
    return path
