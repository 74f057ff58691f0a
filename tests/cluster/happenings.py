"""Events: what the parts of the cluster tell about an object."""

from __future__ import annotations

import hashlib

from tests.cluster.kinds import EVENTS, Object, name_of, namespace_of
from tests.cluster.store import Store, now


def tell(
    store: Store, thing: Object, source: str, reason: str, message: str, kind: str = "Normal"
) -> None:
    """An event about an object; one that is told again is counted."""
    text = f"{thing['metadata']['uid']} {source} {reason} {message}"
    name = f"{name_of(thing)[:200]}.{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    namespace = namespace_of(thing) or "default"
    if store.find(EVENTS, namespace, name) is not None:

        def again(event: Object) -> None:
            event["count"] += 1
            event["lastTimestamp"] = now()

        store.update(EVENTS, namespace, name, again)
        return
    store.create(EVENTS, {
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": name, "namespace": namespace},
        "involvedObject": {
            "apiVersion": thing["apiVersion"], "kind": thing["kind"], "name": name_of(thing),
            "namespace": namespace_of(thing), "uid": thing["metadata"]["uid"],
        },
        "type": kind, "reason": reason, "message": message, "count": 1,
        "source": {"component": source}, "reportingComponent": source,
        "firstTimestamp": now(), "lastTimestamp": now(),
    })  # fmt: skip
