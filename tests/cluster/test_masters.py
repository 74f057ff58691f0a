"""The master of a job and its Job: whichever way the master's pod goes, another one comes at once,
and the job ends when the job is over."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("kubernetes", reason="pip install torch-edl[kubernetes]")

from tests.cluster.cluster import Cluster
from tests.cluster.jobs import FLAGS, JOB, RECORDS, Job, Namespace, figure


def job_of(namespace: Namespace) -> Any:
    return namespace.batch.read_namespaced_job(f"{JOB}-master", namespace.name)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("how", ["evict", "delete", "crash"])
def test_masters_that_are_taken_away_again_and_again_are_replaced_at_once(
    namespace: Namespace, submit: Callable[..., Job], how: str
) -> None:
    """With the pauses of the Job controller, the third needs 40 s."""
    job = submit(RECORDS, *FLAGS)
    job.wait_for(lambda: job.done() > 0, 100)
    for _ in range(3):
        [master] = namespace.running(JOB, "master")
        began = time.monotonic()
        if how == "crash":
            namespace.kill_process(JOB, "master", "--job", JOB)
        elif how == "evict":
            namespace.evict(master)
        else:
            namespace.core.delete_namespaced_pod(master, namespace.name)
        if how != "crash":
            job.wait_for(lambda m=master: set(namespace.running(JOB, "master")) - {m}, 100)
        job.trains_on()
        figure(f"{how} of the master", trains_s=time.monotonic() - began)
        if how == "crash":
            assert namespace.running(JOB, "master") == [master]
        job.wait_for(lambda: len(namespace.running(JOB, "master")) == 1, 100)
    made = 1  # by the Job; the others had no reason to wait
    if how == "evict":
        # A loss without notice, the first one, waits for the first pause of the controller.
        [master] = namespace.running(JOB, "master")
        namespace.kill(master)
        job.wait_for(lambda: set(namespace.running(JOB, "master")) - {master}, 100)
        made += 1
        [pod] = [p for p in namespace.pods(JOB, "master") if p.status.phase == "Running"]
        assert pod.metadata.annotations["batch.kubernetes.io/job-index-failure-count"] == "1"
    job.complete()
    assert job.status()["state"] == "finished"
    events = namespace.core.list_namespaced_event(namespace.name).items
    assert [e.reason for e in events if e.source.component == "job-controller"].count(
        "SuccessfulCreate"
    ) == made  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_masters_node_is_unreachable_and_the_old_master_runs_on(
    orders: Cluster, namespace: Namespace, running: Job
) -> None:
    """Only the kubelet is gone; the pods stay there."""
    [pod] = [p for p in namespace.pods(JOB, "master") if p.status.phase == "Running"]
    node, began = pod.spec.node_name, time.monotonic()
    orders.control("lose-node", name=node, runs=True)
    running.wait_for(lambda: namespace.elsewhere(JOB, "master", node), 200)
    figure("node of the master unreachable", again_s=time.monotonic() - began)
    running.complete()
    orders.control("return-node", name=node)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_masters_node_is_down_for_good_and_nothing_keeps_two_masters_apart(
    orders: Cluster, namespace: Namespace, submit: Callable[..., Job]
) -> None:
    """Nobody starts another one until the user does what the client says."""
    at = FLAGS.index("--state-claim")
    flags = (*FLAGS[:at], *FLAGS[at + 2 :], "--checkpoint-dir", "/data/checkpoints")
    job = submit(RECORDS, *flags)
    job.wait_for(lambda: job.done() > 0, 100)
    [pod] = [p for p in namespace.pods(JOB, "master") if p.status.phase == "Running"]
    node = pod.spec.node_name
    orders.control("lose-node", name=node)
    fix = rf"kubectl taint nodes {node} (\S+)=(\S+):(\S+)"
    job.wait_for(lambda: re.search(fix, job.said()), 300)
    assert namespace.elsewhere(JOB, "master", node) == []
    key, value, effect = re.findall(fix, job.said())[0]
    taints = namespace.core.read_node(node).spec.taints
    taint = {"key": key, "value": value, "effect": effect}
    namespace.core.patch_node(node, {"spec": {"taints": [*taints, taint]}})
    job.wait_for(lambda: namespace.elsewhere(JOB, "master", node), 200)
    job.complete()
    orders.control("return-node", name=node)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_suspended_job_has_no_pods_and_goes_on_when_it_is_resumed(
    namespace: Namespace, running: Job
) -> None:
    """As Kueue does for a job of higher priority. The workers would wait for 15 minutes."""
    began = time.monotonic()
    suspend(namespace, True)
    running.wait_for(lambda: not namespace.pods(JOB), 200)
    figure("suspended", pods_gone_s=time.monotonic() - began)
    running.wait_for(lambda: running.status().get("state") == "suspended")
    assert "resume it: kubectl patch job" in running.status()["error"]
    running.wait_for(lambda: "the job has no processes: its Job is suspended" in running.said())
    suspend(namespace, False)
    running.wait_for(lambda: running.status().get("state") == "running", 100)
    running.trains_on()
    running.complete()


def suspend(namespace: Namespace, value: bool) -> None:
    namespace.batch.patch_namespaced_job(
        f"{JOB}-master", namespace.name, {"spec": {"suspend": value}}
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_job_that_is_stopped_ends_its_job_and_its_pods(
    namespace: Namespace, running: Job
) -> None:
    assert namespace.edl("stop", JOB).returncode == 0
    assert running.status()["state"] == "stopped"
    namespace.wait_for(lambda: [c for c in job_of(namespace).status.conditions or []
                                if c.type == "Failed"])  # fmt: skip
    namespace.wait_for(lambda: not [p for p in namespace.pods(JOB) if p.status.phase == "Running"])
    assert running.finish(60) != 0
    namespace.delete(JOB)
