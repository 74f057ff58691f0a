"""Interprets the state of a pod: why it does not run yet, and how its process ended. Pure.

A pod that the cluster took away (preempted, evicted, its node lost) has a condition or a reason
that tells so; such an end does not count as a failure of the job. For other pods, the exit code of
the process decides.
https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions
"""

from __future__ import annotations

import functools
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch_edl.plugins.kubernetes import names
from torch_edl.plugins.kubernetes.cluster.failures import one_line
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
# Reason of the condition PodScheduled of a pod with scheduling gates.
_GATED = "SchedulingGated"
# Why the scheduler finds no node: words of its message, the cause, and what to do. The first match
# counts. A pod that lacks room on one node may not match others, so room comes before these.
_NO_NODE = (
    (
        ("persistentvolumeclaim", "PersistentVolumeClaims"),
        "its volume does not exist",
        "kubectl get pvc shows the claims; create the claim, or name another one",
    ),
    (
        ("ReadWriteOncePod",),
        "another pod has its volume",
        "name a claim that is ReadWriteMany",
    ),
    (
        ("Insufficient", "Too many pods", "free ports", "disk pressure", "memory pressure"),
        "no node has room",
        "it starts when there is room; {resources} asks for less",
    ),
    (
        ("volume node affinity", "available persistent volumes", "max volume count"),
        "no node that can run it can mount its volume",
        "name a claim that all nodes can mount",
    ),
    (
        ("node affinity/selector", "affinity rules", "topology spread"),
        "no node matches its selector or affinity",
        "change nodeSelector or affinity in --pod-template or the template of its role",
    ),
    (
        ("untolerated taint",),
        "all nodes have taints that it does not tolerate",
        "add the toleration to --pod-template or the template of its role",
    ),
    (
        ("unschedulable",),
        "the nodes accept no new pods",
        "it starts when a node is uncordoned",
    ),
)
_IMAGE = ("ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", "ImageInspectError")
_NEVER = ("InvalidImageName", "ErrImageNeverPull")
_CANNOT_START = ("StartError", "ContainerCannotRun", "RunContainerError")
# A container that the kubelet lost track of, usually because its node was restarted.
_UNKNOWN = "ContainerStatusUnknown"
_OUT_OF_MEMORY = "OOMKilled"
_ENDED_BY_DELETION = (128 + signal.SIGTERM, 128 + signal.SIGKILL)
_NO_FAULT = (0, 128 + signal.SIGTERM)


class Cause(NamedTuple):
    """A reason, one word for programs, and its message for people; both empty if there is none."""

    reason: str = ""
    message: str = ""


_NONE = Cause()


@dataclass(frozen=True, kw_only=True)
class PodState:
    """The state of a pod; only the parts in use, since a job may have thousands of pods."""

    name: str
    uid: str
    role: str = ""
    id: int = -1
    """Number of the process for which the pod was created; -1: the label is missing."""
    incarnation: str = ""
    phase: str = "Pending"
    node: str = ""
    """Name of the node; empty before the pod is scheduled."""
    image: str = ""
    status: Cause = _NONE
    """Cause of the phase, such as ``Evicted``."""
    disruption: Cause = _NONE
    """Cause of the condition DisruptionTarget; empty if the condition does not hold."""
    unschedulable: Cause = _NONE
    """Cause why the pod has no node; empty if a node was found or none was tried yet."""
    deleting: bool = False
    waiting: Cause = _NONE
    """Cause why the container does not run yet; empty if it is not waiting."""
    running: bool = False
    exit_code: int | None = None
    """Exit code of the container; None if it has not ended."""
    exit: Cause = _NONE
    """Cause of the end of the container."""

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
    metadata, spec, status = (mapping(manifest, key) for key in ("metadata", "spec", "status"))
    labels = mapping(metadata, "labels")
    conditions = {
        (_text(each, "type"), _text(each, "status")): _cause(each)
        for each in mappings(status, "conditions")
    }
    unschedulable, disruption = _NONE, _NONE
    if (why := conditions.get(("PodScheduled", "False"))) is not None:
        unschedulable = Cause(why.reason or "Unschedulable", why.message or why.reason)
    if (why := conditions.get(("DisruptionTarget", "True"))) is not None:
        disruption = Cause(why.reason or "DisruptionTarget", why.message)
    state = mapping(container(status, "containerStatuses"), "state")
    ended = mapping(state, "terminated")
    id, code = _text(labels, names.ID), ended.get("exitCode")
    return PodState(
        name=_text(metadata, "name"),
        uid=_text(metadata, "uid"),
        role=_text(labels, names.ROLE),
        id=int(id) if id.isdecimal() else -1,
        incarnation=_text(labels, names.INCARNATION),
        phase=_text(status, "phase") or "Pending",
        node=_text(spec, "nodeName"),
        image=_text(container(spec, "containers"), "image"),
        status=_cause(status),
        disruption=disruption,
        unschedulable=unschedulable,
        deleting=bool(metadata.get("deletionTimestamp")),
        waiting=_cause(mapping(state, "waiting")),
        running="running" in state,
        exit_code=code if isinstance(code, int) else None,
        exit=_cause(ended),
    )


def progress(pod: PodState, role: str, id: int) -> ProcessWaits | ProcessRuns | ProcessRefused:
    """Return how far a pod has come whose process has not ended.

    Args:
        role: current role of the process, which may differ from the role at the pod's creation.
        id: current id of the process.
    """
    if pod.running:
        return ProcessRuns(role=role, id=id, node=pod.node)
    waits = functools.partial(ProcessWaits, role=role, id=id)
    reason, said = pod.waiting.reason, _last_line(pod.waiting.message)
    if pod.unschedulable.reason and not pod.node:
        why, fix = _why_no_node(pod.unschedulable, role)
        said = _cut(pod.unschedulable.message)
        return waits(why=f"{why}: {said}" if said else why, fix=fix, placed=False)
    if reason in _NEVER:
        why = f"the image {pod.image} cannot be had: {said or reason}; name another --image"
        return ProcessRefused(role=role, id=id, why=why)
    if reason in _IMAGE:
        why = f"the image {pod.image} cannot be pulled: {said or reason}"
        fix = "check --image and, for a private registry, imagePullSecrets in --pod-template"
        return waits(why=why, fix=fix)
    if reason.endswith("Error") or reason == "CrashLoopBackOff":
        why = f"its container cannot be created ({reason}): {said or 'no reason is given'}"
        return waits(why=why, fix=f"kubectl describe pod {pod.name} says more")
    return waits()


def _why_no_node(cause: Cause, role: str) -> tuple[str, str]:
    """Return in a few words why a pod has no node, and what to do."""
    if cause.reason == _GATED:
        fix = "the controller that set its scheduling gate removes the gate when the pod may run"
        return "it has a scheduling gate", fix
    for words, why, fix in _NO_NODE:
        if any(word in cause.message for word in words):
            return why, fix.format(resources=f"--{role}-resources")
    return "no node can run it", "change what the message names, or add such a node"


def end(
    pod: PodState, role: str, id: int, *, gone: bool, asked: bool = False
) -> ProcessExit | None:
    """Return how the process of a pod ended; None if it has not ended.

    Args:
        role, id: as for :func:`progress`.
        gone: True if the pod was deleted and ``pod`` is its last state.
        asked: True if the job itself requested the deletion of the pod.
    """
    if not (pod.ended or gone):
        return None
    code = pod.exit_code
    exit = functools.partial(ProcessExit, role=role, id=id, node=pod.node)
    taken = functools.partial(exit, own_fault=False)
    status = pod.status.reason
    if pod.disruption.reason:
        unknown = f"taken away ({pod.disruption.reason})", False
        text, blames = _DISRUPTIONS.get(pod.disruption.reason, unknown)
        return taken(code=code, why=_because(text, pod.disruption.message), blames_node=blames)
    # For example OutOfcpu: another pod was placed on the node first.
    if status in _REASONS or status.startswith("OutOf"):
        text, blames = _REASONS.get(status, ("its node had no room left", False))
        return taken(code=code, why=_because(text, pod.status.message), blames_node=blames)
    if pod.exit.reason == _UNKNOWN:
        return taken(why="its node has lost it", blames_node=True)
    if asked:
        code = 128 + signal.SIGTERM if code is None else code
    elif (gone and code is None) or (pod.deleting and code in _ENDED_BY_DELETION):
        return taken(code=code, why="its pod was deleted")
    if pod.exit.reason == _OUT_OF_MEMORY:
        limit = f"--{role}-resources memory= sets the limit"
        why = f"it was out of memory ({_OUT_OF_MEMORY}); {limit}"
        return exit(code=code, why=why, own_fault=True)
    if pod.exit.reason in _CANNOT_START:
        said = _last_line(pod.exit.message) or pod.exit.reason
        why = f"its container cannot start: {said}; does the image {pod.image} have torch-edl?"
        return exit(code=code, why=why, own_fault=True, blames_node=True)
    # The user's code ended the process, or another cause without a trace.
    failed = code not in _NO_FAULT
    said = _last_line(pod.exit.message) if failed else ""
    return exit(code=code, why=said, blames_node=failed)


def _because(text: str, message: str) -> str:
    return f"{text}: {_cut(message)}" if message else text


def _last_line(text: str) -> str:
    """Return the last non-empty line, which names the error of a traceback."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return _cut(lines[-1]) if lines else ""


def _cut(text: str) -> str:
    return one_line(text.strip().rstrip("."), _TEXT_CHARS)


def mapping(parent: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return a mapping within a manifest; empty if there is none."""
    found = parent.get(key)
    return found if isinstance(found, Mapping) else {}


def mappings(parent: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """Return a list of mappings within a manifest; empty if there is none."""
    found = parent.get(key)
    return [each for each in found if isinstance(each, Mapping)] if isinstance(found, list) else []


def container(parent: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return the container of the job among several; empty if there is none."""
    return next((c for c in mappings(parent, key) if c.get("name") == names.CONTAINER), {})


def _cause(parent: Mapping[str, Any]) -> Cause:
    return Cause(_text(parent, "reason"), _text(parent, "message"))


def _text(parent: Mapping[str, Any], key: str) -> str:
    found = parent.get(key)
    return found if isinstance(found, str) else ""
