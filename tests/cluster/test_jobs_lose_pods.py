"""Jobs on a cluster that takes pods and machines away: nothing is lost, nothing counts twice."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest

pytest.importorskip("kubernetes", reason="pip install torch-edl[kubernetes]")

from kubernetes import client

from tests.cluster.cluster import Cluster
from tests.cluster.drain import uncordon
from tests.cluster.jobs import FLAGS, JOB, RECORDS, STATE, Job, Namespace, figure

_BROKEN_S = 30.0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_chaos_kills_pods_and_clean_removes_what_is_over(
    namespace: Namespace, running: Job
) -> None:
    refused = namespace.edl("chaos", JOB, "--pause", "worker=1:5s")
    assert refused.returncode == 2
    assert "a cluster pauses no process" in refused.stdout
    found = namespace.edl(
        "chaos", JOB, "--kill", "worker=1,ps=1,master=1", "--every", "4s", "--for", "8s", "--json",
        timeout_s=200,
    )  # fmt: skip
    assert found.returncode == 0, f"{found.stdout}{namespace.report()}"
    verdict = json.loads(found.stdout[found.stdout.index("{") :])
    assert verdict["held"]
    assert verdict["kills"] == {"worker": 2, "ps": 2, "master": 2}
    assert verdict["replaced"]["ps"] >= 2
    shown = namespace.page()
    assert shown["status"]["state"] == "running"
    assert "master" in {each["kind"] for each in shown["incidents"]}
    assert {"master-0", "ps-2", "ps-3"} <= {row[0] for row in shown["lanes"]["rows"]}
    # The curves begin long before this page, and outlive the pod of the master.
    assert shown["samples_total"] > 5
    assert shown["samples"][0][0] < shown["now"] - 8
    running.complete()
    shown = namespace.page()
    assert shown["status"]["state"] == "finished"
    assert shown["samples_total"] > 5
    assert {"ps-2", "ps-3"} <= {row[0] for row in shown["lanes"]["rows"]}
    kept = namespace.edl("clean", "--keep", "1")
    assert "nothing to remove" in kept.stdout
    removed = namespace.edl("clean", "--days", "0")
    assert f"removed: job {JOB}" in removed.stdout, removed.stdout
    namespace.wait_for(lambda: namespace.left_of(JOB) == [])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_curves_and_events_outlive_a_pod_of_the_master_without_a_claim(
    namespace: Namespace, submit: Callable[..., Job]
) -> None:
    """The state of the job is lost, and the job begins anew; its page does not."""
    job = submit(RECORDS, "--workers", "1", "--ps", "1", "--batch-size", "10")
    job.wait_for(lambda: job.done() > 0, 100)
    before = namespace.page()
    [master] = namespace.running(JOB, "master")
    namespace.evict(master)
    job.wait_for(lambda: (now := namespace.running(JOB, "master")) and master not in now, 100)
    job.wait_for(lambda: job.done() > 0, 100)
    after = namespace.page()
    assert after["samples"][0][0] == before["samples"][0][0]
    numbers = [event["sequence"] for event in after["events"]]
    assert numbers == list(range(1, len(numbers) + 1))
    assert after["events"][: len(before["events"])] == before["events"]
    job.complete()
    ended = namespace.page()
    assert ended["samples"][0][0] == before["samples"][0][0]
    assert ended["events"][0] == before["events"][0]
    assert ended["events"][-1]["kind"] == "end"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_half_of_many_workers_are_preempted_and_return(
    namespace: Namespace, submit: Callable[..., Job]
) -> None:
    """Pods of a higher priority take two of three nodes, and give them back."""
    flags = [*FLAGS, "--worker-resources", "cpu=2", "--state-claim", STATE]
    flags[flags.index("--workers") + 1] = "1:11"
    job = submit(RECORDS, *flags)
    job.wait_for(lambda: len(namespace.running(JOB, "worker")) == 11, 200)
    job.wait_for(lambda: len(job.workers()) == 11, 200)
    job.wait_for(lambda: job.done() > 0, 100)
    namespace.add_priority("high", 1000)
    began = time.monotonic()
    for name in ("first", "second"):
        namespace.sleep(name, cpu="8", priority="high")
    job.wait_for(lambda: len(namespace.running(JOB, "worker")) <= 4, 100)
    gone = time.monotonic() - began
    job.wait_for(lambda: "wait: no node has room" in job.said(), 100)
    job.trains_on()
    began = time.monotonic()
    for name in ("first", "second"):
        namespace.kill(name)
    job.wait_for(lambda: len(namespace.running(JOB, "worker")) == 11, 100)
    figure("seven of eleven workers preempted", gone_s=gone, back_s=time.monotonic() - began)
    job.complete()
    assert "error" not in job.said()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_node_is_lost_with_what_ran_on_it(
    orders: Cluster, namespace: Namespace, running: Job
) -> None:
    """A server is among it: its journal is on the volume."""
    [server] = [p for p in namespace.pods(JOB, "ps") if p.metadata.name.startswith(f"{JOB}-ps-0")]
    node = server.spec.node_name
    lost = {p.metadata.name for p in namespace.pods(JOB) if p.spec.node_name == node}
    began = time.monotonic()
    orders.control("lose-node", name=node)
    running.wait_for(
        lambda: (
            len(namespace.elsewhere(JOB, "worker", node)) == 2
            and len(namespace.elsewhere(JOB, "ps", node)) == 2
            and len(namespace.elsewhere(JOB, "master", node)) == 1
        ),
        200,
    )
    figure("node lost", pods=len(lost), replaced_s=time.monotonic() - began)
    running.trains_on()
    running.complete()
    orders.control("return-node", name=node)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nodes_are_drained_one_after_the_other(
    orders: Cluster, namespace: Namespace, running: Job, request: pytest.FixtureRequest
) -> None:
    """With a budget of whole pods. Not on a cluster of somebody else, which has other pods."""
    policy = client.PolicyV1Api(namespace.core.api_client)
    selector = {"matchLabels": {"torch-edl.dev/job": JOB, "torch-edl.dev/role": "worker"}}
    policy.create_namespaced_pod_disruption_budget(namespace.name, {
        "metadata": {"name": "workers"}, "spec": {"minAvailable": 1, "selector": selector},
    })  # fmt: skip
    nodes = {pod.spec.node_name for pod in namespace.pods(JOB) if pod.spec.node_name}
    for node in sorted(nodes):
        request.addfinalizer(lambda n=node: uncordon(namespace.core, n))
        began = time.monotonic()
        assert namespace.drain(node) == ""
        figure("node drained", s=time.monotonic() - began)
        running.wait_for(
            lambda n=node: all(
                len(namespace.elsewhere(JOB, role, n)) == count
                for role, count in (("worker", 2), ("ps", 2), ("master", 1))
            ),
            200,
        )
        running.trains_on()
        uncordon(namespace.core, node)
    running.complete()


def incarnations(namespace: Namespace) -> set[str]:
    """Those of the pods that masters have made."""
    pods = [*namespace.pods(JOB, "worker"), *namespace.pods(JOB, "ps")]
    return {pod.metadata.labels["torch-edl.dev/incarnation"] for pod in pods}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_replicas_survive_the_loss_of_the_masters_node(
    orders: Cluster, namespace: Namespace, submit: Callable[..., Job]
) -> None:
    """No server has a disk, none shares a node with another one, although both would have room
    there, and the state of the master is in a ConfigMap. Nobody says that the node is gone."""
    at = FLAGS.index("--durability")
    flags = [*FLAGS[:at], "--durability", "replica"]
    before = orders.control("calls")
    job = submit(RECORDS, *flags)
    job.wait_for(lambda: len(namespace.running(JOB, "ps")) == 2, 100)
    assert len({pod.spec.node_name for pod in namespace.pods(JOB, "ps")}) == 2
    job.wait_for(lambda: job.done() > 0, 100)
    [master] = [p for p in namespace.pods(JOB, "master") if p.status.phase == "Running"]
    node, began = master.spec.node_name, time.monotonic()
    lives = incarnations(namespace)
    orders.control("lose-node", name=node)
    job.wait_for(lambda: len(namespace.elsewhere(JOB, "master", node)) == 1, 200)
    figure("node of the master lost", master_s=time.monotonic() - began)
    job.trains_on()
    figure("node of the master lost", trains_s=time.monotonic() - began)
    assert incarnations(namespace) == lives, "the next master knows the processes of the last one"
    job.complete()
    took_s = time.monotonic() - job.began
    assert "restart from" not in job.said()
    account = f"system:serviceaccount:{namespace.name}:{JOB}-master patch configmaps"
    writes = orders.control("calls")[account] - before.get(account, 0)
    figure("writes of the state", writes=writes, per_s=writes / took_s)
    assert writes / took_s < 1.5
    orders.control("return-node", name=node)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_hundred_workers_are_asked_for_and_a_few_fit(
    orders: Cluster, namespace: Namespace, submit: Callable[..., Job]
) -> None:
    """The calls to the API server are as many as the pods, and do not grow with time."""
    before = orders.control("calls")
    job = submit(
        4000, "--workers", "1:200", "--ps", "1", "--batch-size", "20", "--worker-resources",
        "cpu=5",
    )  # fmt: skip
    job.wait_for(lambda: len(namespace.pods(JOB, "worker")) == 200, 200)
    asked_s = time.monotonic() - job.began
    job.wait_for(lambda: len(namespace.running(JOB, "worker")) == 3, 200)

    def calls() -> dict[str, int]:
        account = f"system:serviceaccount:{namespace.name}:{JOB}-master "
        now = orders.control("calls")
        return {
            key.removeprefix(account): count - before.get(key, 0)
            for key, count in now.items()
            if key.startswith(account)
        }

    made = calls()
    assert made == {
        "create pods": 201, "list pods": 1, "watch pods": 1, "patch jobs": 1, "get configmaps": 1,
    }  # fmt: skip
    job.trains_on()
    # The curves are written to the Job once a minute.
    assert {**calls(), "patch jobs": 1} == made
    job.complete()
    ended = calls()
    figure("200 workers", asked_s=asked_s, **{k.replace(" ", "_"): v for k, v in ended.items()})
    assert ended["delete pods"] <= 202
    assert ended["create pods"] <= 204  # those that ended before the last pods were deleted


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_watch_breaks_and_its_revision_is_forgotten(
    orders: Cluster, namespace: Namespace, running: Job
) -> None:
    orders.control("watches", refused=True, drop=True)
    victim = namespace.running(JOB, "worker")[0]
    namespace.kill(victim)
    orders.control("compact")
    broken = time.monotonic()
    running.trains_on()
    running.wait_for(lambda: time.monotonic() - broken >= _BROKEN_S, 2 * _BROKEN_S)
    running.trains_on()
    orders.control("watches", refused=False)
    healed = time.monotonic()
    running.wait_for(
        lambda: (
            len(namespace.running(JOB, "worker")) == 2
            and victim not in namespace.running(JOB, "worker")
        ),
        100,
    )
    figure("watch broken", s=healed - broken, whole_again_s=time.monotonic() - healed)
    running.complete()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_workers_share_pods_and_are_lost_alone_and_together(
    orders: Cluster, namespace: Namespace, submit: Callable[..., Job]
) -> None:
    flags = [*FLAGS, "--processes-per-pod", "2"]
    flags[flags.index("--workers") + 1] = "1:4"
    job = submit(RECORDS, *flags)
    job.wait_for(lambda: len(namespace.running(JOB, "worker")) == 2, 100)
    job.wait_for(lambda: job.workers() == [0, 1, 2, 3], 100)
    job.wait_for(lambda: job.done() > 0, 100)
    pods = namespace.running(JOB, "worker")
    began = time.monotonic()
    namespace.kill_process(JOB, "torch_edl.training.worker", "--job", JOB, "--id", "1")
    job.wait_for(lambda: job.workers() == [0, 2, 3, 4], 100)
    figure("one of two workers of a pod killed", replaced_s=time.monotonic() - began)
    assert namespace.running(JOB, "worker") == pods

    def log() -> str:
        return namespace.edl("logs", JOB, "--role", "worker", "--id", "4").stdout

    job.wait_for(lambda: "worker-4 INFO" in log())  # logged after the import of torch
    assert "worker-0" not in log()
    # The next master finds them all.
    [master] = namespace.running(JOB, "master")
    namespace.kill(master)
    job.wait_for(lambda: master not in namespace.running(JOB, "master"), 100)
    job.wait_for(lambda: job.workers() == [0, 2, 3, 4], 100)
    assert namespace.running(JOB, "worker") == pods
    job.trains_on()
    # A pod takes both with it.
    began = time.monotonic()
    namespace.evict(pods[0])
    job.wait_for(lambda: job.workers() == [2, 3, 5, 6], 100)
    figure("a pod of two workers evicted", replaced_s=time.monotonic() - began)
    found = namespace.edl("scale", JOB, "--workers", "1:3")
    assert found.returncode == 0, found.stdout
    job.wait_for(lambda: len(job.workers()) == 3, 100)
    job.trains_on()
    job.complete()
    assert "error" not in job.said()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_processes_that_crash_are_replaced_in_their_pods(
    namespace: Namespace, running: Job
) -> None:
    roles = ("worker", "ps")
    pods = {role: namespace.running(JOB, role) for role in roles}
    running.wait_for(lambda: running.workers() == [0, 1], 100)
    began = time.monotonic()
    namespace.kill_process(JOB, "torch_edl.training.worker", "--job", JOB, "--id", "0")
    running.wait_for(lambda: running.workers() == [1, 2], 100)
    figure("a worker of a pod killed", replaced_s=time.monotonic() - began)
    server = ("torch_edl.ps_server", "--id", "0", "--job", JOB, "--shard", "0")
    namespace.kill_process(JOB, *server, ends=False)
    running.trains_on()
    assert {role: namespace.running(JOB, role) for role in roles} == pods
    log = namespace.edl("logs", JOB, "--role", "ps", "--id", "2").stdout
    assert "ps-2 INFO" in log
    assert "ps-0" not in log
    running.complete()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_spare_pods_take_a_worker_and_a_server(
    namespace: Namespace, submit: Callable[..., Job]
) -> None:
    job = submit(RECORDS, *FLAGS, "--spares", "2", "--ps-failover", "worker")
    job.wait_for(lambda: len(namespace.running(JOB, "worker")) == 4, 200)
    pods = {name.rpartition("-")[0]: name for name in namespace.running(JOB, "worker")}
    servers = namespace.running(JOB, "ps")
    namespace.evict(pods[f"{JOB}-worker-0"])
    job.wait_for(lambda: job.workers() == [1, 2], 100)
    assert pods[f"{JOB}-worker-2"] in namespace.running(JOB, "worker")
    namespace.evict(servers[0])
    job.wait_for(lambda: "makes room for a server" in job.said(), 100)
    job.trains_on()
    assert namespace.running(JOB, "ps") == servers[1:]
    job.complete()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_api_server_is_restarted_when_the_master_is(
    orders: Cluster, namespace: Namespace, running: Job
) -> None:
    """It rejects everything for a while, and the next master's first call too."""
    orders.control("restart", away_s=1.0, unsynced_s=10.0)
    namespace.kill_process(JOB, "master", "--job", JOB)
    running.trains_on()
    running.complete()
    job = namespace.batch.read_namespaced_job(f"{JOB}-master", namespace.name)
    assert json.loads(job.metadata.annotations["torch-edl.dev/status"])["state"] == "finished"
