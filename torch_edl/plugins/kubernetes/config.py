"""Configuration of the pods of a job on Kubernetes.

Fields contain texts as written by the user; properties convert them to parts of manifests.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch_edl.config import JobConfig
from torch_edl.config.option import JOB_KINDS, Checked, option
from torch_edl.errors import UsageError
from torch_edl.plugins.kubernetes import pod_settings

_option = functools.partial(option, kinds=JOB_KINDS)


@dataclass(frozen=True, kw_only=True)
class KubernetesConfig(Checked):
    """The pods of a job and their cluster."""

    image: str = _option("", "--image IMAGE", "image of all pods; torch-edl image makes one")
    namespace: str = _option(
        "", "--namespace NAME", "namespace of the job (default: that of the context)"
    )
    context: str = _option(
        "", "--context NAME", "context of the kubeconfig (default: the current one)"
    )
    worker_resources: str = _option(
        "", "--worker-resources LIST", "of a worker pod: cpu=4,memory=8Gi,nvidia.com/gpu=1"
    )
    ps_resources: str = _option("", "--ps-resources LIST", "of the pod of a parameter server")
    master_resources: str = _option("", "--master-resources LIST", "of the pod of the master")
    volume: tuple[str, ...] = _option(
        (), "--volume SPEC", "claim=NAME,path=/data[,sub-path=DIR][,read-only] (default: none)"
    )
    """``host=``, ``config-map=`` and ``secret=`` may replace ``claim=``."""
    priority_class: str = _option("", "--priority-class NAME", "priority class of the pods")
    worker_priority: str = _option(
        "", "--worker-priority CLASS=SHARE", "of a part of the workers: high=0.5"
    )
    """The remaining workers have :attr:`priority_class`."""
    spares: int = option(
        0,
        "--spares N",
        "idle pods that replace lost worker pods at once (default: 0)",
        minimum=0,
    )
    service_account: str = _option(
        "", "--service-account NAME", "account of the master (default: one is made)"
    )
    pod_template: str = _option(
        "", "--pod-template FILE", "YAML of a pod that is merged into every pod"
    )
    worker_template: str = _option(
        "", "--worker-template FILE", "YAML that is merged into worker pods, after --pod-template"
    )
    ps_template: str = _option("", "--ps-template FILE", "the same for parameter servers")
    master_template: str = _option("", "--master-template FILE", "the same for the master")
    template: Mapping[str, Any] = field(default_factory=dict)
    """Content of the ``--pod-template`` file, for the master."""
    role_templates: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Contents of the files of ``--worker-template``, ``--ps-template`` and ``--master-template``,
    by role."""
    network_policy: bool = _option(
        True, "--no-network-policy", "admit other pods to the pods of the job (default: refused)"
    )
    code_in_image: str = _option(
        "", "--code-in-image PATH", "folder of the image with the model file; none is sent"
    )

    state_claim: str = _option(
        "", "--state-claim NAME", "claim for the state of the master (default: lost with its pod)"
    )
    """Claim for the state of the master; not needed if etcd stores the state."""
    code: tuple[str, ...] = ()
    """Paths of the files that are sent, relative to the folder of the model file."""

    torchrun: tuple[str, ...] = ()
    """Options of torchrun that ``torch-edl run`` of a script gets in its pods."""
    processes_per_pod: int = option(
        1,
        "--processes-per-pod N",
        "workers that share a pod, and its GPU",
        minimum=1,
    )
    """For a script, this is ``--nproc-per-node``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        # Each property raises UsageError if its texts are invalid.
        for role in ("worker", "ps", "master"):
            self.resources(role)
        _ = (self.volumes, self._worker_shares)
        pod_settings.namespace("--namespace", self.namespace)
        for name, value in (
            ("--priority-class", self.priority_class),
            ("--service-account", self.service_account),
            ("--state-claim", self.state_claim),
        ):
            pod_settings.object_name(name, value)
        if any(c.isspace() or not c.isprintable() for c in self.image):
            raise UsageError(
                f"--image {self.image!r}: has a blank; write REGISTRY/NAME:TAG or NAME@DIGEST"
            )

    def check_job(self, job: JobConfig) -> None:
        """Raise UsageError if the job cannot run in these pods."""
        if not self.image:
            raise UsageError(
                "--platform kubernetes: the image of the pods is missing; add --image IMAGE "
                "(torch-edl image writes a Dockerfile for one)"
            )
        if job.kind != "script":
            workers = job.cluster.max_workers
            each = f"--processes-per-pod {self.processes_per_pod}"
            if self.processes_per_pod > workers:
                raise UsageError(
                    f"{each}: --workers {workers} has fewer in all; write --workers "
                    f"{self.processes_per_pod} or more"
                )
            if self.shares_pods(job) and self.spares:
                raise UsageError(
                    f"--spares {self.spares}: not with {each}, since a spare is a pod of one "
                    "worker; leave --spares out"
                )

    def shares_pods(self, job: JobConfig) -> bool:
        """Return True if several workers of a model file share a pod."""
        return job.kind != "script" and self.processes_per_pod > 1

    def resources(self, role: str) -> dict[str, str]:
        """Return the resource quantities of a pod by name of the resource.

        A quantity is both request and limit, except for ``cpu``, which has no limit. The name
        ``limits.cpu`` is a limit alone; that of another resource replaces its limit.

        Args:
            role: ``worker``, ``ps`` or ``master``.
        """
        texts = {
            "worker": self.worker_resources,
            "ps": self.ps_resources,
            "master": self.master_resources,
        }
        return pod_settings.resources(f"--{role}-resources", texts[role])

    def templates(self, role: str) -> list[Mapping[str, Any]]:
        """Return the templates of a pod of a role, in the order in which they are merged."""
        return [self.template, self.role_templates.get(role, {})]

    @property
    def volumes(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """``volumes`` of a pod and ``volumeMounts`` of its container."""
        return pod_settings.volumes("--volume", self.volume)

    def worker_priority_class(self, place: int, of: int) -> str:
        """Return the priority class of a worker pod; empty for the default of the cluster.

        Args:
            place: slot of the worker, from 0. The first slots have the classes of
                ``--worker-priority``.
            of: number of worker pods.
        """
        begin = 0.0
        for name, share in self._worker_shares:
            begin += share * of
            if place < math.floor(begin + 0.5):
                return name
        return self.priority_class

    @property
    def _worker_shares(self) -> list[tuple[str, float]]:
        return pod_settings.shares("--worker-priority", self.worker_priority)
