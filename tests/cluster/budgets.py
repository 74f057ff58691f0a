"""PodDisruptionBudgets, as the disruption controller and the eviction of Kubernetes 1.36 have them.

Of a budget with a percentage or with ``maxUnavailable`` the controller needs the scale of each
pod's controller. No kind of this cluster has a scale: Jobs and ConfigMaps have none in any cluster.
"""

from __future__ import annotations

from tests.cluster.kinds import BUDGETS, Object, Refused, name_of, namespace_of
from tests.cluster.selectors import match_labels
from tests.cluster.store import Store
from tests.cluster.times import FACTOR

_RETRY_S = max(1, round(10 * FACTOR))


def check_eviction(store: Store, pod: Object, pods: list[Object]) -> None:
    """Raises Refused if a budget does not allow to evict the pod.

    Args:
        pods: all pods of the namespace.
    """
    if pod["status"]["phase"] != "Running" or "deletionTimestamp" in pod["metadata"]:
        return
    budgets = [b for b in store.list(BUDGETS, namespace_of(pod)) if _covers(b, pod)]
    if len(budgets) > 1:
        raise Refused(500, "This pod has more than one PodDisruptionBudget, which the eviction "
                      "subresource does not support.")  # fmt: skip
    for budget in budgets:
        covered = [other for other in pods if _covers(budget, other)]
        healthy = sum(map(_is_healthy, covered))
        desired = _desired(budget["spec"], covered)
        allowed = 0 if desired is None or not covered else healthy - desired
        if not _is_healthy(pod) and desired and healthy >= desired:
            continue
        if allowed <= 0:
            raise Refused(
                429, "Cannot evict pod as it would violate the pod's disruption budget.",
                retry_after_s=_RETRY_S, details={"name": name_of(budget)},
            )  # fmt: skip


def _desired(spec: Object, covered: list[Object]) -> int | None:
    """The pods that must be healthy; None if the controller cannot say."""
    least = spec.get("minAvailable")
    if isinstance(least, int):
        return least
    # Pods without a controller do not count, and a controller without a scale is an error.
    return None


def _covers(budget: Object, pod: Object) -> bool:
    selector = budget["spec"].get("selector") or {}
    return bool(selector) and match_labels(selector, pod["metadata"].get("labels") or {})


def _is_healthy(pod: Object) -> bool:
    ready = any(c["type"] == "Ready" and c["status"] == "True"
                for c in pod["status"].get("conditions") or [])  # fmt: skip
    return ready and "deletionTimestamp" not in pod["metadata"]
