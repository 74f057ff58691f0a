"""What becomes of nodes and their pods: places, preemption, and the loss of a node."""

from __future__ import annotations

import time

from tests.cluster.kinds import CLAIMS, NODES, PODS, Object, name_of, namespace_of
from tests.cluster.kubelets import Kubelets
from tests.cluster.operations import Operations
from tests.cluster.pod_requests import disrupt, set_condition
from tests.cluster.scheduler import schedule, toleration_of
from tests.cluster.store import Store, now, tell
from tests.cluster.times import FACTOR, UNREACHABLE_S

_UNREACHABLE = "node.kubernetes.io/unreachable"
_OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"


class NodeController:
    """Acts on the scheduler's decisions, and on the silence of nodes."""

    def __init__(self, store: Store, operations: Operations, kubelets: Kubelets) -> None:
        self._store, self._operations, self._kubelets = store, operations, kubelets
        self._tainted_at: dict[str, float] = {}

    def place_pods(self) -> None:
        pods = {pod["metadata"]["uid"]: pod for pod in self._store.list(PODS)}
        claims = {(namespace_of(each), name_of(each)) for each in self._store.list(CLAIMS)}
        decisions = schedule(self._store.list(NODES), pods.values(), claims)
        for uid, node in decisions.bound.items():
            self._bind(pods[uid], node)
        for uid, why in decisions.unschedulable.items():
            self._say_unschedulable(pods[uid], why, decisions.nominated.get(uid, ""))
        for victim, pod in decisions.victims:
            why = f"preempting to accommodate a higher priority pod: {name_of(pod)}"
            disrupt(self._store, victim, "PreemptionByScheduler", why)
            tell(self._store, victim, "default-scheduler", "Preempted",
                 f"Preempted by pod {pod['metadata']['uid']} on node "
                 f"{victim['spec']['nodeName']}")  # fmt: skip
            self._operations.delete(PODS, namespace_of(victim), name_of(victim), {})

    def _bind(self, pod: Object, node: str) -> None:
        def change(thing: Object) -> None:
            thing["spec"]["nodeName"] = node
            thing["status"].pop("nominatedNodeName", None)
            set_condition(thing, "PodScheduled", "True", "", "")

        self._store.update(PODS, namespace_of(pod), name_of(pod), change)
        where = f"{namespace_of(pod)}/{name_of(pod)} to {node}"
        tell(self._store, pod, "default-scheduler", "Scheduled", f"Successfully assigned {where}")

    def _say_unschedulable(self, pod: Object, why: str, nominated: str) -> None:
        def change(thing: Object) -> None:
            set_condition(thing, "PodScheduled", "False", "Unschedulable", why)
            if nominated:
                thing["status"]["nominatedNodeName"] = nominated

        before = pod["metadata"]["resourceVersion"]
        after = self._store.update(PODS, namespace_of(pod), name_of(pod), change)
        if after["metadata"]["resourceVersion"] != before:
            tell(self._store, pod, "default-scheduler", "FailedScheduling", why, "Warning")

    def watch_nodes(self) -> None:
        """Taints nodes that are silent, and deletes pods that no longer tolerate it, and pods
        whose node is gone."""
        for name, since in self._kubelets.lost.items():
            node = self._store.find(NODES, "", name)
            silent = time.monotonic() - since >= UNREACHABLE_S
            if node is not None and silent and name not in self._tainted_at:
                self._tainted_at[name] = time.monotonic()
                self._store.update(NODES, "", name, _taint)
                for pod in self._pods_of(name):
                    self._store.update(PODS, namespace_of(pod), name_of(pod), _doubt)
        for name in list(self._tainted_at):
            if name not in self._kubelets.lost:
                del self._tainted_at[name]
        for name, since in self._tainted_at.items():
            for pod in self._pods_of(name):
                self._evict_if_due(pod, since)
        nodes = {name_of(node) for node in self._store.list(NODES)}
        out_of_service = {
            name for name in nodes & self._tainted_at.keys()
            if any(t["key"] == _OUT_OF_SERVICE
                   for t in self._store.get(NODES, "", name)["spec"].get("taints") or [])
        }  # fmt: skip
        for pod in self._store.list(PODS):
            node_name = pod["spec"].get("nodeName")
            deleted = "deletionTimestamp" in pod["metadata"]
            if (node_name and node_name not in nodes) or (
                deleted and (not node_name or node_name in out_of_service)
            ):
                self._collect(pod)

    def _pods_of(self, node: str) -> list[Object]:
        return [pod for pod in self._store.list(PODS) if pod["spec"].get("nodeName") == node]

    def _evict_if_due(self, pod: Object, since: float) -> None:
        taint = {"key": _UNREACHABLE, "effect": "NoExecute"}
        toleration = toleration_of(pod["spec"], taint)
        if "deletionTimestamp" in pod["metadata"]:
            return
        limit_s = 0.0
        if toleration is not None:
            if toleration.get("tolerationSeconds") is None:
                return
            limit_s = toleration["tolerationSeconds"] * FACTOR
        if time.monotonic() - since >= limit_s:
            disrupt(self._store, pod, "DeletionByTaintManager", "Taint manager: deleting due to "
                    "NoExecute taint")  # fmt: skip
            # The node does not confirm the end: the pod stays until the node is gone or back.
            self._operations.delete(PODS, namespace_of(pod), name_of(pod), {})

    def _collect(self, pod: Object) -> None:
        """Nobody else can say that the pod has ended."""

        def change(thing: Object) -> None:
            if thing["status"]["phase"] not in ("Succeeded", "Failed"):
                thing["status"]["phase"] = "Failed"
                set_condition(thing, "DisruptionTarget", "True", "DeletionByPodGC",
                              "PodGC: node no longer exists")  # fmt: skip

        self._store.update(PODS, namespace_of(pod), name_of(pod), change)
        options = {"gracePeriodSeconds": 0}
        self._operations.delete(PODS, namespace_of(pod), name_of(pod), options)


def _taint(node: Object) -> None:
    message = "Kubelet stopped posting node status."
    set_condition(node, "Ready", "Unknown", "NodeStatusUnknown", message)
    taints = [t for t in node["spec"].get("taints") or [] if t["key"] != _UNREACHABLE]
    for effect in ("NoSchedule", "NoExecute"):
        taints.append({"key": _UNREACHABLE, "effect": effect, "timeAdded": now()})
    node["spec"]["taints"] = taints


def _doubt(pod: Object) -> None:
    """The pod may be dead or alive."""
    set_condition(pod, "Ready", "False", "NodeLost", "Node is unreachable")
