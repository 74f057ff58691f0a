"""The objects of a job on a cluster that speaks the real API: all of them or none, and all gone
with the Job."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("kubernetes", reason="needs torch-edl[kubernetes]")

from tests.cluster.cluster import Cluster
from tests.unit.plugins.kubernetes.jobs import CODE, NO_ROOM, TOKEN, job_config, start
from tests.waiting import wait_for
from torch_edl.errors import UsageError
from torch_edl.plugins.kubernetes import names
from torch_edl.plugins.kubernetes.client import cluster_job
from torch_edl.plugins.kubernetes.cluster.api import KINDS, Api
from torch_edl.plugins.kubernetes.cluster.failures import ForbiddenError
from torch_edl.plugins.kubernetes.objects import job


def objects(api: Api) -> dict[str, list[dict[str, Any]]]:
    kinds = [kind for kind in KINDS if kind not in ("Pod", "Event")]
    found = {kind: api.list(kind, names.selector("ctr"), read=dict)[0] for kind in kinds}
    return {kind: each for kind, each in found.items() if each}


def test_all_objects_belong_to_the_job_and_go_with_it(api: Api) -> None:
    made = start(api, **NO_ROOM)
    found = objects(api)
    assert set(found) == {
        "Job", "Secret", "ConfigMap", "Service", "ServiceAccount", "Role", "RoleBinding",
        "NetworkPolicy",
    }  # fmt: skip
    assert found["Job"][0]["spec"]["suspend"] is False
    for kind, (each,) in found.items():
        owners = each["metadata"].get("ownerReferences", [])
        assert [o["uid"] for o in owners] == ([] if kind == "Job" else [made["metadata"]["uid"]])
    there = cluster_job.find(api, "ctr")
    assert there.token == TOKEN
    assert there.config() == job.in_pods(job_config(pods=NO_ROOM), CODE)
    assert there.report()["state"] == "starting"
    assert TOKEN not in json.dumps({k: v for k, v in found.items() if k != "Secret"})
    there.remove()
    wait_for(lambda: not objects(api), lambda: objects(api))


def test_jobs_are_found_by_label_and_by_name(api: Api) -> None:
    with pytest.raises(UsageError, match=r"no job in namespace .*; start one with"):
        cluster_job.find(api, None)
    start(api, "Clicks_1", **NO_ROOM)
    assert [each.name for each in cluster_job.all_jobs(api)] == ["Clicks_1"]
    assert cluster_job.find(api, None).name == "Clicks_1"
    with pytest.raises(UsageError, match=r"^other: no such job in namespace .*newest is Clicks_1"):
        cluster_job.find(api, "other")


def test_a_name_that_is_taken_says_so(api: Api) -> None:
    start(api, **NO_ROOM)
    with pytest.raises(UsageError, match=r"--job-name ctr: there is a job of that name"):
        start(api, **NO_ROOM)
    assert len(objects(api)["Job"]) == 1


@pytest.mark.parametrize("resource", ["secrets", "networkpolicies"])
def test_nothing_stays_of_a_job_that_cannot_be_made(
    cluster: Cluster, api: Api, resource: str
) -> None:
    cluster.control("fail", verb="create", resource=resource, code=403, message="no, says a test")
    with pytest.raises(ForbiddenError, match="no, says a test"):
        start(api, **NO_ROOM)
    wait_for(lambda: not objects(api), lambda: objects(api))
