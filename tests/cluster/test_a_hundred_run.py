"""A hundred workers that run: half of them are preempted, and return."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("kubernetes", reason="pip install torch-edl[kubernetes]")

from tests.cluster.cluster import Cluster
from tests.cluster.conftest import require_networks
from tests.cluster.jobs import JOB, STATE, Namespace, figure

# Each has 65 to 80 MB of its own, so 200 of them need 14 GB.
WORKERS = 100
MODEL = Path(__file__).parent / "models" / "gated.py"
GATE = "/data/gate"
# What a worker imports: nodes that fork workers share the memory of it.
IMPORTED = (
    "torch_edl.training.worker", "torch", "torch_edl.training.run_file",
    "torch_edl.pytorch.model_file",
    "torch_edl.engine.servers.engine", "torch_edl.nn", "torch_edl.data.feeder", "numpy.random",
    "pyarrow.parquet", "zmq",
)  # fmt: skip
# One node has the master and the server, too, and room for what tests look at.
NODES = [
    {"name": "node-a", "cpu": f"{WORKERS // 2 + 4}.5", "pods": "300"},
    {"name": "node-b", "cpu": str(WORKERS // 2), "pods": "300"},
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    require_networks()
    folder = tmp_path_factory.mktemp("cluster")
    with Cluster(folder, nodes=NODES, forks=IMPORTED) as started:
        yield started


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_hundred_workers_run_and_half_of_them_are_preempted(
    orders: Cluster, namespace: Namespace
) -> None:
    before = orders.control("calls")
    namespace.prepare(50_000)
    job = namespace.start(
        "run", MODEL, JOB, "--data", "/data/data-*.parquet", "--output", "/data/output",
        "--workers", f"1:{WORKERS}", "--ps", "1", "--batch-size", "20", "--records-per-task", "20",
        "--spares", "0", "--worker-resources", "cpu=1", "--master-resources", "cpu=2",
        "--ps-resources", "cpu=2", "--state-claim", STATE, "--heartbeat-timeout", "120",
        "--", GATE, "--delay", "8",
    )  # fmt: skip
    with contextlib.closing(job):

        def run() -> int:
            return len(namespace.running(JOB, "worker"))

        job.wait_for(lambda: run() == WORKERS, 400)
        all_run_s = time.monotonic() - job.began
        job.wait_for(lambda: len(job.workers()) == WORKERS, 400)
        registered_s = time.monotonic() - job.began
        job.wait_for(lambda: job.done() > 0, 100)
        figure(
            f"{WORKERS} workers", pods_run_s=all_run_s, registered_s=registered_s,
            first_step_s=job.first_step_s(), **of_master(orders, namespace, before),
        )  # fmt: skip
        namespace.add_priority("high", 1000)
        began = time.monotonic()
        namespace.sleep("other", cpu=str(WORKERS // 2), priority="high", node="node-b")
        # The server may be among what is preempted: its model moves to another one, a worker's
        # process perhaps, and its place goes to workers.
        job.wait_for(lambda: run() <= WORKERS // 2 + 2, 200)
        gone_s = time.monotonic() - began
        job.trains_on()
        began = time.monotonic()
        namespace.kill("other")
        job.wait_for(lambda: run() >= WORKERS, 400)
        back_s = time.monotonic() - began
        job.wait_for(lambda: len(job.workers()) == WORKERS, 400)
        figure(
            "half of them preempted", gone_s=gone_s, back_s=back_s,
            registered_s=time.monotonic() - began, **of_master(orders, namespace, before),
        )  # fmt: skip
        assert namespace.run_python("open", f"open('{GATE}', 'w')") == 0
        began = time.monotonic()
        assert job.finish(400) == 0, namespace.report()
        figure("the rest", s=time.monotonic() - began)
        assert "error:" not in job.said()
    namespace.check()


def of_master(cluster: Cluster, namespace: Namespace, before: dict[str, int]) -> dict[str, float]:
    """Its calls to the API server, processor time and memory."""
    account = f"system:serviceaccount:{namespace.name}:{JOB}-master "
    found = {
        key.removeprefix(account).replace(" ", "_"): float(count - before.get(key, 0))
        for key, count in cluster.control("calls").items()
        if key.startswith(account)
    }
    return {**found, **namespace.usage(JOB, "master", "--job", JOB)}
