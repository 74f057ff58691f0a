"""Pods instead of processes: the launcher on a cluster that runs them, or does not make them."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("kubernetes", reason="pip install torch-edl[kubernetes]")

from kubernetes import client
from kubernetes.client.exceptions import ApiException

from tests.cluster.cluster import Cluster
from tests.waiting import HANG_S, wait_for
from torch_edl.plugins.kubernetes import names
from torch_edl.plugins.kubernetes.cluster.api import Api
from torch_edl.plugins.kubernetes.config import KubernetesConfig
from torch_edl.plugins.kubernetes.master.launcher import KubernetesLauncher
from torch_edl.plugins.kubernetes.objects.pod import process_pod
from torch_edl.processes.launcher import (
    Known,
    ProcessEvent,
    ProcessExit,
    ProcessNotStarted,
    ProcessRefused,
    ProcessRuns,
    ProcessSpec,
    ProcessWaits,
)

JSON = dict[str, Any]
NODES = [{"name": "node-a", "cpu": "8"}]
JOB = "ctr"


class Place:
    """A namespace with launchers."""

    def __init__(self, cluster: Cluster, api: Api) -> None:
        self.cluster = cluster
        self.api = api
        self.launchers: list[KubernetesLauncher] = []

    def launcher(
        self,
        api: Api | None = None,
        *,
        incarnation: str = "ab",
        resources: str = "cpu=1",
        owner: JSON | None = None,
        node: str = "",
        **more: float,
    ) -> KubernetesLauncher:
        pinned = {"spec": {"nodeSelector": {"kubernetes.io/hostname": node}}} if node else {}

        def manifest(spec: ProcessSpec) -> JSON:
            return process_pod(
                JOB,
                KubernetesConfig(image="edl", worker_resources=resources, template=pinned),
                role=spec.role,
                id=spec.id,
                incarnation=incarnation,
                command=["sh", "-c", *spec.args],
                env={},
                grace_s=5,
                owner=owner,
            )

        made = KubernetesLauncher(
            api or self.api, job=JOB, incarnation=incarnation, manifest=manifest, **more
        )
        self.launchers.append(made)
        return made

    def api_of(self, account: str) -> Api:
        """The namespace as a service account sees it, which may do what :meth:`allow` says."""
        core = client.CoreV1Api(self.cluster.api_client())
        with contextlib.suppress(ApiException):
            core.create_namespaced_service_account(
                self.api.namespace, {"metadata": {"name": account}}
            )
        token = self.cluster.token_of(self.api.namespace, account)
        return Api(self.cluster.api_client(token), self.api.namespace)

    def allow(self, account: str, *verbs: str) -> None:
        """A service account may do this to pods."""
        rule = {"apiGroups": [""], "resources": ["pods"], "verbs": verbs}
        self.cluster.grant(self.api.namespace, account, [rule])

    def pods(self) -> dict[str, JSON]:
        found, _ = self.api.list("Pod", names.selector(JOB), read=dict)
        return {pod["metadata"]["name"]: pod for pod in found}

    def wait_for_a_line(self, name: str) -> None:
        """Until the process of a pod, which runs, has said something."""
        with contextlib.closing(self.api.log(name, container=names.CONTAINER, follow=True)) as log:
            next(log)

    def evict(self, name: str) -> None:
        path = f"/api/v1/namespaces/{self.api.namespace}/pods/{name}/eviction"
        self.cluster.request("POST", path, {"metadata": {"name": name}})


def spec(id: int, command: str = "exec sleep 1000", *, role: str = "worker") -> ProcessSpec:
    return ProcessSpec(role=role, id=id, module="", args=[command])


def pod_name(id: int, role: str = "worker", incarnation: str = "ab") -> str:
    return names.pod(JOB, role, id, incarnation)


def hear(launcher: KubernetesLauncher, kind: type[ProcessEvent], id: int = 0) -> Any:
    """The next event of a kind about a process; others are dropped."""

    def look() -> list[ProcessEvent]:
        return [e for e in launcher.poll() if isinstance(e, kind) and e.id == id]

    return wait_for(look)[0]


def until_exit(launcher: KubernetesLauncher, id: int = 0) -> list[ProcessEvent]:
    """The events of a process until its end."""
    events: list[ProcessEvent] = []

    def ended() -> bool:
        events.extend(e for e in launcher.poll() if e.id == id)
        return any(isinstance(e, ProcessExit) for e in events)

    wait_for(ended)
    return events


@pytest.fixture
def place(cluster: Cluster) -> Iterator[Place]:
    """A new namespace, with what the pods of a job need."""
    cluster.heal()
    api = Api(cluster.api_client(), cluster.make_namespace())
    for kind, name, key in (
        ("ConfigMap", names.files(JOB), names.CONFIG_KEY),
        ("Secret", names.token(JOB), names.TOKEN_KEY),
    ):
        data = {"data" if kind == "ConfigMap" else "stringData": {key: "x"}}
        api.create({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, **data})
    made = Place(cluster, api)
    yield made
    for launcher in made.launchers:
        launcher.close()
    for name in made.pods():
        api.delete("Pod", name, grace_s=0)  # the next test needs the room
    api.close()


def test_pods_are_made_at_once_and_run_where_there_is_room(place: Place) -> None:
    launcher = place.launcher()
    for id in range(10):
        launcher.start(spec(id))
    wait_for(lambda: len(place.pods()) == 10)
    events: list[Any] = []

    def run() -> list[ProcessRuns]:
        return [e for e in events if isinstance(e, ProcessRuns)]

    def wait() -> list[ProcessWaits]:
        return [e for e in events if isinstance(e, ProcessWaits) and not e.placed]

    wait_for(lambda: events.extend(launcher.poll()) or (len(run()) == 8 and len(wait()) >= 2))
    assert all(event.node == "node-a" for event in run())
    late = {e.id for e in wait()} - {e.id for e in run()}
    assert len(late) == 2
    assert all(event.why.startswith("no node has room: ") for event in wait())
    # Those that wait run when there is room.
    first = run()[0].id
    launcher.stop("worker", first, grace_s=0)
    wait_for(lambda: events.extend(launcher.poll()) or len(run()) == 9)
    assert run()[8].id in late


def test_a_crash_is_told_with_its_last_words(place: Place) -> None:
    launcher = place.launcher()
    launcher.start(spec(3, "echo first; echo oh no >&2; exit 1"))
    exit = hear(launcher, ProcessExit, 3)
    assert (exit.code, exit.why, exit.own_fault) == (1, "oh no", None)
    assert exit.node == "node-a"
    name = pod_name(3)
    assert launcher.log_path("worker", 3) == f"pod/{name}"
    assert list(place.api.log(name, container="main")) == [b"first", b"oh no"]
    assert not any(isinstance(e, ProcessExit) for e in launcher.poll())


def test_a_pod_that_is_evicted_was_taken_whatever_its_exit_code(place: Place) -> None:
    launcher = place.launcher()
    launcher.start(spec(0, "trap 'exit 1' TERM; echo ready; while :; do sleep 0.05; done"))
    hear(launcher, ProcessRuns)
    place.wait_for_a_line(pod_name(0))  # before that, what becomes process 1 takes no signal
    place.evict(pod_name(0))
    exit = hear(launcher, ProcessExit)
    assert exit.was_taken
    assert exit.why.startswith("evicted, since its node is drained")


def test_a_pod_that_is_stopped_before_it_is_made_leaves_nothing(place: Place) -> None:
    launcher = place.launcher()
    for id in range(10):
        launcher.start(spec(id))
        launcher.stop("worker", id, grace_s=0)
    exits: list[ProcessEvent] = []
    wait_for(lambda: exits.extend(launcher.poll()) or len(exits) == 10)
    assert all(isinstance(e, ProcessExit) and e.was_terminated for e in exits)
    assert place.pods() == {}


def test_a_create_whose_answer_was_lost_finds_its_pod(place: Place) -> None:
    place.launcher().start(spec(0))
    wait_for(place.pods)
    [uid] = [pod["metadata"]["uid"] for pod in place.pods().values()]
    other = place.launcher()  # as after a crash: the create is made again
    other.start(spec(0))
    hear(other, ProcessRuns)
    assert [pod["metadata"]["uid"] for pod in place.pods().values()] == [uid]


@pytest.mark.parametrize(
    ("fault", "placed", "least_s"),
    [
        ({"code": 429, "message": "slow down", "retry_after_s": 1}, True, 1.0),
        ({"code": 403, "message": "exceeded quota: compute"}, False, 0.0),
    ],
    ids=["busy", "quota"],
)
def test_a_server_without_time_and_a_quota_are_waited_for(
    place: Place, fault: JSON, placed: bool, least_s: float
) -> None:
    place.cluster.control("fail", verb="create", resource="pods", **fault)
    launcher = place.launcher()
    began = time.monotonic()
    launcher.start(spec(0))
    waits = hear(launcher, ProcessWaits)
    assert waits.why.startswith("no pod yet: ")
    assert fault["message"] in waits.why
    assert waits.placed is placed
    wait_for(place.pods)
    assert time.monotonic() - began >= least_s


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs the command kubectl")
def test_kubectl_drains_a_node_whose_pods_have_a_controller(place: Place) -> None:
    """Of others it says why it does not."""
    node = "node-d"  # without pods of other tests, and cordoned in the end
    place.cluster.control("add-node", name=node, cpu="8")
    core = client.CoreV1Api(place.cluster.api_client())
    uid = place.api.get("ConfigMap", names.files(JOB))["metadata"]["uid"]
    owner = names.controller(JOB, uid)
    for id, each in enumerate([{**owner, "controller": False}, owner]):
        core.patch_node(node, {"spec": {"unschedulable": None}})
        launcher = place.launcher(owner=each, node=node)
        launcher.start(spec(id))
        hear(launcher, ProcessRuns, id)
        drained = subprocess.run(
            ["kubectl", "--kubeconfig", place.cluster.kubeconfig, "drain", node,
             "--delete-emptydir-data", "--timeout", f"{HANG_S:.0f}s"],
            capture_output=True, text=True, timeout=2 * HANG_S,
        )  # fmt: skip
        if each is owner:
            assert drained.returncode == 0, drained.stderr
            assert not place.pods()
        else:
            assert drained.returncode == 1
            assert "cannot delete Pods that declare no controller" in drained.stderr
            launcher.stop("worker", id, grace_s=0)
            wait_for(lambda: not place.pods())


def test_ended_pods_make_room_in_a_quota_that_counts_them(place: Place) -> None:
    quota = {"metadata": {"name": "few"}, "spec": {"hard": {"count/pods": "2"}}}
    core = client.CoreV1Api(place.cluster.api_client())
    core.create_namespaced_resource_quota(place.api.namespace, quota)
    launcher = place.launcher()
    for id, command in enumerate(["exit 7", "exec sleep 1000"]):
        launcher.start(spec(id, command))
    hear(launcher, ProcessExit, 0)
    assert pod_name(0) in place.pods(), "kept for its log"
    launcher.start(spec(2))
    assert "count/pods" in hear(launcher, ProcessWaits, 2).why
    hear(launcher, ProcessRuns, 2)
    assert place.pods().keys() == {pod_name(1), pod_name(2)}


def test_a_watch_that_breaks_misses_nothing(place: Place) -> None:
    launcher = place.launcher()
    for id in range(3):
        launcher.start(spec(id))
    wait_for(lambda: len(place.pods()) == 3)
    hear(launcher, ProcessRuns, 1)
    place.cluster.control("fail", verb="watch", resource="pods", code=410, count=2)
    place.cluster.control("watches", drop=True)
    place.api.delete("Pod", pod_name(1), grace_s=0)
    exit = hear(launcher, ProcessExit, 1)
    assert exit.was_taken
    assert exit.why == "its pod was deleted"


def test_the_next_master_takes_over_what_is_there(place: Place) -> None:
    first = place.launcher()
    for id in range(5):
        first.start(spec(id, "exit 7" if id == 1 else "exec sleep 1000"))
    wait_for(lambda: len(place.pods()) == 5)
    first.close()
    for id in (2, 4):
        place.api.delete("Pod", pod_name(id), grace_s=0)
    second = place.launcher()
    known = [Known(role="worker", id=id, ran=id == 4) for id in (0, 1, 2, 4)]
    second.adopt([*known, Known(role="worker", id=3)])
    events: list[ProcessEvent] = []

    def heard(kind: type[ProcessEvent]) -> dict[tuple[str, int], Any]:
        return {(e.role, e.id): e for e in events if isinstance(e, kind)}

    wait_for(
        lambda: (
            events.extend(second.poll())
            or (len(heard(ProcessRuns)) >= 2 and len(heard(ProcessExit)) == 2)
        )
    )
    assert {("worker", 0), ("worker", 3)} <= heard(ProcessRuns).keys()
    # It is unknown whether worker-2 ever ran; what worker-4 had is lost.
    assert heard(ProcessNotStarted).keys() == {("worker", 2)}
    exits = heard(ProcessExit)
    assert exits["worker", 1].code == 7
    assert exits["worker", 4].was_taken


def test_pods_of_an_earlier_life_of_the_job_are_deleted(place: Place) -> None:
    old = place.launcher(incarnation="old")
    for id in range(3):
        old.start(spec(id, "exit 1" if id == 2 else "exec sleep 1000"))
    wait_for(lambda: len(place.pods()) == 3)
    hear(old, ProcessExit, 2)
    old.close()
    new = place.launcher(incarnation="new")
    new.start(spec(0))
    new_name = pod_name(0, incarnation="new")
    # What has ended is left for its log.
    wanted = {new_name, pod_name(2, incarnation="old")}
    wait_for(lambda: new.poll() is not None and place.pods().keys() == wanted)


def test_a_missing_right_is_waited_for_and_then_refused_with_the_rule_to_add(place: Place) -> None:
    place.allow("weak", "list", "watch")
    launcher = place.launcher(place.api_of("weak"), forbidden_s=1.0)
    launcher.start(spec(0))
    waits = hear(launcher, ProcessWaits)
    rule = '{apiGroups: [""], resources: ["pods"], verbs: ["create"]}'
    assert rule in waits.why
    events = until_exit(launcher)
    [refused] = [e for e in events if isinstance(e, ProcessRefused)]
    assert f"system:serviceaccount:{place.api.namespace}:weak may not create pods" in refused.why
    assert rule in refused.why
    assert events.index(refused) < len(events) - 1


def test_a_right_that_is_given_in_time_is_used(place: Place) -> None:
    launcher = place.launcher(place.api_of("weak"), forbidden_s=HANG_S)
    launcher.start(spec(0))
    hear(launcher, ProcessWaits)
    place.allow("weak", "create", "list", "watch")
    hear(launcher, ProcessRuns)


def test_a_process_that_may_not_follow_its_pods_says_so(place: Place) -> None:
    place.allow("weak", "create", "delete")
    launcher = place.launcher(place.api_of("weak"), forbidden_s=1.0)
    launcher.start(spec(0))
    refused = hear(launcher, ProcessRefused)
    assert 'verbs: ["list"]' in refused.why
    launcher.stop("worker", 0, grace_s=0)
    until_exit(launcher)
    assert place.pods() == {}


def test_a_pod_that_may_not_be_deleted_is_given_up(place: Place) -> None:
    place.allow("weak", "create", "list", "watch")
    launcher = place.launcher(place.api_of("weak"), forbidden_s=1.0)
    launcher.start(spec(0))
    hear(launcher, ProcessRuns)
    launcher.stop("worker", 0, grace_s=0)
    until_exit(launcher)


def test_a_pod_beyond_the_limits_of_the_namespace_is_refused_at_once(place: Place) -> None:
    core = client.CoreV1Api(place.cluster.api_client())
    core.create_namespaced_limit_range(place.api.namespace, {
        "metadata": {"name": "small"},
        "spec": {"limits": [{"type": "Container", "max": {"memory": "1Gi"}}]},
    })  # fmt: skip
    launcher = place.launcher(resources="cpu=1,memory=2Gi")
    launcher.start(spec(0))
    refused = hear(launcher, ProcessRefused)
    assert "maximum memory usage per Container is 1Gi" in refused.why
    assert "Role" not in refused.why
    assert "--worker-resources" in refused.why
    # A role of which there are pods may get others again.
    other = place.launcher(resources="cpu=1,memory=1Gi")
    other.start(spec(1))
    hear(other, ProcessRuns, 1)
    core.create_namespaced_limit_range(place.api.namespace, {
        "metadata": {"name": "smaller"},
        "spec": {"limits": [{"type": "Container", "max": {"memory": "512Mi"}}]},
    })  # fmt: skip
    other.start(spec(2))
    waits = hear(other, ProcessWaits, 2)
    assert "maximum memory usage per Container is 512Mi" in waits.why
    core.delete_namespaced_limit_range("smaller", place.api.namespace)
    hear(other, ProcessRuns, 2)


def test_a_pod_that_waits_to_be_made_is_stopped_at_once(place: Place) -> None:
    launcher = place.launcher()
    launcher.start(spec(0))
    hear(launcher, ProcessRuns)
    place.cluster.control(
        "fail", verb="create", resource="pods", code=429, retry_after_s=0, count=1000
    )
    launcher.start(spec(1))
    hear(launcher, ProcessWaits, 1)
    launcher.stop("worker", 1, grace_s=20.0)
    exit = hear(launcher, ProcessExit, 1)
    assert exit.was_terminated
