"""Strangers do not reach the pods of a job."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("kubernetes", reason="pip install torch-edl[kubernetes]")

from kubernetes import client

from tests.cluster.cluster import Cluster
from tests.debian_package import require_package
from torch_edl.config import JobConfig
from torch_edl.plugins.kubernetes import names
from torch_edl.plugins.kubernetes.config import KubernetesConfig
from torch_edl.plugins.kubernetes.objects import job

JOB = "ctr"
SERVE = (
    "import socket; s = socket.create_server(('0.0.0.0', 7777)); print('ready', flush=True)\n"
    "while True: c, a = s.accept(); c.sendall(b'hello'); c.close()"
)
ASK = (
    "import socket, sys\n"
    "try: socket.create_connection((sys.argv[1], 7777), timeout=3)\n"
    "except TimeoutError: sys.exit(7)"
)


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory, machine: None) -> Iterator[Cluster]:
    require_package("nftables", lambda: shutil.which("nft") is not None)
    folder, nodes = tmp_path_factory.mktemp("cluster"), [{"name": "node-a", "cpu": "4"}]
    with Cluster(folder, nodes=nodes, enforces_policies=True) as started:
        yield started


@pytest.mark.slow
def test_only_the_pods_of_a_job_reach_its_servers(cluster: Cluster) -> None:
    namespace = cluster.make_namespace()
    core = client.CoreV1Api(cluster.api_client())
    pods = KubernetesConfig(image="e")
    config = JobConfig(name=JOB, model_file="/m.py", platform="kubernetes", platform_config=pods)
    [policy] = [
        each for each in job.objects(config, namespace=namespace, token="t", code={})
        if each["kind"] == "NetworkPolicy"
    ]  # fmt: skip

    def start(name: str, labels: dict[str, str], *command: str) -> None:
        container = {"name": "main", "image": "edl", "command": ["python", "-Sc", *command]}
        core.create_namespaced_pod(namespace, {
            "metadata": {"name": name, "labels": labels},
            "spec": {"containers": [container], "restartPolicy": "Never"},
        })  # fmt: skip

    def wait_for(name: str, *phases: str) -> Any:
        deadline = time.monotonic() + 60
        while (pod := core.read_namespaced_pod(name, namespace)).status.phase not in phases:
            assert time.monotonic() < deadline, cluster.report()
            time.sleep(0.05)
        return pod

    start("server", names.labels(JOB, "ps", 0), SERVE)
    address = wait_for("server", "Running").status.pod_ip
    while core.read_namespaced_pod_log("server", namespace) != "ready\n":
        time.sleep(0.05)

    def asks(name: str, labels: dict[str, str]) -> int:
        start(name, labels, ASK, address)
        pod = wait_for(name, "Succeeded", "Failed")
        return int(pod.status.container_statuses[0].state.terminated.exit_code)

    assert asks("before", {}) == 0
    networking = client.NetworkingV1Api(cluster.api_client())
    networking.create_namespaced_network_policy(namespace, policy)
    assert asks("worker", names.labels(JOB, "worker", 0)) == 0
    assert asks("stranger", {}) == 7
    assert asks("other", names.labels("other", "worker", 0)) == 7
