"""The HTTP of the API server: paths, authentication, and the answers to requests."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

from aiohttp import web

from tests.cluster.control import Faults
from tests.cluster.discovery import discover
from tests.cluster.kinds import KINDS, PODS, ROLES, Kind, Object, Refused, find_kind
from tests.cluster.operations import Operations
from tests.cluster.pod_requests import PodRequests
from tests.cluster.rbac import Access, Attempt
from tests.cluster.selectors import Matches, field_selector, label_selector
from tests.cluster.store import Store
from tests.cluster.watches import Watched, Watches, cut

_PATH = re.compile(
    r"^/(?:api/(?P<core>v1)|apis/(?P<group>[^/]+)/(?P<version>[^/]+))"
    r"(?:/namespaces/(?P<namespace>[^/]+)(?=/[^/]+))?"
    r"/(?P<plural>[^/]+)(?:/(?P<name>[^/]+)(?:/(?P<sub>[^/]+))?)?/?$"
)
_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_LARGEST_BODY = 3 * 1024 * 1024


@dataclass(frozen=True)
class Target:
    """What the path of a request names."""

    kind: Kind
    namespace: str
    name: str
    sub: str


class ApiServer:
    """Answers the requests of clients.

    Args:
        store: of the objects.
        operations: on the objects.
        access: who may do what.
        watches: the streams.
        faults: what a test has ordered to go wrong.
        pods: logs and ports of pods.
    """

    def __init__(
        self,
        store: Store,
        operations: Operations,
        access: Access,
        watches: Watches,
        faults: Faults,
        pods: PodRequests,
    ) -> None:
        self._store, self._access, self._watches = store, access, watches
        self._operations, self._faults, self._pods = operations, faults, pods
        self._open: dict[int, web.Request] = {}

    def app(self, control: Callable[[web.Request], Awaitable[Any]]) -> web.Application:
        """The application; ``control`` answers what a test asks of the cluster itself."""

        async def answer_control(request: web.Request) -> web.StreamResponse:
            try:
                if self._access.user_of(request.headers.get("Authorization")) != "admin":
                    raise Refused(403, "the control of the cluster is for its tests")
                return web.json_response(await control(request))
            except Refused as refused:
                return _refusal(refused)

        app = web.Application(client_max_size=_LARGEST_BODY)
        app.router.add_route("*", "/control/{words:.*}", answer_control)
        app.router.add_route("*", "/{path:.*}", self._answer)
        return app

    def cut_all(self) -> None:
        """Ends every connection without a word."""
        for request in self._open.values():
            cut(request)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self._open[id(request)] = request
        try:
            return await self._serve(request)
        except Refused as refused:
            return _refusal(refused)
        except ConnectionResetError:  # By the client, or because a test has ordered it.
            return web.Response()
        finally:
            del self._open[id(request)]

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        user = self._access.user_of(request.headers.get("Authorization"))
        if request.path == "/version":
            return web.json_response({"major": "1", "minor": "35", "gitVersion": "v1.35.0"})
        if request.method == "GET" and (found := discover(request.path)) is not None:
            return web.json_response(found)
        if request.path == _REVIEWS and request.method == "POST":
            return web.json_response(self._reviewed(user, await _body(request)), status=201)
        target = _target(request.path)
        attempt = _attempt(request, target)
        if self._faults.note(user, attempt):
            cut(request)
            raise ConnectionResetError
        self._access.check(user, attempt)
        if target.sub == "portforward":
            # Since 1.35 a websocket, which is a GET, needs what a POST needs, too.
            self._access.check(user, replace(attempt, verb="create"))
        return await self._dispatch(request, user, target, attempt)

    def _reviewed(self, user: str, review: Object) -> Object:
        """A SelfSubjectAccessReview with its answer."""
        asked = review["spec"]["resourceAttributes"]
        group, plural = asked.get("group", ""), asked["resource"]
        kind = next((k for k in KINDS if (k.group, k.plural) == (group, plural)), None)
        words = (asked.get("namespace", ""), asked.get("name", ""), asked.get("subresource", ""))
        allowed = kind and self._access.allows(user, Attempt(asked["verb"], kind, *words))
        return {**review, "status": {"allowed": bool(allowed)}}

    async def _dispatch(
        self, request: web.Request, user: str, target: Target, attempt: Attempt
    ) -> web.StreamResponse:
        kind, namespace, name = target.kind, target.namespace, target.name
        if target.sub:
            return await self._pods.serve(request, namespace, name, target.sub)
        verb = attempt.verb
        if verb == "watch":
            return await self._watch(request, target)
        if verb == "list":
            return self._list(request, target)
        if verb == "get":
            return web.json_response(self._store.get(kind, namespace, name))
        if verb == "create":
            thing = await _body(request)
            thing.setdefault("apiVersion", kind.api_version)
            thing.setdefault("kind", kind.name)
            if kind is ROLES:
                self._access.may_grant(user, {**thing, "metadata": {
                    **thing.get("metadata", {}), "namespace": namespace}})  # fmt: skip
            made = self._operations.create(kind, namespace, thing)
            return web.json_response(made, status=201)
        if verb == "patch":
            changed = self._operations.patch(
                kind, namespace, name, request.content_type, await _body(request)
            )
            return web.json_response(changed)
        return self._delete(target, await _delete_options(request))

    def _delete(self, target: Target, options: Object) -> web.Response:
        kind, name = target.kind, target.name
        last = self._operations.delete(kind, target.namespace, name, options)
        still = self._store.find(kind, target.namespace, name)
        if kind.returns_deleted or still is not None:
            return web.json_response(last)
        details = {"name": name, "kind": kind.plural, "uid": last["metadata"]["uid"]}
        if kind.group:
            details["group"] = kind.group
        return web.json_response(
            {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
             "details": details}
        )  # fmt: skip

    def _list(self, request: web.Request, target: Target) -> web.Response:
        limit = _number(request, "limit") or 0
        token = request.query.get("continue", "")
        found, metadata = self._operations.list(
            target.kind, target.namespace, _selectors(request), limit, token
        )
        return web.json_response(_list_of(target.kind, found, metadata))

    async def _watch(self, request: web.Request, target: Target) -> web.StreamResponse:
        since = _number(request, "resourceVersion")
        if not since:
            raise Refused(400, "a watch without resourceVersion is unknown here")
        watched = Watched(
            kind=target.kind, namespace=target.namespace, matches=_selectors(request), since=since,
            bookmarks=request.query.get("allowWatchBookmarks") in ("true", "True", "1"),
            timeout_s=_number(request, "timeoutSeconds"),
        )  # fmt: skip
        return await self._watches.serve(request, watched)


def _target(path: str) -> Target:
    found = _PATH.match(path)
    kind = None
    if found:
        group, version = found["group"] or "", found["core"] or found["version"]
        kind = find_kind(group, version, found["plural"])
    if not found or kind is None or (kind.namespaced and found["name"] and not found["namespace"]):
        raise Refused(404, "the server could not find the requested resource")
    return Target(kind, found["namespace"] or "", found["name"] or "", found["sub"] or "")


def _attempt(request: web.Request, target: Target) -> Attempt:
    watch = request.query.get("watch") in ("true", "True", "1")
    verbs = {
        "GET": "watch" if watch else "get" if target.name else "list",
        "POST": "create", "PATCH": "patch",
        "DELETE": "delete" if target.name else None,
    }  # fmt: skip
    verb = verbs.get(request.method)
    creates_in_all = verb == "create" and target.kind.namespaced and not target.namespace
    subresources = ("", "log", "portforward", "eviction") if target.kind is PODS else ("",)
    if verb is None or creates_in_all or target.sub not in subresources:
        raise Refused(405, "the server does not allow this method on the requested resource")
    return Attempt(verb, target.kind, target.namespace, target.name, target.sub)


def _selectors(request: web.Request) -> Matches:
    labels = label_selector(request.query.get("labelSelector", ""))
    fields = field_selector(request.query.get("fieldSelector", ""))
    return lambda thing: labels(thing) and fields(thing)


def _number(request: web.Request, name: str) -> int | None:
    text = request.query.get(name, "")
    if not text:
        return None
    if not text.isdigit():
        raise Refused(400, f"{name}: {text!r} is no number")
    return int(text)


def _list_of(kind: Kind, found: list[Object], metadata: Object) -> Object:
    # The items of a list do not repeat their kind.
    items = [{k: v for k, v in thing.items() if k not in ("kind", "apiVersion")} for thing in found]
    return {
        "kind": f"{kind.name}List", "apiVersion": kind.api_version, "metadata": metadata,
        "items": items,
    }  # fmt: skip


async def _body(request: web.Request) -> Object:
    try:
        body = json.loads(await request.text())
    except ValueError as error:
        raise Refused(400, f"couldn't get version/kind; json parse error: {error}") from None
    if not isinstance(body, dict) or not isinstance(body.get("metadata", {}), dict):
        raise Refused(400, "the body of the request must be an object")
    return body


async def _delete_options(request: web.Request) -> Object:
    options: Object = await _body(request) if request.can_read_body else {}
    if "propagationPolicy" in request.query:
        options["propagationPolicy"] = request.query["propagationPolicy"]
    grace = _number(request, "gracePeriodSeconds")
    return options if grace is None else {**options, "gracePeriodSeconds": grace}


def _refusal(refused: Refused) -> web.Response:
    headers = {}
    if refused.retry_after_s is not None:
        headers["Retry-After"] = str(refused.retry_after_s)
    return web.json_response(refused.status(), status=refused.code, headers=headers)
