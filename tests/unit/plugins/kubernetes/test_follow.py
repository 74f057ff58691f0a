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
from tests.waiting import wait_for
from torch_edl.cli.progress import Display
from torch_edl.config import JobConfig
from torch_edl.interfaces.platform import JobOutcome
from torch_edl.plugins.kubernetes.client import cluster_job
from torch_edl.plugins.kubernetes.client import follow as attend
from torch_edl.plugins.kubernetes.client.follow import ClusterFollower
from torch_edl.plugins.kubernetes.cluster.api import Api
from torch_edl.plugins.kubernetes.cluster.failures import ClusterError, ForbiddenError
from torch_edl.plugins.kubernetes.config import KubernetesConfig
from torch_edl.plugins.kubernetes.objects import job
from torch_edl.plugins.kubernetes.objects.submit import submit
from torch_edl.processes.signals import StopSignals

CODE = {"model.py": b""}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """With a node that has no image but ``edl``."""
    nodes = [{"name": "n1", "cpu": "4"}]
    with Cluster(tmp_path_factory.mktemp("cluster"), nodes=nodes) as started:
        yield started


class Client:
    """A client that stays with a job, in a thread."""

    def __init__(self, cluster: Cluster, *, leaves: bool = False, **pods: Any) -> None:
        self.api = Api.of_kubeconfig(namespace=cluster.make_namespace())
        made = JobConfig(
            name="ctr",
            model_file="/m.py",
            platform="kubernetes",
            platform_config=KubernetesConfig(**{"image": "none:1", **pods}),
        )
        submit(self.api, job.in_pods(made, CODE), token="t" * 40, code=CODE)
        self.job = cluster_job.find(self.api, "ctr")
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
        self.api.close()
        return self.outcome

    def _until(self, holds: Callable[[], bool]) -> None:
        wait_for(holds, self.output.getvalue)


@pytest.fixture
def start(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Client]]:
    """Starts clients, which have ended when the test has."""
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    cluster.heal()
    clients: list[Client] = []

    def start(**words: Any) -> Client:
        clients.append(Client(cluster, **words))
        return clients[-1]

    yield start
    for client in clients:
        client.interrupt(signal.SIGTERM)  # which leaves
        client.ends()


def test_an_image_that_cannot_be_pulled_is_told_once(start: Callable[..., Client]) -> None:
    client = start()
    client.says("the master waits: the image none:1 cannot be pulled: ")
    wait_for(lambda: (pod := client.job.master_pod()) and pod.waiting.reason == "ImagePullBackOff")
    client.interrupt()
    outcome = client.ends()
    assert outcome is not None
    assert (outcome.state, outcome.exit_code) == ("stopped", 130)
    assert client.output.getvalue().count("cannot be pulled") == 1
    assert not client.job.refresh()


def test_a_pod_that_no_node_has_room_for_is_told(start: Callable[..., Client]) -> None:
    client = start(master_resources="cpu=99")
    text = client.says("the master waits: no node has room: 0/1 nodes are available")
    assert "--master-resources asks for less" in text


def test_an_image_that_is_no_name_ends_the_wait(start: Callable[..., Client]) -> None:
    outcome = start(image="BAD::").ends()
    assert outcome is not None
    assert outcome.exit_code == 2
    assert "the image BAD:: cannot be had" in outcome.error


def test_a_master_without_a_pod_is_explained(start: Callable[..., Client]) -> None:
    client = start(service_account="nobody")
    client.says("the master has no pod: ")
    assert 'serviceaccount "nobody" not found' in client.output.getvalue()


def test_a_server_that_was_just_started_is_waited_for(
    cluster: Cluster, start: Callable[..., Client]
) -> None:
    """It knows no Roles yet: it rejects everything."""
    client = start()
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
    cluster: Cluster, start: Callable[..., Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attend, "SETTLING_S", 3.0)
    client = start()
    client.says("the master waits: the image none:1 cannot be pulled: ")
    cluster.control("restart", away_s=0.0, unsynced_s=1000.0)
    client.ends()
    cluster.heal()
    assert isinstance(client.error, ForbiddenError)
    assert "jobs" in str(client.error)


def test_a_job_that_was_deleted_is_no_success(start: Callable[..., Client]) -> None:
    client = start()
    client.job.remove()
    outcome = client.ends()
    assert outcome is not None
    assert (outcome.state, outcome.error) == ("failed", "the job was deleted")


@pytest.mark.parametrize(
    ("leaves", "number"), [(True, signal.SIGINT), (False, signal.SIGHUP), (False, signal.SIGTERM)]
)
def test_a_client_that_leaves_leaves_the_job_alone(
    start: Callable[..., Client], leaves: bool, number: signal.Signals
) -> None:
    client = start(leaves=leaves)
    client.interrupt(number)
    assert client.ends() is None
    api = Api.of_kubeconfig(namespace=client.api.namespace)
    assert cluster_job.find(api, "ctr").uid == client.job.uid
    api.close()
