"""A job on a cluster, found by its labels and called through the API server.

All functions and methods raise ClusterError if the cluster does not answer, or rejects the request.

A client forwards a port of the master's pod through the API server. The client can then call the
master as on its own machine, encrypted by the token of the job. Alternatively, the master could
publish its status in an object, but the master would need additional rights, and every status
request would cost the API server a write.
"""

from __future__ import annotations

import base64
import contextlib
import functools
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import grpc
from google.protobuf.message import Message

from torch_edl.config import JobConfig
from torch_edl.errors import UsageError
from torch_edl.launch.jobs.local_job import CALL_TIMEOUT_S, refused
from torch_edl.launch.jobs.logs import text_of_line
from torch_edl.launch.jobs.status import EMPTY, as_dict
from torch_edl.plugins.kubernetes import names
from torch_edl.plugins.kubernetes.cluster import pod_state as causes
from torch_edl.plugins.kubernetes.cluster.api import Api
from torch_edl.plugins.kubernetes.cluster.failures import (
    ClusterError,
    ForbiddenError,
    MissingError,
    NoAnswerError,
    one_line,
)
from torch_edl.plugins.kubernetes.cluster.forward import Forward
from torch_edl.plugins.kubernetes.objects import final_history, final_status
from torch_edl.plugins.kubernetes.objects.job import STOP
from torch_edl.plugins.kubernetes.objects.submit import ending
from torch_edl.wire import master_pb2 as pb
from torch_edl.wire import services
from torch_edl.wire.channel import Stub
from torch_edl.wire.endpoint import REMOTE

_OURS = "app.kubernetes.io/managed-by=torch-edl"
# Reasons of events of a pod that has a node and cannot start there.
_NOT_READY = ("FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox")
_MULTI_ATTACH = "Multi-Attach error"
# Label of a Job that Kueue manages.
_QUEUE = "kueue.x-k8s.io/queue-name"
# Exit codes of a master that was stopped.
_STOPPED_CODES = (130, 143)


class ClusterJob:
    """A job on a cluster. Methods without a docstring are those of
    :class:`~torch_edl.interfaces.JobHandle`."""

    def __init__(self, api: Api, name: str, manifest: Mapping[str, Any]) -> None:
        self.name = name
        self.api = api
        self.manifest = manifest
        """The master's Job object, as last read."""

    @property
    def uid(self) -> str:
        """Uid of the master's Job object; another job with the same name has another uid."""
        found: str = self.manifest["metadata"]["uid"]
        return found

    @property
    def where(self) -> str:
        return f"--namespace {self.api.namespace}"

    @property
    def logs(self) -> str:
        return f"torch-edl logs {self.name} {self.where}"

    @property
    def place(self) -> str:
        return f"job {self.name} in namespace {self.api.namespace}"

    def is_over(self) -> bool:
        return self.final() is not None or ending(self.manifest) is not None

    def final(self, pod: causes.PodState | None = None) -> pb.GetStatusResponse | None:
        """Return the final status from the master; None if the job has not ended or none is known.

        Args:
            pod: pod of the master, whose termination message has the status if the master could
                not change its Job object.
        """
        said = final_status.from_text(pod.exit.message) if pod is not None and pod.ended else None
        return final_status.of(self.manifest) or said

    def is_gone(self) -> bool:
        return not self.refresh() or ending(self.manifest) is not None

    def remove(self) -> None:
        """Delete the Job object, and in the background all objects that belong to it."""
        with contextlib.suppress(MissingError):
            self.api.delete("Job", names.master(self.name), uid=self.uid)

    def why_no_pod(self) -> str:
        """Return the reason why the cluster creates no pod for the master, from the last event.

        The reason is empty if none is known, or if this user may not list events.
        """
        return self._last_warning(f"involvedObject.uid={self.uid}")

    def why_no_volume(self, pod: str) -> str:
        """Return the reason why a node cannot mount a volume of a pod, or set up its network; empty
        if none is known. Only events contain the reason."""
        found = self._last_warning(f"involvedObject.name={pod}", reasons=_NOT_READY)
        if _MULTI_ATTACH in found:
            return f"{found}; name a claim that is ReadWriteMany"
        return found

    def _last_warning(self, fields: str, *, reasons: Sequence[str] = ()) -> str:
        """Return the message of the last warning with these fields, and with one of the reasons."""
        try:
            events, _ = self.api.list("Event", "", read=dict, fields=f"{fields},type=Warning")
        except ForbiddenError:
            return ""
        events = [each for each in events if not reasons or each.get("reason") in reasons]
        events.sort(key=lambda each: str(each.get("lastTimestamp") or each.get("eventTime") or ""))
        return one_line(str(events[-1].get("message", ""))) if events else ""

    def why_stuck(self, pod: causes.PodState) -> str:
        """Return why a deleted pod of the master does not end, and what to do; empty if the pod is
        not deleted or its node answers."""
        if not (pod.running and pod.deleting and pod.disruption.reason == causes.TAINTED):
            return ""
        if self.manifest["spec"].get("podReplacementPolicy") != "Failed":
            return f"its node {pod.node} does not answer; the next master starts meanwhile"
        return (
            f"its node {pod.node} does not answer, and the next master starts when the node is "
            f"back; if the node is down for good: kubectl taint nodes {pod.node} "
            "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
        )

    def started(self) -> float:
        return _seconds(self.manifest["metadata"].get("creationTimestamp"))

    def touched(self) -> float:
        how = ending(self.manifest)
        return _seconds(how.get("lastTransitionTime")) if how is not None else 0.0

    def history(self) -> bytes:
        self.refresh()
        return final_history.of(self.manifest)

    def refresh(self) -> bool:
        """Read the Job object again; False if it was deleted or replaced by another job."""
        try:
            found = self.api.get("Job", names.master(self.name))
        except MissingError:
            return False
        if found["metadata"]["uid"] != self.uid:
            return False
        self.manifest = found
        return True

    def pods(self) -> list[causes.PodState]:
        """Return all existing pods of the job."""
        return self.api.list("Pod", names.selector(self.name), read=causes.read_pod)[0]

    def master_pod(self) -> causes.PodState | None:
        """Return the running pod of the master, else its newest pod; None if there is none.

        A deleted pod is returned only if no other pod is running.
        """
        selector = f"{names.selector(self.name)},{names.ROLE}=master"
        found, _ = self.api.list("Pod", selector, read=dict)
        found.sort(key=lambda pod: str(pod["metadata"].get("creationTimestamp", "")))
        pods = [causes.read_pod(each) for each in reversed(found)]
        return max(pods, key=lambda pod: pod.standing, default=None)

    @functools.cached_property
    def token(self) -> str:
        """The token of the job.

        Raises:
            UsageError: the Secret does not contain the token yet.
            ClusterError: the Secret does not exist, or this user may not read it.
        """
        name = names.token(self.name)
        data = self.api.get("Secret", name).get("data") or {}
        try:
            return base64.b64decode(data[names.TOKEN_KEY]).decode()
        except (KeyError, ValueError) as error:
            raise UsageError(
                f"secret {name}: has no {names.TOKEN_KEY}; torch-edl run --dry-run prints the "
                "command that makes one"
            ) from error

    def config(self) -> JobConfig:
        files = self.api.get("ConfigMap", names.files(self.name)).get("data") or {}
        try:
            return JobConfig.from_json(files[names.CONFIG_KEY])
        except (KeyError, ValueError) as error:
            raise UsageError(f"configmap {names.files(self.name)}: {error}") from error

    def connect(self, pod: str) -> MasterConnection:
        """Return a connection to the master in a pod, which connects on first use."""
        return MasterConnection(self.api, pod, self.token)

    def ask(self, request: Message) -> Any:
        pod = self.master_pod()
        if pod is None or not pod.running:
            state = self.last()["state"]
            raise UsageError(f"{self.name}: its master does not run, the job is {state}")
        connection = self.connect(pod.name)
        try:
            return connection.stub.call(request, timeout_s=CALL_TIMEOUT_S, wait=True)
        except grpc.RpcError as error:
            if connection.error is not None:
                raise connection.error from error
            raise refused(self.name, error) from error
        finally:
            connection.close()

    def stop(self, request: pb.StopRequest) -> None:
        if self.is_over():
            raise UsageError(f"{self.name}: no longer runs, it is {self.last()['state']}")
        pod = self.master_pod()
        if pod is None or not pod.running:
            self.remove()
            return
        try:
            self.ask(request)
        except ForbiddenError:
            if request.at_once:
                self.remove()
            else:
                self.stop_unreached()

    def stop_unreached(self) -> None:
        """Stop the job with a last checkpoint, although its master cannot be reached.

        Raises:
            ForbiddenError: this user may not change the Job object.
        """
        self.manifest = self.api.patch("Job", names.master(self.name), STOP)

    @property
    def is_suspended(self) -> bool:
        """True if the Job object is suspended, so that the job has no processes."""
        return bool(self.manifest["spec"].get("suspend")) and not self._is_to_stop

    @property
    def _is_to_stop(self) -> bool:
        return names.STOP in (self.manifest["metadata"].get("annotations") or {})

    def why_suspended(self) -> str:
        """Return who suspended the Job, and how it is resumed."""
        labels = self.manifest["metadata"].get("labels") or {}
        if queue := labels.get(_QUEUE):
            return f"its Job is suspended: it waits in the queue {queue} of Kueue"
        name = f"{names.master(self.name)} {self.where}"
        resume = '{"spec":{"suspend":false}}'
        return f"its Job is suspended; resume it: kubectl patch job {name} -p '{resume}'"

    def report(self) -> dict[str, Any]:
        with contextlib.suppress(UsageError, MissingError, NoAnswerError):
            status: pb.GetStatusResponse = self.ask(pb.GetStatusRequest())
            return as_dict(status)
        return self.last()

    def last(self) -> dict[str, Any]:
        """Return the status according to the objects of the job, if no master answers."""
        self.refresh()
        pod = self.master_pod()
        if (said := self.final(pod)) is not None:
            return as_dict(said)
        state, error = self.state(pod)
        processes = [
            {
                "role": each.role,
                "id": each.id,
                "pid": 0,
                "address": "",
                "state": "running" if each.running else each.phase.lower(),
                "exit": "" if each.exit_code is None else f"exit code {each.exit_code}",
                "log": "",
            }
            for each in self.pods()
        ]
        seen = {"state": state, "error": error, "processes": processes}
        return {"job": self.name, **EMPTY, **seen}

    def state(self, pod: causes.PodState | None) -> tuple[str, str]:
        """Return the state of the job, and the reason if the job failed or waits."""
        if (said := self.final(pod)) is not None:
            return said.state, said.error
        ended = ending(self.manifest)
        how = causes.end(pod, "master", 0, gone=False) if pod is not None else None
        why = text_of_line(how.why) if how is not None else ""
        if ended is not None:
            if ended["type"] == "Complete":
                return "finished", ""
            if how is not None and how.code in _STOPPED_CODES:
                return "stopped", ""
            return "failed", why or str(ended.get("message") or ended.get("reason") or "")
        if how is not None and how.code == 0:
            return "finished", ""  # the Job object is not marked complete yet
        if self.is_suspended and (pod is None or not pod.running):
            return "suspended", self.why_suspended()
        if pod is None:
            return ("stopping" if self._is_to_stop else "starting"), ""
        if how is not None:
            return "starting", f"its master has ended, and is started again: {why or how}"
        progress = causes.progress(pod, "master", 0)
        why = self.why_stuck(pod) or str(getattr(progress, "why", ""))
        if pod.running:
            return "running", why
        return "starting", why or self.why_no_volume(pod.name)


class MasterConnection:
    """A connection to the master in a pod, through the API server."""

    def __init__(self, api: Api, pod: str, token: str) -> None:
        self.pod = pod
        self._forward = Forward(api, pod, names.MASTER_PORT)
        self.stub = Stub(services.CONTROL, f"{REMOTE}{self._forward.address}", token)

    @property
    def error(self) -> ClusterError | None:
        """Error of the last failed connection; None if there was none."""
        return self._forward.error

    def close(self) -> None:
        """Close the connection."""
        self.stub.close()
        self._forward.close()


def _seconds(time: Any) -> float:
    with contextlib.suppress(ValueError, TypeError):
        return datetime.fromisoformat(time).timestamp()
    return 0.0


def all_jobs(api: Api) -> list[ClusterJob]:
    """Return every job of a namespace, newest first."""
    found, _ = api.list("Job", _OURS, read=dict)
    jobs = [ClusterJob(api, _name_of(each), each) for each in found]
    return sorted(jobs, key=lambda job: (job.started(), job.name), reverse=True)


def find(api: Api, name: str | None) -> ClusterJob:
    """Return the job with that name, or the newest job for None.

    Raises:
        UsageError: there is no such job.
    """
    if name is not None:
        with contextlib.suppress(MissingError):
            return ClusterJob(api, name, api.get("Job", names.master(name)))
    jobs = all_jobs(api)
    at = f"namespace {api.namespace}"
    if not jobs:
        raise UsageError(
            f"no job in {at}; start one with torch-edl run --platform kubernetes, or name another "
            "--namespace"
        )
    if name is not None:
        raise UsageError(f"{name}: no such job in {at}; the newest is {jobs[0].name}")
    return jobs[0]


def _name_of(manifest: Mapping[str, Any]) -> str:
    metadata = manifest["metadata"]
    found: str = (metadata.get("annotations") or {}).get(names.JOB) or metadata["name"]
    return found
