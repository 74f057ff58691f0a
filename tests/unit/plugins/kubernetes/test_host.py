"""What a master in a pod does in its own way."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.plugins.kubernetes.jobs import job_config as job
from torch_edl.config import CheckpointConfig, ClusterConfig, DurabilityConfig, extensions
from torch_edl.errors import StoreConflictError, UsageError
from torch_edl.launch.jobs.folder import JobFolder
from torch_edl.plugins.kubernetes import names
from torch_edl.plugins.kubernetes.master.host import ClusterHost


def cluster(host: str = "10.0.0.7", namespace: str = "ml") -> ClusterHost:
    platform = extensions.load(extensions.PLATFORMS, "kubernetes", "--platform kubernetes")
    found = platform.host({
        "TORCH_EDL_JOB_UID": "u1", "TORCH_EDL_NAMESPACE": namespace, "TORCH_EDL_HOST": host,
    })  # fmt: skip
    assert isinstance(found, ClusterHost)
    return found


def test_each_namespace_may_have_a_job_of_a_name_in_one_etcd() -> None:
    assert cluster().store_key("ctr") != cluster(namespace="nlp").store_key("ctr")


def test_a_master_is_found_by_the_name_of_its_service() -> None:
    assert cluster().address("ctr", "127.0.0.1:1") == "ctr-master.ml.svc:29400"
    assert cluster().listen("") == "0.0.0.0:29400"
    assert cluster("fd00::7").listen("") == "[::]:29400"


def test_the_configuration_comes_from_the_files_of_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_EDL_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(names, "FILES", str(tmp_path / "files"))
    with pytest.raises(OSError, match=r"job\.json"):
        cluster().prepare("ctr")
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "job.json").write_text(job().to_json())
    folder = JobFolder("ctr")
    assert cluster().prepare("ctr") == job()
    (folder.dir / "state.sqlite").write_text("what a claim has kept")
    cluster().prepare("ctr")
    assert (folder.dir / "state.sqlite").exists()


def test_a_job_whose_pods_share_no_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_EDL_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(names, "FILES", str(tmp_path))
    config = job(checkpoint=CheckpointConfig(dir="/ck"))
    (tmp_path / "job.json").write_text(config.to_json())
    with pytest.raises(UsageError, match="--checkpoint-dir /ck"):
        cluster().prepare("ctr")


def test_the_user_hears_at_the_start_what_the_death_of_the_master_costs() -> None:
    [text] = cluster().warnings(job())
    assert "the job begins anew" in text
    assert "--state-claim" in text
    [text] = cluster().warnings(job(checkpoint=CheckpointConfig(dir="/ck")))
    assert "returns to its newest checkpoint" in text
    assert not cluster().warnings(job(durability=DurabilityConfig(store="etcd://e:2379")))
    assert not cluster().warnings(job(pods={"state_claim": "state"}))
    replica = DurabilityConfig(mode="replica")
    assert not cluster().warnings(job(durability=replica, cluster=ClusterConfig(servers=2)))


@pytest.mark.parametrize(("asked", "each"), [("4", 4), ("2500m", 2), ("500m", 1), ("1.5", 1)])
def test_each_worker_has_the_cores_of_its_pod(asked: str, each: int) -> None:
    pods = {"worker_resources": f"cpu={asked}"}
    config = job(pods=pods, cluster=ClusterConfig(max_workers=7))
    assert cluster().cores(config) == 7 * each


def test_the_job_of_the_master_starts_it_again_only_where_that_helps() -> None:
    assert cluster().exit_code("finished", 0, signalled=0) == 0
    assert cluster().exit_code("failed", 1, signalled=0) == 1
    assert cluster().exit_code("failed", 2, signalled=0) == 2
    assert cluster().exit_code("stopped", 143, signalled=0) == 130
    assert cluster().exit_code("", 0, signalled=0) == 75
    assert cluster().exit_code("", 0, signalled=143) == 143
    assert cluster().refused(UsageError("--ps 0")) == 2
    assert cluster().refused(OSError("etcd is away")) == 75
    held = UsageError("another master runs")
    held.__cause__ = StoreConflictError("held")
    assert cluster().refused(held) == 75


def test_workers_of_a_pod_share_its_cores() -> None:
    pods = {"worker_resources": "cpu=4", "processes_per_pod": 2}
    config = job(pods=pods, cluster=ClusterConfig(max_workers=7))
    assert cluster().cores(config) == 2 * 7
    assert cluster().workers_per_pod(config) == 2
    script = job(pods=pods, kind="script", cluster=ClusterConfig(max_workers=7))
    assert cluster().workers_per_pod(script) == 2
