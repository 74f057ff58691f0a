"""``torch-edl doctor`` on a cluster: what it says to users with too few rights, or no cluster."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("kubernetes", reason="needs torch-edl[kubernetes]")

import yaml
from kubernetes import client

from tests.cluster.test_rights import documented
from tests.schemas import require_valid
from torch_edl.cli.__main__ import main
from torch_edl.plugins.doctor.cluster import quotas
from torch_edl.plugins.kubernetes.client.rights import RUN, rule
from torch_edl.plugins.kubernetes.cluster.api import Api

if TYPE_CHECKING:
    from tests.cluster.cluster import Cluster


def diagnosed(capsys: pytest.CaptureFixture[str], namespace: str) -> tuple[int, dict[str, Any]]:
    """The exit code, and the findings by their check."""
    capsys.readouterr()
    code = main(["doctor", "--json", "--namespace", namespace])
    report = json.loads(capsys.readouterr().out)
    assert report["platform"] == "kubernetes"
    require_valid("doctor", report)
    return code, {each["check"]: each for each in report["findings"]}


def become(
    cluster: Cluster,
    namespace: str,
    rights: Mapping[str, Sequence[str]],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Commands from now on are those of a user with these rights alone."""
    core = client.CoreV1Api(cluster.api_client())
    core.create_namespaced_service_account(namespace, {"metadata": {"name": "user"}})
    cluster.grant(namespace, "user", [yaml.safe_load(rule(*each)) for each in rights.items()])
    known = yaml.safe_load(cluster.kubeconfig.read_text())
    known["users"][0]["user"] = {"token": cluster.token_of(namespace, "user")}
    (folder / "kubeconfig").write_text(yaml.safe_dump(known))
    monkeypatch.setenv("KUBECONFIG", str(folder / "kubeconfig"))


def test_the_rights_are_those_of_the_document() -> None:
    assert {resource: set(verbs) for resource, verbs in RUN.items()} == documented("run")


def test_a_user_with_the_rights_of_run(
    cluster: Cluster, api: Api, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    become(cluster, api.namespace, RUN, tmp_path, monkeypatch)
    code, found = diagnosed(capsys, api.namespace)
    assert code == 0, found
    assert found["rights"]["state"] == "ok"
    assert found["nodes"]["found"] == "not visible to this user"


def test_each_right_that_is_missing_is_named_with_its_rule(
    cluster: Cluster, api: Api, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    rights = {**RUN, "jobs": ("get", "list", "create")}
    del rights["pods/log"]
    become(cluster, api.namespace, rights, tmp_path, monkeypatch)
    code, found = diagnosed(capsys, api.namespace)
    assert code == 1
    assert (found["jobs"]["state"], found["pods/log"]["state"]) == ("problem", "warning")
    wanted = '{apiGroups: ["batch"], resources: ["jobs"], verbs: ["patch", "delete"]}'
    assert wanted in found["jobs"]["fix"]
    assert '{apiGroups: [""], resources: ["pods/log"], verbs: ["get"]}' in found["pods/log"]["fix"]


def test_the_namespace_its_quota_and_the_nodes(
    cluster: Cluster, api: Api, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = diagnosed(capsys, "absent")
    assert (code, found["namespace"]["state"]) == (1, "problem")
    core = client.CoreV1Api(cluster.api_client())
    quota = {"metadata": {"name": "few"}, "spec": {"hard": {"pods": "1"}}}
    core.create_namespaced_resource_quota(api.namespace, quota)
    code, found = diagnosed(capsys, api.namespace)
    assert (code, found["quota few"]["state"]) == (1, "problem")
    assert found["nodes"]["values"]["cores"] == 8  # two nodes


@pytest.mark.parametrize(
    ("spec", "used", "state", "words"),
    [
        ({"hard": {"count/pods": "50"}}, {"count/pods": "49"}, "problem", "count/pods"),
        ({"hard": {"count/jobs.batch": "1"}}, {"count/jobs.batch": "1"}, "problem", "count/jobs"),
        ({"hard": {"pods": "1"}, "scopes": ["Terminating"]}, {}, "ok", ""),
        ({"hard": {"pods": "1"}, "scopes": ["NotTerminating"]}, {}, "problem", "pods"),
        ({"hard": {"pods": "0"}, "scopeSelector": {"matchExpressions": [
            {"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}]}},
         {}, "warning", "for pods with PriorityClass In (high) only"),
        ({"hard": {"limits.cpu": "8"}}, {}, "warning", "with limits.cpu="),
        ({"hard": {"persistentvolumeclaims": "0"}}, {}, "ok", ""),
    ],
)  # fmt: skip
def test_a_quota_counts_for_the_pods_that_it_holds_for(
    spec: dict[str, Any], used: dict[str, str], state: str, words: str
) -> None:
    quota = {"metadata": {"name": "q"}, "spec": spec, "status": {"used": used}}

    class One:
        def read(self, path: str) -> dict[str, Any]:
            return {"items": [quota]}

    [found] = quotas(One())  # type: ignore[arg-type]
    assert found.state == state
    assert words in found.fix


def test_without_a_cluster(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    code, found = diagnosed(capsys, "ml")
    assert (code, found["cluster"]["state"]) == (1, "problem")
    assert "KUBECONFIG" in found["cluster"]["fix"]
