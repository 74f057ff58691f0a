"""The pods of the test cluster are what pods are: the tests of torch-edl rest on that."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("kubernetes", reason="pip install torch-edl[kubernetes]")

from kubernetes import client
from kubernetes.client.exceptions import ApiException
from kubernetes.stream import portforward

from tests.cluster.cluster import ROOT, Cluster
from tests.cluster.times import FAILED_POD_BACK_OFF_S
from tests.debian_package import require_package
from tests.waiting import HANG_S, wait_for
from torch_edl.config import JobConfig
from torch_edl.plugins.kubernetes import names
from torch_edl.plugins.kubernetes.config import KubernetesConfig
from torch_edl.plugins.kubernetes.objects import job

JSON = dict[str, Any]
SLEEP = ["python", "-S", "-c", "import time; time.sleep(1000)"]
SERVE = (
    "import socket; s = socket.create_server(('0.0.0.0', 7777)); print('ready', flush=True)\n"
    "while True: c, a = s.accept(); c.sendall(a[0].encode()); c.close()"
)
NODES = [{"name": "node-a", "cpu": "4"}, {"name": "node-b", "cpu": "4"}]


class Pods:
    """The pods of one namespace."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster, self.namespace = cluster, namespace
        self.core = client.CoreV1Api(cluster.api_client())

    def start(self, name: str, command: list[str], *, cpu: str = "1", **spec: Any) -> None:
        container = {
            "name": "main", "image": "edl", "command": command, **spec.pop("container", {}),
            "resources": {"requests": {"cpu": cpu}},
        }  # fmt: skip
        labels = spec.pop("labels", {"app": name})
        self.core.create_namespaced_pod(self.namespace, {
            "metadata": {"name": name, "labels": labels},
            "spec": {"containers": [container], "restartPolicy": "Never",
                     "terminationGracePeriodSeconds": 0, **spec},
        })  # fmt: skip

    def get(self, name: str) -> Any:
        return self.core.read_namespaced_pod(name, self.namespace)

    def log(self, name: str) -> str:
        return str(self.core.read_namespaced_pod_log(name, self.namespace))

    def phase(self, name: str) -> str:
        return str(self.get(name).status.phase)

    def state(self, name: str) -> Any:
        return self.get(name).status.container_statuses[0].state

    def is_gone(self, name: str) -> bool:
        try:
            self.get(name)
        except ApiException as refused:
            return refused.status == 404
        return False

    def condition(self, name: str, kind: str) -> Any:
        found = [c for c in self.get(name).status.conditions or [] if c.type == kind]
        return found[0] if found else None

    def wait_for(self, condition: Callable[[], object]) -> None:
        wait_for(condition, self.cluster.report)

    def serve(self, name: str, **labels: str) -> str:
        """Starts a pod that answers connections at port 7777; its address."""
        self.start(name, ["python", "-S", "-c", SERVE], labels=labels)
        self.wait_for(lambda: self.phase(name) == "Running" and self.log(name) == "ready\n")
        return str(self.get(name).status.pod_ip)

    def finish(self, name: str) -> str:
        self.wait_for(lambda: self.phase(name) in ("Succeeded", "Failed"))
        return self.phase(name)


@pytest.fixture
def pods(cluster: Cluster) -> Iterator[Pods]:
    pods = Pods(cluster, cluster.make_namespace())
    yield pods
    for pod in pods.core.list_namespaced_pod(pods.namespace).items:
        pods.core.delete_namespaced_pod(pod.metadata.name, pods.namespace, grace_period_seconds=0)


def test_a_pod_reaches_another_by_the_name_of_its_service(pods: Pods) -> None:
    pods.core.create_namespaced_service(pods.namespace, {
        "metadata": {"name": "echo"},
        "spec": {"clusterIP": "None", "selector": {"app": "server"}, "ports": [{"port": 7}]},
    })  # fmt: skip
    pods.serve("server", app="server")
    ask = "import socket; c = socket.create_connection(('echo', 7777)); print(c.recv(99).decode())"
    pods.start("client", ["python", "-S", "-c", ask])
    assert pods.finish("client") == "Succeeded", pods.log("client")
    # An address of its own, and no loopback address.
    address = pods.get("client").status.pod_ip
    assert pods.log("client") == f"{address}\n"
    assert address.startswith("10.244.")
    forward = portforward(
        pods.core.connect_get_namespaced_pod_portforward, "server", pods.namespace, ports="7777"
    )
    assert forward.socket(7777).recv(99) == b"127.0.0.1"


def test_a_container_has_its_environment_and_volumes_and_nothing_else(pods: Pods) -> None:
    names = {"name": "of-job"}
    pods.core.create_namespaced_secret(
        pods.namespace, {"metadata": names, "stringData": {"token": "secret"}}
    )
    pods.core.create_namespaced_config_map(
        pods.namespace, {"metadata": names, "data": {"model.py": "x = 1"}}
    )
    look = (
        "import os, pathlib\n"
        "print(os.environ['TOKEN'], os.environ['IP'], os.getuid(), os.getpid(), sep=',')\n"
        "print(open('/code/model.py').read(), 'PYTEST_CURRENT_TEST' in os.environ)\n"
        "pathlib.Path('/data/x').touch(); print(os.path.exists('/var/run/secrets'))\n"
        "pathlib.Path('/etc/x').touch()"
    )
    env = [
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "of-job", "key": "token"}}},
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
    ]
    mounts = [{"name": "code", "mountPath": "/code"}, {"name": "data", "mountPath": "/data"}]
    volumes = [{"name": "code", "configMap": names}, {"name": "data", "emptyDir": {}}]
    pods.start(
        "a", ["python", "-uSc", look], volumes=volumes, automountServiceAccountToken=False,
        securityContext={"runAsUser": 1234, "runAsGroup": 1234, "fsGroup": 1234},
        container={"env": env, "volumeMounts": mounts, "terminationMessagePolicy":
                   "FallbackToLogsOnError", "securityContext": {"readOnlyRootFilesystem": True}},
    )  # fmt: skip
    assert pods.finish("a") == "Failed"
    address = pods.get("a").status.pod_ip
    lines = pods.log("a").splitlines()
    assert lines[:3] == [f"secret,{address},1234,1", "x = 1 False", "False"]
    ended = pods.state("a").terminated
    assert (ended.exit_code, ended.reason) == (1, "Error")
    assert "Read-only file system" in ended.message


def test_what_cannot_start_says_why(pods: Pods) -> None:
    pods.start("image", SLEEP, container={"image": "wrong:1"})
    pods.start("large", SLEEP, cpu="9")
    pods.start("command", ["no-such-command"])
    env = [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "no", "key": "b"}}}]
    pods.start("secret", SLEEP, container={"env": env})
    assert pods.finish("command") == "Failed"
    assert pods.state("command").terminated.reason == "StartError"
    pods.wait_for(lambda: pods.state("image").waiting.reason == "ImagePullBackOff")
    pods.wait_for(lambda: pods.condition("large", "PodScheduled"))
    said = pods.condition("large", "PodScheduled")
    assert said.reason == "Unschedulable"
    assert said.message.startswith("0/2 nodes are available: 2 Insufficient cpu.")
    pods.wait_for(lambda: pods.state("secret").waiting.reason == "CreateContainerConfigError")


def test_a_pod_of_higher_priority_takes_the_place_of_another(pods: Pods) -> None:
    scheduling = client.SchedulingV1Api(pods.cluster.api_client())
    scheduling.create_priority_class({"metadata": {"name": "high"}, "value": 1000})
    for name in ("low-a", "low-b"):
        pods.start(name, SLEEP, cpu="4")
    pods.wait_for(lambda: pods.phase("low-a") == pods.phase("low-b") == "Running")
    pods.start("waiting", SLEEP, cpu="4")
    pods.start("urgent", SLEEP, cpu="4", priorityClassName="high")
    pods.wait_for(lambda: pods.phase("urgent") == "Running")
    left = {pod.metadata.name for pod in pods.core.list_namespaced_pod(pods.namespace).items}
    assert len(left & {"low-a", "low-b"}) == 1
    assert pods.phase("waiting") == "Pending"
    pods.core.delete_namespaced_pod("urgent", pods.namespace)
    pods.wait_for(lambda: pods.phase("waiting") == "Running")


class Jobs:
    """The Jobs of the namespace of some pods."""

    def __init__(self, pods: Pods) -> None:
        self._pods, self._batch = pods, client.BatchV1Api(pods.cluster.api_client())

    def start(self, name: str, command: list[str], *, pod: JSON | None = None, **spec: Any) -> None:
        container = {"name": "main", "image": "edl", "command": command}
        of_pod = {"containers": [container], "restartPolicy": "Never",
                  "terminationGracePeriodSeconds": 0, **(pod or {})}  # fmt: skip
        self._batch.create_namespaced_job(self._pods.namespace, {
            "metadata": {"name": name}, "spec": {"template": {"spec": of_pod}, **spec},
        })  # fmt: skip

    def status(self, name: str) -> Any:
        return self._batch.read_namespaced_job(name, self._pods.namespace).status

    def reasons(self, name: str) -> dict[str, str]:
        return {c.type: c.reason for c in self.status(name).conditions or []}

    def pods(self, name: str) -> list[Any]:
        """The oldest first; the phase of one that is being deleted is ``Terminating``."""
        found = self._pods.core.list_namespaced_pod(
            self._pods.namespace, label_selector=f"job-name={name}"
        ).items
        for each in found:
            if each.metadata.deletion_timestamp:
                each.status.phase = "Terminating"
        return sorted(found, key=lambda each: each.metadata.creation_timestamp)

    def running(self, name: str) -> str:
        """The name of the pod that runs, when there is one."""
        self._pods.wait_for(lambda: [p for p in self.pods(name) if p.status.phase == "Running"])
        return str(next(p for p in self.pods(name) if p.status.phase == "Running").metadata.name)

    def delete(self, name: str) -> None:
        self._batch.delete_namespaced_job(
            name, self._pods.namespace, propagation_policy="Background"
        )
        self._pods.wait_for(lambda: not self.pods(name))


@pytest.fixture
def jobs(pods: Pods) -> Jobs:
    return Jobs(pods)


_BACK_OFF_S = FAILED_POD_BACK_OFF_S[0]


def test_a_job_counts_crashes_and_waits_longer_after_each(pods: Pods, jobs: Jobs) -> None:
    jobs.start("crashes", ["false"], backoffLimit=2)
    began = time.monotonic()
    pods.wait_for(lambda: "Failed" in jobs.reasons("crashes"))
    assert time.monotonic() - began >= _BACK_OFF_S + 2 * _BACK_OFF_S
    assert jobs.reasons("crashes")["Failed"] == "BackoffLimitExceeded"
    assert jobs.status("crashes").failed == len(jobs.pods("crashes")) == 3
    jobs.start("works", ["true"])
    pods.wait_for(lambda: "Complete" in jobs.reasons("works"))


def test_pods_of_a_job_that_are_taken_away_count_and_are_replaced_after_a_pause(
    pods: Pods, jobs: Jobs
) -> None:
    jobs.start("stays", SLEEP)
    first = jobs.running("stays")
    pods.core.create_namespaced_pod_eviction(first, pods.namespace, {"metadata": {"name": first}})
    began = time.monotonic()
    pods.wait_for(lambda: pods.is_gone(first))
    second = jobs.running("stays")
    assert time.monotonic() - began >= _BACK_OFF_S
    assert jobs.status("stays").failed == 1
    pods.core.delete_namespaced_pod(second, pods.namespace)
    pods.wait_for(lambda: jobs.status("stays").failed == 2)
    jobs.delete("stays")


def test_pods_of_a_lost_node_stay_until_the_node_is_gone(pods: Pods) -> None:
    pods.cluster.control("add-node", name="doomed", labels={"disk": "old"})
    soon = [{"key": "node.kubernetes.io/unreachable", "operator": "Exists",
             "effect": "NoExecute", "tolerationSeconds": 0}]  # fmt: skip
    pods.start(
        "a", SLEEP, nodeSelector={"disk": "old"}, tolerations=soon, terminationGracePeriodSeconds=30
    )
    pods.wait_for(lambda: pods.phase("a") == "Running")
    pods.cluster.control("lose-node", name="doomed")
    pods.wait_for(lambda: pods.get("a").metadata.deletion_timestamp)
    assert pods.condition("a", "DisruptionTarget").reason == "DeletionByTaintManager"
    assert pods.phase("a") == "Running"
    pods.core.delete_node("doomed")
    pods.wait_for(lambda: pods.is_gone("a"))


@pytest.mark.slow
def test_only_the_pods_of_a_job_reach_its_servers(
    tmp_path_factory: pytest.TempPathFactory, machine: None
) -> None:
    require_package("nftables", lambda: shutil.which("nft") is not None)
    folder = tmp_path_factory.mktemp("cluster")
    with Cluster(folder, nodes=NODES, enforces_policies=True) as cluster:
        pods = Pods(cluster, cluster.make_namespace())
        config = JobConfig(name="ctr", model_file="/m.py", platform="kubernetes",
                           platform_config=KubernetesConfig(image="e"))  # fmt: skip
        [policy] = [
            each for each in job.objects(config, namespace=pods.namespace, token="t", code={})
            if each["kind"] == "NetworkPolicy"
        ]  # fmt: skip
        address = pods.serve("server", **names.labels("ctr", "ps", 0))
        ask = (
            f"import socket, sys\ntry: socket.create_connection(('{address}', 7777), timeout=3)\n"
            "except TimeoutError: sys.exit(7)"
        )

        def asks(name: str, labels: dict[str, str]) -> int:
            pods.start(name, ["python", "-Sc", ask], labels=labels)
            pods.finish(name)
            return int(pods.state(name).terminated.exit_code)

        assert asks("before", {}) == 0
        networking = client.NetworkingV1Api(cluster.api_client())
        networking.create_namespaced_network_policy(pods.namespace, policy)
        assert asks("worker", names.labels("ctr", "worker", 0)) == 0
        assert asks("stranger", {}) == 7
        assert asks("other", names.labels("other", "worker", 0)) == 7


_POD_AFTER_PODS = """
import json, subprocess
from tests.cluster.network import PodNetwork, enter_cluster

def address():
    links = json.loads(subprocess.check_output(["ip", "-json", "link", "show", "cluster"]))
    return links[0]["address"]

enter_cluster()
seen = {address()}
pods = []
for _ in range(6):
    pods.append(PodNetwork())
    seen.add(address())
print(*seen)
"""


def test_pods_that_come_and_go_do_not_move_the_api_server(machine: None) -> None:
    """A pod that knows where to send to goes on to send there."""
    found = subprocess.run(
        [sys.executable, "-c", _POD_AFTER_PODS], cwd=ROOT, text=True, check=True, timeout=HANG_S,
        capture_output=True,
    )  # fmt: skip
    assert len(found.stdout.split()) == 1, found.stdout
