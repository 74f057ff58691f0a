"""The page over HTTP: who may read it, and what it answers."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import time
from typing import Any

import pytest

from tests.job_folder import SimulatedJob, log_of
from tests.unit.plugins.dashboard.conftest import Serve
from tests.waiting import HANG_S
from torch_edl.errors import UsageError
from torch_edl.events import EpochDone, TrainingBegan
from torch_edl.launch.jobs.local_job import LocalJob
from torch_edl.plugins.dashboard.server import PageServer
from torch_edl.plugins.dashboard.view import View


class Browser:
    """A browser that opened the address of the page."""

    def __init__(self, server: PageServer) -> None:
        self._port = server.server_port
        self.cookie = ""
        answer = self.get(f"/?token={server.access.token}")
        self.page = answer.read()
        self.cookie = (answer.getheader("Set-Cookie") or "").partition(";")[0]

    def get(self, path: str, method: str = "GET", **headers: str) -> http.client.HTTPResponse:
        """Return the answer to a request; a header may be replaced."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=HANG_S)
        given = {"Cookie": self.cookie, **headers}
        connection.putrequest(method, path, skip_host="Host" in headers)
        for name, value in given.items():
            connection.putheader(name, value)
        connection.endheaders()
        return connection.getresponse()

    def json(self, path: str) -> Any:
        """Return the JSON of an answer."""
        answer = self.get(path)
        assert answer.status == 200
        return json.loads(answer.read())


@pytest.fixture
def job() -> SimulatedJob:
    return SimulatedJob("digits", workers=4, servers=2, deaths=2, events=40, seconds=120)


@pytest.fixture
def browser(job: SimulatedJob, serve: Serve) -> Browser:
    return Browser(serve("digits"))


def test_only_the_token_opens_the_page(browser: Browser) -> None:
    for path in ("/", "/data", "/events", "/log?process=worker-0", "/app.js", "/nothing"):
        for wrong in ("", "x", browser.cookie[:-1], f"{browser.cookie}x", 'a="\x7f', "é"):
            answer = browser.get(path, Cookie=wrong)
            assert answer.status == 403, (path, wrong)
            assert b"digits" not in answer.read()
    for token in ("", "x", "%ff%00", browser.cookie):
        assert browser.get(f"/?token={token}", Cookie="").status == 403
    for path in ("/", "/data", "/app.js", "/style.css"):
        assert browser.get(path).status == 200
    assert browser.get("/nothing").status == 404
    assert browser.get("/../setup.cfg").status == 404


def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites(
    job: SimulatedJob, serve: Serve
) -> None:
    server = serve("digits")
    answer = Browser(server).get(f"/?token={server.access.token}", Cookie="")
    words = (answer.getheader("Set-Cookie") or "").split("; ")
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(words)


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example:80", "localhost:1@evil", "", "10.0.0.1"]
)
def test_a_name_that_was_rebound_is_refused(browser: Browser, host: str) -> None:
    assert browser.get("/data", Host=host).status == 403


@pytest.mark.parametrize("host", ["localhost:8265", "127.0.0.1", "[::1]:7"])
def test_a_forwarded_port_is_served(browser: Browser, host: str) -> None:
    assert browser.get("/data", Host=host).status == 200


def test_no_inline_script_may_run(browser: Browser) -> None:
    policy = browser.get("/").getheader("Content-Security-Policy") or ""
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert b"<script>" not in browser.page
    assert b"style=" not in browser.page
    assert browser.get("/data").getheader("Cache-Control") == "no-store"


def test_other_methods_change_nothing(browser: Browser) -> None:
    assert browser.get("/data", method="HEAD").read() == b""
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert browser.get("/data", method=method).status == 501


def test_a_browser_receives_what_is_new(job: SimulatedJob, browser: Browser) -> None:
    first = browser.json("/data")
    assert first["over"]
    assert first["deaths"] == 2
    assert [i["process"] for i in first["incidents"]] == ["worker-0", "worker-1"]
    assert first["incidents"][0]["replaced_s"] == 2
    # The 36 evaluations are no news.
    assert (len(first["events"]), first["events_count"]) == (4, 40)
    assert first["events_last"] == job.sequence
    assert len(first["samples"]) == first["samples_total"] == 118
    again = (
        f"/data?after={first['events_last']}&first={first['samples_total']}"
        f"&generation={first['generation']}"
    )
    second = browser.json(again)
    assert (second["events"], second["samples"]) == ([], [])
    assert browser.json(f"{again}9")["samples_first"] == 0  # of another generation
    for odd in ("after=-5", "after=1e3&first=x", "first=99999999999999999999", "generation=%C2%B2"):
        assert browser.json(f"/data?{odd}")["name"] == "digits"


def test_events_are_filtered_and_paged(job: SimulatedJob, browser: Browser) -> None:
    job.append(*(job.event(200, EpochDone(epoch=n, epochs=500)) for n in range(400)))
    browser.json("/data")
    newest = browser.json("/events")
    assert len(newest) == 300
    older = browser.json(f"/events?before={newest[-1]['sequence']}")
    assert older[0]["sequence"] == newest[-1]["sequence"] - 1
    assert {e["kind"] for e in browser.json("/events?kind=worker_lost")} == {"worker_lost"}
    assert len(browser.json("/events?level=warning")) == 2
    (found,) = browser.json("/events?text=EPOCH+399")
    assert found["text"] == "epoch 399 of 500 is done"
    assert browser.json("/events?text=nothing+like+it") == []
    main = [event["kind"] for event in browser.json("/events?kind=main")]
    assert main == ["job_finished", "worker_lost", "worker_lost", "servers_ready"]


def test_logs_and_their_ends(job: SimulatedJob, browser: Browser) -> None:
    text = "".join(f"line {n}\n" for n in range(3000)) + "x" * 5000 + "\n"
    path = log_of(job.folder.logs, "worker-0", text)
    job.processes[3]["log"] = str(path)
    job.write_status(state="finished")
    browser.json("/data")
    lines = browser.json("/log?process=worker-0")["lines"]
    assert len(lines) == 500
    assert lines[-1] == "x" * 2000
    for name in ("worker-77", "../../etc/passwd", "worker-", "", "events-0"):
        answer = browser.json(f"/log?process={name}")
        assert answer["lines"] == []


def test_nobody_reads_the_job_for_a_page_that_nobody_reads(job: SimulatedJob) -> None:
    now = [1000.0]
    view = View(LocalJob("digits"), clock=lambda: now[0])
    view.refresh()
    count = view.book.last
    job.append(job.event(300, TrainingBegan(number=2)))
    view.refresh()  # within a second
    assert view.book.last == count
    now[0] += 60
    assert view.book.last == count
    view.refresh()
    assert view.book.last == count + 1


def test_a_new_job_of_the_same_name_has_a_page_of_its_own(job: SimulatedJob) -> None:
    now = [1000.0]
    view = View(LocalJob("digits"), clock=lambda: now[0])
    view.refresh()
    before = view.page()
    shutil.rmtree(job.folder.dir)
    again = SimulatedJob("digits", deaths=0, events=10, seconds=30)
    os.utime(again.folder.config_file, (5.0, 5.0))
    now[0] += 60
    view.refresh()
    after = view.page(
        after=before["events_last"],
        first=before["samples_total"],
        generation=before["generation"],
    )
    assert after["generation"] != before["generation"]
    assert (after["deaths"], len(after["events"]), len(after["samples"])) == (0, 2, 28)


def test_a_port_in_use(job: SimulatedJob, serve: Serve) -> None:
    server = serve("digits")
    with pytest.raises(UsageError, match=f"--port {server.server_port}: .*choose another"):
        PageServer(View(LocalJob("digits")), server.server_port)


def test_a_job_of_a_thousand_workers_is_a_small_answer(serve: Serve) -> None:
    SimulatedJob("large", workers=1000, servers=8, deaths=300, events=100_000, seconds=3600)
    server = serve("large")
    server.view.refresh()
    browser, began = Browser(server), time.process_time()
    answer = browser.get("/data").read()
    assert time.process_time() - began < 1
    assert len(answer) < 1 << 20
