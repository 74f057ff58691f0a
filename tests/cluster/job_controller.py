"""The controller of Jobs (batch/v1): one pod after another until one succeeds."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field

from tests.cluster.happenings import tell
from tests.cluster.kinds import JOBS, PODS, Object, name_of, namespace_of
from tests.cluster.operations import Operations
from tests.cluster.pod_requests import set_condition
from tests.cluster.refused import Refused
from tests.cluster.settings import Settings
from tests.cluster.store import Store, now

_ENDED = ("Succeeded", "Failed")


@dataclass
class _Past:
    """What the controller remembers of a Job, as the finalizers of its pods would.

    Args:
        outcome: of each pod that ended: ``Succeeded``, ``Failed`` or ``Ignored``.
        seen: all pods so far.
        not_before: no pod is created earlier.
        pause_s: before the next pod after a failure.
    """

    outcome: dict[str, str] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    not_before: float = 0.0
    pause_s: float = 0.0


class JobController:
    """Creates and counts the pods of Jobs."""

    def __init__(self, store: Store, operations: Operations, settings: Settings) -> None:
        self._store, self._operations, self._settings = store, operations, settings
        self._past: dict[str, _Past] = {}

    def reconcile(self) -> None:
        for job in self._store.list(JOBS):
            if "deletionTimestamp" not in job["metadata"]:
                self._reconcile(job)

    def _reconcile(self, job: Object) -> None:
        if any(c["type"] in ("Complete", "Failed") for c in _conditions(job)):
            return
        uid, spec = job["metadata"]["uid"], job["spec"]
        past = self._past.setdefault(uid, _Past())
        pods = [pod for pod in self._store.list(PODS, namespace_of(job)) if _owns(job, pod)]
        failed_by = self._count(job, past, pods)
        outcome = Counter(past.outcome.values())
        going = [p for p in pods if p["metadata"]["uid"] not in past.outcome]
        ending = [p for p in going if "deletionTimestamp" in p["metadata"]]
        active = [p for p in going if "deletionTimestamp" not in p["metadata"]]
        status = {
            "active": len(active), "terminating": len(ending), "failed": outcome["Failed"],
            "succeeded": outcome["Succeeded"],
            "ready": sum(p["status"]["phase"] == "Running" for p in active),
        }  # fmt: skip
        if outcome["Failed"] > spec["backoffLimit"]:
            failed_by = "BackoffLimitExceeded", "Job has reached the specified backoff limit"
        if failed_by:
            self._end(job, active, "FailureTarget", "Failed", *failed_by)
        elif outcome["Succeeded"] >= spec["completions"]:
            self._end(job, active, "SuccessCriteriaMet", "Complete", "CompletionsReached",
                      "Reached expected number of succeeded pods")  # fmt: skip
        elif spec["suspend"]:
            self._delete(active)
        self._write(job, status, suspended=spec["suspend"])
        if failed_by or spec["suspend"] or outcome["Succeeded"] >= spec["completions"]:
            return
        held = len(ending) if spec["podReplacementPolicy"] == "Failed" else 0
        missing = min(spec["parallelism"], spec["completions"] - outcome["Succeeded"])
        for _ in range(missing - len(active) - held):
            if time.monotonic() >= past.not_before:
                self._create(job, past)

    def _count(self, job: Object, past: _Past, pods: list[Object]) -> tuple[str, str] | None:
        """Notes pods that have ended; returns why the Job has failed by a rule, if it has."""
        failed_by = None
        last = {pod["metadata"]["uid"]: pod for pod in pods}
        past.seen |= last.keys()
        for uid in past.seen:
            gone = uid not in last
            pod = self._store.removed[uid] if gone else last[uid]
            phase = pod["status"]["phase"]
            early = job["spec"]["podReplacementPolicy"] != "Failed"
            deleted = gone or (early and "deletionTimestamp" in pod["metadata"])
            if uid in past.outcome or not (phase in _ENDED or deleted):
                continue
            if phase == "Succeeded":
                past.outcome[uid] = "Succeeded"
                continue
            action, why = _action(job, pod)
            past.outcome[uid] = "Ignored" if action == "Ignore" else "Failed"
            if action == "FailJob":
                failed_by = "PodFailurePolicy", why
            elif action != "Ignore":
                past.pause_s = 2 * past.pause_s or self._settings.job_back_off_s
                past.not_before = time.monotonic() + past.pause_s
        return failed_by

    def _create(self, job: Object, past: _Past) -> None:
        template, name = job["spec"]["template"], name_of(job)
        owner = {
            "apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": job["metadata"]["uid"],
            "controller": True, "blockOwnerDeletion": True,
        }  # fmt: skip
        metadata = {
            **(template.get("metadata") or {}), "generateName": f"{name}-",
            "ownerReferences": [owner],
        }  # fmt: skip
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
        try:
            made = self._operations.create(PODS, namespace_of(job), pod, dry_run=False)
        except Refused as refused:
            why = f"Error creating: {refused}"
            tell(self._store, job, "job-controller", "FailedCreate", why, "Warning")
            past.pause_s = 2 * past.pause_s or self._settings.job_back_off_s
            past.not_before = time.monotonic() + past.pause_s
        else:
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

    def _delete(self, pods: list[Object]) -> None:
        for pod in pods:
            self._operations.delete(PODS, namespace_of(pod), name_of(pod), {})

    def _write(self, job: Object, numbers: dict[str, int], *, suspended: bool) -> None:
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


def _conditions(job: Object) -> list[Object]:
    return (job.get("status") or {}).get("conditions") or []


def _owns(job: Object, pod: Object) -> bool:
    owners = pod["metadata"].get("ownerReferences") or []
    return any(o["uid"] == job["metadata"]["uid"] and o.get("controller") for o in owners)


def _action(job: Object, pod: Object) -> tuple[str, str]:
    """What the policy of failures says about a pod that failed, and why."""
    codes = {
        status["name"]: status["state"]["terminated"]["exitCode"]
        for status in pod["status"].get("containerStatuses") or []
        if "terminated" in status["state"]
    }
    conditions = {c["type"]: c["status"] for c in pod["status"].get("conditions") or []}
    where = f"{namespace_of(pod)}/{name_of(pod)}"
    for i, rule in enumerate((job["spec"].get("podFailurePolicy") or {}).get("rules") or []):
        for pattern in rule.get("onPodConditions") or []:
            if conditions.get(pattern["type"]) == pattern["status"]:
                return rule["action"], (
                    f"Pod {where} has condition {pattern['type']} matching {rule['action']} "
                    f"rule at index {i}"
                )
        if wanted := rule.get("onExitCodes"):
            for name, code in codes.items():
                if wanted.get("containerName") not in (None, name) or code == 0:
                    continue
                if (code in wanted["values"]) == (wanted["operator"] == "In"):
                    return rule["action"], (
                        f"Container {name} for pod {where} failed with exit code {code} "
                        f"matching {rule['action']} rule at index {i}"
                    )
    return "Count", ""
