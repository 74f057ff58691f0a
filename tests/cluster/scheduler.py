"""The scheduler: a node for each pod, and room for those of higher priority. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from benchmarks.cluster.scheduler import Victim, cheapest_victims
from tests.cluster.kinds import Object, name_of, namespace_of, parse_quantity, requests_of
from tests.cluster.selectors import match_labels


@dataclass
class Decisions:
    """Placements and preemptions that follow from the state of the cluster.

    Args:
        bound: a node's name for the uid of a pod.
        victims: pods that must go, and the pod for which they do.
        nominated: the node on which a pod waits for its victims to end.
        unschedulable: why a pod has no node.
    """

    bound: dict[str, str] = field(default_factory=dict)
    victims: list[tuple[Object, Object]] = field(default_factory=list)
    nominated: dict[str, str] = field(default_factory=dict)
    unschedulable: dict[str, str] = field(default_factory=dict)


@dataclass
class _Room:
    node: Object
    free: Counter[str]
    pods: list[Object]


def schedule(
    nodes: Iterable[Object], pods: Iterable[Object], claims: Collection[tuple[str, str]] = ()
) -> Decisions:
    """Decides about all pods that have no node, by priority and age.

    Args:
        claims: namespaces and names of those that exist.
    """
    all_pods = list(pods)
    rooms = [_room(node, all_pods) for node in nodes]
    waiting = [
        pod for pod in all_pods
        if not pod["spec"].get("nodeName") and "deletionTimestamp" not in pod["metadata"]
        and pod["spec"]["schedulerName"] == "default-scheduler"
    ]  # fmt: skip
    waiting.sort(key=lambda pod: (
        -pod["spec"]["priority"], pod["metadata"]["creationTimestamp"], name_of(pod),
    ))  # fmt: skip
    decisions = Decisions()
    for pod in waiting:
        if (claim := _missing_claim(pod, claims)) is not None:
            head = f"0/{len(rooms)} nodes are available"
            decisions.unschedulable[pod["metadata"]["uid"]] = (
                f'{head}: persistentvolumeclaim "{claim}" not found. preemption: {head}: '
                f"{len(rooms)} Preemption is not helpful for scheduling."
            )
        else:
            _decide(pod, rooms, decisions)
    return decisions


def _missing_claim(pod: Object, claims: Collection[tuple[str, str]]) -> str | None:
    volumes = pod["spec"].get("volumes") or []
    names = [
        v["persistentVolumeClaim"]["claimName"] for v in volumes if "persistentVolumeClaim" in v
    ]
    return next((n for n in names if (namespace_of(pod), n) not in claims), None)


def _decide(pod: Object, rooms: list[_Room], decisions: Decisions) -> None:
    uid, asked = pod["metadata"]["uid"], requests_of(pod["spec"])
    why: Counter[str] = Counter()
    fitting = []
    for room in rooms:
        problems = _problems(pod, room) or _lacks(asked, room.free)
        why.update(problems)
        if not problems:
            fitting.append(room)
    if fitting:
        best = max(fitting, key=lambda room: _score(pod, room))
        decisions.bound[uid] = name_of(best.node)
        _take(best, pod, asked)
        return
    reasons = ", ".join(f"{n} {text}" for text, n in sorted(why.items()))
    head = f"0/{len(rooms)} nodes are available"
    decisions.unschedulable[uid] = f"{head}: {reasons}." if rooms else "no nodes available"
    found = _preempt(pod, asked, rooms)
    if found is None:
        if rooms:
            decisions.unschedulable[uid] += (
                f" preemption: {head}: {len(rooms)} No preemption victims found for incoming pod."
            )
        return
    room, victims = found
    decisions.nominated[uid] = name_of(room.node)
    decisions.victims += [(victim, pod) for victim in victims if not _is_ending(victim)]
    for victim in victims:
        room.pods = [other for other in room.pods if other is not victim]
        room.free.update(requests_of(victim["spec"]))
    # The place is kept from pods of lower priority.
    _take(room, pod, asked)


def _room(node: Object, pods: list[Object]) -> _Room:
    there = [
        pod for pod in pods
        if pod["spec"].get("nodeName") == name_of(node)
        and pod["status"]["phase"] not in ("Succeeded", "Failed")
    ]  # fmt: skip
    free: Counter[str] = Counter()
    for name, amount in node["status"]["allocatable"].items():
        free[name] = parse_quantity(amount)
    for pod in there:
        free.subtract(requests_of(pod["spec"]))
    return _Room(node, free, there)


def _take(room: _Room, pod: Object, asked: Counter[str]) -> None:
    room.free.subtract(asked)
    room.pods.append(pod)


def _lacks(asked: Counter[str], free: Counter[str]) -> list[str]:
    return [
        "Too many pods" if name == "pods" else f"Insufficient {name}"
        for name, amount in sorted(asked.items())
        if amount > free[name]
    ]


def _problems(pod: Object, room: _Room) -> list[str]:
    """Why a pod cannot be on a node however much room there is."""
    node, spec = room.node, pod["spec"]
    if node["spec"].get("unschedulable"):
        return ["node(s) were unschedulable"]
    labels = node["metadata"].get("labels") or {}
    for taint in node["spec"].get("taints") or []:
        if toleration_of(spec, taint) is None:
            return [f"node(s) had untolerated taint {{{taint['key']}: {taint.get('value', '')}}}"]
    if not (spec.get("nodeSelector") or {}).items() <= labels.items():
        return ["node(s) didn't match Pod's node affinity/selector"]
    return []


def toleration_of(spec: Object, taint: Object) -> Object | None:
    """The toleration of a pod that accepts a taint."""
    for toleration in spec.get("tolerations") or []:
        effect, key = toleration.get("effect"), toleration.get("key")
        if effect not in (None, "", taint["effect"]) or key not in (None, "", taint["key"]):
            continue
        exists = toleration.get("operator") == "Exists"
        if exists or (toleration.get("value") or "") == (taint.get("value") or ""):
            found: Object = toleration
            return found
    return None


def _score(pod: Object, room: _Room) -> tuple[int, int]:
    affinity = pod["spec"].get("affinity") or {}
    labels = room.node["metadata"].get("labels") or {}
    preferred = "preferredDuringSchedulingIgnoredDuringExecution"
    score = 0
    for term in (affinity.get("nodeAffinity") or {}).get(preferred) or []:
        wanted = {"matchExpressions": term["preference"].get("matchExpressions")}
        score += term["weight"] * match_labels(wanted, labels)
    for term in pod["spec"].get("topologySpreadConstraints") or []:
        assert term["topologyKey"] == "kubernetes.io/hostname", "not known here"
        assert term["whenUnsatisfiable"] == "ScheduleAnyway", "not known here"
        score -= sum(
            match_labels(term["labelSelector"], other["metadata"].get("labels") or {})
            for other in room.pods
            if other["metadata"].get("namespace") == pod["metadata"].get("namespace")
        )
    return score, -len(room.pods)


def _preempt(
    pod: Object, asked: Counter[str], rooms: list[_Room]
) -> tuple[_Room, list[Object]] | None:
    """The node whose victims are of the lowest priority and the fewest."""
    return cheapest_victims(
        (room, asked - room.free, _less_urgent(pod, room))
        for room in rooms
        if not _problems(pod, room)
    )


def _less_urgent(pod: Object, room: _Room) -> list[Victim[Object]]:
    """Those that are ending already, which cost nothing; then the lowest, then the youngest."""
    lower = [other for other in room.pods
             if other["spec"]["priority"] < pod["spec"]["priority"]
             and other["spec"].get("nodeName")]  # fmt: skip
    lower.sort(key=lambda other: (
        not _is_ending(other), other["spec"]["priority"],
        other["status"].get("startTime", "") == "", name_of(other),
    ))  # fmt: skip
    return [(other, other["spec"]["priority"], requests_of(other["spec"])) for other in lower]


def _is_ending(pod: Object) -> bool:
    return "deletionTimestamp" in pod["metadata"]
