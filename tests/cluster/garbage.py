"""The garbage collector: what is owned goes with its owner, and a pod that was deleted when no
finalizer keeps it any more."""

from __future__ import annotations

from tests.cluster.kinds import NAMESPACES, PODS, Object, name_of, namespace_of
from tests.cluster.operations import Operations, ends_in_foreground
from tests.cluster.store import Store


def collect_garbage(store: Store, operations: Operations) -> None:
    """Deletes what has lost all its owners or its namespace, and then owners that waited."""
    namespaces = {"", *map(name_of, store.list(NAMESPACES))}
    things = list(store.kinds())
    uids = {thing["metadata"]["uid"] for _, thing in things}
    ending = {t["metadata"]["uid"] for _, t in things if ends_in_foreground(t)}
    for kind, thing in things:
        owners = {o["uid"] for o in thing["metadata"].get("ownerReferences") or []}
        orphaned = owners and not owners & uids
        homeless = namespace_of(thing) not in namespaces
        if (orphaned or homeless or owners & ending) and not _is_ending(thing):
            operations.delete(
                kind, namespace_of(thing), name_of(thing), {"propagationPolicy": "Background"}
            )
    for pod in store.list(PODS):
        ended = pod["metadata"].get("deletionGracePeriodSeconds") == 0
        if ended and not pod["metadata"].get("finalizers"):
            store.remove(PODS, namespace_of(pod), name_of(pod))
    for kind, thing in things:
        uid = thing["metadata"]["uid"]
        if uid in ending and not operations.dependents(uid):
            store.remove(kind, namespace_of(thing), name_of(thing))


def _is_ending(thing: Object) -> bool:
    return "deletionTimestamp" in thing["metadata"]
