"""Admission: the last word on a new object after its form was found right."""

from __future__ import annotations

from collections import Counter

from tests.cluster.kinds import (
    CLAIMS,
    CONFIG_MAPS,
    JOBS,
    NAMESPACES,
    PODS,
    PRIORITY_CLASSES,
    QUOTAS,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    Kind,
    Object,
    name_of,
    namespace_of,
)  # fmt: skip
from tests.cluster.limits import problems_of
from tests.cluster.quantities import limits_of, parse_quantity, requests_of, write_quantity
from tests.cluster.refused import Refused, not_found
from tests.cluster.store import Store

_SYSTEM = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
_COUNTED = {
    PODS: "pods", SECRETS: "secrets", CONFIG_MAPS: "configmaps", SERVICES: "services",
    CLAIMS: "persistentvolumeclaims", JOBS: "count/jobs.batch",
}  # fmt: skip


def admit(store: Store, kind: Kind, thing: Object) -> None:
    """Completes a new object, or raises Refused 403 or 404."""
    if kind.namespaced and store.find(NAMESPACES, "", namespace_of(thing)) is None:
        raise not_found("namespaces", "", namespace_of(thing))
    if kind is PODS:
        account = thing["spec"]["serviceAccountName"]
        if store.find(SERVICE_ACCOUNTS, namespace_of(thing), account) is None:
            raise _forbidden(
                kind, thing, f"error looking up service account {namespace_of(thing)}/{account}: "
                f'serviceaccount "{account}" not found',
            )  # fmt: skip
        _set_priority(store, kind, thing)
        if problems := problems_of(store, namespace_of(thing), thing["spec"]):
            text = problems[0] if len(problems) == 1 else f"[{', '.join(problems)}]"
            raise _forbidden(kind, thing, text)
    if kind in _COUNTED:
        _check_quotas(store, kind, thing)


def _forbidden(kind: Kind, thing: Object, why: str) -> Refused:
    details = {"name": name_of(thing), "kind": kind.plural, "group": kind.group}
    full = f"{kind.plural}.{kind.group}" if kind.group else kind.plural
    return Refused(403, f'{full} "{name_of(thing)}" is forbidden: {why}', details=details)


def _set_priority(store: Store, kind: Kind, pod: Object) -> None:
    spec = pod["spec"]
    name = spec.get("priorityClassName", "")
    policy = "PreemptLowerPriority"
    if not name:
        default = [c for c in store.list(PRIORITY_CLASSES) if c.get("globalDefault")]
        value = default[0]["value"] if default else 0
    elif name in _SYSTEM:
        value = _SYSTEM[name]
    else:
        found = store.find(PRIORITY_CLASSES, "", name)
        if found is None:
            raise _forbidden(kind, pod, f"no PriorityClass with name {name} was found")
        value, policy = found["value"], found.get("preemptionPolicy", policy)
    if spec.get("priority", value) != value:
        raise _forbidden(
            kind, pod, "the integer value of priority must not be provided in pod spec; priority "
            "admission controller computed another value from the given PriorityClass name",
        )  # fmt: skip
    spec["priority"] = value
    spec.setdefault("preemptionPolicy", policy)


def _check_quotas(store: Store, kind: Kind, thing: Object) -> None:
    asked = _use(kind, thing)
    for quota in store.list(QUOTAS, namespace_of(thing)):
        hard = {name: parse_quantity(text) for name, text in quota["spec"].get("hard", {}).items()}
        if kind is PODS:
            missing = [n for n in hard if n not in asked and n.partition(".")[2]]
            missing += [n for n in hard if n in ("cpu", "memory") and n not in asked]
            if missing:
                raise _forbidden(
                    kind, thing,
                    f"failed quota: {name_of(quota)}: must specify {','.join(sorted(missing))}",
                )  # fmt: skip
        used = used_of(store, namespace_of(thing))
        over = [n for n in sorted(hard) if asked[n] and used[n] + asked[n] > hard[n]]
        if over:
            words = {
                part: ",".join(f"{name}={write_quantity(amounts[name])}" for name in over)
                for part, amounts in (("requested", asked), ("used", used), ("limited", hard))
            }
            said = ", ".join(f"{part}: {text}" for part, text in words.items())
            raise _forbidden(kind, thing, f"exceeded quota: {name_of(quota)}, {said}")


def _use(kind: Kind, thing: Object) -> Counter[str]:
    use = Counter({_COUNTED[kind]: 1000})
    if kind is PODS:
        use["count/pods"] = 1000
        for name, amount in requests_of(thing["spec"]).items():
            if name != "pods":
                use[f"requests.{name}"] = amount
                use[name] = amount
        use.update({f"limits.{name}": n for name, n in limits_of(thing["spec"]).items()})
    return use


def used_of(store: Store, namespace: str) -> Counter[str]:
    """What counts against the quotas of a namespace."""
    total: Counter[str] = Counter()
    for kind in _COUNTED:
        for thing in store.list(kind, namespace):
            if kind is not PODS or thing["status"]["phase"] not in ("Succeeded", "Failed"):
                total.update(_use(kind, thing))
    return total
