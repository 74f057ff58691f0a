"""The nodes: which pods run where, what can be asked of them, how nodes are lost, and which
network policies their pods follow."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from pathlib import Path

from tests.cluster.kinds import (
    NETWORK_POLICIES,
    NODES,
    PODS,
    SERVICE_ACCOUNTS,
    Object,
    Refused,
    name_of,
    namespace_of,
    not_found,
)
from tests.cluster.operations import Operations
from tests.cluster.pod_files import PodFiles
from tests.cluster.pod_requests import set_condition
from tests.cluster.pod_run import Machine, PodRun
from tests.cluster.rbac import Access
from tests.cluster.selectors import match_labels
from tests.cluster.store import Store


class Kubelets:
    """All nodes of the cluster.

    Args:
        folder: for the files of the pods.
        authority: the certificate of the API server's authority.
        own_users: see :func:`tests.cluster.network.enter_cluster`.
    """

    def __init__(
        self, store: Store, access: Access, operations: Operations, folder: Path,
        authority: str, *, own_users: bool,
    ) -> None:  # fmt: skip
        (folder / "logs").mkdir()
        self._store, self._access, self._operations = store, access, operations
        self._folder, self._authority = folder, authority
        self.lost: dict[str, float] = {}
        # The image has the environment that runs the tests.
        path = f"{Path(sys.executable).parent}:{os.defpath}"
        image_env = {"PATH": path, "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1"}
        self._machine = Machine(store, folder, own_users, set(), self.lost, image_env)
        self._runs: dict[str, PodRun] = {}

    def add(self, name: str, labels: dict[str, str] | None = None, **resources: str) -> None:
        """A new node; its resources as ``cpu="4"``."""
        self.lost.pop(name, None)  # A machine of that name was lost before.
        allocatable = {"cpu": "64", "memory": "256Gi", "pods": "110", **resources}
        node = self._store.create(NODES, {
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name,
                                                  **(labels or {})}},
            "spec": {},
            "status": {"allocatable": allocatable, "capacity": allocatable},
        })  # fmt: skip
        self._store.update(NODES, "", name_of(node), _make_ready)

    def reconcile(self) -> None:
        """Starts and ends pods as the objects say."""
        there = {pod["metadata"]["uid"]: pod for pod in self._store.list(PODS)}
        for uid, pod in there.items():
            node = pod["spec"].get("nodeName")
            if not node or node in self.lost or self._store.find(NODES, "", node) is None:
                continue
            if uid not in self._runs and pod["status"]["phase"] not in ("Succeeded", "Failed"):
                self._start(pod)
            if uid in self._runs and "deletionTimestamp" in pod["metadata"]:
                self._runs[uid].end(float(pod["metadata"]["deletionGracePeriodSeconds"]))
        for uid, run in list(self._runs.items()):
            if self._store.find(NODES, "", run.node) is None:
                run.vanish()
            elif uid not in there and run.node not in self.lost:
                run.end(0)
            if run.task.done() and not run.task.cancelled():
                run.task.result()  # An error of ours ends the cluster.

    def with_network(self) -> list[PodRun]:
        """The pods that have an address."""
        return [
            run for run in self._runs.values()
            if run.network is not None and run.network.namespace >= 0
        ]  # fmt: skip

    def _start(self, pod: Object) -> None:
        namespace, name, uid = namespace_of(pod), name_of(pod), pod["metadata"]["uid"]
        spec = pod["spec"]
        account = self._store.find(SERVICE_ACCOUNTS, namespace, spec["serviceAccountName"])
        wanted = spec.get("automountServiceAccountToken")
        if wanted is None and account is not None:
            wanted = account.get("automountServiceAccountToken")
        with_token = wanted is not False and account is not None
        token = self._access.token_of(account) if with_token and account else ""
        files = PodFiles(
            self._store, pod, self._folder / "pods" / uid, self._folder / "claims", token,
            self._authority,
        )  # fmt: skip

        def remove() -> None:
            found = self._store.find(PODS, namespace, name)
            if found is not None and found["metadata"]["uid"] == uid:
                self._operations.delete(PODS, namespace, name, {"gracePeriodSeconds": 0})

        self._runs[uid] = PodRun(self._machine, pod, files, remove)

    # What the API server asks

    def log_of(self, pod: Object, container: str) -> Path | None:
        """None before the container has begun."""
        self._check_heard(pod)
        run = self._runs.get(pod["metadata"]["uid"])
        if run is None:
            return None
        path = self._machine.log(run.uid, container)
        return path if path.exists() else None

    def _check_heard(self, pod: Object) -> None:
        if (node := pod["spec"].get("nodeName")) in self.lost:
            raise Refused(500, f"error dialing backend: dial tcp {node}:10250: i/o timeout")

    async def connect(self, pod: Object, port: int) -> socket.socket:
        self._check_heard(pod)
        run = self._runs.get(pod["metadata"]["uid"])
        if run is None or run.network is None or run.network.namespace < 0:
            raise OSError("the pod is not running")
        connection = run.network.new_socket()
        connection.setblocking(False)
        try:
            loop = asyncio.get_running_loop()
            await loop.sock_connect(connection, ("127.0.0.1", port))
        except OSError:
            connection.close()
            raise
        return connection

    # What a test orders

    def lose(self, name: str, *, runs: bool = False) -> None:
        """The node falls silent, and its processes are gone unless it ``runs`` on."""
        if self._store.find(NODES, "", name) is None:
            raise not_found("nodes", "", name)
        self.lost[name] = time.monotonic()
        for run in self._runs.values():
            if run.node == name and not runs:
                if run.network is not None and run.network.namespace >= 0:
                    run.network.cut_off()  # its connections end without a word
                run.vanish()

    def give_back(self, name: str) -> None:
        """The node is there again, with the processes that run on it."""
        del self.lost[name]
        self._store.update(NODES, "", name, _make_ready)
        for pod in self._store.list(PODS):
            if pod["spec"].get("nodeName") != name:
                continue
            run = self._runs.get(pod["metadata"]["uid"])
            if run is not None and not run.has_vanished:
                run.say_all()
                continue
            if pod["status"]["phase"] == "Running":
                self._store.update(PODS, namespace_of(pod), name_of(pod), _lose_containers)
            if "deletionTimestamp" in pod["metadata"]:
                options = {"gracePeriodSeconds": 0}
                self._operations.delete(PODS, namespace_of(pod), name_of(pod), options)

    async def close(self) -> None:
        """Every process ends."""
        for run in self._runs.values():
            run.vanish()
        tasks = [run.task for run in self._runs.values()]
        await asyncio.gather(*tasks, return_exceptions=True)


def _make_ready(node: Object) -> None:
    set_condition(node, "Ready", "True", "KubeletReady", "kubelet is posting ready status")
    taints = node["spec"].pop("taints", None) or []
    kept = [t for t in taints if not t["key"].startswith("node.kubernetes.io/")]
    if kept:
        node["spec"]["taints"] = kept


def _lose_containers(pod: Object) -> None:
    pod["status"]["phase"] = "Failed"
    for status in pod["status"]["containerStatuses"]:
        status |= {"ready": False, "started": False, "state": {"terminated": {
            "exitCode": 137, "reason": "ContainerStatusUnknown",
            "message": "The container could not be located when the pod was terminated",
        }}}  # fmt: skip


class PolicyController:
    """Enforces the policies of ingress that name pods of their own namespace."""

    def __init__(self, store: Store, kubelets: Kubelets) -> None:
        self._store, self._kubelets = store, kubelets
        self._applied: dict[str, frozenset[str] | None] = {}

    def reconcile(self) -> None:
        for run in self._kubelets.with_network():
            pod = self._store.find(PODS, run.namespace, run.name)
            if pod is None or pod["metadata"]["uid"] != run.uid or run.network is None:
                continue
            admitted = self._admitted(pod)
            if self._applied.get(run.uid) != admitted:
                self._applied[run.uid] = admitted
                run.network.admit(admitted)

    def _admitted(self, pod: Object) -> frozenset[str] | None:
        """The addresses that may connect; None: any."""
        found: set[str] | None = None
        for policy in self._store.list(NETWORK_POLICIES, namespace_of(pod)):
            spec = policy["spec"]
            ours = match_labels(spec["podSelector"], pod["metadata"].get("labels") or {})
            if not ours or "Ingress" not in spec.get("policyTypes", ["Ingress"]):
                continue
            found = found or set()
            for rule in spec.get("ingress") or []:
                assert set(rule) == {"from"}, f"not enforced here: {rule}"
                for source in rule["from"]:
                    assert set(source) == {"podSelector"}, f"not enforced here: {source}"
                    found |= self._addresses(namespace_of(pod), source["podSelector"])
        return None if found is None else frozenset(found)

    def _addresses(self, namespace: str, selector: Object) -> set[str]:
        return {
            pod["status"]["podIP"]
            for pod in self._store.list(PODS, namespace)
            if match_labels(selector, pod["metadata"].get("labels") or {})
            and pod["status"].get("podIP")
        }
