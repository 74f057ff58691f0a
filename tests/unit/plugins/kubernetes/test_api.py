"""The adapter of the official client, over real HTTP."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kubernetes", reason="the extra kubernetes is not installed")

from tests.unit.plugins.kubernetes.scripted_api import (
    Answer,
    Request,
    ScriptedApi,
    kubeconfig,
    scripted_api,
)
from tests.waiting import HANG_S
from torch_edl.errors import UsageError
from torch_edl.plugins.kubernetes.cluster.api import Api
from torch_edl.plugins.kubernetes.cluster.failures import (
    ClusterError,
    ExpiredError,
    ForbiddenError,
    MissingError,
    NoAnswerError,
)

POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p1"}, "spec": {}}
WATCH: dict[str, Any] = {"timeout_s": 300, "silence_s": 20.0}


@pytest.fixture
def server() -> Iterator[ScriptedApi]:
    with scripted_api() as found:
        yield found


@pytest.fixture
def api(server: ScriptedApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, server.url)))
    found = Api.of_kubeconfig()
    yield found
    found.close()


def says(server: ScriptedApi, status: int, message: str, **more: Any) -> None:
    body = {"kind": "Status", "message": message, "code": status, **more.pop("fields", {})}
    server.answer = lambda _: Answer(status, body, more.get("headers", {}))


def test_an_object_travels_as_it_is_with_the_credentials_of_the_context(
    server: ScriptedApi, api: Api
) -> None:
    made = {**POD, "metadata": {"name": "p1", "uid": "u1"}}
    server.answer = lambda _: Answer(201, made)
    assert api.create(POD) == made
    [request] = server.requests
    assert (request.method, request.path) == ("POST", "/api/v1/namespaces/ml/pods")
    assert request.body == POD
    headers = {name.lower(): value for name, value in request.headers.items()}
    assert headers["authorization"] == "Bearer t0ken"


def test_kinds_have_the_paths_of_their_group(server: ScriptedApi, api: Api) -> None:
    server.answer = lambda _: Answer(200, {"kind": "x"})
    for kind in ("Job", "Role", "NetworkPolicy", "ConfigMap"):
        api.get(kind, "ctr")
    assert [request.path for request in server.requests] == [
        "/apis/batch/v1/namespaces/ml/jobs/ctr",
        "/apis/rbac.authorization.k8s.io/v1/namespaces/ml/roles/ctr",
        "/apis/networking.k8s.io/v1/namespaces/ml/networkpolicies/ctr",
        "/api/v1/namespaces/ml/configmaps/ctr",
    ]


def test_a_delete_says_how_long_a_pod_has_and_which_one_is_meant(
    server: ScriptedApi, api: Api
) -> None:
    server.answer = lambda _: Answer(200, {"kind": "Status"})
    api.delete("Pod", "p1", grace_s=0, uid="u1")
    api.delete("Job", "j1")
    first, second = (request.body for request in server.requests)
    assert (first["gracePeriodSeconds"], first["preconditions"]) == (0, {"uid": "u1"})
    assert second["propagationPolicy"] == "Background"
    assert "gracePeriodSeconds" not in second


def test_a_list_has_all_pages_and_the_version_of_the_list(server: ScriptedApi, api: Api) -> None:
    def page(request: Request) -> Answer:
        metadata = {"resourceVersion": "42"}
        if "continue" not in request.query:
            return Answer(200, {"metadata": {**metadata, "continue": "next"}, "items": [{"n": 1}]})
        return Answer(200, {"metadata": metadata, "items": [{"n": 2}]})

    server.answer = page
    assert api.list("Pod", "a=b", read=lambda item: item["n"]) == ([1, 2], "42")
    assert [r.query.get("continue") for r in server.requests] == [None, "next"]
    assert server.requests[0].query["labelSelector"] == "a=b"


def test_failures_are_ours_and_not_retried(server: ScriptedApi, api: Api) -> None:
    says(server, 429, "slow down", headers={"Retry-After": "7"})
    for call in (
        lambda: api.create(POD),
        lambda: api.delete("Pod", "p1"),
        lambda: api.get("Pod", "p1"),
    ):
        with pytest.raises(NoAnswerError, match="slow down") as found:
            call()
        assert found.value.retry_after_s == 7.0
    assert len(server.requests) == 3


NO_PORT = (
    'pods "p1" is forbidden: User "jane" cannot get resource "pods/portforward" in API group "" in '
    'the namespace "ml"'
)
NO_PORT_SAID = (
    "jane may not get pods/portforward; a Role that is bound to that user needs the rule "
    '{apiGroups: [""], resources: ["pods/portforward"], verbs: ["get", "create"]}'
)


@pytest.mark.parametrize(
    ("status", "message", "kind", "said"),
    [
        (403, NO_PORT, ForbiddenError, NO_PORT_SAID),
        (404, 'pods "p1" not found', MissingError, 'pods "p1" not found'),
        (503, "slow down", NoAnswerError, "slow down"),
    ],
)
def test_a_port_that_the_server_does_not_forward_is_a_failure_like_any_other(
    server: ScriptedApi, api: Api, status: int, message: str, kind: type[Exception], said: str
) -> None:
    says(server, status, message, headers={"Retry-After": "7"})
    with pytest.raises(kind) as found:
        api.connect("p1", 80)
    assert str(found.value) == f"forward port 80 of pod p1 in namespace ml: {said}"
    assert isinstance(found.value, ClusterError)
    assert found.value.retry_after_s == (7.0 if status == 503 else 0.0)


def test_a_server_that_is_not_there_is_named(tmp_path: Path, monkeypatch: Any) -> None:
    with scripted_api() as gone:
        pass
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, gone.url)))
    api = Api.of_kubeconfig()
    with pytest.raises(NoAnswerError, match=f"no answer from {gone.url}"):
        api.list("Pod", "a=b", read=dict)
    api.close()


@pytest.mark.parametrize("body", [b"not json", b"[1, 2]"])
def test_an_answer_that_is_no_object_is_no_answer(
    server: ScriptedApi, api: Api, body: bytes
) -> None:
    server.answer = lambda _: Answer(200, body)
    with pytest.raises(NoAnswerError):
        api.get("Pod", "p1")


def test_a_watch_begins_at_a_version_and_ends_with_the_server(
    server: ScriptedApi, api: Api
) -> None:
    events = [{"type": "ADDED", "object": {"n": 1}}, {"type": "BOOKMARK", "object": {"n": 2}}]
    server.answer = lambda _: Answer(lines=lambda: iter(events))
    found = list(api.watch("Pod", "a=b", "42", **WATCH))
    assert [(event.type, event.object) for event in found] == [
        ("ADDED", {"n": 1}),
        ("BOOKMARK", {"n": 2}),
    ]
    query = server.requests[0].query
    assert (query["resourceVersion"], query["labelSelector"]) == ("42", "a=b")
    assert (query["watch"].lower(), query["allowWatchBookmarks"].lower()) == ("true", "true")


def test_a_version_that_is_forgotten_is_told_at_the_start_or_within(
    server: ScriptedApi, api: Api
) -> None:
    says(server, 410, "too old")
    with pytest.raises(ExpiredError):
        list(api.watch("Pod", "a=b", "1", **WATCH))
    error = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old"}}
    server.answer = lambda _: Answer(lines=lambda: iter([error]))
    with pytest.raises(ExpiredError):
        list(api.watch("Pod", "a=b", "1", **WATCH))


@pytest.fixture
def silent(server: ScriptedApi) -> Iterator[None]:
    """The server sends an event, and then nothing."""
    over = threading.Event()

    def silence() -> Iterator[Any]:
        yield {"type": "ADDED", "object": {}}
        over.wait(HANG_S)

    server.answer = lambda _: Answer(lines=silence)
    yield
    over.set()


def test_a_silent_watch_is_broken(silent: None, api: Api) -> None:
    stream = api.watch("Pod", "a=b", "1", timeout_s=300, silence_s=HANG_S)
    events = iter(stream)
    assert next(events).type == "ADDED"
    sock = stream._response.connection.sock
    assert sock.gettimeout() == HANG_S
    sock.settimeout(0.2)  # what is silence now: the first event may have taken longer
    with pytest.raises(NoAnswerError):
        next(events)


def test_a_watch_whose_server_vanishes_is_probed(silent: None, api: Api) -> None:
    """By the kernel, which the server does not notice: it breaks before silence would end it."""
    stream = api.watch("Pod", "a=b", "1", **WATCH)
    events = iter(stream)
    assert next(events).type == "ADDED"
    sock = stream._response.connection.sock
    idle_s, interval_s, count = (
        sock.getsockopt(socket.IPPROTO_TCP, name)
        for name in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
    )
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert idle_s + interval_s * count == 30
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


@pytest.mark.parametrize("line", [b"{}\n", b"no json\n", b'{"type": "ADDED"}\n', b"[1]\n"])
def test_a_line_that_is_no_event_breaks_the_watch(
    server: ScriptedApi, api: Api, line: bytes
) -> None:
    server.answer = lambda _: Answer(lines=lambda: iter([line]))
    with pytest.raises(NoAnswerError):
        list(api.watch("Pod", "a=b", "1", **WATCH))


def test_a_watch_can_be_interrupted(silent: None, api: Api) -> None:
    begun = threading.Event()
    stream = api.watch("Pod", "a=b", "1", **WATCH)

    def follow() -> None:
        with contextlib.suppress(NoAnswerError):
            for _ in stream:
                begun.set()

    thread = threading.Thread(target=follow)
    thread.start()
    assert begun.wait(HANG_S)
    stream.interrupt()
    thread.join(HANG_S)
    assert not thread.is_alive()


def test_a_log_comes_by_lines(server: ScriptedApi, api: Api) -> None:
    server.answer = lambda _: Answer(lines=lambda: iter([b"one\ntw", b"o\nthree"]))
    assert list(api.log("p1", container="main", tail=3)) == [b"one", b"two", b"three"]
    assert server.requests[0].query["tailLines"] == "3"


def test_a_context_names_the_cluster_and_the_namespace(
    server: ScriptedApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, server.url)))
    assert Api.of_kubeconfig().namespace == "ml"
    assert Api.of_kubeconfig(context="other").namespace == "default"
    assert Api.of_kubeconfig(context="other", namespace="ns").namespace == "ns"
    with pytest.raises(UsageError, match="--context nowhere"):
        Api.of_kubeconfig(context="nowhere")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nothing"))
    with pytest.raises(UsageError, match="KUBECONFIG"):
        Api.of_kubeconfig()


def test_a_process_outside_of_a_cluster_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(UsageError, match="no service account"):
        Api.in_cluster("ml")
