"""Watches of installed packages judge the processes of a job."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from master.runtime.watching import Watches
from master.state.workforce.processes import DRAINING
from tests.installed import install
from tests.unit.master.world import World, running
from torch_edl.config import JobConfig, extensions
from torch_edl.events import Judged
from torch_edl.interfaces import Verdict
from torch_edl.wire import master_pb2 as pb

verdicts: list[Verdict] = []
looked: list[tuple[str, float]] = []


@dataclass(frozen=True, kw_only=True)
class RanHot(Judged):
    @property
    def finding(self) -> str:
        return f"{self.process} is hot"


class Known:
    """Reaches the verdicts of the test."""

    def __init__(self, config: JobConfig) -> None:
        self._name = config.name

    def look(self, status: pb.GetStatusResponse, now: float) -> Iterable[Verdict]:
        looked.append((self._name, now))
        return list(verdicts)


class Broken(Known):
    def look(self, status: pb.GetStatusResponse, now: float) -> Iterable[Verdict]:
        looked.append(("broken", now))
        raise KeyError("heat")


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    names = "".join(f"{kind.__name__} = {__name__}:{kind.__name__}\n" for kind in (Broken, Known))
    install(tmp_path, "judges", f"[torch_edl.watches]\n{names}")
    monkeypatch.syspath_prepend(str(tmp_path))
    extensions.by_group.cache_clear()
    verdicts.clear()
    looked.clear()
    yield
    extensions.by_group.cache_clear()


def look(w: World, watches: Watches | None = None) -> Watches:
    watches = watches or w.watches()
    watches.look(w.status())
    return watches


def shown(w: World, role: str) -> dict[int, float]:
    return {process.id: process.slow for process in w.status().processes if process.role == role}


def test_a_verdict_is_an_event_once_and_shown_until_the_next() -> None:
    w = running(workers=2)
    verdicts[:] = [Verdict("worker", 1, slow=0.25, event=RanHot(process="worker-1"))]
    watches = look(w)
    assert (w.said("worker-1 is hot", "warning"), shown(w, "worker")) == (1, {0: 0, 1: 0.25})
    assert [w.beat(worker).tell_machine for worker in (0, 1)] == [False, True]
    verdicts.clear()
    look(w, watches)
    assert (w.said("worker-1 is hot"), shown(w, "worker")) == (1, {0: 0, 1: 0})
    assert not w.beat(1).tell_machine


def test_what_a_probe_found_is_in_the_status() -> None:
    w = running(workers=1, servers=1)
    w.beat(0, machine={"kelvin": 300})
    (server,) = w.fleet.servers
    w.server_beat(server, machine={"kelvin": 301})
    found = {process.role: dict(process.machine) for process in w.status().processes}
    assert found == {"master": {}, "worker": {"kelvin": 300}, "ps": {"kelvin": 301}}


def test_a_worker_is_replaced_and_servers_move() -> None:
    w = running(workers=2)
    ps = next(iter(w.fleet.servers)).id
    verdicts[:] = [
        Verdict("worker", 1, event=RanHot(process="worker-1"), replace=True),
        Verdict("ps", ps, event=RanHot(process=f"ps-{ps}"), replace=True),
        Verdict("worker", 77, event=RanHot(process="worker-77"), replace=True),
    ]
    look(w)
    assert w.fleet["worker", 1].state == DRAINING
    assert w.fleet.servers.moving
    assert w.texts("warning")[-3:] == [
        "worker-1 is hot; it is replaced",
        f"ps-{ps} is hot; the model moves to other servers",
        "worker-77 is hot",
    ]


def test_a_watch_that_fails_is_not_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    w = running(workers=2)
    watches = look(w)
    look(w, watches)
    assert looked == [("broken", w.now), ("j", w.now), ("j", w.now)]
    (record,) = [each for each in caplog.records if each.name == "master.runtime.watching"]
    assert record.getMessage() == "the watch Broken failed and is off for the rest of the job"


def test_a_job_that_ends_is_not_judged() -> None:
    w = running(workers=2)
    watches = w.watches()
    w.job.stop("enough", w.now)
    look(w, watches)
    assert not looked
