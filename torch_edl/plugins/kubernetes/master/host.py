"""A master in a pod of Kubernetes, whose nodes are pods: its addresses, exit codes and
limits."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from torch_edl.checkpoint import layout
from torch_edl.checkpoint.durable import write_text
from torch_edl.config import CheckpointConfig, JobConfig
from torch_edl.config.environment import ENV_HOST, ENV_TOKEN
from torch_edl.errors import CheckpointError, StoreConflictError, UsageError
from torch_edl.interfaces import Store
from torch_edl.interfaces.platform import Host
from torch_edl.launch.jobs.folder import JobFolder
from torch_edl.launch.jobs.master_process import SUPERSEDED
from torch_edl.node.ranks import Ranks
from torch_edl.plugins.kubernetes import names
from torch_edl.plugins.kubernetes.cluster.api import Api
from torch_edl.plugins.kubernetes.cluster.failures import ForbiddenError
from torch_edl.plugins.kubernetes.cluster.requests import settled
from torch_edl.plugins.kubernetes.config import KubernetesConfig
from torch_edl.plugins.kubernetes.master.kept_history import KeptHistory
from torch_edl.plugins.kubernetes.master.launcher import KubernetesLauncher
from torch_edl.plugins.kubernetes.master.own_job import OwnJob
from torch_edl.plugins.kubernetes.master.pod_nodes import PodNodes
from torch_edl.plugins.kubernetes.master.state import ConfigMapStore
from torch_edl.plugins.kubernetes.names import Manifest
from torch_edl.plugins.kubernetes.objects import final_status, shared_paths
from torch_edl.plugins.kubernetes.objects.job import (
    ENV_JOB_UID,
    ENV_NAMESPACE,
    ENV_POD,
    keeps_state,
)
from torch_edl.plugins.kubernetes.objects.pod import process_pod
from torch_edl.processes.launcher import Launcher, ProcessSpec
from torch_edl.training.contract.backends import preloaded
from torch_edl.wire import master_pb2 as pb

log = logging.getLogger(__name__)

# File from which Kubernetes reads the termination message, unless the manifest names another.
_TERMINATION_LOG = Path("/dev/termination-log")
# Exit codes.
_USAGE, _TRY_AGAIN, _STOPPED = 2, 75, 130
# Environment variables that must be equal in all processes of a job.
_SHARED_VARIABLES = ("PYTHONHASHSEED",)
# Threads of a worker whose pod has no CPU request.
_THREADS = 4


class ClusterHost(Host):
    """The processes run in pods in the namespace of the master's pod.

    Args:
        env: environment of a pod of the master's Job.
    """

    asks = True
    hands_over = True
    final_codes = (0, 1, _USAGE, SUPERSEDED, _STOPPED)

    def __init__(self, env: Mapping[str, str]) -> None:
        self._namespace = env.get(ENV_NAMESPACE, "default")
        self._job_uid = env[ENV_JOB_UID]
        self._pod = env.get(ENV_POD, "")
        self._host = env.get(ENV_HOST, "")
        self._own: OwnJob | None = None
        self._history: KeptHistory | None = None

    def begin(self, job: str) -> int | None:
        api = Api.in_cluster(self._namespace)
        self._own = OwnJob(api, job, self._job_uid, pod=self._pod)
        ended = self._own.begin()
        return (0 if ended == "finished" else 1) if ended else None

    def prepare(self, job: str) -> JobConfig:
        folder = JobFolder(job)
        # The folder may exist already, on a claim that keeps the state.
        text = (Path(names.FILES) / names.CONFIG_KEY).read_text(encoding="utf-8")
        folder.dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_text(folder.config_file, text)
        config = folder.config()
        if self._own is not None and self._own.may_note:
            self._history = KeptHistory(self._own, folder)
            self._history.restore()
        shared_paths.check(config)
        return replace(config, checkpoint=_found(config))

    def warnings(self, config: JobConfig) -> Sequence[str]:
        pods: KubernetesConfig = config.platform_config
        if config.durability.shares_state or pods.state_claim or keeps_state(config):
            return ()
        if config.checkpoint.dir:
            then = "the job returns to its newest checkpoint"
        else:
            then = "the job begins anew, since it has no --checkpoint-dir"
        text = (
            f"the state of this job is lost with the pod of its master: {then} when that is "
            "preempted or evicted; --store etcd://HOST:PORT or --state-claim NAME keeps the state"
        )
        return [text]

    def launcher(self, config: JobConfig, token: str, incarnation: str) -> Launcher:
        shared = {name: os.environ[name] for name in _SHARED_VARIABLES if name in os.environ}
        assert self._own is not None, "begin() comes first"
        owner = self._own.owner_of_pods()

        def manifest(spec: ProcessSpec) -> Manifest:
            # The token is in the Secret.
            env = {name: value for name, value in spec.env.items() if name != ENV_TOKEN}
            if config.is_module:  # modules are found in the folder of the code
                env["PYTHONPATH"] = config.platform_config.code_in_image or names.CODE
            return process_pod(
                config.name,
                config.platform_config,
                role=spec.role,
                id=spec.id,
                incarnation=incarnation,
                command=["python", "-P", "-m", spec.module, *spec.args],
                env={**shared, **env},
                grace_s=config.cluster.grace_s,
                owner=owner,
                priority_class=_priority_class(config, spec),
                avoid=spec.avoid,
            )

        if self._history is not None and not config.platform_config.state_claim:
            self._history.start()
        api = Api.in_cluster(self._namespace)
        pods = KubernetesLauncher(api, job=config.name, incarnation=incarnation, manifest=manifest)
        return PodNodes(
            pods,
            slots={"worker": self.workers_per_pod(config)},
            job=config.name,
            incarnation=incarnation,
            preload=preloaded(config) if config.launch is None else (),
            ranks=Ranks(config.launch) if config.launch is not None else None,
            script=self._script(config),
        )

    def _script(self, config: JobConfig) -> list[str]:
        """Return the arguments of ``torch-edl`` in the pods of a script."""
        words = ["run", *config.platform_config.torchrun]
        words += ["--rdzv-endpoint", self.address(config.name, "")]
        # After `--` the file is a script, as the client has decided.
        return [*words, "--job-name", config.name, "--", config.model_file, *config.model_args]

    def temporary(self, config: JobConfig) -> Path:
        return shared_paths.temporary(config, JobFolder(config.name).dir)

    def listen(self, earlier: str) -> str:
        # All interfaces: forwarded ports arrive on loopback.
        return f"{'[::]' if ':' in self._host else '0.0.0.0'}:{names.MASTER_PORT}"

    def address(self, job: str, address: str) -> str:
        return f"{names.master_host(job, self._namespace)}:{names.MASTER_PORT}"

    def cores(self, config: JobConfig) -> int:
        # Each worker has the cores of its pod, or its share of a shared pod.
        resources = config.platform_config.resources("worker")
        asked = resources.get("cpu") or resources.get("limits.cpu", "")
        own = min(_THREADS, len(os.sched_getaffinity(0)))
        of_pod = _whole_cores(asked) if asked else own
        return max(1, of_pod // self.workers_per_pod(config)) * config.cluster.max_workers

    def store(self, config: JobConfig) -> Store | None:
        if not keeps_state(config):
            return None
        name = names.state(config.name)
        api = Api.in_cluster(self._namespace)
        try:
            settled(lambda: api.get("ConfigMap", name))
        except ForbiddenError as error:
            api.close()
            if self._own is None or not self._own.may_note:
                raise  # the server may not know any rights yet
            raise UsageError(f"{error}; or add --state-claim NAME or --store URL") from error
        return ConfigMapStore(api, name)

    def store_key(self, job: str) -> str:
        # Job names are unique only within a namespace.
        return f"{self._namespace}/{job}"

    def workers_per_pod(self, config: JobConfig) -> int:
        pods: KubernetesConfig = config.platform_config
        return pods.processes_per_pod

    def spares(self, config: JobConfig) -> int:
        pods: KubernetesConfig = config.platform_config
        return pods.spares

    def refused(self, error: Exception) -> int:
        # A lock conflict may pass: a master on a disconnected node may hold the lock for a while.
        final = isinstance(error, UsageError) and not isinstance(
            error.__cause__, StoreConflictError
        )
        if final:
            end = pb.GetStatusResponse(state="failed", error=str(error), usage_error=True)
            self.tell_end(end)
        return _USAGE if final else _TRY_AGAIN

    def tell_end(self, status: pb.GetStatusResponse) -> None:
        if self._own is None:
            return
        if self._own.may_note:
            if self._history is not None:
                self._history.close()
            self._own.end(status, self._history.text() if self._history is not None else "")
            return
        text = final_status.to_text(status, most=final_status.MAX_MESSAGE_BYTES)
        try:
            _TERMINATION_LOG.write_text(text, encoding="utf-8")
        except OSError as error:  # a pod template may name another file
            log.warning("%s: %s: the end of the job is not noted", _TERMINATION_LOG, error.strerror)

    def leaves_job(self) -> bool:
        return self._own is None or not self._own.is_stopped()

    def hand_over(self) -> None:
        if self._own is None:
            return
        if self._history is not None:
            self._history.close()
            self._history.write()
        self._own.hand_over()

    def exit_code(self, state: str, code: int, *, signalled: int) -> int:
        if not state:
            return signalled or _TRY_AGAIN
        if self._own is not None and not self._own.may_note:
            return 0  # any other code starts a new pod, which restarts the job
        return _STOPPED if state == "stopped" else code


def _found(config: JobConfig) -> CheckpointConfig:
    """Return the checkpoint configuration with the resolved path of the model to load. The client
    cannot resolve paths on the cluster's volumes."""
    load, option = config.checkpoint.load, "--load" if config.trains else "--from"
    if not load:
        return config.checkpoint
    try:
        found = layout.trained_model(Path(load))
    except CheckpointError as error:
        raise UsageError(f"{option} {load}: {error}") from error
    if found is None:
        raise UsageError(
            f"{option} {load}: no trained model there; name the --output or the --checkpoint-dir "
            "of a job, on a --volume"
        )
    return replace(config.checkpoint, load=str(found))


def _whole_cores(quantity: str) -> int:
    number, milli = quantity.removesuffix("m"), quantity.endswith("m")
    try:
        cores = float(number) / (1000 if milli else 1)
    except ValueError:  # a suffix that is unusual for cores
        return 1
    return max(1, int(cores))


def _priority_class(config: JobConfig, spec: ProcessSpec) -> str:
    pods: KubernetesConfig = config.platform_config
    if spec.role == "worker" and spec.slot >= 0:
        count = -(-config.cluster.max_workers // pods.processes_per_pod)
        return pods.worker_priority_class(spec.slot, count)
    return pods.priority_class
