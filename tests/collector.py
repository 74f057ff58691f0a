"""A collector of OpenTelemetry for tests: an HTTP server that keeps the spans which it receives."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector:
    """The spans of all services so far, by service and instance."""

    def __init__(self) -> None:
        self.spans: dict[tuple[str, str], list[Span]] = {}
        self.url = ""
        self.status = 200
        """Status of the HTTP answers."""
        self.asked = 0
        """Number of requests."""

    def receive(self, path: str, content: bytes) -> bytes:
        assert path == "/v1/traces"
        self.asked += 1
        for found in ExportTraceServiceRequest.FromString(content).resource_spans:
            of = {each.key: each.value.string_value for each in found.resource.attributes}
            spans = self.spans.setdefault((of["service.name"], of["service.instance.id"]), [])
            for scope in found.scope_spans:
                spans.extend(scope.spans)
        return ExportTraceServiceResponse().SerializeToString()


@contextmanager
def collector() -> Iterator[Collector]:
    """Run a collector on loopback."""
    found = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                content = gzip.decompress(content)
            answer = found.receive(self.path, content)
            self.send_response(found.status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        found.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield found
        server.shutdown()
        thread.join()
