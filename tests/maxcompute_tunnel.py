"""The program of a stand-in for MaxCompute: the calls of its REST interface and of its tunnel by
which pyodps reads tables, over HTTP.

``maxcompute_tunnel.py FOLDER`` prints its port and serves until its input ends. A table is a file
``FOLDER/project/table.arrow``, a partition ``FOLDER/project/table/day=1.arrow``. A download session
is a snapshot; ``POST /expire`` ends all of them.
"""

from __future__ import annotations

import itertools
import json
import struct
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from xml.sax.saxutils import escape

import google_crc32c
import pyarrow as pa
from pyarrow import feather

CHUNK = 65536
TYPES = {"int64": "bigint", "string": "string", "double": "double", "null": "string"}

folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path()
sessions: dict[str, Any] = {}
numbers = itertools.count()


def framed(content: bytes) -> bytes:
    """Return bytes as the tunnel sends them: chunks with a checksum each, and one of everything."""
    parts = [struct.pack("!I", CHUNK)]
    end = len(content) // CHUNK * CHUNK
    for at in range(0, end, CHUNK):
        chunk = content[at : at + CHUNK]
        parts += [chunk, struct.pack("!I", google_crc32c.value(chunk))]
    return b"".join([*parts, content[end:], struct.pack("!I", google_crc32c.value(content))])


def messages(table: Any) -> bytes:
    """The record batches of a table as Arrow's stream has them, without the schema before them."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=4096)
    return bytes(sink.getvalue().to_pybytes()[len(table.schema.serialize()) :])


def columns(table: Any) -> list[dict[str, str]]:
    return [{"name": field.name, "type": TYPES[str(field.type)]} for field in table.schema]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        self._answer(post=False)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self._answer(post=True)

    def log_message(self, *args: object) -> None:
        pass

    def _answer(self, *, post: bool) -> None:
        url = urlsplit(self.path)
        query = {k: v[0] for k, v in parse_qs(url.query, keep_blank_values=True).items()}
        if url.path == "/expire":
            sessions.clear()
            self._send(b"")
            return
        if "Authorization" not in self.headers:
            self._refuse(401, "Unauthorized", "no signature")
            return
        words = url.path.split("/")
        if len(words) != 5 or (words[1], words[3]) != ("projects", "tables"):
            self._refuse(404, "NoSuchObject", f"not served: {self.command} {self.path}")
            return
        project, name = words[2], words[4]
        place = folder / project / name
        if "partition" in query:
            place /= query["partition"].replace("'", "")
        file = place.with_name(place.name + ".arrow")
        if not file.is_file():
            self._refuse(404, "NoSuchObject", f"Table not found: {project}.{name}")
        elif post:
            id = f"session-{next(numbers)}"
            sessions[id] = feather.read_table(file)
            self._session(id)
        elif "downloadid" not in query:
            self._describe(file, name, is_partition="partition" in query)
        elif query["downloadid"] not in sessions:
            self._refuse(404, "NoSuchDownload", "The specified download id does not exist.")
        elif "rowrange" in query:
            first, count = (int(text) for text in query["rowrange"][1:-1].split(","))
            table = sessions[query["downloadid"]]
            assert first + count <= len(table), query
            assert "arrow" in query, query
            self._send(framed(messages(table.slice(first, count))))
        else:
            self._session(query["downloadid"])

    def _session(self, id: str) -> None:
        table = sessions[id]
        answer = {
            "DownloadID": id,
            "Status": "normal",
            "RecordCount": len(table),
            "Schema": {"columns": columns(table), "partitionKeys": []},
        }
        self._send(json.dumps(answer).encode())

    def _describe(self, file: Path, name: str, *, is_partition: bool) -> None:
        status = file.stat()
        about: dict[str, Any] = {"lastModifiedTime": int(status.st_mtime), "createTime": 0}
        if is_partition:
            about |= {"partitionSize": status.st_size}
            self._send(f"<Partition><Schema>{json.dumps(about)}</Schema></Partition>".encode())
            return
        about |= {"size": status.st_size, "partitionKeys": []}
        about |= {"columns": columns(feather.read_table(file))}
        text = escape(json.dumps(about))
        self._send(f"<Table><Name>{name}</Name><Schema>{text}</Schema></Table>".encode())

    def _refuse(self, code: int, name: str, text: str) -> None:
        body = f"<Error><Code>{name}</Code><Message>{text}</Message></Error>"
        self._send(body.encode(), code)

    def _send(self, body: bytes, code: int = 200) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("x-odps-request-id", "1")
        self.end_headers()
        self.wfile.write(body)


def main() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    sys.stdin.read()
    server.shutdown()


if __name__ == "__main__":
    main()
