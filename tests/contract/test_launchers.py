"""What every launcher does, whether its processes are on this machine or pods of a cluster."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import wait_for
from torch_edl.processes.launcher import Known, Launcher, ProcessEvent, ProcessExit, ProcessSpec
from torch_edl.processes.local import LocalLauncher

LASTS = "import time; print('begun', flush=True); time.sleep(1000)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + LASTS
POLITE = "import signal, os; signal.signal(signal.SIGTERM, lambda *_: os._exit(143)); " + LASTS


class Machine:
    """Launchers of one job on this machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def launcher(self) -> Launcher:
        return LocalLauncher(self._folder, token="t")

    def log(self, path: str) -> str:
        return Path(path).read_text()

    def left(self, pids: list[int]) -> list[str]:
        return [str(pid) for pid in pids if Path(f"/proc/{pid}").exists()]


class Pods:
    """Launchers of one job in a namespace of the test cluster."""

    def __init__(self, cluster: Any) -> None:
        from torch_edl.plugins.kubernetes import names
        from torch_edl.plugins.kubernetes.cluster.api import Api

        self._api = Api.of_kubeconfig(namespace=cluster.make_namespace())
        for kind, name, key in (
            ("ConfigMap", names.files("ctr"), names.CONFIG_KEY),
            ("Secret", names.token("ctr"), names.TOKEN_KEY),
        ):
            data = {"data" if kind == "ConfigMap" else "stringData": {key: "x"}}
            self._api.create({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, **data})

    def launcher(self) -> Launcher:
        from torch_edl.plugins.kubernetes.config import KubernetesConfig
        from torch_edl.plugins.kubernetes.master.launcher import KubernetesLauncher
        from torch_edl.plugins.kubernetes.objects.pod import process_pod

        def manifest(spec: ProcessSpec) -> dict[str, Any]:
            return process_pod(
                "ctr",
                KubernetesConfig(image="edl"),
                role=spec.role,
                id=spec.id,
                incarnation="ab",
                command=["python", "-P", "-m", spec.module, *spec.args],
                env=spec.env,
                grace_s=20,
                owner=None,
            )

        return KubernetesLauncher(self._api, job="ctr", incarnation="ab", manifest=manifest)

    def log(self, path: str) -> str:
        lines = self._api.log(path.removeprefix("pod/"), container="main")
        return "".join(f"{line.decode()}\n" for line in lines)

    def left(self, pids: list[int]) -> list[str]:
        from torch_edl.plugins.kubernetes import names

        found, _ = self._api.list("Pod", names.selector("ctr"), read=dict)
        return [pod["metadata"]["name"] for pod in found]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    pytest.importorskip("kubernetes", reason="pip install torch-edl[kubernetes]")
    from tests.cluster.cluster import Cluster
    from tests.cluster.conftest import require_networks

    require_networks()
    nodes = [{"name": "node-a", "cpu": "8"}]
    with Cluster(tmp_path_factory.mktemp("cluster"), nodes=nodes) as started:
        yield started


@pytest.fixture(params=["machine", pytest.param("pods", marks=pytest.mark.slow)])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Machine | Pods:
    if request.param == "machine":
        return Machine(tmp_path)
    cluster = request.getfixturevalue("cluster")
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    return Pods(cluster)


@pytest.fixture
def launcher(place: Machine | Pods) -> Iterator[Launcher]:
    made = place.launcher()
    yield made
    made.stop_all(grace_s=0)
    made.close()


def spec(id: int, code: str, *, role: str = "worker") -> ProcessSpec:
    # A module of Python's own that runs what it is given.
    return ProcessSpec(
        role=role, id=id, module="timeit", args=["-n", "1", "-r", "1", code], end_with_parent=0
    )


def ends(launcher: Launcher, count: int = 1) -> list[ProcessExit]:
    """The next ends; each is told once."""
    found: list[ProcessEvent] = []

    def look() -> bool:
        found.extend(e for e in launcher.poll() if isinstance(e, ProcessExit))
        return len(found) >= count

    wait_for(look)
    assert len(found) == count
    return [each for each in found if isinstance(each, ProcessExit)]


def begun(place: Machine | Pods, launcher: Launcher, id: int, *, role: str = "worker") -> None:
    """Until the process has installed its handlers."""
    from torch_edl.errors import EdlError

    def look() -> bool:
        launcher.poll()
        try:
            return "begun" in place.log(launcher.log_path(role, id))
        except EdlError:  # its container does not run yet
            return False

    wait_for(look)


def test_an_end_is_told_once_with_its_code_and_its_log_stays(
    place: Machine | Pods, launcher: Launcher
) -> None:
    launcher.start(spec(3, "import os; print('said', flush=True); os._exit(7)"))
    [end] = ends(launcher)
    assert (end.role, end.id, end.code, end.signal) == ("worker", 3, 7, None)
    assert not end.was_taken
    assert place.log(launcher.log_path("worker", 3)) == "said\n"
    assert [e for e in launcher.poll() if isinstance(e, ProcessExit)] == []
    launcher.stop("worker", 3, grace_s=1.0)  # of one that has ended, it does nothing
    assert launcher.log_path("ps", 9) == "" or not Path(launcher.log_path("ps", 9)).exists()


def test_one_that_is_stopped_was_terminated(place: Machine | Pods, launcher: Launcher) -> None:
    launcher.start(spec(0, POLITE))
    begun(place, launcher, 0)
    launcher.stop("worker", 0, grace_s=30.0)
    [end] = ends(launcher)
    assert end.was_terminated


def test_one_that_does_not_heed_it_is_ended_by_force(
    place: Machine | Pods, launcher: Launcher
) -> None:
    for id in (0, 1):
        launcher.start(spec(id, STUBBORN))
    for id in (0, 1):
        begun(place, launcher, id)
    launcher.stop("worker", 0, grace_s=1.0)
    launcher.stop("worker", 1, grace_s=1000.0)
    launcher.stop("worker", 1, grace_s=0)  # later words may shorten it
    assert {end.id for end in ends(launcher, 2)} == {0, 1}


def test_one_that_changes_its_role_ends_in_the_new_one(
    place: Machine | Pods, launcher: Launcher
) -> None:
    launcher.start(spec(5, POLITE))
    begun(place, launcher, 5)
    log = launcher.log_path("worker", 5)
    launcher.rename("worker", 5, "ps", 2)
    assert launcher.log_path("ps", 2) == log
    launcher.stop("ps", 2, grace_s=30.0)
    [end] = ends(launcher)
    assert (end.role, end.id) == ("ps", 2)


def test_the_next_launcher_takes_over(place: Machine | Pods, launcher: Launcher) -> None:
    first = place.launcher()
    pids = {id: first.start(spec(id, LASTS)) for id in range(2)}
    for id in pids:
        begun(place, first, id)
    first.close()
    from torch_edl.processes.process_group import start_time

    known = [
        Known(role="worker", id=id, pid=pid, since=start_time(pid) if pid else 0, ran=True)
        for id, pid in pids.items()
    ]
    taken = launcher.adopt([*known, Known(role="worker", id=7)])
    assert [id for (_, id), each in taken.items() if each is None] == [7]
    launcher.stop("worker", 0, grace_s=0)
    [end] = ends(launcher)
    assert end.id == 0
    launcher.stop_all(grace_s=0)
    assert [e for e in launcher.poll() if isinstance(e, ProcessExit)] == []


def test_nothing_is_left_at_the_end(place: Machine | Pods, launcher: Launcher) -> None:
    roles = itertools.cycle(["worker", "ps"])
    pids = [launcher.start(spec(id, LASTS, role=next(roles))) for id in range(4)]
    begun(place, launcher, 0)
    launcher.stop_all(grace_s=0)
    assert place.left(pids) == []
