"""Selectors of labels and of fields, as a list or a watch names them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from tests.cluster.kinds import Object, Refused

Matches = Callable[[Object], bool]

_SET = re.compile(r"^\s*(\S+)\s+in\s*\(([^)]*)\)\s*$")
_EQUAL = re.compile(r"^\s*([^=!\s]+)\s*=\s*([^=!\s]*)\s*$")


def label_selector(text: str) -> Matches:
    """Parse ``labelSelector=``: ``a=b,e in (f,g),h``; the other forms are rejected."""
    terms = [_label_term(term) for term in re.split(r",(?![^(]*\))", text) if term.strip()]
    return lambda thing: all(term(thing["metadata"].get("labels") or {}) for term in terms)


def _label_term(text: str) -> Callable[[Mapping[str, str]], bool]:
    if found := _SET.match(text):
        key, values = found.groups()
        wanted = {value.strip() for value in values.split(",")}
        return lambda labels: labels.get(key) in wanted
    if found := _EQUAL.match(text):
        key, value = found.groups()
        return lambda labels: labels.get(key) == value
    key = text.strip()
    if not re.fullmatch(r"[\w./-]+", key):
        raise Refused(400, f"unable to parse requirement: {text!r}")
    return lambda labels: key in labels


def match_labels(selector: Object, labels: Mapping[str, str]) -> bool:
    """Whether a ``LabelSelector`` of a manifest admits the labels."""
    for key, value in (selector.get("matchLabels") or {}).items():
        if labels.get(key) != value:
            return False
    for term in selector.get("matchExpressions") or []:
        key, values = term["key"], term.get("values") or []
        holds = {
            "In": labels.get(key) in values,
            "NotIn": labels.get(key) not in values,
            "Exists": key in labels,
            "DoesNotExist": key not in labels,
        }[term["operator"]]
        if not holds:
            return False
    return True


# A server rejects all other fields; these are the ones of its documentation.
_FIELDS = {
    "metadata.name", "metadata.namespace", "spec.nodeName", "spec.restartPolicy",
    "spec.schedulerName", "spec.serviceAccountName", "status.phase", "status.podIP",
    "status.successful", "type", "reason", "involvedObject.kind", "involvedObject.name",
    "involvedObject.namespace", "involvedObject.uid", "source", "reportingComponent",
}  # fmt: skip


def field_selector(text: str) -> Matches:
    """Parse ``fieldSelector=``: ``status.phase=Running,metadata.name=a``."""
    terms = [_field_term(term) for term in text.split(",") if term.strip()]
    return lambda thing: all(term(thing) for term in terms)


def _field_term(text: str) -> Matches:
    found = _EQUAL.match(text)
    if not found or found[1] not in _FIELDS:
        raise Refused(400, f"field label not supported: {text}")
    path, value = found.groups()

    def matches(thing: Object) -> bool:
        place: object = thing
        for word in path.split("."):
            place = place.get(word, "") if isinstance(place, dict) else ""
        return str(place) == value

    return matches
