"""Manifests as kubelets and schedulers write them, and what a job makes of them."""

from __future__ import annotations

from typing import Any

import pytest

from torch_edl.plugins.kubernetes import names
from torch_edl.plugins.kubernetes.cluster.pod_state import end, progress, read_pod
from torch_edl.processes.launcher import ProcessRefused, ProcessRuns, ProcessWaits


def pod(**status: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "ctr-worker-3-ab",
            "uid": "u1",
            "labels": names.labels("ctr", "worker", 3, "ab"),
        },
        "spec": {"nodeName": "n1", "containers": [{"name": "main", "image": "repo/edl:1"}]},
        "status": {"phase": "Pending", **status},
    }


def container(**state: Any) -> list[dict[str, Any]]:
    return [{"name": "main", "state": state}]


def waits(reason: str, message: str = "") -> Any:
    status = container(waiting={"reason": reason, "message": message})
    return progress(read_pod(pod(containerStatuses=status)), "worker", 3)


def ended(
    code: int | None = None, why: str = "", said: str = "", *, gone: bool = False, **more: Any
) -> Any:
    terminated = {"exitCode": code, "reason": why, "message": said}
    state = {} if code is None else {"terminated": terminated}
    deleting = more.pop("deleting", False)
    asked = more.pop("asked", False)
    manifest = pod(phase="Failed" if code else "Running", containerStatuses=container(**state))
    manifest["status"].update(more)
    if deleting:
        manifest["metadata"]["deletionTimestamp"] = "2026-11-23T09:00:00Z"
    return end(read_pod(manifest), "worker", 3, gone=gone, asked=asked)


def disrupted(reason: str, message: str = "") -> dict[str, Any]:
    condition = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}
    return {"conditions": [condition]}


def test_a_pod_says_whose_it_is() -> None:
    found = read_pod(pod())
    assert (found.role, found.id, found.incarnation, found.node) == ("worker", 3, "ab", "n1")


@pytest.mark.parametrize(
    "manifest",
    [{}, {"metadata": None, "status": 7}, {"status": {"conditions": "x", "containerStatuses": [1]}},
     {"metadata": {"labels": {names.ID: "minus one"}}}, {"status": {"phase": ["Running"]}}],
)  # fmt: skip
def test_what_is_missing_or_of_another_form_is_left_out(manifest: Any) -> None:
    found = read_pod(manifest)
    assert (found.id, found.phase, found.ended) == (-1, "Pending", False)


# ---- pending ----


def test_a_pod_without_room_waits_for_a_place_and_says_why() -> None:
    manifest = pod(
        conditions=[
            {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": "0/3 nodes are available: 3 Insufficient cpu.",
            }
        ]
    )
    del manifest["spec"]["nodeName"]
    found = progress(read_pod(manifest), "worker", 3)
    assert isinstance(found, ProcessWaits)
    assert not found.placed
    assert found.why == "no node has room: 0/3 nodes are available: 3 Insufficient cpu"
    assert "--worker-resources" in found.fix


OTHERS = "node(s) didn't match Pod's node affinity/selector."


@pytest.mark.parametrize(
    ("lacks", "why", "fix"),
    [
        (
            'persistentvolumeclaim "data" not found.',
            "its volume does not exist",
            "create the claim",
        ),
        (
            "pod has unbound immediate PersistentVolumeClaims.",
            "its volume does not exist",
            "get pvc",
        ),
        (f"3 {OTHERS}", "no node matches its selector or affinity", "nodeSelector"),
        (f"1 Insufficient cpu, 2 {OTHERS}", "no node has room", "--worker-resources"),
        (
            "3 node(s) had untolerated taint {gpu: yes}.",
            "all nodes have taints that it does not tolerate",
            "tol",
        ),
        (
            "2 node(s) had volume node affinity conflict.",
            "no node that can run it can mount its vol",
            "",
        ),
        ("3 node(s) were unschedulable.", "the nodes accept no new pods", "uncordoned"),
        ("of another kind.", "no node can run it", "change what the message names"),
    ],
)
def test_a_pod_without_a_node_says_what_it_lacks(lacks: str, why: str, fix: str) -> None:
    found = unplaced("Unschedulable", f"0/3 nodes are available: {lacks} preemption: not helpful.")
    assert found.why.startswith(why)
    assert lacks.rstrip(".") in found.why
    assert fix in found.fix


def test_a_pod_with_a_scheduling_gate_waits_for_who_set_it() -> None:
    found = unplaced("SchedulingGated", "Scheduling is blocked due to non-empty scheduling gates")
    assert found.why.startswith("it has a scheduling gate: Scheduling is blocked")
    assert "scheduling gate" in found.fix


def unplaced(reason: str, message: str) -> ProcessWaits:
    condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
    manifest = pod(conditions=[condition])
    del manifest["spec"]["nodeName"]
    found = progress(read_pod(manifest), "worker", 3)
    assert isinstance(found, ProcessWaits)
    assert not found.placed
    return found


def test_a_pod_that_is_being_made_waits_for_nothing() -> None:
    assert waits("ContainerCreating") == ProcessWaits(role="worker", id=3)
    assert progress(read_pod(pod()), "worker", 3) == ProcessWaits(role="worker", id=3)


@pytest.mark.parametrize("reason", ["ErrImagePull", "ImagePullBackOff"])
def test_an_image_that_cannot_be_pulled_is_named(reason: str) -> None:
    found = waits(reason, 'Back-off pulling image "repo/edl:1": not found')
    assert isinstance(found, ProcessWaits)
    assert found.placed
    assert "repo/edl:1 cannot be pulled" in found.why
    assert "imagePullSecrets" in found.fix


def test_a_name_that_is_no_image_is_refused_for_good() -> None:
    found = waits("InvalidImageName", 'couldn\'t parse image name "REPO/EDL"')
    assert isinstance(found, ProcessRefused)
    assert "name another --image" in found.why


def test_a_container_that_cannot_be_created_is_explained() -> None:
    found = waits("CreateContainerConfigError", 'secret "ctr-token" not found')
    assert isinstance(found, ProcessWaits)
    assert 'secret "ctr-token" not found' in found.why
    assert "kubectl describe pod ctr-worker-3-ab" in found.fix


def test_a_container_that_runs_runs() -> None:
    status = pod(phase="Running", containerStatuses=container(running={"startedAt": "x"}))
    assert progress(read_pod(status), "ps", 0) == ProcessRuns(role="ps", id=0, node="n1")


# ---- taken away: never a failure ----


@pytest.mark.parametrize(
    ("reason", "text", "blames"),
    [
        ("PreemptionByScheduler", "preempted by a pod of higher priority", False),
        ("EvictionByEvictionAPI", "drained", False),
        ("DeletionByTaintManager", "not ready or was tainted", True),
        ("DeletionByPodGC", "its node is gone", True),
        ("TerminationByKubelet", "short of resources", True),
        ("SomethingNew", "taken away (SomethingNew)", False),
    ],
)
def test_a_disruption_is_no_failure(reason: str, text: str, blames: bool) -> None:
    for code in (0, 143, 137, 1):
        found = ended(code, **disrupted(reason, "the details"))
        assert found.was_taken
        assert not found.was_killed
        assert text in found.why
        assert "the details" in found.why
        assert found.blames_node is blames


@pytest.mark.parametrize(
    ("reason", "blames"),
    [("Evicted", True), ("NodeLost", True), ("NodeShutdown", False), ("Preempting", False),
     ("OutOfcpu", False), ("UnexpectedAdmissionError", True)],
)  # fmt: skip
def test_a_pod_that_its_node_ended_or_refused_is_no_failure(reason: str, blames: bool) -> None:
    # Evicted pods keep no status of their container.
    found = ended(None, phase="Failed", reason=reason, message="The node was low on memory.")
    assert found.was_taken
    assert found.blames_node is blames
    assert "low on memory" in found.why


def test_a_pod_that_is_gone_without_a_word_was_deleted() -> None:
    found = ended(None, gone=True)
    assert found.was_taken
    assert str(found) == "its pod was deleted"
    assert found.how == "was taken away: its pod was deleted"


def test_a_pod_that_somebody_deleted_was_taken_whether_it_left_or_was_killed() -> None:
    assert ended(143, deleting=True).was_taken
    assert ended(137, deleting=True).was_taken
    assert not ended(1, deleting=True).was_taken


def test_a_pod_that_the_job_deleted_has_ended_as_asked() -> None:
    assert ended(143, deleting=True, asked=True).was_terminated
    found = ended(None, gone=True, asked=True)
    assert found.was_terminated
    assert not found.was_taken


def test_a_container_of_which_the_node_lost_sight_is_no_failure() -> None:
    found = ended(137, "ContainerStatusUnknown")
    assert found.was_taken
    assert found.code is None


# ---- ended by itself ----


def test_out_of_memory_is_a_fault_and_names_the_limit() -> None:
    found = ended(137, "OOMKilled")
    assert found.own_fault is True
    assert not found.was_killed
    assert "--worker-resources memory=" in str(found)


def test_a_crash_brings_the_last_line_of_its_log() -> None:
    log = "Traceback (most recent call last):\n  File x\nValueError: no such column\n"
    found = ended(1, "Error", log)
    assert str(found) == "exit code 1: ValueError: no such column"
    assert found.own_fault is None
    assert found.blames_node
    assert not any((found.was_killed, found.was_terminated, found.was_taken))


def test_an_image_without_torch_edl_is_named() -> None:
    found = ended(128, "StartError", 'exec: "python": executable file not found in $PATH')
    assert found.own_fault is True
    assert "repo/edl:1" in str(found)


def test_an_end_that_is_none_of_these_is_told_by_its_code() -> None:
    assert ended(0).code == 0
    assert ended(143).was_terminated
    assert ended(137).was_killed
    assert ended(0).blames_node is False


def test_a_pod_that_runs_has_not_ended() -> None:
    status = pod(phase="Running", containerStatuses=container(running={}))
    assert end(read_pod(status), "worker", 3, gone=False) is None
