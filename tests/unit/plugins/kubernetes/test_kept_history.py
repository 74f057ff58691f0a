"""The history of a job whose masters share no folder, on the small cluster of tests/cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("kubernetes", reason="needs torch-edl[kubernetes]")

from tests.cluster.cluster import Cluster
from tests.unit.plugins.kubernetes.jobs import NO_ROOM, start
from tests.waiting import wait_for
from torch_edl.launch.jobs.folder import JobFolder
from torch_edl.plugins.kubernetes.client import cluster_job
from torch_edl.plugins.kubernetes.cluster.api import Api
from torch_edl.plugins.kubernetes.master import kept_history
from torch_edl.plugins.kubernetes.master.kept_history import KeptHistory
from torch_edl.plugins.kubernetes.master.own_job import OwnJob

CURVES = b'{"kind": "begin", "interval_s": 1.0}\n{"kind": "scalars", "step": 1}\n'
EVENTS = b'{"sequence": 1, "time": 1.0, "level": "info", "text": "begun"}\n'


@pytest.fixture
def own(api: Api) -> OwnJob:
    """The own Job of the job ``ctr``."""
    return OwnJob(api, "ctr", start(api, **NO_ROOM)["metadata"]["uid"])


def pod(own: OwnJob, home: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[JobFolder, KeptHistory]:
    """A pod of the master: its folder, and what it keeps."""
    monkeypatch.setenv("TORCH_EDL_HOME", str(home))
    folder = JobFolder("ctr")
    folder.dir.mkdir(parents=True)
    own.begin()
    kept = KeptHistory(own, folder)
    kept.restore()
    return folder, kept


def test_the_next_master_goes_on_with_the_files_of_the_last_one(
    api: Api, own: OwnJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_history, "_EVERY_S", 0.01)
    first, kept = pod(own, tmp_path / "first", monkeypatch)
    assert not first.events_file.exists()
    kept.start()
    first.history_file.write_bytes(CURVES)
    first.events_file.write_bytes(EVENTS)
    wait_for(lambda: cluster_job.find(api, "ctr").history() == CURVES + EVENTS)
    kept.close()
    second, kept = pod(own, tmp_path / "second", monkeypatch)
    assert second.history_file.read_bytes() == CURVES
    assert second.events_file.read_bytes() == EVENTS
    # The container started again in its pod: its own files are newer.
    second.events_file.write_bytes(EVENTS * 2)
    kept.restore()
    assert second.events_file.read_bytes() == EVENTS * 2


def test_a_history_that_has_not_changed_is_not_written_again(
    cluster: Cluster, api: Api, own: OwnJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, kept = pod(own, tmp_path, monkeypatch)

    def version() -> str:
        found: str = cluster_job.find(api, "ctr").manifest["metadata"]["resourceVersion"]
        return found

    kept.write()  # there is none
    folder.history_file.write_bytes(CURVES)
    kept.write()
    before = version()
    kept.write()
    assert version() == before
    folder.history_file.write_bytes(CURVES * 2)
    kept.write()
    assert version() != before


def test_a_cluster_that_rejects_the_history_does_not_end_the_job(
    cluster: Cluster,
    api: Api,
    own: OwnJob,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder, kept = pod(own, tmp_path, monkeypatch)
    folder.history_file.write_bytes(CURVES)
    order = {"verb": "patch", "resource": "jobs", "code": 500, "message": "no, says a test"}
    cluster.control("fail", **order, count=1)
    kept.write()
    assert "the history of the job is noted later: patch job ctr-master" in caplog.text
    kept.write()  # unchanged, and written now
    assert cluster_job.find(api, "ctr").history() == CURVES
