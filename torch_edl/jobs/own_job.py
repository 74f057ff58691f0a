"""The Job of the master, as the master in its pod uses it: whether the job is over, how it ended,
and the next pod.

The Job controller makes another pod only after a pause that doubles with each pod that failed, was
deleted or was evicted, up to 10 minutes. A master that is told to leave therefore makes the next
pod itself: the controller counts a pod that has the labels of the Job as one of its own. What is
left to the pauses of the controller are pods that end without a word: of a node that is lost, or
out of memory.
https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-backoff-failure-policy
"""

from __future__ import annotations

import logging
import time
from typing import Any, Protocol

from torch_edl.jobs import final_status
from torch_edl.jobs.folder import ENDED
from torch_edl.kubernetes import names
from torch_edl.kubernetes.failures import (
    SETTLING_S,
    ClusterError,
    ForbiddenError,
    MissingError,
)
from torch_edl.kubernetes.requests import settled
from torch_edl.wire import master_pb2 as pb

log = logging.getLogger(__name__)

Manifest = dict[str, Any]

_AGAIN_S = 1.0
# By which the controller counts a pod, and knows that it has not counted one yet.
_UID_LABEL = "batch.kubernetes.io/controller-uid"
_TRACKING = "batch.kubernetes.io/job-tracking"


class JobApi(Protocol):
    """What of :class:`torch_edl.kubernetes.api.Api` this needs."""

    def create(self, manifest: Manifest) -> Manifest: ...
    def get(self, kind: str, name: str) -> Manifest: ...
    def patch(self, kind: str, name: str, patch: Manifest) -> Manifest: ...


class OwnJob:
    """The Job of the master.

    Args:
        job: the name of the job.
        uid: of the Job.
        forbidden_s: seconds for which the server may reject the first call.
    """

    def __init__(self, api: JobApi, job: str, uid: str, *, forbidden_s: float = SETTLING_S) -> None:
        self._api, self._job, self._uid = api, job, uid
        self._forbidden_s = forbidden_s
        self._name = names.master(job)
        self.may_note = True
        """False if this master was forbidden to change its Job when it began."""

    def begin(self) -> str:
        """Take possession of the objects of the job that have no owner yet.

        Returns:
            The state in which an earlier master has ended the job; empty: the job goes on.

        Raises:
            ClusterError: the cluster does not answer for a minute.
        """
        same = {"metadata": {"uid": self._uid}}
        try:
            found = settled(
                lambda: self._api.patch("Job", self._name, same), forbidden_s=self._forbidden_s
            )
        except ForbiddenError as error:
            # The account most likely lacks the rights on pods, too; the client shows that error.
            self.may_note = False
            log.warning("the end of this job cannot be noted: %s", error)
            return ""
        annotations = found["metadata"].get("annotations") or {}
        if names.ADOPTS in annotations:
            self._adopt()
        return state if (state := final_status.state_of(found)) in ENDED else ""

    def end(self, status: pb.GetStatusResponse) -> None:
        """Note in the Job how the job ended, and have no other pod made. Waits for a cluster that
        does not answer: the next master would begin a job anew of which nobody knows the end.

        Must be called only while :attr:`may_note` is true.
        """
        patch: Manifest = {
            "metadata": {"annotations": {names.STATUS: final_status.to_text(status)}},
        }
        if status.state != "finished":
            # The Job fails with the first pod that does.
            patch["spec"] = {"backoffLimit": 0}
        told = False
        while True:
            try:
                self._api.patch("Job", self._name, patch)
                return
            except MissingError:
                return  # nobody is to know
            except ClusterError as error:
                if not told:
                    log.warning("the end of the job is not noted yet: %s; trying again", error)
                told = True
                time.sleep(max(_AGAIN_S, error.retry_after_s))

    def make_next_pod(self) -> None:
        """Make the pod of the next master, unless the job is over, deleted or suspended."""
        try:
            found = self._api.get("Job", self._name)
            metadata, spec = found["metadata"], found["spec"]
            if metadata["uid"] != self._uid or metadata.get("deletionTimestamp"):
                return
            if spec.get("suspend") or final_status.state_of(found) in ENDED:
                return
            self._api.create(next_pod(found))
        except ClusterError as error:
            log.warning("the Job makes the next master's pod after a pause: %s", error)

    def _adopt(self) -> None:
        """Objects that a user has applied have no owner: the uid of the Job was not known."""
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": self._name, "uid": self._uid}
        for kind, name in names.belongings(self._job):
            try:
                self._api.patch(kind, name, {"metadata": {"ownerReferences": [owner]}})
            except MissingError:
                continue  # an option, or the user has left it out
            except ClusterError as error:
                log.warning("%s %s stays when the job is deleted: %s", kind, name, error)


def next_pod(job: Manifest) -> Manifest:
    """The manifest of another pod of a Job, as its controller makes them."""
    metadata, template = job["metadata"], job["spec"]["template"]
    owner = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
    }
    labels = (template.get("metadata") or {}).get("labels") or {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            **(template.get("metadata") or {}),
            "labels": {**labels, _UID_LABEL: metadata["uid"]},
            "name": names.next_master_pod(metadata["name"]),
            "ownerReferences": [owner],
            "finalizers": [_TRACKING],
        },
        "spec": template["spec"],
    }
