"""A master and its Job, on a cluster that speaks the real API."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("kubernetes", reason="needs torch-edl[kubernetes]")

from tests.cluster.cluster import Cluster
from tests.unit.plugins.kubernetes.jobs import CODE, NO_ROOM, job_config, start
from tests.waiting import wait_for
from torch_edl.plugins.kubernetes import names
from torch_edl.plugins.kubernetes.client import cluster_job
from torch_edl.plugins.kubernetes.cluster.api import Api
from torch_edl.plugins.kubernetes.master.own_job import OwnJob
from torch_edl.plugins.kubernetes.objects import job
from torch_edl.wire import master_pb2 as pb


@pytest.fixture
def own(api: Api) -> OwnJob:
    """The own Job of the job ``ctr``, which has made the first pod."""
    made = start(api, state_claim="state", **NO_ROOM)
    wait_for(lambda: masters(api))
    return OwnJob(api, "ctr", made["metadata"]["uid"])


def masters(api: Api) -> list[dict[str, Any]]:
    return api.list("Pod", f"{names.selector('ctr')},{names.ROLE}=master", read=dict)[0]


@pytest.mark.parametrize("state", ["finished", "failed", "stopped"])
def test_the_end_is_noted_also_if_the_server_is_away_for_a_while(
    cluster: Cluster, api: Api, own: OwnJob, state: str
) -> None:
    assert own.begin() == ""
    cluster.control("restart", away_s=0.2, unsynced_s=0.5)
    own.end(pb.GetStatusResponse(state=state, error="why", records_done=7))
    # A master that is started again hears that the job is over.
    assert own.begin() == state
    there = cluster_job.find(api, "ctr")
    assert there.is_over()
    report = there.report()
    assert (report["state"], report["records"]["done"]) == (state, 7)
    # Pods of a failed job are not replaced.
    assert (there.manifest["spec"]["backoffLimit"] == 0) is (state != "finished")


def test_the_next_pod_is_one_of_the_job(api: Api, own: OwnJob) -> None:
    [first] = masters(api)
    own.make_next_pod()
    # One too many now: the controller counts the new one, and deletes one of the two.
    wait_for(lambda: len(masters(api)) == 1)
    api.delete("Pod", masters(api)[0]["metadata"]["name"], grace_s=0)
    own.make_next_pod()
    uid = api.get("Job", names.master("ctr"))["metadata"]["uid"]
    for pod in masters(api):
        assert pod["metadata"]["ownerReferences"][0]["uid"] == uid
        assert pod["metadata"]["finalizers"] == first["metadata"]["finalizers"]
        assert pod["metadata"]["labels"] == first["metadata"]["labels"]
        assert pod["metadata"]["annotations"].keys() == first["metadata"]["annotations"].keys()
        assert pod["spec"]["containers"] == first["spec"]["containers"]
    assert masters(api)


def test_no_pod_is_made_for_a_job_that_is_over_suspended_or_gone(api: Api, own: OwnJob) -> None:
    name = names.master("ctr")
    api.patch("Job", name, {"spec": {"suspend": True}})
    wait_for(lambda: not masters(api))
    own.make_next_pod()
    assert not masters(api)
    own.end(pb.GetStatusResponse(state="finished"))
    api.patch("Job", name, {"spec": {"suspend": False}})
    wait_for(lambda: masters(api))
    before = [pod["metadata"]["uid"] for pod in masters(api)]
    own.make_next_pod()
    assert [pod["metadata"]["uid"] for pod in masters(api)] == before
    api.delete("Job", name)
    wait_for(lambda: not masters(api))
    own.make_next_pod()
    assert not masters(api)
    own.end(pb.GetStatusResponse(state="failed"))  # nobody is to know


def test_pods_of_the_job_have_a_controller_that_goes_with_the_job(
    cluster: Cluster, api: Api, own: OwnJob, caplog: pytest.LogCaptureFixture
) -> None:
    """``kubectl drain`` refuses others."""
    owner = own.owner_of_pods()
    assert owner["controller"] is True
    found = api.get(owner["kind"], owner["name"])
    assert found["metadata"]["uid"] == owner["uid"]
    [of_files] = found["metadata"]["ownerReferences"]
    job_uid = api.get("Job", names.master("ctr"))["metadata"]["uid"]
    assert of_files["uid"] == job_uid
    # An account of somebody else may lack the right.
    cluster.control("fail", verb="get", resource="configmaps", code=403, message="no, says a test")
    assert own.owner_of_pods()["uid"] == job_uid
    assert "kubectl drain will refuse the nodes of this job" in caplog.text


def test_a_master_that_may_not_change_its_job_begins_after_a_while(
    cluster: Cluster, api: Api, own: OwnJob, caplog: pytest.LogCaptureFixture
) -> None:
    order = {"verb": "patch", "resource": "jobs", "code": 403, "message": "no, says a test"}
    cluster.control("fail", **order, count=1000)
    uid = api.get("Job", names.master("ctr"))["metadata"]["uid"]
    weak = OwnJob(api, "ctr", uid, forbidden_s=0.5)
    assert weak.begin() == ""
    assert not weak.may_note
    assert "the end of this job cannot be noted: patch job ctr-master" in caplog.text


def test_a_server_that_was_just_started_is_waited_for(cluster: Cluster, own: OwnJob) -> None:
    """It knows no Roles yet: it rejects everything."""
    cluster.control("restart", away_s=0.5, unsynced_s=2.0)
    assert own.begin() == ""
    assert own.may_note


def test_objects_that_a_user_has_applied_belong_to_the_job_then(api: Api) -> None:
    config = job.in_pods(job_config(pods={"network_policy": False, **NO_ROOM}), CODE)
    made = [
        api.create(each)
        for each in job.objects(config, namespace=api.namespace, token="", code=CODE, applied=True)
    ]
    uid = made[-1]["metadata"]["uid"]
    OwnJob(api, "ctr", uid).begin()
    for each in made[:-1]:
        found = api.get(each["kind"], each["metadata"]["name"])
        assert [o["uid"] for o in found["metadata"]["ownerReferences"]] == [uid]
