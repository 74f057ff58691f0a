"""Interprets the state of a pod: why it does not run yet, and how its process ended. Pure.

A pod that the cluster took away (preempted, evicted, its node lost) has a condition or a reason
that tells so; such an end does not count as a failure of the job. For other pods, the exit code of
the process decides.
https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch_edl.plugins.kubernetes import names
from torch_edl.processes.launcher import ProcessExit, ProcessRefused, ProcessRuns, ProcessWaits

_TEXT_CHARS = 300

TAINTED = "DeletionByTaintManager"
"""Reason of the condition DisruptionTarget of a pod whose node does not answer or was tainted."""
# Texts for reasons of the condition DisruptionTarget, and whether the node is at fault.
_DISRUPTIONS = {
    "PreemptionByScheduler": ("preempted by a pod of higher priority", False),
    TAINTED: ("its node is not ready or was tainted", True),
    "EvictionByEvictionAPI": ("evicted, since its node is drained", False),
    "DeletionByPodGC": ("its node is gone", True),
    "TerminationByKubelet": ("ended by its node, which is short of resources or shuts down", True),
}
# Texts for reasons of a pod that the kubelet ended or rejected, and whether the node is at fault.
_REASONS = {
    "Evicted": ("evicted by its node", True),
    "Preempting": ("preempted for a critical pod", False),
    "NodeLost": ("its node is lost", True),
    "NodeShutdown": ("its node shuts down", False),
    "Shutdown": ("its node shuts down", False),
    "Terminated": ("its node shuts down", False),
    "UnexpectedAdmissionError": ("its node refused it", True),
    "NodeAffinity": ("its node refused it", True),
    "NodePorts": ("its node refused it", True),
}
_IMAGE = ("ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", "ImageInspectError")
_NEVER = ("InvalidImageName", "ErrImageNeverPull")
_CANNOT_START = ("StartError", "ContainerCannotRun", "RunContainerError")
# A container that the kubelet lost track of, usually because its node was restarted.
_UNKNOWN = "ContainerStatusUnknown"
_OUT_OF_MEMORY = "OOMKilled"
_ENDED_BY_DELETION = (128 + signal.SIGTERM, 128 + signal.SIGKILL)
_NO_FAULT = (0, 128 + signal.SIGTERM)


@dataclass(frozen=True, kw_only=True)
class PodState:
    """The state of a pod; only the parts in use, since a job may have thousands of pods."""

    name: str
    uid: str
    role: str = ""
    id: int = -1
    """Number of the process for which the pod was created; -1: the label is missing."""
    shared: bool = False
    """True for a pod of several workers, see :data:`torch_edl.plugins.kubernetes.names.SHARED`."""
    incarnation: str = ""
    phase: str = "Pending"
    node: str = ""
    """Name of the node; empty before the pod is scheduled."""
    image: str = ""
    reason: str = ""
    """Reason of the pod's status, such as ``Evicted``; empty if there is none."""
    message: str = ""
    disruption: str = ""
    """Reason of the condition DisruptionTarget; empty if the condition does not hold."""
    disruption_message: str = ""
    unschedulable: str = ""
    """Reason why no node can run the pod; empty if a node was found or none was tried yet."""
    deleting: bool = False
    waiting: str = ""
    """Reason why the container does not run yet; empty if it is not waiting."""
    waiting_message: str = ""
    running: bool = False
    exit_code: int | None = None
    """Exit code of the container; None if it has not ended."""
    exit_reason: str = ""
    exit_message: str = ""

    @property
    def standing(self) -> tuple[bool, bool]:
        """Rank of the pod among several pods of one process; the highest one is current.

        A pod of a node that does not answer is both running and deleted until the node returns.
        """
        return self.running, not self.deleting

    @property
    def ended(self) -> bool:
        """True if the process of the pod has ended or will never run."""
        return self.phase in ("Succeeded", "Failed") or self.exit_code is not None


def read_pod(manifest: Mapping[str, Any]) -> PodState:
    """Return the state of a pod from its manifest; missing or malformed fields have their
    defaults."""
    metadata, spec, status = (_part(manifest, key) for key in ("metadata", "spec", "status"))
    labels = _part(metadata, "labels")
    conditions = {
        _text(each, "type"): each for each in _parts(status, "conditions") if "type" in each
    }
    scheduled = conditions.get("PodScheduled", {})
    disrupted = conditions.get("DisruptionTarget", {})
    is_disrupted = _text(disrupted, "status") == "True"
    ours = [c for c in _parts(status, "containerStatuses") if c.get("name") == names.CONTAINER]
    state = _part(ours[0], "state") if ours else {}
    waiting, ended = _part(state, "waiting"), _part(state, "terminated")
    images = [c for c in _parts(spec, "containers") if c.get("name") == names.CONTAINER]
    id, code = _text(labels, names.ID), ended.get("exitCode")
    return PodState(
        name=_text(metadata, "name"),
        uid=_text(metadata, "uid"),
        role=_text(labels, names.ROLE),
        id=int(id) if id.isdecimal() else -1,
        shared=bool(_text(labels, names.SHARED)),
        incarnation=_text(labels, names.INCARNATION),
        phase=_text(status, "phase") or "Pending",
        node=_text(spec, "nodeName"),
        image=_text(images[0], "image") if images else "",
        reason=_text(status, "reason"),
        message=_text(status, "message"),
        disruption=_text(disrupted, "reason") or "DisruptionTarget" if is_disrupted else "",
        disruption_message=_text(disrupted, "message") if is_disrupted else "",
        unschedulable=(_text(scheduled, "message") or _text(scheduled, "reason") or "no reason")
        if _text(scheduled, "status") == "False"
        else "",
        deleting=bool(metadata.get("deletionTimestamp")),
        waiting=_text(waiting, "reason"),
        waiting_message=_text(waiting, "message"),
        running="running" in state,
        exit_code=code if isinstance(code, int) else None,
        exit_reason=_text(ended, "reason"),
        exit_message=_text(ended, "message"),
    )


def progress(pod: PodState, role: str, id: int) -> ProcessWaits | ProcessRuns | ProcessRefused:
    """Return how far a pod has come whose process has not ended.

    Args:
        role: current role of the process, which may differ from the role at the pod's creation.
        id: current id of the process.
    """
    if pod.running:
        return ProcessRuns(role=role, id=id, node=pod.node)
    option = _resources(role)
    said = _last_line(pod.waiting_message)
    if pod.unschedulable and not pod.node:
        why = f"no node has room: {_cut(pod.unschedulable)}"
        fix = f"it starts when there is room; {option} asks for less"
        return ProcessWaits(role=role, id=id, why=why, fix=fix, placed=False)
    if pod.waiting in _NEVER:
        why = f"the image {pod.image} cannot be had: {said or pod.waiting}; name another --image"
        return ProcessRefused(role=role, id=id, why=why)
    if pod.waiting in _IMAGE:
        why = f"the image {pod.image} cannot be pulled: {said or pod.waiting}"
        fix = "check --image and, for a private registry, imagePullSecrets in --pod-template"
        return ProcessWaits(role=role, id=id, why=why, fix=fix)
    if pod.waiting.endswith("Error") or pod.waiting == "CrashLoopBackOff":
        why = f"its container cannot be created ({pod.waiting}): {said or 'no reason is given'}"
        fix = f"kubectl describe pod {pod.name} says more"
        return ProcessWaits(role=role, id=id, why=why, fix=fix)
    return ProcessWaits(role=role, id=id)


def end(
    pod: PodState, role: str, id: int, *, gone: bool, asked: bool = False
) -> ProcessExit | None:
    """Return how the process of a pod ended; None if it has not ended.

    Args:
        role: current role of the process.
        id: current id of the process.
        gone: True if the pod was deleted and ``pod`` is its last state.
        asked: True if the job itself requested the deletion of the pod.
    """
    if not (pod.ended or gone):
        return None
    code, why, taken, blames = pod.exit_code, "", False, False
    # For example OutOfcpu: another pod was placed on the node first.
    out_of = pod.reason.startswith("OutOf")
    if pod.disruption:
        text, blames = _DISRUPTIONS.get(pod.disruption, (f"taken away ({pod.disruption})", False))
        why, taken = _because(text, pod.disruption_message), True
    elif pod.reason in _REASONS or out_of:
        text, blames = _REASONS.get(pod.reason, ("its node had no room left", False))
        why, taken = _because(text, pod.message), True
    elif pod.exit_reason == _UNKNOWN:
        why, taken, blames, code = "its node has lost it", True, True, None
    elif asked:
        code = 128 + signal.SIGTERM if code is None else code
    elif (gone and code is None) or (pod.deleting and code in _ENDED_BY_DELETION):
        why, taken = "its pod was deleted", True
    if taken:
        return ProcessExit(
            role=role, id=id, code=code, why=why, own_fault=False, node=pod.node, blames_node=blames
        )
    if pod.exit_reason == _OUT_OF_MEMORY:
        return ProcessExit(
            role=role,
            id=id,
            code=code,
            why=f"it was out of memory ({_OUT_OF_MEMORY}); {_resources(role)} memory= sets the "
            "limit",
            own_fault=True,
            node=pod.node,
        )
    if pod.exit_reason in _CANNOT_START:
        said = _last_line(pod.exit_message) or pod.exit_reason
        return ProcessExit(
            role=role,
            id=id,
            code=code,
            why=f"its container cannot start: {said}; does the image {pod.image} have torch-edl?",
            own_fault=True,
            node=pod.node,
            blames_node=True,
        )
    # The user's code ended the process, or another cause without a trace.
    failed = code not in _NO_FAULT
    said = _last_line(pod.exit_message) if failed else ""
    return ProcessExit(role=role, id=id, code=code, why=said, node=pod.node, blames_node=failed)


def _resources(role: str) -> str:
    return f"--{'worker' if role == 'agent' else role}-resources"


def _because(text: str, message: str) -> str:
    return f"{text}: {_cut(message)}" if message else text


def _last_line(text: str) -> str:
    """Return the last non-empty line, which names the error of a traceback."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return _cut(lines[-1]) if lines else ""


def _cut(text: str) -> str:
    text = re.sub(r"\s+", " ", text).strip().rstrip(".")
    return text if len(text) <= _TEXT_CHARS else f"{text[: _TEXT_CHARS - 3]}..."


def _part(parent: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = parent.get(key)
    return found if isinstance(found, Mapping) else {}


def _parts(parent: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    found = parent.get(key)
    return [each for each in found if isinstance(each, Mapping)] if isinstance(found, list) else []


def _text(parent: Mapping[str, Any], key: str) -> str:
    found = parent.get(key)
    return found if isinstance(found, str) else ""
