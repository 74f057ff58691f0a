"""The objects of a job that the client creates: the Job of the master, and what the master needs.

=================== =================================================================
Job                 runs the master, and restarts it when its pod is taken away
Secret              the token of the job, from which the keys of its connections derive
ConfigMap           the configuration, and the source files that were sent
ConfigMap           the state of the master, see :func:`keeps_state`
Service             the stable DNS name of the master, whichever pod runs it
ServiceAccount,     the rights of the master: create, delete and watch pods; not created if
Role, RoleBinding   the user names an account
NetworkPolicy       admits only the pods of the job to each other
=================== =================================================================

The Job owns all other objects, so they are deleted with it. Pure.
"""

from __future__ import annotations

import base64
import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch_edl.config import JobConfig
from torch_edl.config.environment import ENV_HOME, ENV_PLATFORM, hash_environment
from torch_edl.plugins.kubernetes import names
from torch_edl.plugins.kubernetes.cluster.api import CORE, KINDS
from torch_edl.plugins.kubernetes.names import Manifest
from torch_edl.plugins.kubernetes.objects import template
from torch_edl.plugins.kubernetes.objects.pod import pod_spec, with_template

ENV_NAMESPACE = "TORCH_EDL_NAMESPACE"
"""Environment variable with the namespace of the master's pod."""
ENV_POD = "TORCH_EDL_POD"
"""Environment variable with the name of the master's pod."""
ENV_JOB_UID = "TORCH_EDL_JOB_UID"
"""Environment variable with the uid of the master's Job, which owns all pods of the job."""

KEEP_S = 7 * 24 * 3600
"""Seconds for which the objects of a job that is over are kept, for its status and logs."""
# Maximum number of the master's pods that may be lost, with a lost node or out of memory. A job
# that runs for weeks on preemptible machines loses many; a master that crashes ends the job itself.
_MOST_PODS = 1000
# A master that leaves its job exits within seconds. One whose Job is suspended may have to take a
# last checkpoint, or to delete many pods.
_MASTER_GRACE_S = 120.0
_METRICS = "metrics"  # name of the port of --metrics-port


def in_pods(config: JobConfig, code: Mapping[str, bytes]) -> JobConfig:
    """Return the configuration with the paths that processes in pods use.

    Args:
        code: source files by path, the model file first; empty: the image contains the code.
    """
    pods = replace(config.platform_config, code=tuple(code))
    model_file = config.model_file
    if code and not config.is_module:
        model_file = f"{names.CODE}/{next(iter(code))}"
    return replace(config, platform_config=pods, model_file=model_file)


def objects(
    config: JobConfig,
    *,
    namespace: str,
    token: str,
    code: Mapping[str, bytes],
    applied: bool = False,
) -> list[Manifest]:
    """Return the objects in the order of their creation; the Job of the master comes last.

    Args:
        config: configuration from :func:`in_pods`.
        token: token of the job; empty: the user adds it to the Secret, and no pod starts before.
        applied: True if a user creates the objects; the master then becomes their owner.
    """
    job = config.name
    account = _account(config, namespace, adopts=applied)
    made = [
        *([] if config.platform_config.service_account else account),
        _secret(job, token),
        _files(config, code),
        *([_object(job, "ConfigMap", names.state(job))] if keeps_state(config) else []),
        _service(job),
        *([_network_policy(config)] if config.platform_config.network_policy else []),
        _job(config),
    ]
    for each in made:
        each["metadata"]["namespace"] = namespace
    if applied:
        made[-1]["metadata"]["annotations"][names.ADOPTS] = "true"
    return made


def pod_monitor(job: str, namespace: str) -> Manifest:
    """Return the object with which the Prometheus operator scrapes the master of a job. Only
    clusters with the operator know its kind."""
    own = {names.JOB: names.of_job(job), names.ROLE: "master"}
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": {
            "name": names.master(job),
            "namespace": namespace,
            "labels": names.labels(job),
            "annotations": names.annotations_of(job),
        },
        "spec": {"selector": {"matchLabels": own}, "podMetricsEndpoints": [{"port": _METRICS}]},
    }


def owned(manifest: Manifest, uid: str) -> Manifest:
    """Return the manifest of an object that is deleted together with the Job of that uid."""
    made = copy.deepcopy(manifest)
    job = made["metadata"]["annotations"][names.JOB]
    made["metadata"]["ownerReferences"] = [names.owner(job, uid)]
    return made


def suspended(manifest: Manifest) -> Manifest:
    """Return the manifest of the Job such that it starts no pod until it is resumed."""
    return template.merge(manifest, {"spec": {"suspend": True}})


STOP: Manifest = {
    "metadata": {"annotations": {names.STOP: "true"}},
    "spec": {"suspend": True},
}
"""The patch that stops a job whose master cannot be reached: the Job controller sends SIGTERM to
the master, which then stops the job in order."""

RESUME: Manifest = {"spec": {"suspend": False}}
"""The patch that resumes a suspended Job."""


def keeps_state(config: JobConfig) -> bool:
    """Return True if the state of the master is in a ConfigMap of the job.

    That is the default for replicas, which survive the loss of any node. The user may name another
    place, and the state of other jobs is in the pod of the master.
    """
    durability, claim = config.durability, config.platform_config.state_claim
    return durability.mode == "replica" and not (durability.shares_state or claim)


def master_rules(job: str, *, adopts: bool = False, state: bool = False) -> list[Manifest]:
    """Return the RBAC rules that a master needs in its namespace.

    Args:
        adopts: True if the master becomes the owner of objects that a user applied.
        state: True if the state of the master is in a ConfigMap.
    """
    own, files = ("Job", names.master(job)), ("ConfigMap", names.files(job))
    kept = ("ConfigMap", names.state(job))
    verbs = {own: ["get", "patch"], files: ["get"]}
    if state:
        verbs[kept] = ["get", "patch"]
    for each in names.belongings(job) if adopts else ():
        verbs[each] = sorted({*verbs.get(each, ()), "patch"})

    def rule(kind: str, name: str) -> Manifest:
        path, plural = KINDS[kind]
        return {
            "apiGroups": [path.removeprefix("/apis/").rpartition("/")[0] if path != CORE else ""],
            "resources": [plural],
            "resourceNames": [name],
            "verbs": verbs[kind, name],
        }

    return [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "delete", "list", "watch"]},
        *(rule(kind, name) for kind, name in verbs),
    ]


def _object(job: str, kind: str, name: str, **parts: Any) -> Manifest:
    labels, annotations = names.labels(job), names.annotations_of(job)
    return {
        "apiVersion": KINDS[kind][0].removeprefix("/apis/").removeprefix("/api/"),
        "kind": kind,
        "metadata": {"name": name, "labels": labels, "annotations": annotations},
        **parts,
    }


def _account(config: JobConfig, namespace: str, *, adopts: bool) -> list[Manifest]:
    job = config.name
    name = names.master(job)
    rules = master_rules(job, adopts=adopts, state=keeps_state(config))
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    subject = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
    return [
        _object(job, "ServiceAccount", name, automountServiceAccountToken=False),
        _object(job, "Role", name, rules=rules),
        _object(job, "RoleBinding", name, roleRef=role, subjects=[subject]),
    ]


def _secret(job: str, token: str) -> Manifest:
    data = {"stringData": {names.TOKEN_KEY: token}} if token else {}
    return _object(job, "Secret", names.token(job), type="Opaque", **data)


def _files(config: JobConfig, code: Mapping[str, bytes]) -> Manifest:
    data = {names.CONFIG_KEY: config.to_json()}
    binary: dict[str, str] = {}
    for place, content in enumerate(code.values()):
        try:
            data[names.code_key(place)] = content.decode()
        except UnicodeDecodeError:  # a source file may declare another encoding
            binary[names.code_key(place)] = base64.b64encode(content).decode()
    more = {"binaryData": binary} if binary else {}
    return _object(config.name, "ConfigMap", names.files(config.name), data=data, **more)


def _service(job: str) -> Manifest:
    spec = {
        "clusterIP": "None",
        "selector": {names.JOB: names.of_job(job), names.ROLE: "master"},
        # The address of a master that is not ready is published too: its processes wait for it.
        "publishNotReadyAddresses": True,
        # The name tells a service mesh the protocol, which is gRPC within TLS.
        "ports": [{"name": "tls-grpc", "port": names.MASTER_PORT, "protocol": "TCP"}],
    }
    return _object(job, "Service", names.master(job), spec=spec)


def _network_policy(config: JobConfig) -> Manifest:
    job = config.name
    own = {"podSelector": {"matchLabels": {names.JOB: names.of_job(job)}}}
    ingress: list[Manifest] = [{"from": [own]}]
    if config.metrics_port:
        ingress.append({"ports": [{"port": _metrics_port(config), "protocol": "TCP"}]})
    spec = {**own, "policyTypes": ["Ingress"], "ingress": ingress}
    return _object(job, "NetworkPolicy", names.of_job(job), spec=spec)


def _job(config: JobConfig) -> Manifest:
    job, pods = config.name, config.platform_config
    name = names.master(job)
    home: Manifest = {"name": "home", "emptyDir": {}}
    if pods.state_claim:
        home = {"name": "home", "persistentVolumeClaim": {"claimName": pods.state_claim}}
    spec = pod_spec(
        job,
        pods,
        role="master",
        # -P: a module of the image's working directory must not replace one of Python's.
        command=["python", "-P", "-m", "master", "--job", job],
        env={
            ENV_HOME: names.HOME,
            ENV_PLATFORM: names.PLATFORM,
            **hash_environment(config.train.seed),
        },
        grace_s=_MASTER_GRACE_S,
        priority_class=pods.priority_class,
        service_account=pods.service_account or name,
        volumes=[home],
        mounts=[{"name": "home", "mountPath": names.HOME}],
    )
    spec["containers"][0]["env"] += [
        _field(ENV_NAMESPACE, "metadata.namespace"),
        _field(ENV_POD, "metadata.name"),
        _field(ENV_JOB_UID, f"metadata.labels['{names.JOB_UID}']"),
    ]
    annotations = names.annotations_of(job)
    if config.metrics_port:
        port = _metrics_port(config)
        annotations |= {"prometheus.io/scrape": "true", "prometheus.io/port": str(port)}
        ports = spec["containers"][0].setdefault("ports", [])
        ports.append({"name": _METRICS, "containerPort": port, "protocol": "TCP"})
    pod = {
        "metadata": {"labels": names.labels(job, "master", 0), "annotations": annotations},
        "spec": spec,
    }
    # A pod on a node that does not answer never ends. If masters share the state, its lock keeps
    # them apart, and the old pod may still run. Otherwise nothing else prevents two masters.
    shared = pods.state_claim or config.durability.shares_state or keeps_state(config)
    of_job = {
        # One index whose back-off delay counts the failures that its last pod has as an annotation:
        # a master that leaves in order creates the next pod without failures. The delay of a plain
        # Job counts all pods that were ever deleted.
        "completions": 1,
        "parallelism": 1,
        "completionMode": "Indexed",
        "backoffLimitPerIndex": _MOST_PODS,
        "backoffLimit": _MOST_PODS,
        "podReplacementPolicy": "TerminatingOrFailed" if shared else "Failed",
        "ttlSecondsAfterFinished": KEEP_S,
        "template": with_template(pod, pods, "master"),
    }
    return _object(job, "Job", name, spec=of_job)


def _metrics_port(config: JobConfig) -> int:
    return int(config.metrics_port.rpartition(":")[2])


def _field(name: str, path: str) -> Manifest:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
