"""Notices of preemption: files, and endpoints that answer as the services of three clouds do."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.waiting import HANG_S
from torch_edl.processes import preemption
from torch_edl.processes.notices.endpoint import EndpointNotice, is_notice
from torch_edl.processes.notices.file import FileNotice
from torch_edl.wire.endpoint import free_port

EC2 = "/latest/meta-data/spot/instance-action"
GOOGLE = "/computeMetadata/v1/instance/preempted"
AZURE = "/metadata/scheduledevents?api-version=2020-07-01"
EVENT = '{"DocumentIncarnation": 3, "Events": [{"EventType": "%s", "Resources": ["me"]}]}'


class Metadata(BaseHTTPRequestHandler):
    leaving = False
    tokens = 0

    def do_PUT(self) -> None:
        assert self.path == "/latest/api/token"
        assert self.headers["X-aws-ec2-metadata-token-ttl-seconds"] == "21600"
        Metadata.tokens += 1
        self._say(200, f"token-{Metadata.tokens}")

    def do_GET(self) -> None:
        leaving, token = Metadata.leaving, f"token-{Metadata.tokens}"
        match self.path:
            case "/latest/meta-data/spot/instance-action":
                if self.headers["X-aws-ec2-metadata-token"] != token:
                    self._say(401)
                else:
                    self._say(200 if leaving else 404, '{"action": "terminate"}')
            case "/computeMetadata/v1/instance/preempted":
                assert self.headers["Metadata-Flavor"] == "Google"
                self._say(200, "TRUE" if leaving else "FALSE")
            case "/metadata/scheduledevents?api-version=2020-07-01":
                assert self.headers["Metadata"] == "true"
                self._say(200, EVENT % "Preempt" if leaving else '{"Events": []}')
            case "/moved":
                self._say(302, "elsewhere", Location=GOOGLE)

    def _say(self, status: int, text: str = "", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(text)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def url() -> Iterator[str]:
    Metadata.leaving, Metadata.tokens = False, 0
    with ThreadingHTTPServer(("127.0.0.1", 0), Metadata) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("path", [EC2, GOOGLE, AZURE])
def test_a_cloud_gives_notice(url: str, path: str) -> None:
    notice = EndpointNotice(url + path)
    assert [notice.look(), notice.look()] == ["", ""]
    Metadata.leaving = True
    assert notice.look() == f"{url}{path} answers 200"


def test_a_session_token_is_renewed(url: str) -> None:
    notice = EndpointNotice(url + EC2)
    assert notice.look() == ""
    Metadata.tokens += 1  # the token expires
    Metadata.leaving = True
    assert notice.look()
    assert Metadata.tokens == 3


def test_no_redirect_and_no_proxy_is_followed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
    Metadata.leaving = True
    assert EndpointNotice(url + "/moved").look() == ""
    assert EndpointNotice(url + GOOGLE).look()


@pytest.mark.parametrize("url", ["http://a..b/x", "http://["])
def test_a_url_that_cannot_be_asked_is_an_error(url: str) -> None:
    with pytest.raises(OSError, match="no HTTP"):
        EndpointNotice(url).look()


def test_a_service_that_does_not_answer_is_an_error() -> None:
    with pytest.raises(OSError, match="refused"):
        EndpointNotice(f"http://127.0.0.1:{free_port()}/").look()


@pytest.mark.parametrize(
    ("body", "tells"),
    [
        (b"", True),
        (b"NONE\n", False),
        (b"TERMINATE_ON_HOST_MAINTENANCE", True),
        (EVENT.encode() % b"Terminate", True),
        (EVENT.encode() % b"Reboot", False),
        (b'{"Events": [{}]}', True),
        (b'{"Events": 3}', True),
        (b"[" * 60_000, True),
        (b"\xff", True),
    ],
)
def test_what_a_body_tells(body: bytes, tells: bool) -> None:
    assert is_notice(body) == tells


def test_a_file_gives_notice_once_it_exists(tmp_path: Path) -> None:
    notice = FileNotice(str(tmp_path / "folder" / "leave"))
    assert notice.look() == ""
    (tmp_path / "folder").mkdir()
    assert notice.look() == ""
    (tmp_path / "folder" / "leave").touch()
    assert notice.look() == f"{tmp_path}/folder/leave exists"


def test_a_process_watches_for_its_own_notice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_EDL_PROCESS", "worker-3")
    monkeypatch.setenv("TORCH_EDL_NOTICE", f"{tmp_path}/{{name}}")
    (tmp_path / "worker-3").touch()
    told: queue.Queue[str] = queue.Queue()
    preemption.watch(told.put)
    assert told.get(timeout=HANG_S) == f"{tmp_path}/worker-3 exists"
    before = threading.active_count()
    preemption.watch(told.put, "")
    assert threading.active_count() == before
