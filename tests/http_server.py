"""A real HTTP server for tests, of the files of a folder: aiohttp's, in a process on loopback.

It knows ranges and ETags. What is below ``/denied/`` is forbidden, and of what is below ``/whole/``
it gives all for a range.
"""

from __future__ import annotations

import json
import os
import urllib.request
from pathlib import Path

from aiohttp import web
from aiohttp.typedefs import Handler

from tests.object_server import ObjectServer
from torch_edl.wire.endpoint import free_port

_FOLDER = "EDL_TEST_HTTP_FOLDER"


class HttpServer(ObjectServer):
    """The process of a server.

    Attributes:
        files: the folder; a file in it is ``{url}/files/{name}``.
    """

    def __init__(self, folder: Path) -> None:
        self.files = folder / "files"
        self.files.mkdir()
        self.port = free_port()
        words = ["aiohttp.web", "-H", "127.0.0.1", "-P", str(self.port), "tests.http_server:make"]
        os.environ[_FOLDER] = str(self.files)
        super().__init__(words, self.port, folder / "http.log")
        del os.environ[_FOLDER]

    def requests(self) -> list[str]:
        """Ask the server itself for its requests, since its log is behind its answers."""
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with direct.open(f"{self.url}/asked") as answer:
            return [str(each) for each in json.load(answer)]


def make(words: list[str]) -> web.Application:
    """The application, in its process."""
    folder = Path(os.environ[_FOLDER])

    async def whole(request: web.Request) -> web.Response:
        return web.Response(body=(folder / request.match_info["name"]).read_bytes())

    async def denied(request: web.Request) -> web.Response:
        raise web.HTTPForbidden

    asked: list[str] = []

    @web.middleware
    async def note(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path != "/asked":
            asked.append(f"{request.method} {request.path}")
        return await handler(request)

    async def tell(request: web.Request) -> web.Response:
        return web.json_response(asked)

    application = web.Application(middlewares=[note])
    application.router.add_get("/asked", tell)
    application.router.add_static("/files", folder, show_index=True)
    application.router.add_get("/whole/{name}", whole)
    application.router.add_get("/denied/{name}", denied)
    return application
