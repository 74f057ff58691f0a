"""Who sends a request, and what the Roles that exist allow the sender to do."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from tests.cluster.kinds import (
    NAMESPACES,
    ROLE_BINDINGS,
    ROLES,
    SERVICE_ACCOUNTS,
    Kind,
    Object,
    Refused,
    name_of,
    namespace_of,
)
from tests.cluster.store import Store

_PREFIX = "system:serviceaccount:"


@dataclass(frozen=True)
class Attempt:
    """What somebody wants to do.

    Args:
        verb: of RBAC: get, list, watch, create, update, patch, delete.
        kind: of the object.
        namespace: empty for all, or for what lives in none.
        name: empty if none is named.
        subresource: such as ``log``.
    """

    verb: str
    kind: Kind
    namespace: str
    name: str
    subresource: str = ""

    @property
    def resource(self) -> str:
        return f"{self.kind.plural}/{self.subresource}" if self.subresource else self.kind.plural


class Access:
    """Tokens of users and service accounts, and their rights.

    Args:
        store: of the Roles.
        admin: the token of the user who may do all.
    """

    def __init__(self, store: Store, admin: str) -> None:
        self._store = store
        self._users = {admin: "admin"}
        self._tokens: dict[str, str] = {}

    def token_of(self, account: Object) -> str:
        """The token of a service account."""
        user = f"{_PREFIX}{namespace_of(account)}:{name_of(account)}"
        token = self._tokens.setdefault(user, secrets.token_urlsafe(32))
        self._users[token] = user
        return token

    def user_of(self, header: str | None) -> str:
        """Who sends a request with this header ``Authorization``; raises Refused 401."""
        scheme, _, token = (header or "").partition(" ")
        user = self._users.get(token) if scheme.lower() == "bearer" else None
        if user is None:
            raise Refused(401, "Unauthorized")
        if user.startswith(_PREFIX):
            namespace, name = user.removeprefix(_PREFIX).split(":")
            if self._store.find(SERVICE_ACCOUNTS, namespace, name) is None:
                raise Refused(401, "Unauthorized")
        return user

    def check(self, user: str, attempt: Attempt) -> None:
        """Raises Refused 403 if the user may not."""
        if not self.allows(user, attempt):
            raise forbidden(user, attempt)

    def allows(self, user: str, attempt: Attempt) -> bool:
        if user == "admin":
            return True
        namespace = attempt.name if attempt.kind is NAMESPACES else attempt.namespace
        return any(
            _admits(rule, attempt)
            for binding in (self._store.list(ROLE_BINDINGS, namespace) if namespace else [])
            if any(_is(subject, user, namespace) for subject in binding.get("subjects") or [])
            and (role := self._store.find(ROLES, namespace, binding["roleRef"]["name"]))
            for rule in role.get("rules") or []
        )

    def may_grant(self, user: str, role: Object) -> None:
        """Raises Refused 403 if a Role would give rights that its author does not have."""
        if user == "admin":
            return
        for rule in role.get("rules") or []:
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    for verb in rule["verbs"]:
                        plural, _, sub = resource.partition("/")
                        kind = Kind(group, "v1", plural, "")
                        attempt = Attempt(verb, kind, namespace_of(role), "", sub)
                        if not self.allows(user, attempt):
                            raise Refused(
                                403, f'roles.rbac.authorization.k8s.io "{name_of(role)}" is '
                                f'forbidden: user "{user}" is attempting to grant RBAC permissions '
                                f"not currently held: {verb} {resource}",
                            )  # fmt: skip


def forbidden(user: str, attempt: Attempt) -> Refused:
    """The answer to who may not."""
    kind = attempt.kind
    where = f' in the namespace "{attempt.namespace}"' if attempt.namespace else ""
    full = f"{kind.plural}.{kind.group}" if kind.group else kind.plural
    named = f' "{attempt.name}"' if attempt.name else ""
    return Refused(
        403, f'{full}{named} is forbidden: User "{user}" cannot {attempt.verb} resource '
        f'"{attempt.resource}" in API group "{kind.group}"{where or " at the cluster scope"}',
        details={"name": attempt.name, "kind": kind.plural, "group": kind.group},
    )  # fmt: skip


def _is(subject: Object, user: str, namespace: str) -> bool:
    where = subject.get("namespace") or namespace
    is_account: bool = subject["kind"] == "ServiceAccount"
    return is_account and user == f"{_PREFIX}{where}:{subject['name']}"


def _admits(rule: Object, attempt: Attempt) -> bool:
    names = rule.get("resourceNames") or []
    # A rule with names admits no request that names none, but for a list or watch of one name.
    return (
        _has(rule["apiGroups"], attempt.kind.group)
        and _has(rule["resources"], attempt.resource)
        and _has(rule["verbs"], attempt.verb)
        and (not names or attempt.name in names)
    )


def _has(words: list[str], word: str) -> bool:
    return "*" in words or word in words
