"""The objects, every change to them since the last compaction, and the events about them."""

from __future__ import annotations

import asyncio
import copy
import datetime
import hashlib
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.cluster.kinds import EVENTS, Kind, Object, Refused, name_of, namespace_of, not_found


@dataclass(frozen=True)
class Change:
    """One change.

    Args:
        revision: of the store, afterwards.
        kind: of the object.
        before: the object before the change; None if there was none.
        after: the object after the change; None if it was deleted.
    """

    revision: int
    kind: Kind
    before: Object | None
    after: Object | None


def now() -> str:
    """The time as the API writes it."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Store:
    """All objects. An object that is in the store is never changed: a change puts another in its
    place, so that whoever has read one may keep it.
    """

    def __init__(self) -> None:
        self.revision = 1
        self.compacted = 0
        self._objects: dict[Kind, dict[tuple[str, str], Object]] = {}
        self._changes: list[Change] = []
        self._changed = asyncio.Event()

    def get(self, kind: Kind, namespace: str, name: str) -> Object:
        """Raises Refused 404 if there is none."""
        found = self.find(kind, namespace, name)
        if found is None:
            raise not_found(kind.plural, kind.group, name)
        return found

    def find(self, kind: Kind, namespace: str, name: str) -> Object | None:
        return self._objects.get(kind, {}).get((namespace, name))

    def list(self, kind: Kind, namespace: str = "") -> list[Object]:
        """In the order of their names; of all namespaces if none is named."""
        found = self._objects.get(kind, {})
        return [found[key] for key in sorted(found) if namespace in ("", key[0])]

    def kinds(self) -> Iterator[tuple[Kind, Object]]:
        """Every object."""
        for kind, objects in list(self._objects.items()):
            for thing in list(objects.values()):
                yield kind, thing

    def create(self, kind: Kind, thing: Object) -> Object:
        """Raises Refused 409 if there is one of that name."""
        namespace, name = namespace_of(thing), name_of(thing)
        if self.find(kind, namespace, name) is not None:
            full = f"{kind.plural}.{kind.group}" if kind.group else kind.plural
            details = {"name": name, "group": kind.group, "kind": kind.plural}
            message = f'{full} "{name}" already exists'
            raise Refused(409, message, reason="AlreadyExists", details=details)
        thing = copy.deepcopy(thing)
        thing["metadata"]["uid"] = str(uuid.uuid4())
        thing["metadata"]["creationTimestamp"] = now()
        return self._put(kind, None, thing)

    def update(
        self, kind: Kind, namespace: str, name: str, change: Callable[[Object], None]
    ) -> Object:
        """Applies ``change`` to a copy, which takes the place of the object if it differs."""
        before = self.get(kind, namespace, name)
        after = copy.deepcopy(before)
        change(after)
        return before if after == before else self._put(kind, before, after)

    def replace(self, kind: Kind, thing: Object) -> Object:
        """Puts it in the place of the object of its name."""
        before = self.get(kind, namespace_of(thing), name_of(thing))
        return before if thing == before else self._put(kind, before, copy.deepcopy(thing))

    def remove(self, kind: Kind, namespace: str, name: str) -> Object:
        """At once and for good."""
        before = self.get(kind, namespace, name)
        del self._objects[kind][namespace, name]
        self.revision += 1
        last = copy.deepcopy(before)
        last["metadata"]["resourceVersion"] = str(self.revision)
        self._note(Change(self.revision, kind, last, None))
        return last

    def _put(self, kind: Kind, before: Object | None, after: Object) -> Object:
        self.revision += 1
        after["metadata"]["resourceVersion"] = str(self.revision)
        self._objects.setdefault(kind, {})[namespace_of(after), name_of(after)] = after
        self._note(Change(self.revision, kind, before, after))
        return after

    def _note(self, change: Change) -> None:
        self._changes.append(change)
        self._changed.set()
        self._changed = asyncio.Event()

    def compact(self) -> None:
        """Forgets all changes so far: a watch from an earlier revision is rejected."""
        self.compacted = self.revision
        self._changes.clear()

    def changes_since(self, revision: int) -> list[Change]:
        """Those that came after ``revision``; raises Refused 410 if they are forgotten."""
        if revision < self.compacted:
            raise Refused(410, f"too old resource version: {revision} ({self.compacted})")
        first = len(self._changes)
        while first and self._changes[first - 1].revision > revision:
            first -= 1
        return self._changes[first:]

    def change(self) -> asyncio.Event:
        """Is set by the next change."""
        return self._changed


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
