"""What every launcher does, whether its processes are on this machine, on several machines, or pods
of a cluster."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from tests.machine import Machine, SeveralMachines
from tests.waiting import wait_for
from torch_edl.processes.launcher import (
    Known,
    Launcher,
    ProcessEvent,
    ProcessExit,
    ProcessNotStarted,
    ProcessSpec,
)

LASTS = "import time; print('begun', flush=True); time.sleep(1000)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + LASTS
POLITE = "import signal, os; signal.signal(signal.SIGTERM, lambda *_: os._exit(143)); " + LASTS


class Pods:
    """Launchers of one job in a namespace of the test cluster."""

    env: Mapping[str, str] = MappingProxyType({})

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

    def left(self) -> list[str]:
        from torch_edl.plugins.kubernetes import names

        found, _ = self._api.list("Pod", names.selector("ctr"), read=dict)
        return [pod["metadata"]["name"] for pod in found]

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    pytest.importorskip("kubernetes", reason="pip install torch-edl[kubernetes]")
    from tests.cluster.cluster import Cluster
    from tests.cluster.conftest import require_networks

    require_networks()
    nodes = [{"name": "node-a", "cpu": "8"}]
    with Cluster(tmp_path_factory.mktemp("cluster"), nodes=nodes) as started:
        yield started


@pytest.fixture(params=["machine", "machines", pytest.param("pods", marks=pytest.mark.slow)])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Machine | Pods]:
    made: Machine | Pods
    if request.param == "machine":
        monkeypatch.setenv("TORCH_EDL_HOME", str(tmp_path))
        made = Machine()
    elif request.param == "machines":
        monkeypatch.setenv("TORCH_EDL_HOME", str(tmp_path))
        # Those that no machine has room for at first go to the second one.
        made = SeveralMachines(tmp_path, least=2, timeout_s=3.0)
        made.join("second")
    else:
        cluster = request.getfixturevalue("cluster")
        monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
        made = Pods(cluster)
    yield made
    made.close()


@pytest.fixture
def launcher(place: Machine | Pods) -> Iterator[Launcher]:
    made = place.launcher()
    yield made
    made.stop_all(grace_s=0)
    made.close()


def spec(place: Machine | Pods, id: int, code: str, *, role: str = "worker") -> ProcessSpec:
    # A module of Python's own that runs what it is given.
    args = ["-n", "1", "-r", "1", code]
    return ProcessSpec(role=role, id=id, module="timeit", args=args, env=place.env)


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
    launcher.start(spec(place, 3, "import os; print('said', flush=True); os._exit(7)"))
    [end] = ends(launcher)
    assert (end.role, end.id, end.code, end.signal) == ("worker", 3, 7, None)
    assert not end.was_taken
    assert "said\n" in place.log(launcher.log_path("worker", 3))
    assert [e for e in launcher.poll() if isinstance(e, ProcessExit)] == []
    launcher.stop("worker", 3, grace_s=1.0)  # of one that has ended, it does nothing
    assert launcher.log_path("ps", 9) == "" or not Path(launcher.log_path("ps", 9)).exists()


def test_one_that_is_stopped_was_terminated(place: Machine | Pods, launcher: Launcher) -> None:
    launcher.start(spec(place, 0, POLITE))
    begun(place, launcher, 0)
    launcher.stop("worker", 0, grace_s=30.0)
    [end] = ends(launcher)
    assert end.was_terminated


def test_one_that_does_not_heed_it_is_ended_by_force(
    place: Machine | Pods, launcher: Launcher
) -> None:
    for id in (0, 1):
        launcher.start(spec(place, id, STUBBORN))
    for id in (0, 1):
        begun(place, launcher, id)
    launcher.stop("worker", 0, grace_s=1.0)
    launcher.stop("worker", 1, grace_s=1000.0)
    launcher.stop("worker", 1, grace_s=0)  # later words may shorten it
    assert {end.id for end in ends(launcher, 2)} == {0, 1}


def test_the_next_launcher_takes_over(place: Machine | Pods) -> None:
    first = place.launcher()
    for id in range(2):
        first.start(spec(place, id, LASTS))
    for id in range(2):
        begun(place, first, id)
    first.close()
    launcher = place.launcher()
    known = [Known(role="worker", id=id, ran=True) for id in range(2)]
    launcher.adopt([*known, Known(role="worker", id=7)])
    found: list[ProcessEvent] = []

    def never_started() -> list[int]:
        found.extend(launcher.poll())
        return [each.id for each in found if isinstance(each, ProcessNotStarted)]

    wait_for(never_started)
    assert never_started() == [7]
    launcher.stop("worker", 0, grace_s=0)
    [end] = ends(launcher)
    assert end.id == 0
    launcher.stop_all(grace_s=0)
    assert [e for e in launcher.poll() if isinstance(e, ProcessExit)] == []
    assert place.left() == []


def test_nothing_is_left_at_the_end(place: Machine | Pods, launcher: Launcher) -> None:
    roles = itertools.cycle(["worker", "ps"])
    for id in range(4):
        launcher.start(spec(place, id, LASTS, role=next(roles)))
    begun(place, launcher, 0)
    launcher.stop_all(grace_s=0)
    assert place.left() == []
