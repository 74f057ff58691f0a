"""Turns unsuccessful answers of the API server into exceptions. Pure.

A message is one line: the request, the answer of the server, and what to do.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from torch_edl.errors import EdlError

# Limit of a message, since a message of an admission webhook may be a page long.
_TEXT_CHARS = 500
_BODY_CHARS = 1 << 20
_LONGEST_RETRY_AFTER_S = 120.0

SETTLING_S = 30.0
"""Seconds for which the server may reject calls that it admits later. A Role takes effect a moment
after its creation, and an API server that just started rejects all calls until it has loaded the
Roles."""

# Messages of the authorizers of the API server.
_NO_RIGHT = re.compile(
    r'[Uu]ser "(?P<user>[^"]*)" cannot (?P<verb>\S+) resource "(?P<resource>[^"]*)"'
    r'(?: in API group "(?P<group>[^"]*)")?'
)
_NO_GRANT = re.compile(
    r'[Uu]ser "(?P<user>[^"]*)".* is attempting to grant RBAC permissions not currently held: *'
    r"(?P<rights>.*)"
)
# A websocket is a GET, which since Kubernetes 1.35 needs the right of a POST too.
_PORT = "pods/portforward"
# Messages of admission: a LimitRange, pod security, a webhook, a plug-in.
_NOT_ADMITTED = re.compile(r'" is forbidden: |denied the request')
# The default account of a new namespace is created a moment after the namespace.
_NO_ACCOUNT = "error looking up service account"


class ClusterError(EdlError):
    """The API server of a cluster did not fulfil a request.

    Args:
        status: status of HTTP; 0: there was no answer.
        retry_after_s: seconds that the server asks to wait before the next call.
    """

    def __init__(self, text: str, *, status: int = 0, retry_after_s: float = 0.0) -> None:
        super().__init__(text)
        self.status = status
        self.retry_after_s = retry_after_s


class NoAnswerError(ClusterError):
    """The server is unreachable, is overloaded or failed; the same call may succeed later."""


class ForbiddenError(ClusterError):
    """The caller is not authorized at the moment; see :data:`SETTLING_S`."""


class QuotaError(ClusterError):
    """The quota of the namespace has no room for the object at the moment."""


class ExistsError(ClusterError):
    """An object of that name exists."""


class MissingError(ClusterError):
    """The object does not exist."""


class ExpiredError(ClusterError):
    """The server no longer has the version at which a watch begins; the caller must list again."""


class InvalidError(ClusterError):
    """The server rejects the content of the object or of the request."""


def read_error(
    status: int, body: str, headers: Mapping[str, str], *, what: str, namespace: str
) -> ClusterError:
    """Return the exception for an unsuccessful answer.

    Args:
        body: body of the answer, usually a ``Status`` of Kubernetes.
        headers: headers of the answer.
        what: the request, such as ``create pod ctr-worker-3``.
    """
    said = status_of(body)
    text = one_line(str(said.get("message") or body or "no reason is given"))
    details = said.get("details")
    seconds = details.get("retryAfterSeconds") if isinstance(details, Mapping) else None
    after = _retry_after_s(headers, seconds)
    where = f"{what} in namespace {namespace}"
    if status == 401:
        fix = "the credentials are not accepted; log in again until kubectl get pods works"
        return ForbiddenError(f"{where}: {fix} ({text})", status=status)
    if status == 403 and "exceeded quota" in text:
        fix = "the job goes on with what it has; ask for less, or have the quota raised"
        return QuotaError(f"{where}: {text}; {fix}", status=status)
    if status == 403:
        return _forbidden(text, where)
    if status == 404:
        return MissingError(f"{where}: {text}", status=status)
    if status == 409 and said.get("reason") in ("AlreadyExists", None):
        return ExistsError(f"{where}: {text}", status=status)
    if status == 410:
        return ExpiredError(f"{where}: {text}", status=status)
    if status in (408, 409, 429) or status >= 500:
        return NoAnswerError(f"{where}: {text}", status=status, retry_after_s=after)
    return InvalidError(f"{where}: the cluster rejects it: {text}", status=status)


def _forbidden(text: str, where: str) -> ClusterError:
    """Return the exception for an answer 403 that does not concern a quota."""
    if " is being terminated" in text:
        return InvalidError(f"{where}: {text}; use another --namespace", status=403)
    if lacks := _NO_RIGHT.search(text):
        group, resource, verb = lacks["group"] or "", lacks["resource"], lacks["verb"]
        verbs = '"get", "create"' if resource == _PORT else f'"{verb}"'
        rule = f'{{apiGroups: ["{group}"], resources: ["{resource}"], verbs: [{verbs}]}}'
        return ForbiddenError(
            f"{where}: {lacks['user']} may not {verb} {resource}; a Role that is bound to that "
            f"user needs the rule {rule}",
            status=403,
        )
    if grants := _NO_GRANT.search(text):
        return ForbiddenError(
            f"{where}: {grants['user']} may make a Role only with rights that this user has, and "
            f"lacks: {grants['rights']}; have a Role bound with these rights, or name a "
            "--service-account that has them",
            status=403,
        )
    if _NOT_ADMITTED.search(text) and _NO_ACCOUNT not in text:
        fix = (
            "a policy of the namespace rejects it, such as a LimitRange, pod security or a "
            "webhook; change the resources of pods (--worker-resources, --ps-resources, "
            "--master-resources, where limits.cpu=4 sets a limit; --pod-template), or have the "
            "policy changed"
        )
        return InvalidError(f"{where}: {text}; {fix}", status=403)
    return ForbiddenError(f"{where}: {text}", status=403)


def unreachable(error: Exception, *, what: str, host: str) -> NoAnswerError:
    """Return the exception for a request without an answer."""
    return NoAnswerError(f"{what}: no answer from {host}: {one_line(str(error))}")


def status_of(body: str) -> Mapping[str, Any]:
    """Return the fields of a ``Status``; empty if the body is none."""
    if len(body) > _BODY_CHARS:
        return {}
    try:
        found = json.loads(body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _retry_after_s(headers: Mapping[str, str], seconds: object) -> float:
    """Return the seconds of ``Retry-After``; 0 if neither value is a whole number."""
    for value in (headers.get("Retry-After"), seconds):
        if str(value).isdecimal():
            return min(float(str(value)), _LONGEST_RETRY_AFTER_S)
    return 0.0


def one_line(text: str, most: int = _TEXT_CHARS) -> str:
    """Return a text without line breaks, cut to ``most`` characters."""
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 3]}..."
