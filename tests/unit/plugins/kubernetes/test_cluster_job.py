"""What a client reads from the pods of a master, on the small cluster of tests/cluster."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("kubernetes", reason="needs torch-edl[kubernetes]")

from kubernetes import client

from tests.cluster.cluster import Cluster
from tests.schemas import require_valid
from tests.unit.plugins.kubernetes.jobs import CODE, TOKEN, job_config
from tests.waiting import wait_for
from torch_edl.interfaces.platform import LogQuery
from torch_edl.plugins.kubernetes import names
from torch_edl.plugins.kubernetes.client import cluster_job, logs
from torch_edl.plugins.kubernetes.client.cluster_job import ClusterJob
from torch_edl.plugins.kubernetes.cluster.api import Api
from torch_edl.plugins.kubernetes.cluster.failures import ForbiddenError
from torch_edl.plugins.kubernetes.cluster.pod_state import PodState
from torch_edl.plugins.kubernetes.objects import final_status, job
from torch_edl.wire import master_pb2 as pb

SLEEP = ["sleep", "1000"]


def found_job(api: Api, **pods: Any) -> ClusterJob:
    """The job ``ctr``, whose Job never makes a pod: a master that runs could note the end."""
    config = job.in_pods(job_config(pods=pods), CODE)
    *objects, master = job.objects(config, namespace=api.namespace, token=TOKEN, code=CODE)
    for each in (*objects, job.suspended(master)):
        api.create(each)
    return cluster_job.find(api, "ctr")


def start_master(api: Api, name: str, node: str, command: list[str]) -> None:
    """A pod in place of that of a master, on a node."""
    soon = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute", "operator": "Exists"}
    container = {"name": names.CONTAINER, "image": "edl", "command": command}
    api.create({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": names.labels("ctr", "master", 0)},
        "spec": {
            "containers": [container], "nodeSelector": {"kubernetes.io/hostname": node},
            "restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
            "tolerations": [{**soon, "tolerationSeconds": 1}],
        },
    })  # fmt: skip


@pytest.mark.parametrize("state_claim", ["", "state"])
def test_a_master_on_a_node_that_does_not_answer_counts_until_there_is_another(
    cluster: Cluster, api: Api, state_claim: str
) -> None:
    found = found_job(api, state_claim=state_claim)
    start_master(api, "first", "n1", SLEEP)
    wait_for(lambda: (pod := found.master_pod()) and pod.running)
    cluster.control("lose-node", name="n1")
    report = wait_for(lambda: report if (report := found.report())["error"] else None)
    require_valid("status", report)
    assert report["state"] == "running"
    assert "its node n1 does not answer" in report["error"]
    way_out = "kubectl taint nodes n1 node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
    assert (way_out in report["error"]) is not bool(state_claim)
    start_master(api, "second", "n2", SLEEP)
    wait_for(lambda: (pod := found.master_pod()) and pod.name == "second" and pod.running)
    # What the text says: then the pod is gone.
    core = client.CoreV1Api(cluster.api_client())
    taint = {"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}
    core.patch_node("n1", {"spec": {"taints": [*core.read_node("n1").spec.taints, taint]}})
    wait_for(lambda: [pod.name for pod in found.pods()] == ["second"])
    cluster.control("return-node", name="n1")
    api.delete("Pod", "second", grace_s=0)


def test_a_user_who_is_not_logged_in_is_told_so(cluster: Cluster, api: Api) -> None:
    stranger = Api(cluster.api_client("no-such-token"), api.namespace)
    with pytest.raises(ForbiddenError, match="log in again until kubectl get pods works") as raised:
        cluster_job.find(stranger, "ctr")
    assert raised.value.status == 401
    stranger.close()


def test_a_master_that_may_not_change_its_job_says_in_its_pod_how_the_job_ended(api: Api) -> None:
    found = found_job(api)
    last = pb.GetStatusResponse(state="failed", error="why", records={"done": 7})
    text = final_status.to_text(last, most=final_status.MAX_MESSAGE_BYTES)
    code = f"open('/dev/termination-log', 'w').write({json.dumps(text)})"
    start_master(api, "only", "n1", ["python", "-S", "-c", code])
    wait_for(lambda: (pod := found.master_pod()) and pod.ended)
    report = found.report()
    assert (report["state"], report["error"], report["records"]["done"]) == ("failed", "why", 7)


def test_the_logs_of_a_job_that_is_over_can_be_followed(cluster: Cluster, api: Api) -> None:
    found = found_job(api)
    start_master(api, "only", "n1", ["echo", "hello"])
    wait_for(lambda: (pod := found.master_pod()) and pod.ended)
    found.remove()
    # The end of the job is known before its pods are.
    cluster.control("fail", verb="list", resource="pods", code=429, retry_after_s=1)
    lines: list[tuple[str, str]] = []
    logs.read(found, LogQuery(follow=True), lambda name, line: lines.append((name, line)))
    assert lines == [("master-0", "hello")]


def test_a_master_that_has_ended_well_is_not_started_again(api: Api) -> None:
    """The Job is complete a moment later."""
    found = found_job(api)
    start_master(api, "only", "n1", ["true"])
    wait_for(lambda: (pod := found.master_pod()) and pod.ended)
    assert found.state(found.master_pod()) == ("finished", "")


def test_a_line_of_a_pod_begins_with_its_process() -> None:
    master = PodState(name="p", uid="u", role="master", id=0)
    pod = PodState(name="p", uid="u", role="worker", id=3)
    line = b"worker-4: worker-5: loss 0.1"
    assert logs.by_process(master, line) == ("master-0", line)
    assert logs.by_process(pod, line) == ("worker-4", b"worker-5: loss 0.1")
    assert logs.by_process(pod, b"ps-0: worker-5: loss") == ("ps-0", b"worker-5: loss")
    for own in (b"12:00:00.000 node-0 ERROR gone", b"worker-x: a"):
        assert logs.by_process(pod, own) == ("worker-3", own)
