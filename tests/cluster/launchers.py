"""A namespace with launchers of pods, and what their tests ask of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from kubernetes import client
from kubernetes.client.exceptions import ApiException

from tests.cluster.cluster import Cluster
from tests.waiting import wait_for
from torch_edl.plugins.kubernetes import names
from torch_edl.plugins.kubernetes.cluster.api import Api
from torch_edl.plugins.kubernetes.config import KubernetesConfig
from torch_edl.plugins.kubernetes.master.launcher import KubernetesLauncher
from torch_edl.plugins.kubernetes.objects.pod import process_pod
from torch_edl.processes.launcher import ProcessEvent, ProcessExit, ProcessSpec

JSON = dict[str, Any]
JOB = "ctr"


class Place:
    """A namespace with launchers."""

    def __init__(self, cluster: Cluster, api: Api) -> None:
        self.cluster = cluster
        self.api = api
        self.launchers: list[KubernetesLauncher] = []

    def launcher(
        self,
        api: Api | None = None,
        *,
        incarnation: str = "ab",
        resources: str = "cpu=1",
        **more: float,
    ) -> KubernetesLauncher:
        def manifest(spec: ProcessSpec) -> JSON:
            return process_pod(
                JOB,
                KubernetesConfig(image="edl", worker_resources=resources),
                role=spec.role,
                id=spec.id,
                incarnation=incarnation,
                command=["sh", "-c", *spec.args],
                env={},
                grace_s=5,
                owner=None,
            )

        made = KubernetesLauncher(
            api or self.api, job=JOB, incarnation=incarnation, manifest=manifest, **more
        )
        self.launchers.append(made)
        return made

    def api_of(self, account: str) -> Api:
        """The namespace as a service account sees it, which may do what :meth:`allow` says."""
        core = client.CoreV1Api(self.cluster.api_client())
        with contextlib.suppress(ApiException):
            core.create_namespaced_service_account(
                self.api.namespace, {"metadata": {"name": account}}
            )
        token = self.cluster.token_of(self.api.namespace, account)
        return Api(self.cluster.api_client(token), self.api.namespace)

    def allow(self, account: str, *verbs: str) -> None:
        """A service account may do this to pods."""
        rule = {"apiGroups": [""], "resources": ["pods"], "verbs": verbs}
        self.cluster.grant(self.api.namespace, account, [rule])

    def pods(self) -> dict[str, JSON]:
        found, _ = self.api.list("Pod", names.selector(JOB), read=dict)
        return {pod["metadata"]["name"]: pod for pod in found}

    def wait_for_a_line(self, name: str) -> None:
        """Until the process of a pod, which runs, has said something."""
        with contextlib.closing(self.api.log(name, container=names.CONTAINER, follow=True)) as log:
            next(log)

    def evict(self, name: str) -> None:
        path = f"/api/v1/namespaces/{self.api.namespace}/pods/{name}/eviction"
        self.cluster.request("POST", path, {"metadata": {"name": name}})


def spec(id: int, command: str = "exec sleep 1000", *, role: str = "worker") -> ProcessSpec:
    return ProcessSpec(role=role, id=id, module="", args=[command])


def pod_name(id: int, role: str = "worker", incarnation: str = "ab") -> str:
    return names.pod(JOB, role, id, incarnation)


def hear(launcher: KubernetesLauncher, kind: type[ProcessEvent], id: int = 0) -> Any:
    """The next event of a kind about a process; others are dropped."""

    def look() -> list[ProcessEvent]:
        return [e for e in launcher.poll() if isinstance(e, kind) and e.id == id]

    return wait_for(look)[0]


def until_exit(launcher: KubernetesLauncher, id: int = 0) -> list[ProcessEvent]:
    """The events of a process until its end."""
    events: list[ProcessEvent] = []

    def ended() -> bool:
        events.extend(e for e in launcher.poll() if e.id == id)
        return any(isinstance(e, ProcessExit) for e in events)

    wait_for(ended)
    return events


@contextlib.contextmanager
def new_place(cluster: Cluster) -> Iterator[Place]:
    """A new namespace, with what the pods of a job need."""
    cluster.heal()
    api = Api(cluster.api_client(), cluster.make_namespace())
    for kind, name, key in (
        ("ConfigMap", names.files(JOB), names.CONFIG_KEY),
        ("Secret", names.token(JOB), names.TOKEN_KEY),
    ):
        data = {"data" if kind == "ConfigMap" else "stringData": {key: "x"}}
        api.create({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, **data})
    made = Place(cluster, api)
    yield made
    for launcher in made.launchers:
        launcher.close()
    for name in made.pods():
        api.delete("Pod", name, grace_s=0)  # the next test needs the room
    api.close()
