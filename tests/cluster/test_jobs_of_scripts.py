"""Training scripts in pods."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

pytest.importorskip("kubernetes", reason="pip install torch-edl[kubernetes]")

from tests.cluster.jobs import STATE, Namespace

FAULTS = Path(__file__).parents[1] / "faults"
# What the scripts have counted, each in its last process.
COUNTED = (
    "import json, pathlib; told = [json.loads(f.read_text()) for f in "
    "pathlib.Path('/data/run').glob('counts-*.json')]; "
    "assert told and not any(t['wrong'] for t in told), told"
)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_script_trains_in_pods_of_two_workers_and_loses_one(namespace: Namespace) -> None:
    assert namespace.run_python("make", "import os; os.mkdir('/data/run')") == 0
    job = namespace.start(
        "run", "counting_script", "script", "/data/run",
        "--records", "480", "--epochs", "3", "--delay", "0.1",
        before=("--nnodes", "1:2", "--nproc-per-node", "2", "-m"), cwd=FAULTS,
    )  # fmt: skip
    with contextlib.closing(job):
        job.wait_for(lambda: len(namespace.running("script", "agent")) == 2, 100)
        job.wait_for(lambda: "ring 1: 4 workers" in job.said() or "4 workers" in job.said(), 100)
        victim = namespace.running("script", "agent")[1]
        namespace.evict(victim)
        job.wait_for(
            lambda: (
                len(namespace.running("script", "agent")) == 2
                and victim not in namespace.running("script", "agent")
            ),
            100,
        )
        assert job.finish(300) == 0, namespace.report()
    assert namespace.run_python("counted", COUNTED) == 0, namespace.report()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_script_on_servers_trains_in_pods_and_loses_its_master(namespace: Namespace) -> None:
    assert namespace.run_python("make", "import os; os.mkdir('/data/run')") == 0
    job = namespace.start(
        "run", FAULTS / "counting_on_servers.py", "script",
        "/data/run", "/data/run/gate", "--records", "400", "--epochs", "2", "--delay", "0.05",
        before=("--workers", "2", "--ps", "1", "--state-claim", STATE,
                "--durability", "journal", "--journal-dir", "/data/journals"),
    )  # fmt: skip
    with contextlib.closing(job):
        job.wait_for(lambda: job.done() > 0, 100)
        for role in ("master", "agent"):
            victim = namespace.running("script", role)[0]
            namespace.kill(victim)
            job.wait_for(lambda: victim not in namespace.running("script", role), 100)  # noqa: B023
        assert namespace.run_python("open", "open('/data/run/gate', 'w')") == 0
        assert job.finish(300) == 0, namespace.report()
    assert namespace.run_python("counted", COUNTED) == 0, namespace.report()
