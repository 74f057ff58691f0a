"""Who may connect to a pod: network policies, enforced in the network of each pod."""

from __future__ import annotations

from tests.cluster.kinds import NETWORK_POLICIES, PODS, Object, namespace_of
from tests.cluster.kubelets import Kubelets
from tests.cluster.selectors import match_labels
from tests.cluster.store import Store


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
