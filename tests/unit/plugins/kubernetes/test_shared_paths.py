"""Paths that pods share, or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.plugins.kubernetes.jobs import job_config
from torch_edl.config import CheckpointConfig, DurabilityConfig, JobConfig
from torch_edl.errors import UsageError
from torch_edl.plugins.kubernetes.objects import shared_paths

CLAIM = "claim=data,path=/data"


def job(*volumes: str, template: dict[str, Any] | None = None, **parts: Any) -> JobConfig:
    return job_config(pods={"volume": volumes, "template": template or {}}, **parts)


def checkpoints(dir: str) -> dict[str, Any]:
    return {"checkpoint": CheckpointConfig(dir=dir)}


def test_a_job_that_keeps_nothing_needs_no_volume() -> None:
    shared_paths.check(job())


@pytest.mark.parametrize("dir", ["/data", "/data/ck", "/data/a/../b"])
def test_a_folder_on_a_volume_is_shared(dir: str) -> None:
    shared_paths.check(job(CLAIM, **checkpoints(dir)))


@pytest.mark.parametrize("dir", ["/ck", "/database/ck", "/tmp/ck"])
def test_a_folder_of_one_pod_is_refused_with_the_volume_that_is_missing(dir: str) -> None:
    with pytest.raises(UsageError, match=rf"--checkpoint-dir {dir}: no volume.*--volume claim="):
        shared_paths.check(job(CLAIM, **checkpoints(dir)))


def test_the_output_and_the_journal_are_shared_too() -> None:
    output = CheckpointConfig(output="/out")
    with pytest.raises(UsageError, match="--output /out"):
        shared_paths.check(job(checkpoint=output))
    journal = DurabilityConfig(mode="journal", journal_dir="/j")
    with pytest.raises(UsageError, match="--journal-dir /j"):
        shared_paths.check(job(durability=journal))
    with pytest.raises(UsageError, match=r"--durability journal.*replica"):
        shared_paths.check(job(durability=DurabilityConfig(mode="journal")))


@pytest.mark.parametrize(
    ("volume", "why"),
    [
        (f"{CLAIM},read-only", "read-only"),
        ("secret=s,path=/data", "cannot be written to"),
        ("config-map=c,path=/data", "cannot be written to"),
    ],
)
def test_a_volume_that_cannot_be_written_to_is_refused(volume: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        shared_paths.check(job(volume, **checkpoints("/data/ck")))


def test_the_innermost_volume_counts() -> None:
    inner = "claim=fast,path=/data/ck"
    shared_paths.check(job(f"{CLAIM},read-only", inner, **checkpoints("/data/ck/1")))


def test_volumes_of_the_template_count() -> None:
    def template(**source: Any) -> dict[str, Any]:
        mount = {"name": "v", "mountPath": "/data"}
        containers = [{"name": "main", "volumeMounts": [mount]}]
        return {"spec": {"containers": containers, "volumes": [{"name": "v", **source}]}}

    nfs = template(nfs={"server": "s", "path": "/"})
    shared_paths.check(job(template=nfs, **checkpoints("/data/ck")))
    with pytest.raises(UsageError, match="of one pod alone"):
        shared_paths.check(job(template=template(emptyDir={}), **checkpoints("/data/ck")))


def test_what_nobody_keeps_is_beside_the_output() -> None:
    own = Path("/var/lib/torch-edl/jobs/ctr")
    assert shared_paths.temporary(job(), own) == own
    output = job(CLAIM, checkpoint=CheckpointConfig(output="/data/model"))
    assert shared_paths.temporary(output, own) == Path("/data/.ctr")
