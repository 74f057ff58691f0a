"""The API server of a cluster, called with the official client.

Objects are plain dicts, and every failure is a ``ClusterError``
with a message of one line. Calls are not retried here: the caller knows whether and when a call may
be repeated. Safe for use by several threads.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar
from urllib.parse import quote

from torch_edl.errors import UsageError
from torch_edl.plugins.kubernetes.cluster.event_stream import EventStream, in_one_line, lines_of
from torch_edl.plugins.kubernetes.cluster.failures import NoAnswerError, read_error
from torch_edl.plugins.kubernetes.names import Manifest

T = TypeVar("T")

CORE, BATCH = "/api/v1", "/apis/batch/v1"
RBAC, NETWORKING = "/apis/rbac.authorization.k8s.io/v1", "/apis/networking.k8s.io/v1"
_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
KINDS = {
    "Pod": (CORE, "pods"),
    "Service": (CORE, "services"),
    "ServiceAccount": (CORE, "serviceaccounts"),
    "Secret": (CORE, "secrets"),
    "ConfigMap": (CORE, "configmaps"),
    "Event": (CORE, "events"),
    "Job": (BATCH, "jobs"),
    "Role": (RBAC, "roles"),
    "RoleBinding": (RBAC, "rolebindings"),
    "NetworkPolicy": (NETWORKING, "networkpolicies"),
}
"""The kinds of objects of a job, with the path of their API group and their plural."""

# Seconds to establish an HTTP connection, and to wait for an answer.
_CONNECT_S = 5.0
_ANSWER_S = 30.0
_CONNECTIONS = 32
_PROBE_AFTER_S, _PROBE_EVERY_S, _PROBES = 15, 5, 3
# Objects per page of a list: thousands of pods would be one huge answer.
_PAGE = 500


class Api:
    """One namespace of a cluster. Methods raise ClusterError for a request that fails.

    Args:
        client: ``ApiClient`` of the official client.
        namespace: namespace of all objects.
    """

    def __init__(self, client: Any, namespace: str) -> None:
        self.namespace = namespace
        self._client = client
        self._host = client.configuration.host

    @classmethod
    def in_cluster(cls, namespace: str) -> Api:
        """Connect to the cluster of this pod, with the token of its service account.

        Raises:
            UsageError: this process does not run in a pod, or has no token.
        """
        kubernetes = _official_client()
        configuration = kubernetes.client.Configuration()
        try:
            kubernetes.config.load_incluster_config(client_configuration=configuration)
        except kubernetes.config.ConfigException as error:
            raise UsageError(
                f"this process has no service account of a cluster: {error}; the master of a job "
                "on Kubernetes runs in a pod that torch-edl run --platform kubernetes makes"
            ) from error
        return cls(_client(kubernetes, configuration), namespace)

    @classmethod
    def of_kubeconfig(cls, *, context: str = "", namespace: str = "") -> Api:
        """Connect to a cluster of the user's kubeconfig: ``$KUBECONFIG`` or ``~/.kube/config``.

        Args:
            context: name of the context; empty: the current one.
            namespace: name of the namespace; empty: that of the context.

        Raises:
            UsageError: there is no such context, or no kubeconfig.
        """
        kubernetes = _official_client()
        configuration = kubernetes.client.Configuration()
        file = _kubeconfig()
        try:
            kubernetes.config.load_kube_config(
                file, context=context or None, client_configuration=configuration
            )
        except kubernetes.config.ConfigException as error:
            raise _no_cluster(context, error) from error
        chosen = namespace or cls.namespace_of(context)
        return cls(_client(kubernetes, configuration), chosen)

    @staticmethod
    def namespace_of(context: str = "") -> str:
        """Return the namespace of a context, as :meth:`of_kubeconfig` takes it; ``default`` if it
        has none, or if there is no kubeconfig."""
        kubernetes = _official_client()
        try:
            contexts, current = kubernetes.config.list_kube_config_contexts(_kubeconfig())
        except kubernetes.config.ConfigException as error:
            if context:
                raise _no_cluster(context, error) from error
            return "default"
        chosen = next((each for each in contexts if each["name"] == context), None)
        if chosen is None and context:
            raise _no_cluster(context, f"the contexts are {[each['name'] for each in contexts]}")
        return str((chosen or current)["context"].get("namespace") or "default")

    def create(self, manifest: Manifest) -> Manifest:
        """Create an object, and return it as the server stored it.

        Raises:
            ExistsError: an object of that name exists.
            QuotaError: the quota of the namespace has no room for the object.
        """
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        return self._object("POST", f"create {kind.lower()} {name}", _path(kind), body=manifest)

    def get(self, kind: str, name: str) -> Manifest:
        """Return an object; raise MissingError if it does not exist."""
        return self._object("GET", f"get {kind.lower()} {name}", _path(kind, name))

    def patch(self, kind: str, name: str, patch: Manifest) -> Manifest:
        """Apply a strategic merge patch to an object, and return the object; raise MissingError if
        it does not exist."""
        what = f"patch {kind.lower()} {name}"
        return self._object("PATCH", what, _path(kind, name), body=patch)

    def delete(self, kind: str, name: str, *, grace_s: int | None = None, uid: str = "") -> None:
        """Delete an object, and in the background all objects that it owns.

        Args:
            grace_s: grace period of a pod, seconds; 0 deletes it at once; None: as in its manifest.
            uid: uid that the object must have; empty: any.

        Raises:
            MissingError: the object does not exist.
        """
        options: Manifest = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
        }
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        if uid:
            options["preconditions"] = {"uid": uid}
        what = f"delete {kind.lower()} {name}"
        self._object("DELETE", what, _path(kind, name), body=options)

    def list(
        self, kind: str, selector: str, *, read: Callable[[Manifest], T], fields: str = ""
    ) -> tuple[list[T], str]:
        """Return all objects of a kind with certain labels, and the version from which to watch.

        Args:
            read: converts an object when it arrives, to keep less of it: a job may have thousands.
            fields: field selector, such as ``type=Warning``.
        """
        items: list[T] = []
        rest: str | None = None
        while True:
            query = {"labelSelector": selector, "limit": str(_PAGE)}
            if fields:
                query["fieldSelector"] = fields
            if rest:
                query["continue"] = rest
            page = self._object("GET", f"list {kind.lower()}s", _path(kind), query=query)
            items += map(read, page.get("items") or ())
            rest = page.get("metadata", {}).get("continue")
            if not rest:
                return items, str(page.get("metadata", {}).get("resourceVersion", ""))

    def watch(
        self, kind: str, selector: str, version: str, *, timeout_s: int, silence_s: float
    ) -> EventStream:
        """Watch the objects of a list from a version on, until the server ends the watch.

        Args:
            silence_s: seconds without an event after which the connection counts as broken; the
                server sends bookmarks when nothing changes.

        Raises:
            ExpiredError: the server no longer has that version.
        """
        what = f"watch {kind.lower()}s"
        query = {
            "labelSelector": selector,
            "resourceVersion": version,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(timeout_s),
        }
        response = self._answer("GET", what, _path(kind), query=query, read_s=silence_s)
        return EventStream(response, what, self._host, self.namespace)

    def log(
        self, pod: str, *, container: str, follow: bool = False, tail: int | None = None
    ) -> Iterator[bytes]:
        """Yield the lines of the output of a container.

        Args:
            follow: wait for new lines until the container ends.
            tail: number of existing lines to read, the last ones; None: all.

        Raises:
            MissingError: the pod does not exist.
        """
        query = {"container": container, "follow": str(follow).lower()}
        if tail is not None:
            query["tailLines"] = str(tail)
        what = f"read the log of pod {pod}"
        read_s = None if follow else _ANSWER_S  # a process may print nothing for hours
        response = self._answer("GET", what, _path("Pod", pod, "log"), query=query, read_s=read_s)
        with contextlib.closing(response):
            yield from lines_of(response, what, self._host)

    def connect(self, pod: str, port: int) -> socket.socket:
        """Connect to a port of a pod, at the loopback address of the pod.

        A pod that does not listen on the port closes the connection at once.
        """
        import kubernetes.client
        from kubernetes.client.exceptions import ApiException
        from kubernetes.stream import portforward
        from websocket import WebSocketBadStatusException

        what = f"forward port {port} of pod {pod}"
        # A separate client: during a port-forward, the library turns all calls of a client into
        # such requests.
        client = kubernetes.client.ApiClient(self._client.configuration)
        with in_one_line(what, self._host):
            call = kubernetes.client.CoreV1Api(client).connect_get_namespaced_pod_portforward
            try:
                forward = portforward(call, pod, self.namespace, ports=str(port))
            except ApiException as error:
                # The library joins the answer and its headers into one text.
                answer = error.__context__
                if not isinstance(answer, WebSocketBadStatusException):
                    raise
                text = (answer.resp_body or b"").decode(errors="replace")
                after = {"Retry-After": (answer.resp_headers or {}).get("retry-after", "")}
                raise read_error(
                    answer.status_code, text, after, what=what, namespace=self.namespace
                ) from error
            made: socket.socket = forward.socket(port)._socket
            return made

    def read(self, path: str) -> Manifest:
        """Return the object at a path outside of the namespace, such as ``/version``."""
        return self._object("GET", f"read {path}", path)

    def may(self, verb: str, group: str, resource: str) -> bool:
        """Return True if the user may use a verb on a resource of the namespace.

        Args:
            resource: plural of the kind, with a subresource after a slash.
        """
        plural, _, sub = resource.partition("/")
        asked = {"namespace": self.namespace, "verb": verb, "group": group, "resource": plural}
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {**asked, "subresource": sub}},
        }
        found = self._object("POST", f"review the right to {verb} {resource}", _REVIEWS, body=body)
        return bool(found.get("status", {}).get("allowed"))

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

    def _object(self, method: str, what: str, path: str, **more: Any) -> Manifest:
        response = self._answer(method, what, path, **more)
        with contextlib.closing(response), in_one_line(what, self._host):
            found = json.loads(response.read())
        if not isinstance(found, dict):
            raise NoAnswerError(f"{what}: {self._host} answered what is no object")
        return found

    def _answer(
        self,
        method: str,
        what: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Manifest | None = None,
        read_s: float | None = _ANSWER_S,
    ) -> Any:
        """Send a request, and return the successful response before its body is read.

        The library's typed methods are not used: they would validate manifests against the API
        version that the library knows, and drop unknown fields.
        """
        patches = "application/strategic-merge-patch+json"
        headers = {
            "Accept": "application/json",
            "Content-Type": patches if method == "PATCH" else "application/json",
        }
        with in_one_line(what, self._host):
            request = self._client.param_serialize(
                method,
                path,
                path_params={"namespace": self.namespace},
                query_params=list((query or {}).items()),
                header_params=headers,
                body=body,
                auth_settings=["BearerToken"],
            )
            answer = self._client.call_api(*request, _request_timeout=(_CONNECT_S, read_s))
            if 200 <= answer.status <= 299:
                return answer.response
            text = answer.read().decode(errors="replace")
        headers = dict(answer.headers)
        raise read_error(answer.status, text, headers, what=what, namespace=self.namespace)


def _path(kind: str, *rest: str) -> str:
    group, plural = KINDS[kind]
    return "/".join([group, "namespaces/{namespace}", plural, *map(quote, rest)])


def _kubeconfig() -> str | None:
    """Return the path in ``KUBECONFIG``, which the library reads only once, at its import."""
    return os.environ.get("KUBECONFIG") or None


def _no_cluster(context: str, cause: object) -> UsageError:
    named = f"--context {context}: " if context else ""
    return UsageError(
        f"{named}no cluster: {cause}; set KUBECONFIG to a file with which kubectl get pods works"
    )


def _official_client() -> Any:
    try:
        import kubernetes.client
        import kubernetes.config
    except ImportError as error:
        raise UsageError(
            "--platform kubernetes needs the Kubernetes client: pip install 'torch-edl[kubernetes]'"
        ) from error
    return kubernetes


def _client(kubernetes: Any, configuration: Any) -> Any:
    from kubernetes.utils.keepalive import tcp_keepalive_socket_options

    # The caller repeats calls, within its own limits of time.
    configuration.retries = False
    configuration.connection_pool_maxsize = _CONNECTIONS
    # A watch may be silent for a minute. Probes of the kernel cost the server nothing, and detect a
    # vanished server after 15 + 3 * 5 s. The default of the client and of client-go needs 165 s.
    configuration.socket_options = tcp_keepalive_socket_options(
        idle=_PROBE_AFTER_S, interval=_PROBE_EVERY_S, count=_PROBES
    )
    return kubernetes.client.ApiClient(configuration)
