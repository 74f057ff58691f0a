"""The contract of the API server: what the published API says, seen through the official client."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

kubernetes = pytest.importorskip("kubernetes", reason="pip install torch-edl[kubernetes]")

from kubernetes import client, watch  # noqa: E402
from kubernetes.client.exceptions import ApiException  # noqa: E402
from kubernetes.stream import portforward  # noqa: E402
from urllib3.exceptions import ProtocolError  # noqa: E402

from tests.cluster.budgets import check_eviction  # noqa: E402
from tests.cluster.cluster import Cluster  # noqa: E402
from tests.cluster.kinds import BUDGETS, Refused  # noqa: E402
from tests.cluster.store import Store  # noqa: E402
from tests.waiting import wait_for  # noqa: E402

JSON = dict[str, Any]
NODES: list[JSON] = []  # pods stay pending
STRATEGIC = "application/strategic-merge-patch+json"


@pytest.fixture
def namespace(cluster: Cluster) -> str:
    """A namespace of this test alone; all faults are cleared."""
    cluster.heal()
    return cluster.make_namespace()


@pytest.fixture
def core(cluster: Cluster) -> client.CoreV1Api:
    return client.CoreV1Api(cluster.api_client())


@pytest.fixture
def batch(cluster: Cluster) -> client.BatchV1Api:
    return client.BatchV1Api(cluster.api_client())


def pod(name: str, **labels: str) -> JSON:
    container = {"name": "main", "image": "edl", "command": ["true"]}
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels},
        # No scheduler changes it.
        "spec": {"containers": [container], "restartPolicy": "Never", "schedulerName": "none"},
    }  # fmt: skip


def job(name: str, **spec: Any) -> JSON:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": pod("x")["spec"]}
    return {
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name},
        "spec": {"template": template, **spec},
    }  # fmt: skip


def config_map(name: str, data: JSON, owner: Any = None) -> JSON:
    metadata: JSON = {"name": name}
    if owner is not None:
        metadata["ownerReferences"] = [
            {"apiVersion": "v1", "kind": "ConfigMap", "name": owner.metadata.name,
             "uid": owner.metadata.uid}
        ]  # fmt: skip
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def test_lists_are_selected_by_labels_and_fields_and_come_in_pages(
    core: client.CoreV1Api, namespace: str
) -> None:
    for name, role in (("a", "ps"), ("b", "worker"), ("c", "worker")):
        core.create_namespaced_pod(namespace, pod(name, role=role))
    found = core.list_namespaced_pod(namespace, label_selector="role in (worker),role")
    assert [p.metadata.name for p in found.items] == ["b", "c"]
    found = core.list_namespaced_pod(namespace, field_selector="metadata.name=b")
    assert [p.metadata.name for p in found.items] == ["b"]
    page = core.list_namespaced_pod(namespace, limit=2)
    # The rest is as it was when the list was begun.
    core.delete_namespaced_pod("c", namespace)
    rest = core.list_namespaced_pod(namespace, limit=2, _continue=page.metadata._continue)
    assert [p.metadata.name for p in page.items + rest.items] == ["a", "b", "c"]
    with pytest.raises(ApiException) as refused:
        core.list_namespaced_pod(namespace, field_selector="spec.containers=1")
    assert refused.value.status == 400


@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        (lambda p: p["spec"].pop("containers"), 422, "spec.containers: Required value"),
        (lambda p: p["spec"].update(nodes=1), 400, "unknown field 'spec.nodes'"),
        (lambda p: p["spec"].update(hostname=1), 400, "into str: field 'spec.hostname'"),
        (lambda p: p["metadata"].update(name="A_b"), 422, "RFC 1123"),
        (lambda p: p["metadata"].update(labels={"a": "b c"}), 422, "metadata.labels"),
        (lambda p: p["spec"]["containers"][0].update(resources={"limits": {"cpu": "four"}}),
         422, "quantities must match"),
        (lambda p: p["spec"]["containers"][0].update(volumeMounts=[{"name": "v",
                                                              "mountPath": "/v"}]),
         422, "Not found"),
        (lambda p: p["spec"].update(priorityClassName="no"), 403, "no PriorityClass"),
        (lambda p: p["spec"].update(serviceAccountName="no"), 403, "service account"),
    ],
)  # fmt: skip
def test_a_wrong_manifest_is_rejected(
    cluster: Cluster, core: client.CoreV1Api, namespace: str, change: Any, code: int, said: str
) -> None:
    manifest = pod("a")
    change(manifest)
    # The client would not even send the worst of them.
    with pytest.raises(HTTPError) as refused:
        cluster.request("POST", f"/api/v1/namespaces/{namespace}/pods", manifest)
    assert refused.value.code == code
    assert said in json.load(refused.value)["message"]
    assert not core.list_namespaced_pod(namespace).items


def test_a_watch_tells_every_change_after_a_revision(
    core: client.CoreV1Api, namespace: str
) -> None:
    core.create_namespaced_pod(namespace, pod("before", role="worker"))
    revision = core.list_namespaced_pod(namespace).metadata.resource_version
    core.create_namespaced_pod(namespace, pod("a", role="worker"))
    core.create_namespaced_pod(namespace, pod("other", role="ps"))
    relabel = {"metadata": {"labels": {"role": "ps"}}}
    core.patch_namespaced_pod("before", namespace, relabel, _content_type=STRATEGIC)
    core.delete_namespaced_pod("a", namespace)
    seen = [
        (event["type"], event["object"].metadata.name)
        for event in watch.Watch().stream(
            core.list_namespaced_pod, namespace, label_selector="role=worker",
            resource_version=revision, timeout_seconds=1,
        )
    ]  # fmt: skip
    # A change of labels takes an object out of the watch.
    assert seen == [("ADDED", "a"), ("DELETED", "before"), ("DELETED", "a")]


def test_a_watch_brings_a_bookmark_at_its_end(core: client.CoreV1Api, namespace: str) -> None:
    revision = core.list_namespaced_pod(namespace).metadata.resource_version
    core.create_namespaced_config_map(namespace, config_map("a", {}))
    [event] = watch.Watch().stream(
        core.list_namespaced_pod, namespace, resource_version=revision, timeout_seconds=1,
        allow_watch_bookmarks=True,
    )  # fmt: skip
    assert event["type"] == "BOOKMARK"
    assert int(event["raw_object"]["metadata"]["resourceVersion"]) > int(revision)


def test_a_watch_is_cut_and_its_revision_forgotten_as_ordered(
    core: client.CoreV1Api, cluster: Cluster, namespace: str
) -> None:
    revision = core.list_namespaced_pod(namespace).metadata.resource_version
    events = iter(core.list_namespaced_pod(
        namespace, resource_version=revision, timeout_seconds=30, watch=True, _preload_content=False
    ))  # fmt: skip
    core.create_namespaced_pod(namespace, pod("a"))
    assert json.loads(next(events))["object"]["metadata"]["name"] == "a"
    cluster.control("watches", drop=True)
    with pytest.raises(ProtocolError):
        next(events)
    cluster.control("compact")
    with pytest.raises(ApiException) as refused:
        list(watch.Watch().stream(
            core.list_namespaced_pod, namespace, resource_version=revision, timeout_seconds=5
        ))  # fmt: skip
    assert refused.value.status == 410


def test_a_quota_refuses_what_is_too_much(core: client.CoreV1Api, namespace: str) -> None:
    core.create_namespaced_resource_quota(
        namespace, {"metadata": {"name": "few"}, "spec": {"hard": {"pods": "1"}}}
    )
    core.create_namespaced_pod(namespace, pod("a"))
    with pytest.raises(ApiException) as refused:
        core.create_namespaced_pod(namespace, pod("b"))
    assert refused.value.status == 403
    said = "exceeded quota: few, requested: pods=1, used: pods=1, limited: pods=1"
    assert said in refused.value.body


@pytest.mark.parametrize(
    ("spec", "allows"),
    [({"minAvailable": 1}, True), ({"minAvailable": 2}, False),
     ({"minAvailable": "50%"}, False), ({"maxUnavailable": 1}, False)],
)  # fmt: skip
def test_a_budget_counts_pods_whose_controller_has_no_scale_only_in_whole_numbers(
    spec: JSON, allows: bool
) -> None:
    store = Store()
    store.create(BUDGETS, {
        "metadata": {"name": "b", "namespace": "n"},
        "spec": {**spec, "selector": {"matchLabels": {"role": "worker"}}},
    })  # fmt: skip
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    pods = [
        {"metadata": {"name": name, "namespace": "n", "labels": {"role": "worker"}},
         "status": ready}
        for name in "ab"
    ]  # fmt: skip
    if allows:
        check_eviction(store, pods[0], pods)
        return
    with pytest.raises(Refused, match="would violate the pod's disruption budget"):
        check_eviction(store, pods[0], pods)


def test_a_websocket_to_a_port_needs_create_too(
    core: client.CoreV1Api, cluster: Cluster, namespace: str
) -> None:
    core.create_namespaced_service_account(namespace, {"metadata": {"name": "user"}})
    rule = {"apiGroups": [""], "resources": ["pods/portforward"], "verbs": ["get"]}
    cluster.grant(namespace, "user", [rule])
    core.create_namespaced_pod(namespace, pod("a"))
    own = client.CoreV1Api(cluster.api_client(cluster.token_of(namespace, "user")))
    with pytest.raises(ApiException) as refused:
        portforward(own.connect_get_namespaced_pod_portforward, "a", namespace, ports="80")
    assert "cannot create resource" in str(refused.value)


def test_what_is_owned_goes_with_its_owner(core: client.CoreV1Api, namespace: str) -> None:
    def names() -> list[str]:
        return [c.metadata.name for c in core.list_namespaced_config_map(namespace).items]

    for policy, left in (
        ("Background", []),
        ("Orphan", ["child", "grandchild"]),
    ):
        owner = core.create_namespaced_config_map(namespace, config_map("owner", {}))
        child = core.create_namespaced_config_map(namespace, config_map("child", {}, owner))
        core.create_namespaced_config_map(namespace, config_map("grandchild", {}, child))
        core.delete_namespaced_config_map("owner", namespace, propagation_policy=policy)
        wait_for(lambda left=left: names() == left)


def test_a_job_is_completed_by_the_server_and_its_template_is_fixed(
    batch: client.BatchV1Api, namespace: str
) -> None:
    made = batch.create_namespaced_job(namespace, job("j", backoffLimit=2))
    assert made.spec.backoff_limit == 2
    assert made.spec.template.metadata.labels["job-name"] == "j"
    change = {"spec": {"template": {"spec": {"terminationGracePeriodSeconds": 1}}}}
    with pytest.raises(ApiException) as refused:
        batch.patch_namespaced_job("j", namespace, change, _content_type=STRATEGIC)
    assert refused.value.status == 422
    with pytest.raises(ApiException) as refused:
        batch.create_namespaced_job(namespace, job("k" * 64))
    assert refused.value.status == 422
    always = job("l")
    always["spec"]["template"]["spec"]["restartPolicy"] = "Always"
    with pytest.raises(ApiException) as refused:
        batch.create_namespaced_job(namespace, always)
    assert "restartPolicy" in refused.value.body


def test_a_pod_without_a_node_has_no_log_and_no_port(
    core: client.CoreV1Api, namespace: str
) -> None:
    core.create_namespaced_pod(namespace, pod("a"))
    with pytest.raises(ApiException) as refused:
        core.read_namespaced_pod_log("a", namespace)
    assert (refused.value.status, "waiting to start" in refused.value.body) == (400, True)
    forward = portforward(core.connect_get_namespaced_pod_portforward, "a", namespace, ports="80")
    wait_for(lambda: forward.error(80))
    assert "error forwarding port 80" in forward.error(80)


def test_the_kubeconfig_is_for_its_user_alone(cluster: Cluster) -> None:
    assert Path(cluster.kubeconfig).stat().st_mode & 0o77 == 0
