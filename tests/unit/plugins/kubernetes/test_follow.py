"""What a client says of a job on a cluster, and how it takes signals: on the small cluster of
tests/cluster, with the official client in between."""

from __future__ import annotations

import io
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from rich.console import Console

pytest.importorskip("kubernetes", reason="needs torch-edl[kubernetes]")

from tests.cluster.cluster import Cluster
from tests.unit.plugins.kubernetes.jobs import NO_ROOM, start
from tests.waiting import wait_for
from torch_edl.cli.progress import Display
from torch_edl.interfaces.platform import JobOutcome
from torch_edl.plugins.kubernetes.client import cluster_job
from torch_edl.plugins.kubernetes.client import follow as attend
from torch_edl.plugins.kubernetes.client.follow import ClusterFollower
from torch_edl.plugins.kubernetes.cluster.api import Api
from torch_edl.plugins.kubernetes.cluster.failures import ClusterError, ForbiddenError
from torch_edl.processes.signals import StopSignals


class Client:
    """A client that stays with a job, in a thread. No node has its image unless one is named."""

    def __init__(self, api: Api, *, leaves: bool = False, **pods: Any) -> None:
        start(api, **{"image": "none:1", **pods})
        self.job = cluster_job.find(api, "ctr")
        self.output = io.StringIO()
        self.signals = StopSignals(())
        self.outcome: JobOutcome | None = None
        self.error: ClusterError | None = None
        display = Display(Console(file=self.output, width=1000, color_system=None))
        self._attendance = ClusterFollower(
            job=self.job, display=display, signals=self.signals, leaves=leaves
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.outcome = self._attendance.follow()
        except ClusterError as error:
            self.error = error

    def says(self, text: str) -> str:
        """Waits for a text, and returns all that was said so far."""
        self._until(lambda: text in self.output.getvalue())
        return self.output.getvalue()

    def interrupt(self, number: signal.Signals = signal.SIGINT) -> None:
        self.signals.first = self.signals.first or number
        self.signals.count += 1

    def ends(self) -> JobOutcome | None:
        self._until(lambda: not self._thread.is_alive())
        self._thread.join()
        return self.outcome

    def _until(self, holds: Callable[[], bool]) -> None:
        wait_for(holds, self.output.getvalue)


@pytest.fixture
def follow(api: Api) -> Iterator[Callable[..., Client]]:
    """Starts a client, which has ended when the test has."""
    clients: list[Client] = []

    def follow(**words: Any) -> Client:
        clients.append(Client(api, **words))
        return clients[-1]

    yield follow
    for client in clients:
        client.interrupt(signal.SIGTERM)  # which leaves
        client.ends()


def test_a_claim_that_does_not_exist_is_named(follow: Callable[..., Client]) -> None:
    client = follow(volume=("claim=none,path=/data",))
    said = client.says("the master waits: its volume does not exist")
    assert 'persistentvolumeclaim "none" not found' in said


def test_a_secret_that_does_not_exist_is_named(
    follow: Callable[..., Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pod itself says only ContainerCreating."""
    monkeypatch.setattr(attend, "_EXPLAIN_S", 0.1)
    client = follow(image="edl:test", volume=("secret=keys,path=/keys",))
    said = client.says("the master waits: MountVolume.SetUp failed for volume")
    assert 'secret "keys" not found' in said
    assert "MountVolume.SetUp failed" in client.job.last()["error"]


def test_an_image_that_cannot_be_pulled_is_told_once(follow: Callable[..., Client]) -> None:
    client = follow()
    client.says("the master waits: the image none:1 cannot be pulled: ")
    wait_for(lambda: (pod := client.job.master_pod()) and pod.waiting.reason == "ImagePullBackOff")
    client.interrupt()
    outcome = client.ends()
    assert outcome is not None
    assert (outcome.state, outcome.exit_code) == ("stopped", 130)
    assert client.output.getvalue().count("cannot be pulled") == 1
    assert not client.job.refresh()


def test_a_pod_that_no_node_has_room_for_is_told(follow: Callable[..., Client]) -> None:
    client = follow(**NO_ROOM)
    text = client.says("the master waits: no node has room: 0/2 nodes are available")
    assert "--master-resources asks for less" in text


def test_an_image_that_is_no_name_ends_the_wait(follow: Callable[..., Client]) -> None:
    outcome = follow(image="BAD::").ends()
    assert outcome is not None
    assert outcome.exit_code == 2
    assert "the image BAD:: cannot be had" in outcome.error


def test_a_master_without_a_pod_is_explained(follow: Callable[..., Client]) -> None:
    client = follow(service_account="nobody")
    client.says("the master has no pod: ")
    assert 'serviceaccount "nobody" not found' in client.output.getvalue()


def test_a_master_beyond_the_quota_of_its_namespace_is_explained(
    cluster: Cluster, api: Api, follow: Callable[..., Client]
) -> None:
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "none"},
        "spec": {"hard": {"pods": "0"}},
    }
    cluster.request("POST", f"/api/v1/namespaces/{api.namespace}/resourcequotas", quota)
    client = follow()
    assert "exceeded quota: none, requested: pods=1" in client.says("the master has no pod: ")


def test_a_server_that_was_just_started_is_waited_for(
    cluster: Cluster, follow: Callable[..., Client]
) -> None:
    """It knows no Roles yet: it rejects everything."""
    client = follow()
    client.says("the master waits: the image none:1 cannot be pulled: ")
    cluster.control("restart", away_s=0.5, unsynced_s=1000.0)
    assert "still trying" in client.says("may not")
    cluster.heal()
    client.job.remove()
    outcome = client.ends()
    assert client.error is None
    assert outcome is not None
    assert outcome.error == "the job was deleted"


def test_rights_that_are_taken_away_for_good_end_the_client(
    cluster: Cluster, follow: Callable[..., Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attend, "SETTLING_S", 3.0)
    client = follow()
    client.says("the master waits: the image none:1 cannot be pulled: ")
    cluster.control("restart", away_s=0.0, unsynced_s=1000.0)
    client.ends()
    cluster.heal()
    assert isinstance(client.error, ForbiddenError)
    assert "jobs" in str(client.error)


def test_a_job_that_was_deleted_is_no_success(follow: Callable[..., Client]) -> None:
    client = follow()
    client.job.remove()
    outcome = client.ends()
    assert outcome is not None
    assert (outcome.state, outcome.error) == ("failed", "the job was deleted")


@pytest.mark.parametrize(
    ("leaves", "number"), [(True, signal.SIGINT), (False, signal.SIGHUP), (False, signal.SIGTERM)]
)
def test_a_client_that_leaves_leaves_the_job_alone(
    follow: Callable[..., Client], leaves: bool, number: signal.Signals
) -> None:
    client = follow(leaves=leaves)
    client.interrupt(number)
    assert client.ends() is None
    assert client.job.refresh()
