"""The site of a job on a cluster; its pods are deleted."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterable
from typing import Any

import grpc
from google.protobuf.message import Message

from torch_edl.config import JobConfig
from torch_edl.errors import UsageError
from torch_edl.launch.jobs.local_job import CALL_TIMEOUT_S, refused
from torch_edl.plugins.chaos.plan import StormPlan
from torch_edl.plugins.chaos.site import EXITED
from torch_edl.plugins.chaos.storm import Blow, Target
from torch_edl.plugins.kubernetes import names
from torch_edl.plugins.kubernetes.client.cluster_job import ClusterJob, MasterConnection
from torch_edl.plugins.kubernetes.cluster.failures import MissingError, NoAnswerError
from torch_edl.plugins.kubernetes.cluster.pod_state import PodState
from torch_edl.plugins.kubernetes.cluster.watch import PodWatch
from torch_edl.wire import master_pb2 as pb

# Seconds between two looks at the Job.
_LOOK_S = 2.0
_LISTED_S = 60.0


class ClusterSite:
    """Implements :class:`torch_edl.plugins.chaos.site.Site` for a job in pods.

    SIGKILL becomes a deletion without a grace period, SIGTERM one with the grace period of the pod.

    Raises:
        UsageError: the job is over, or the plan pauses processes, which is impossible on a cluster.
        ClusterError: the cluster does not answer, or rejects a request.
    """

    def __init__(self, job: ClusterJob, plan: StormPlan) -> None:
        if paused := plan.roles(killed=False):
            raise UsageError(
                f"--pause {next(iter(paused))}: a cluster pauses no process; leave it out, or use "
                "--kill"
            )
        if job.is_over():
            raise UsageError(f"{job.name}: the job is over, it is {job.last()['state']}")
        self.where = f"in namespace {job.api.namespace}"
        self._job = job
        _ = job.token  # which raises an error before any fault
        self._lock = threading.Lock()
        self._connection: MasterConnection | None = None
        self._gone, self._looked = False, time.monotonic()
        self._watch = PodWatch(job.api, names.selector(job.name))
        if not self._watch.listed.wait(_LISTED_S):
            self.close()
            raise NoAnswerError(f"{job.name}: its pods cannot be listed: no answer")

    def config(self) -> JobConfig:
        return self._job.config()

    def ask(self, request: Message) -> Any:
        with self._lock:
            master = next((p for p in self._running() if p.role == "master"), None)
            if self._connection is not None and (
                master is None or self._connection.pod != master.name
            ):
                self._connection.close()
                self._connection = None
            if master is None:
                raise UsageError(f"{self._job.name}: its master does not run")
            if self._connection is None:
                self._connection = self._job.connect(master.name)
            stub = self._connection.stub
        try:
            return stub.call(request, timeout_s=CALL_TIMEOUT_S)
        # The other thread closed the connection because another pod became the master.
        except ValueError as error:
            raise UsageError(f"{self._job.name}: its master does not run") from error
        except grpc.RpcError as error:
            raise refused(self._job.name, error) from error

    def living(self, listed: Iterable[pb.ProcessStatus]) -> list[Target]:
        pods = {pod.name: pod for pod in self._running()}
        masters = [pod.name for pod in pods.values() if pod.role == "master"]
        found = []
        for process in listed:
            name = process.log.removeprefix("pod/")
            if process.role == "master":
                name = masters[0] if masters else ""
            if process.state != EXITED and name in pods:
                found.append(Target(process.role, process.id, 0, name))
        return found

    def out_of_reach(self, listed: Iterable[pb.ProcessStatus]) -> int:
        return 0

    def strike(self, blow: Blow) -> bool:
        grace_s = 0 if blow.number == signal.SIGKILL else None
        try:
            self._job.api.delete("Pod", blow.target.pod, grace_s=grace_s)
        except (MissingError, NoAnswerError):
            return False
        return True

    def has_master(self) -> bool:
        """Return True until the Job is gone, since the Job restarts its master."""
        now = time.monotonic()
        if not self._gone and now - self._looked >= _LOOK_S:
            self._looked = now
            with contextlib.suppress(NoAnswerError):
                self._gone = self._job.is_gone()
        return not self._gone

    def end(self) -> tuple[str, str]:
        return self._job.state(self._job.master_pod())

    def close(self) -> None:
        self._watch.close()
        with self._lock:
            if self._connection is not None:
                self._connection.close()

    def _running(self) -> list[PodState]:
        return [pod for pod in self._watch.pods() if pod.running and not pod.deleting]
