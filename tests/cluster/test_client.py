"""A user's way through a job on the cluster, with the command line alone: pods really train."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("kubernetes", reason="needs torch-edl[kubernetes]")

from tests.cluster.cluster import Cluster
from tests.waiting import HANG_S

ROOT = Path(__file__).parents[2]
COUNTING = ROOT / "examples" / "counting"
pytestmark = pytest.mark.slow


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """With a claim that has the data of examples/counting."""
    with Cluster(tmp_path, nodes=[{"name": "n1", "cpu": "16"}]) as started:
        claim = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
        started.request(
            "POST",
            "/api/v1/namespaces/default/persistentvolumeclaims",
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": "data"},
                "spec": claim,
            },
        )
        data = tmp_path / "claims" / "default" / "data"
        data.mkdir(parents=True)
        data.chmod(0o777)
        prepare = [sys.executable, COUNTING / "prepare.py", data / "in"]
        subprocess.run(prepare, check=True, capture_output=True)
        yield started


def edl(cluster: Cluster, *words: str) -> str:
    env = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "torch_edl.cli", *words],
        env=env, capture_output=True, text=True, timeout=HANG_S,
    )  # fmt: skip
    assert done.returncode == 0, f"{words}:\n{done.stdout}{done.stderr}{cluster.report()}"
    return done.stdout


def test_a_job_is_started_left_asked_scaled_and_stopped(cluster: Cluster) -> None:
    at = ("ctr", "--platform", "kubernetes")
    said = edl(
        cluster, "run", str(COUNTING / "model.py"), *at[1:], "--image", "edl",
        "--volume", "claim=data,path=/data", "--data", "/data/in/*.parquet", "--job-name", "ctr",
        "--workers", "2", "--ps", "1", "--epochs", "1000", "--checkpoint-dir", "/data/ckpt",
        "--detach", "--", "--delay", "0.02",
    )  # fmt: skip
    assert "job ctr runs on without this terminal" in said
    status = json.loads(edl(cluster, "status", *at, "--json"))
    deadline = time.monotonic() + 100
    while not status["records"]["done"]:
        assert time.monotonic() < deadline, status
        status = json.loads(edl(cluster, "status", *at, "--json"))
    assert status["state"] == "running"
    assert "workers: 2 before, 3 from now on" in edl(cluster, "scale", *at, "--workers", "3")
    assert "workers: 2 before, 3 from now on" in edl(cluster, "logs", *at, "--role", "events")
    assert "worker-0" in edl(cluster, "logs", *at, "--role", "worker", "--id", "0")
    assert "ctr: stopped" in edl(cluster, "stop", *at)
    (listed,) = json.loads(edl(cluster, "list", "--platform", "kubernetes", "--json"))
    assert (listed["job"], listed["state"]) == ("ctr", "stopped")
    assert "ctr: stopped" in edl(cluster, "attach", *at)
