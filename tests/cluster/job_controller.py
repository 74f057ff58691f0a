"""The controller of Jobs (batch/v1): one pod after another until one succeeds.

As in kube-controller-manager, a finalizer keeps each pod until it is counted, and a pod that lost
the label of its Job is released. Adoption is unknown here.

With ``backoffLimitPerIndex`` the number of failures is not in memory, but an annotation of the
pods: the last failed pod of an index is kept until its replacement has the number, plus one.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from tests.cluster.kinds import JOBS, PODS, Object, Refused, name_of, namespace_of
from tests.cluster.operations import Operations
from tests.cluster.pod_requests import set_condition
from tests.cluster.selectors import match_labels
from tests.cluster.store import Store, now, tell
from tests.cluster.times import (
    FAILED_POD_BACK_OFF_S,
    REFUSED_POD_BACK_OFF_S,
    doubling,
)

_ENDED = ("Succeeded", "Failed")
_TRACKING = "batch.kubernetes.io/job-tracking"
_INDEX = "batch.kubernetes.io/job-completion-index"
_FAILURES = "batch.kubernetes.io/job-index-failure-count"


@dataclass
class _BackOff:
    """When the next pod of a Job is made.

    Args:
        failed: pods so far.
        refused: creations in a row.
        not_before: no pod is created earlier.
    """

    failed: int = 0
    refused: int = 0
    not_before: float = 0.0


class JobController:
    """Creates and counts the pods of Jobs."""

    def __init__(self, store: Store, operations: Operations) -> None:
        self._store, self._operations = store, operations
        self._back_off: dict[str, _BackOff] = {}
        self._failed_at: dict[str, float] = {}  # when a pod was first seen to have failed

    def reconcile(self) -> None:
        going = set()
        for job in self._store.list(JOBS):
            is_over = any(c["type"] in ("Complete", "Failed") for c in _conditions(job))
            if "deletionTimestamp" not in job["metadata"] and not is_over:
                going.add(job["metadata"]["uid"])
                self._reconcile(job)
        for pod in self._store.list(PODS):
            controller = next((o for o in _owners(pod) if o.get("controller")), {})
            if controller.get("uid") not in going:
                self._let_go(pod)

    def _reconcile(self, job: Object) -> None:
        uid, spec = job["metadata"]["uid"], job["spec"]
        back_off = self._back_off.setdefault(uid, _BackOff())
        status = {"failed": 0, "succeeded": 0} | (job.get("status") or {})
        late = spec["podReplacementPolicy"] == "Failed"
        is_indexed = spec["completionMode"] == "Indexed"
        going, failed = [], []
        for pod in self._claim(job):
            phase, deleted = pod["status"]["phase"], "deletionTimestamp" in pod["metadata"]
            if not (phase in _ENDED or (deleted and not late)):
                going.append(pod)
            elif _TRACKING not in (pod["metadata"].get("finalizers") or []):
                continue  # it is counted
            elif phase == "Succeeded":
                status["succeeded"] += 1
                self._let_go(pod)
            else:
                failed.append(pod)
                self._failed_at.setdefault(pod["metadata"]["uid"], time.monotonic())
        active = [p for p in going if "deletionTimestamp" not in p["metadata"]]
        exceeded = status["failed"] + len(failed) > spec["backoffLimit"]
        kept = None
        if "backoffLimitPerIndex" in spec and not active and not exceeded:
            kept = max(failed, key=self._failures_and_time, default=None)
        for pod in failed:
            if pod is not kept:
                status["failed"] += 1
                back_off.failed += 1
                pause_s = doubling(FAILED_POD_BACK_OFF_S, back_off.failed)
                back_off.not_before = time.monotonic() + pause_s
                self._let_go(pod)
        status |= {
            "active": len(active), "terminating": len(going) - len(active),
            "ready": sum(p["status"]["phase"] == "Running" for p in active),
        }  # fmt: skip
        self._write(job, status, suspended=spec["suspend"])
        if exceeded:
            self._end(job, active, "FailureTarget", "Failed", "BackoffLimitExceeded",
                      "Job has reached the specified backoff limit")  # fmt: skip
        elif status["succeeded"]:
            self._end(job, active, "SuccessCriteriaMet", "Complete", "CompletionsReached",
                      "Reached expected number of succeeded pods")  # fmt: skip
        elif spec["suspend"]:
            self._remove(active)
        elif time.monotonic() >= self._not_before(job, back_off, kept):
            kept_one = [pod for pod in active if not is_indexed or _index_of(pod) == "0"][:1]
            self._remove([pod for pod in active if pod not in kept_one])
            if not (going if late else active):
                self._create(job, back_off, kept)

    def _failures_and_time(self, pod: Object) -> tuple[int, float]:
        return _failures_of(pod), self._failed_at[pod["metadata"]["uid"]]

    def _not_before(self, job: Object, back_off: _BackOff, kept: Object | None) -> float:
        """When the next pod may be made."""
        if "backoffLimitPerIndex" not in job["spec"] or back_off.refused:
            return back_off.not_before
        if kept is None:
            return 0.0
        pause_s = doubling(FAILED_POD_BACK_OFF_S, _failures_of(kept) + 1)
        return self._failed_at[kept["metadata"]["uid"]] + pause_s

    def _claim(self, job: Object) -> list[Object]:
        """The pods of a Job, oldest first."""
        uid, found = job["metadata"]["uid"], []
        for pod in self._store.list(PODS, namespace_of(job)):
            matches = match_labels(job["spec"]["selector"], pod["metadata"].get("labels") or {})
            owned = any(o["uid"] == uid and o.get("controller") for o in _owners(pod))
            if owned and not matches:
                self._let_go(pod, owner=uid)
            elif owned:
                found.append(pod)
        return sorted(found, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))

    def _let_go(self, pod: Object, owner: str = "") -> None:
        """Removes the finalizer, and an owner if one is named."""
        if _TRACKING not in (pod["metadata"].get("finalizers") or []) and not owner:
            return

        def change(thing: Object) -> None:
            metadata = thing["metadata"]
            finalizers = metadata.get("finalizers") or []
            metadata["finalizers"] = [f for f in finalizers if f != _TRACKING]
            metadata["ownerReferences"] = [o for o in _owners(thing) if o["uid"] != owner]

        self._store.update(PODS, namespace_of(pod), name_of(pod), change)

    def _create(self, job: Object, back_off: _BackOff, replaced: Object | None) -> None:
        template, name = job["spec"]["template"], name_of(job)
        spec = template["spec"]
        metadata = {
            **(template.get("metadata") or {}), "generateName": f"{name}-",
            "finalizers": [_TRACKING],
            "ownerReferences": [{
                "apiVersion": "batch/v1", "kind": "Job", "name": name,
                "uid": job["metadata"]["uid"], "controller": True, "blockOwnerDeletion": True,
            }],
        }  # fmt: skip
        if job["spec"]["completionMode"] == "Indexed":
            metadata["generateName"] = f"{name}-0-"
            metadata["labels"] = {**(metadata.get("labels") or {}), _INDEX: "0"}
            failures = 0 if replaced is None else _failures_of(replaced) + 1
            metadata["annotations"] = {
                **(metadata.get("annotations") or {}), _INDEX: "0", _FAILURES: str(failures),
            }  # fmt: skip
            spec = {**spec, "hostname": f"{name}-0"}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        try:
            made = self._operations.create(PODS, namespace_of(job), pod)
        except Refused as refused:
            why = f"Error creating: {refused}"
            tell(self._store, job, "job-controller", "FailedCreate", why, "Warning")
            back_off.refused += 1
            pause_s = doubling(REFUSED_POD_BACK_OFF_S, back_off.refused)
            back_off.not_before = time.monotonic() + pause_s
        else:
            back_off.refused = 0
            why = f"Created pod: {name_of(made)}"
            tell(self._store, job, "job-controller", "SuccessfulCreate", why)

    def _end(
        self, job: Object, active: list[Object], first: str, last: str, reason: str, message: str
    ) -> None:
        self._delete(active)

        def change(thing: Object) -> None:
            thing.setdefault("status", {})
            set_condition(thing, first, "True", reason, message)
            set_condition(thing, last, "True", reason, message)
            if last == "Complete":
                thing["status"]["completionTime"] = now()

        self._store.update(JOBS, namespace_of(job), name_of(job), change)
        kind = "Normal" if last == "Complete" else "Warning"
        told = "Completed" if last == "Complete" else reason
        tell(self._store, job, "job-controller", told, message, kind)

    def _remove(self, pods: list[Object]) -> None:
        """Deletes pods that do not count as failed."""
        for pod in pods:
            self._let_go(pod)
        self._delete(pods)

    def _delete(self, pods: list[Object]) -> None:
        for pod in pods:
            self._operations.delete(PODS, namespace_of(pod), name_of(pod), {})

    def _write(self, job: Object, numbers: Object, *, suspended: bool) -> None:
        def change(thing: Object) -> None:
            status = thing.setdefault("status", {})
            status |= numbers
            was = any(c["type"] == "Suspended" and c["status"] == "True" for c in _conditions(job))
            if suspended:
                status.pop("startTime", None)
                set_condition(thing, "Suspended", "True", "JobSuspended", "Job suspended")
            else:
                status.setdefault("startTime", now())
                if was:
                    set_condition(thing, "Suspended", "False", "JobResumed", "Job resumed")

        self._store.update(JOBS, namespace_of(job), name_of(job), change)


def _index_of(pod: Object) -> str:
    return str((pod["metadata"].get("annotations") or {}).get(_INDEX, ""))


def _failures_of(pod: Object) -> int:
    """The failures of an index before this pod."""
    return int((pod["metadata"].get("annotations") or {}).get(_FAILURES, "0"))


def _conditions(job: Object) -> list[Object]:
    return (job.get("status") or {}).get("conditions") or []


def _owners(pod: Object) -> list[Object]:
    return pod["metadata"].get("ownerReferences") or []
