"""The master's own Job object, as seen from its pod: final status, history, and the next pod.

The Job controller creates another pod only after a pause, which doubles with each pod that failed,
was deleted or was evicted, up to 10 minutes. A master that must leave therefore creates the next
pod itself, as a pod of the Job without earlier failures. The controller's pauses apply only to pods
that end without notice, on a lost node or out of memory, and grow only with such pods in a row.
https://kubernetes.io/docs/concepts/workloads/controllers/job/#backoff-limit-per-index
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import time
from concurrent.futures import ThreadPoolExecutor

from torch_edl.launch.jobs.folder import ENDED
from torch_edl.plugins.kubernetes import names
from torch_edl.plugins.kubernetes.cluster.api import Api
from torch_edl.plugins.kubernetes.cluster.failures import (
    SETTLING_S,
    ClusterError,
    ForbiddenError,
    MissingError,
)
from torch_edl.plugins.kubernetes.cluster.requests import settled
from torch_edl.plugins.kubernetes.names import Manifest
from torch_edl.plugins.kubernetes.objects import final_history, final_status
from torch_edl.wire import master_pb2 as pb

log = logging.getLogger(__name__)

_AGAIN_S = 1.0
# Parallel calls that delete pods.
_PARALLEL = 16
# Finalizer of a pod that the controller has not counted yet.
_TRACKING = "batch.kubernetes.io/job-tracking"
# Label and annotation of a pod with the index that it completes; the Job of a master has one index.
_INDEX = "batch.kubernetes.io/job-completion-index"
# Annotation with the number of failed pods of the index before this pod.
_FAILURES = "batch.kubernetes.io/job-index-failure-count"


class OwnJob:
    """The Job object of the master.

    Args:
        job: name of the job.
        uid: uid of the Job object.
        pod: name of the pod of this master; empty: unknown.
        forbidden_s: seconds for which the API server may reject the first call, until the rights of
            a new account are effective.
    """

    def __init__(
        self, api: Api, job: str, uid: str, *, pod: str = "", forbidden_s: float = SETTLING_S
    ) -> None:
        self._api, self._job, self._uid, self._pod = api, job, uid, pod
        self._forbidden_s = forbidden_s
        self._name = names.master(job)
        self.may_note = True
        """False if this master may not change its Job object."""
        self.left = b""
        """Lines of the history and events that an earlier master wrote; empty if there are none."""

    def begin(self) -> str:
        """Become the owner of the objects of the job that have no owner yet.

        Returns:
            The final state that an earlier master wrote; empty if the job continues.

        Raises:
            ClusterError: the cluster has not answered for a minute.
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
        self.left = final_history.of(found)
        annotations = found["metadata"].get("annotations") or {}
        if names.ADOPTS in annotations:
            self._adopt()
        return state if (state := final_status.state_of(found)) in ENDED else ""

    def owner_of_pods(self) -> Manifest:
        """Return the reference to the owner of the pods of workers and servers.

        Raises:
            ClusterError: the cluster has not answered for a minute.
        """
        name = names.files(self._job)
        try:
            # The rights of the account are effective since begin().
            found = settled(lambda: self._api.get("ConfigMap", name), forbidden_s=0.0)
        except (ForbiddenError, MissingError) as error:
            text = "the pods of this job have no controller, so kubectl drain will need --force"
            log.warning("%s: %s", text, error)
            return names.owner(self._job, self._uid)
        return names.controller(self._job, found["metadata"]["uid"])

    def note_history(self, text: str) -> None:
        """Write an encoded history to the Job object.

        Raises:
            ClusterError: the cluster does not answer, or rejects the request.
        """
        self._api.patch("Job", self._name, {"metadata": {"annotations": {names.HISTORY: text}}})

    def end(self, status: pb.GetStatusResponse, history: str = "") -> None:
        """Write the final status and the encoded history to the Job object, and prevent further
        pods; only if :attr:`may_note`.

        Waits while the cluster does not answer, because the next master would otherwise start the
        ended job again.
        """
        patch: Manifest = {
            "metadata": {"annotations": {names.STATUS: final_status.to_text(status)}},
            # A suspended Job ends with one more pod, which begins no job.
            "spec": {"suspend": False},
        }
        if history:
            patch["metadata"]["annotations"][names.HISTORY] = history
        if status.state != "finished":
            # The Job object fails with the next pod that fails.
            patch["spec"]["backoffLimit"] = 0
        told = False
        while True:
            try:
                self._api.patch("Job", self._name, patch)
                return
            except MissingError:
                return  # the Job object was deleted
            except ClusterError as error:
                if not told:
                    log.warning("the end of the job is not noted yet: %s; trying again", error)
                told = True
                time.sleep(max(_AGAIN_S, error.retry_after_s))

    def is_stopped(self) -> bool:
        """Return True if a user stopped the job without a connection to this master."""
        try:
            found = self._api.get("Job", self._name)
        except ClusterError as error:
            log.warning("cannot read whether a user stopped the job: %s", error)
            return False
        return names.STOP in (found["metadata"].get("annotations") or {})

    def hand_over(self) -> None:
        """Create the pod of the next master, unless the job is over or deleted. If the Job is
        suspended, delete the pods of all other processes instead."""
        try:
            found = self._api.get("Job", self._name)
            metadata, spec = found["metadata"], found["spec"]
            if metadata["uid"] != self._uid or metadata.get("deletionTimestamp"):
                return
            if final_status.state_of(found) in ENDED:
                return
            if spec.get("suspend"):
                self._delete_processes()
                return
            if self._pod:
                # If the node shuts down, this pod ends without being deleted, and the controller
                # would remove the next pod as one too many.
                with contextlib.suppress(MissingError):
                    self._api.delete("Pod", self._pod)
            self._api.create(self._next_pod(spec["template"]))
        except ClusterError as error:
            log.warning(
                "the Job creates the next master's pod, after its back-off delay: %s", error
            )

    def _delete_processes(self) -> None:
        """Delete the pods of workers and servers, each with its own grace period."""
        try:
            found, _ = self._api.list("Pod", names.processes(self._job), read=_name_of)
        except ClusterError as error:
            log.warning("the Job is suspended, but its pods cannot be deleted: %s", error)
            return
        log.warning("the Job is suspended: deleting %d pods of the job", len(found))

        def delete(pod: str) -> None:
            try:
                self._api.delete("Pod", pod)
            except MissingError:
                pass
            except ClusterError as error:
                log.warning(
                    "pod %s cannot be deleted, and remains without a master: %s", pod, error
                )

        with ThreadPoolExecutor(_PARALLEL) as threads:
            list(threads.map(delete, found))

    def _adopt(self) -> None:
        """Set the owner of the job's objects, which a user applied before the Job had a uid."""
        owner = names.owner(self._job, self._uid)
        for kind, name in names.belongings(self._job):
            try:
                self._api.patch(kind, name, {"metadata": {"ownerReferences": [owner]}})
            except MissingError:
                continue  # an optional object that the user has not created
            except ClusterError as error:
                log.warning("%s %s stays when the job is deleted: %s", kind, name, error)

    def _next_pod(self, template: Manifest) -> Manifest:
        """Return the manifest of a pod of the Job, equal to those of the controller."""
        metadata = template.get("metadata") or {}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                **metadata,
                "labels": {
                    **(metadata.get("labels") or {}),
                    names.JOB_UID: self._uid,
                    _INDEX: "0",
                },
                "annotations": {
                    **(metadata.get("annotations") or {}),
                    _INDEX: "0",
                    _FAILURES: "0",
                },
                "name": f"{self._name}-0-{secrets.token_hex(3)}",
                "ownerReferences": [{**names.owner(self._job, self._uid), "controller": True}],
                "finalizers": [_TRACKING],
            },
            "spec": template["spec"],
        }


def _name_of(manifest: Manifest) -> str:
    name: str = manifest["metadata"]["name"]
    return name
