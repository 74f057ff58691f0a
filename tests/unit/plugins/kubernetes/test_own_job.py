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
from torch_edl.plugins.kubernetes.config import KubernetesConfig
from torch_edl.plugins.kubernetes.master.own_job import OwnJob
from torch_edl.plugins.kubernetes.objects import job
from torch_edl.plugins.kubernetes.objects.pod import process_pod
from torch_edl.wire import master_pb2 as pb


@pytest.fixture
def own(api: Api) -> OwnJob:
    """The own Job of the job ``ctr``, which has made the first pod."""
    made = start(api, state_claim="state", **NO_ROOM)
    wait_for(lambda: masters(api))
    return OwnJob(api, "ctr", made["metadata"]["uid"])


def own_uid(api: Api) -> str:
    return str(api.get("Job", names.master("ctr"))["metadata"]["uid"])


def masters(api: Api) -> list[dict[str, Any]]:
    return api.list("Pod", f"{names.selector('ctr')},{names.ROLE}=master", read=dict)[0]


@pytest.mark.parametrize("state", ["finished", "failed", "stopped"])
def test_the_end_is_noted_also_if_the_server_is_away_for_a_while(
    cluster: Cluster, api: Api, own: OwnJob, state: str
) -> None:
    assert own.begin() == ""
    cluster.control("restart", away_s=0.2, unsynced_s=0.5)
    own.end(pb.GetStatusResponse(state=state, error="why", records={"done": 7}))
    # A master that is started again hears that the job is over.
    assert own.begin() == state
    there = cluster_job.find(api, "ctr")
    assert there.is_over()
    report = there.report()
    assert (report["state"], report["records"]["done"]) == (state, 7)
    # Pods of a failed job are not replaced.
    assert (there.manifest["spec"]["backoffLimit"] == 0) is (state != "finished")


def test_the_next_pod_is_one_of_the_job_in_place_of_this_one(api: Api, own: OwnJob) -> None:
    """Also if the node ends the pod of this master, which nobody has deleted."""
    [first] = masters(api)
    leaving = OwnJob(api, "ctr", own_uid(api), pod=first["metadata"]["name"])
    leaving.hand_over()
    wait_for(lambda: [p["metadata"]["uid"] for p in masters(api)] != [first["metadata"]["uid"]])
    [pod] = [p for p in masters(api) if p["metadata"]["uid"] != first["metadata"]["uid"]]
    assert pod["metadata"]["ownerReferences"][0]["uid"] == own_uid(api)
    for field in ("finalizers", "labels", "annotations"):
        assert pod["metadata"][field] == first["metadata"][field]
    assert pod["spec"]["containers"] == first["spec"]["containers"]
    wait_for(lambda: len(masters(api)) == 1)
    assert masters(api)[0]["metadata"]["uid"] == pod["metadata"]["uid"]


def test_the_processes_of_a_suspended_job_go(api: Api, own: OwnJob) -> None:
    """Without that, they wait a quarter of an hour for a master."""
    owner = own.owner_of_pods()
    for role in ("worker", "ps"):
        api.create(
            process_pod(
                "ctr", KubernetesConfig(image="edl", worker_resources="cpu=99"), role=role, id=0,
                incarnation="abc", command=["true"], env={}, grace_s=5, owner=owner,
            )
        )  # fmt: skip
    pods = {"kind": "Pod", "selector": names.processes("ctr"), "read": dict}
    assert len(api.list(**pods)[0]) == 2
    api.patch("Job", names.master("ctr"), {"spec": {"suspend": True}})
    there = cluster_job.find(api, "ctr")
    assert there.state(there.master_pod()) == ("suspended", there.why_suspended())
    assert f"kubectl patch job ctr-master --namespace {api.namespace}" in there.why_suspended()
    own.hand_over()
    wait_for(lambda: not api.list(**pods)[0])
    wait_for(lambda: not masters(api))
    queue = {"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "night"}}}
    api.patch("Job", names.master("ctr"), queue)
    assert "the queue night of Kueue" in there.last()["error"]


def test_a_claim_of_one_node_is_named_when_the_next_master_waits_for_it(
    api: Api, own: OwnJob
) -> None:
    """The pod itself says only ContainerCreating."""
    [pod] = masters(api)
    name = pod["metadata"]["name"]
    said = 'Multi-Attach error for volume "pvc-1" Volume is already exclusively attached'
    for number, (reason, message) in enumerate(
        [("FailedAttachVolume", said), ("FailedScheduling", "0/2 nodes are available")]
    ):
        api.create({
            "apiVersion": "v1", "kind": "Event", "metadata": {"name": f"e{number}"},
            "involvedObject": {"kind": "Pod", "name": name}, "type": "Warning",
            "reason": reason, "message": message, "lastTimestamp": f"2026-11-29T08:00:0{number}Z",
        })  # fmt: skip
    there = cluster_job.find(api, "ctr")
    assert there.why_no_volume(name) == f"{said}; name a claim that is ReadWriteMany"


def test_a_job_is_stopped_without_a_connection_to_its_master(api: Api, own: OwnJob) -> None:
    there = cluster_job.find(api, "ctr")
    assert not own.is_stopped()
    there.stop_unreached()
    assert own.is_stopped()
    assert there.last()["state"] == "stopping"
    own.end(pb.GetStatusResponse(state="stopped"))
    assert there.last()["state"] == "stopped"
    assert not api.get("Job", names.master("ctr"))["spec"]["suspend"], "so that the Job ends"


def test_no_pod_is_made_for_a_job_that_is_over_suspended_or_gone(api: Api, own: OwnJob) -> None:
    name = names.master("ctr")
    api.patch("Job", name, {"spec": {"suspend": True}})
    wait_for(lambda: not masters(api))
    own.hand_over()
    assert not masters(api)
    own.end(pb.GetStatusResponse(state="finished"))
    api.patch("Job", name, {"spec": {"suspend": False}})
    wait_for(lambda: masters(api))
    before = [pod["metadata"]["uid"] for pod in masters(api)]
    own.hand_over()
    assert [pod["metadata"]["uid"] for pod in masters(api)] == before
    api.delete("Job", name)
    wait_for(lambda: not masters(api))
    own.hand_over()
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
    assert "the pods of this job have no controller" in caplog.text


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
