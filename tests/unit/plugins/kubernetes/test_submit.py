"""The objects of a job on a cluster that speaks the real API: all of them or none, and all gone
with the Job."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kubernetes", reason="needs torch-edl[kubernetes]")

from tests.cluster.cluster import Cluster
from tests.waiting import wait_for
from torch_edl.config import JobConfig
from torch_edl.errors import UsageError
from torch_edl.plugins.kubernetes import names
from torch_edl.plugins.kubernetes.client import cluster_job
from torch_edl.plugins.kubernetes.cluster.api import KINDS, Api
from torch_edl.plugins.kubernetes.cluster.failures import ForbiddenError, NoAnswerError
from torch_edl.plugins.kubernetes.config import KubernetesConfig
from torch_edl.plugins.kubernetes.objects import job
from torch_edl.plugins.kubernetes.objects.submit import submit

TOKEN = "a-token-of-forty-characters-and-more-0123456789"
CODE = {"model.py": b"import net\n", "net.py": b""}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Without nodes: pods stay pending."""
    with Cluster(tmp_path_factory.mktemp("cluster"), nodes=[]) as started:
        yield started


@pytest.fixture
def api(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    cluster.heal()
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    made = Api.of_kubeconfig(namespace=cluster.make_namespace())
    yield made
    made.close()


def config(name: str = "clicks") -> JobConfig:
    pods = KubernetesConfig(image="edl", volume=("claim=data,path=/data",))
    made = JobConfig(name=name, model_file="/m.py", platform="kubernetes", platform_config=pods)
    return job.in_pods(made, CODE)


def objects(api: Api, name: str = "clicks") -> dict[str, list[dict[str, Any]]]:
    kinds = [kind for kind in KINDS if kind not in ("Pod", "Event")]
    found = {kind: api.list(kind, names.selector(name), read=dict)[0] for kind in kinds}
    return {kind: each for kind, each in found.items() if each}


def test_all_objects_belong_to_the_job_and_go_with_it(api: Api) -> None:
    made = submit(api, config(), token=TOKEN, code=CODE)
    found = objects(api)
    assert set(found) == {
        "Job", "Secret", "ConfigMap", "Service", "ServiceAccount", "Role", "RoleBinding",
        "NetworkPolicy",
    }  # fmt: skip
    assert found["Job"][0]["spec"]["suspend"] is False
    for kind, (each,) in found.items():
        owners = each["metadata"].get("ownerReferences", [])
        assert [o["uid"] for o in owners] == ([] if kind == "Job" else [made["metadata"]["uid"]])
    there = cluster_job.find(api, "clicks")
    assert there.token == TOKEN
    assert there.config() == config()
    assert there.report()["state"] == "starting"
    assert TOKEN not in json.dumps({k: v for k, v in found.items() if k != "Secret"})
    api.delete("Job", names.master("clicks"))
    wait_for(lambda: not objects(api), lambda: objects(api))


def test_jobs_are_found_by_label_and_by_name(api: Api) -> None:
    with pytest.raises(UsageError, match=r"no job in namespace .*; start one with"):
        cluster_job.find(api, None)
    submit(api, config("Clicks_1"), token=TOKEN, code=CODE)
    assert [each.name for each in cluster_job.all_jobs(api)] == ["Clicks_1"]
    assert cluster_job.find(api, None).name == "Clicks_1"
    with pytest.raises(UsageError, match=r"^other: no such job in namespace .*newest is Clicks_1"):
        cluster_job.find(api, "other")


def test_a_name_that_is_taken_says_so(api: Api) -> None:
    submit(api, config(), token=TOKEN, code=CODE)
    with pytest.raises(UsageError, match=r"--job-name clicks: there is a job of that name"):
        submit(api, config(), token=TOKEN, code=CODE)
    assert len(objects(api)["Job"]) == 1


@pytest.mark.parametrize("resource", ["secrets", "networkpolicies"])
def test_nothing_stays_of_a_job_that_cannot_be_made(
    cluster: Cluster, api: Api, resource: str
) -> None:
    cluster.control("fail", verb="create", resource=resource, code=403, message="no, says a test")
    with pytest.raises(ForbiddenError, match="no, says a test"):
        submit(api, config(), token=TOKEN, code=CODE)
    wait_for(lambda: not objects(api), lambda: objects(api))


def test_a_cluster_that_does_not_answer_is_said_in_one_line(cluster: Cluster, api: Api) -> None:
    cluster.control("fail", verb="create", resource="jobs", code=500, message="etcd is away")
    with pytest.raises(NoAnswerError, match="etcd is away") as raised:
        submit(api, config(), token=TOKEN, code=CODE)
    assert "\n" not in str(raised.value)


def test_a_kubeconfig_that_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(UsageError, match="set KUBECONFIG to a file"):
        Api.of_kubeconfig()
