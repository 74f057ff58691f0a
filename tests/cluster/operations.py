"""What a request does to the objects: create, replace, patch, delete, list. The garbage
collector deletes what has lost its owner."""

from __future__ import annotations

import copy
import datetime
import functools
import random
import secrets
from typing import Any

from tests.cluster.admission import admit, set_defaults, set_limits
from tests.cluster.kinds import (
    JOBS,
    NAMESPACES,
    PODS,
    Kind,
    Object,
    Refused,
    invalid,
    name_of,
    namespace_of,
)
from tests.cluster.selectors import Matches
from tests.cluster.store import Store
from tests.cluster.validation import check_object, check_schema

# Letters and digits that make no words; the API's own alphabet of generated names.
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
_MUTABLE_OF_A_POD = ("tolerations", "activeDeadlineSeconds", "terminationGracePeriodSeconds")


class Operations:
    """The requests that change or list objects."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pages: dict[str, tuple[int, list[Object]]] = {}

    def create(self, kind: Kind, namespace: str, thing: Object) -> Object:
        thing = copy.deepcopy(thing)
        check_schema(kind, thing)
        metadata = thing.setdefault("metadata", {})
        if namespace and metadata.setdefault("namespace", namespace) != namespace:
            raise Refused(400, "the namespace of the provided object does not match the namespace "
                          "sent on the request")  # fmt: skip
        if not metadata.get("name") and (prefix := metadata.get("generateName")):
            metadata["name"] = prefix[:58] + "".join(random.choices(_ALPHABET, k=5))
        for field in ("uid", "resourceVersion", "creationTimestamp", "deletionTimestamp"):
            metadata.pop(field, None)
        if kind.has_status:
            thing.pop("status", None)
        if kind is PODS and isinstance(thing.get("spec"), dict):
            set_limits(self._store, metadata.get("namespace", ""), thing["spec"])
        check_object(kind, thing)
        set_defaults(kind, thing)
        admit(self._store, kind, thing)
        made = self._store.create(kind, thing)
        return self._select_own_pods(made) if kind is JOBS else made

    def _select_own_pods(self, job: Object) -> Object:
        def change(thing: Object) -> None:
            uid, name = thing["metadata"]["uid"], name_of(thing)
            own = {"batch.kubernetes.io/controller-uid": uid}
            both = {
                **own, "controller-uid": uid, "job-name": name,
                "batch.kubernetes.io/job-name": name,
            }  # fmt: skip
            thing["spec"].setdefault("selector", {"matchLabels": own})
            template = thing["spec"]["template"].setdefault("metadata", {})
            template["labels"] = {**(template.get("labels") or {}), **both}

        return self._store.update(JOBS, namespace_of(job), name_of(job), change)

    def _replace(self, kind: Kind, namespace: str, name: str, thing: Object) -> Object:
        check_schema(kind, thing)
        before = self._store.get(kind, namespace, name)
        wanted = thing["metadata"].get("resourceVersion")
        if wanted and wanted != before["metadata"]["resourceVersion"]:
            details = {"name": name, "group": kind.group, "kind": kind.plural}
            raise Refused(
                409, f'Operation cannot be fulfilled on {kind.plural} "{name}": the object has '
                "been modified; please apply your changes to the latest version and try again",
                details=details,
            )  # fmt: skip
        after = copy.deepcopy(thing)
        if kind.has_status and "status" in before:
            after["status"] = before["status"]
        # A writer cannot change these.
        kept = before["metadata"]
        for field in ("uid", "creationTimestamp", "namespace", "deletionTimestamp"):
            after["metadata"].pop(field, None)
            if field in kept:
                after["metadata"][field] = kept[field]
        if name_of(after) != name:
            raise Refused(400, "the name of the object does not match the name on the URL")
        check_object(kind, after)
        # Defaults of a new pod or Job that are a state are not set again.
        if kind not in (PODS, JOBS):
            set_defaults(kind, after)
        _check_immutable(kind, before, after)
        after["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"]
        return self._store.replace(kind, after)

    def patch(self, kind: Kind, namespace: str, name: str, content_type: str, patch: Any) -> Object:
        before = self._store.get(kind, namespace, name)
        if content_type != "application/strategic-merge-patch+json":
            raise Refused(415, f"{content_type}: of the formats of a patch only strategic merge is "
                          "known here")  # fmt: skip
        return self._replace(kind, namespace, name, _merge(before, patch))

    def delete(self, kind: Kind, namespace: str, name: str, options: Object) -> Object:
        """Deletes, or begins to; returns the object as it was last."""
        before = self._store.get(kind, namespace, name)
        for field, value in (options.get("preconditions") or {}).items():
            if value and before["metadata"][field] != value:
                raise Refused(
                    409, f"Precondition failed: {field} in precondition: {value}, {field} in "
                    f"object meta: {before['metadata'][field]}",
                )  # fmt: skip
        # Jobs keep their pods unless the caller says otherwise: so it is in batch/v1.
        policy = options.get("propagationPolicy") or ("Orphan" if kind is JOBS else "Background")
        if policy == "Orphan":
            for other, dependent in self.dependents(before["metadata"]["uid"]):
                self._orphan(other, dependent, before["metadata"]["uid"])
        if kind is PODS:
            grace = _grace_of(before, options)
            if grace or before["metadata"].get("finalizers"):
                change = functools.partial(_end_gracefully, grace_s=grace)
                return self._store.update(kind, namespace, name, change)
        return self._store.remove(kind, namespace, name)

    def dependents(self, uid: str) -> list[tuple[Kind, Object]]:
        """What the object of that uid owns."""
        return [
            (kind, thing)
            for kind, thing in self._store.kinds()
            if any(o["uid"] == uid for o in thing["metadata"].get("ownerReferences") or [])
        ]

    def _orphan(self, kind: Kind, thing: Object, uid: str) -> None:
        def change(dependent: Object) -> None:
            owners = dependent["metadata"]["ownerReferences"]
            dependent["metadata"]["ownerReferences"] = [o for o in owners if o["uid"] != uid]

        self._store.update(kind, namespace_of(thing), name_of(thing), change)

    def list(
        self, kind: Kind, namespace: str, matches: Matches, limit: int, token: str
    ) -> tuple[list[Object], dict[str, Any]]:
        """A page of objects, and the metadata of the list."""
        if token:
            if token not in self._pages:
                raise Refused(410, "The provided continue parameter is too old to display a "
                              "consistent list result")  # fmt: skip
            revision, found = self._pages.pop(token)
        else:
            revision = self._store.revision
            found = [thing for thing in self._store.list(kind, namespace) if matches(thing)]
        metadata: dict[str, Any] = {"resourceVersion": str(revision)}
        if limit and len(found) > limit:
            follow = secrets.token_urlsafe(8)
            self._pages[follow] = revision, found[limit:]
            metadata |= {"continue": follow, "remainingItemCount": len(found) - limit}
            found = found[:limit]
        return found, metadata

    def forget_pages(self) -> None:
        """A list that was begun cannot be continued."""
        self._pages.clear()


def _grace_of(pod: Object, options: Object) -> int:
    """The seconds that a pod has to end; 0 if it is deleted at once."""
    if not pod["spec"].get("nodeName") or pod["status"]["phase"] in ("Succeeded", "Failed"):
        return 0
    given = options.get("gracePeriodSeconds")
    grace = int(pod["spec"]["terminationGracePeriodSeconds"] if given is None else given)
    # A second deletion may shorten the time, never lengthen it.
    return min(grace, pod["metadata"].get("deletionGracePeriodSeconds", grace))


def _end_gracefully(pod: Object, grace_s: int) -> None:
    metadata = pod["metadata"]
    if metadata.get("deletionGracePeriodSeconds", grace_s + 1) > grace_s:
        end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=grace_s)
        metadata["deletionTimestamp"] = end.strftime("%Y-%m-%dT%H:%M:%SZ")
        metadata["deletionGracePeriodSeconds"] = grace_s


def _check_immutable(kind: Kind, before: Object, after: Object) -> None:
    if kind is PODS:
        spec, new = _fixed_part(before["spec"]), _fixed_part(after["spec"])
        if spec != new:
            raise invalid(
                "Pod", name_of(after), "spec", "Forbidden: pod updates may not change fields other "
                "than `spec.containers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations`",
            )  # fmt: skip
    elif kind is JOBS and before["spec"]["template"] != after["spec"]["template"]:
        raise invalid("Job", name_of(after), "spec.template", "field is immutable")


def _fixed_part(spec: Object) -> Object:
    fixed = {key: value for key, value in spec.items() if key not in _MUTABLE_OF_A_POD}
    fixed["containers"] = [{**c, "image": ""} for c in spec["containers"]]
    return fixed


def collect_garbage(store: Store, operations: Operations) -> None:
    """Deletes what has lost all its owners or its namespace."""
    namespaces = {"", *map(name_of, store.list(NAMESPACES))}
    things = list(store.kinds())
    uids = {thing["metadata"]["uid"] for _, thing in things}
    for kind, thing in things:
        owners = {o["uid"] for o in thing["metadata"].get("ownerReferences") or []}
        orphaned = owners and not owners & uids
        homeless = namespace_of(thing) not in namespaces
        if (orphaned or homeless) and "deletionTimestamp" not in thing["metadata"]:
            operations.delete(
                kind, namespace_of(thing), name_of(thing), {"propagationPolicy": "Background"}
            )
    for pod in store.list(PODS):
        ended = pod["metadata"].get("deletionGracePeriodSeconds") == 0
        if ended and not pod["metadata"].get("finalizers"):
            store.remove(PODS, namespace_of(pod), name_of(pod))


# Lists that the server merges by a key, from `x-kubernetes-patch-merge-key` of the schema; only the
# list of owners is patched here.
_OWNERS = "ownerReferences"
_MERGED = {
    "containers", "initContainers", "env", "volumes", "volumeMounts", "imagePullSecrets",
    "conditions", "hostAliases", "secrets", "topologySpreadConstraints", "ports",
}  # fmt: skip


def _merge(target: Any, patch: Object) -> Object:
    """Strategic merge."""
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict):
            merged[key] = _merge(merged.get(key), value)
        elif key == _OWNERS:
            owners = {owner["uid"]: owner for owner in [*(merged.get(key) or []), *value]}
            merged[key] = list(owners.values())
        elif isinstance(value, list) and key in _MERGED:
            raise Refused(415, f"{key}: the patch of this list is unknown here")
        else:
            merged[key] = copy.deepcopy(value)
    return merged
