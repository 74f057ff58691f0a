"""Jobs on a cluster, as a user runs them; what goes wrong before they run is said in one line."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("kubernetes", reason="pip install torch-edl[kubernetes]")

from tests.cluster.jobs import FLAGS, JOB, RECORDS, STATE, Job, Namespace, figure

ONES = Path(__file__).parent / "models" / "ones.py"
FAULTS = Path(__file__).parents[1] / "faults"
# What scripts have counted, each in its last process.
COUNTED = (
    "import json, pathlib; told = [json.loads(f.read_text()) for f in "
    "pathlib.Path('/data/run').glob('counts-*.json')]; "
    "assert told and not any(t['wrong'] for t in told), told"
)


def test_a_job_trains_in_pods_and_leaves_its_model(
    namespace: Namespace, submit: Callable[..., Job]
) -> None:
    job = submit(600, "--workers", "2", "--ps", "1", "--batch-size", "20", delay_s=0.0)
    assert job.finish() == 0, namespace.report()
    namespace.check()
    namespace.wait_for(lambda: not namespace.running(JOB, "master"))
    page = namespace.page()
    assert page["samples_total"] > 0
    assert page["events"][0]["sequence"] == 1
    assert page["events"][-1]["text"] == "finished"
    audited = namespace.edl("audit", JOB)
    assert audited.returncode == 1
    assert "the job has no --state-claim" in audited.stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_model_is_trained_evaluated_and_used(namespace: Namespace) -> None:
    namespace.prepare(100)
    data = ("--data", "/data/data-*.parquet", "--batch-size", "10")

    def run(verb: str, name: str, *flags: str) -> Job:
        with contextlib.closing(namespace.start(verb, ONES, name, *data, *flags)) as job:
            job.finish()
        return job

    trained = run("run", "train", "--ps", "1", "--output", "/data/model")
    assert trained.process.returncode == 0, namespace.report()
    # What the user's code prints is shown where the job was started.
    assert "worker-0 | the model is made" in trained.said()
    # The model of a job, by the name of the job.
    evaluated = run("evaluate", "evaluate", "--from", "train")
    assert evaluated.process.returncode == 0, namespace.report()
    assert re.search(r"mean +1\b", evaluated.said())
    assert "evaluated on 100 records" in evaluated.said()
    predicted = run(
        "predict", "predict", "--from", "/data/model", "--output", "/data/p.npz",
        "--records-per-task", "30", "--workers", "2",
    )  # fmt: skip
    assert predicted.process.returncode == 0, namespace.report()
    for name in ("train", "predict"):
        namespace.wait_for(lambda name=name: not namespace.running(name, "master"))
    look = (
        "import numpy, os; found = numpy.load('/data/p.npz')['prediction']; "
        "assert found.tolist() == [1.0] * 100, found; "
        "assert not [f for f in os.listdir('/data') if f.startswith('.')], os.listdir('/data')"
    )
    assert namespace.run_python("look", look) == 0, namespace.report()
    # How a job ended is known when its master is gone.
    failed = run("run", "fail", "--ps", "1", "--output", "/data/none", "--", "--fails")
    assert failed.process.returncode == 1
    status = failed.status()
    assert status["state"] == "failed"
    assert "this data is not for me" in status["error"]
    assert "feed" in status["traceback"]
    assert "this data is not for me" in failed.said()
    assert trained.status()["records"]["done"] == 100


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ctrl_c_keeps_a_checkpoint_and_the_rest_is_trained_later(
    namespace: Namespace, submit: Callable[..., Job]
) -> None:
    flags = (*FLAGS, "--checkpoint-dir", "/data/checkpoints")
    job = submit(RECORDS, *flags)
    job.wait_for(lambda: job.done() > 0, 100)
    figure("first step", after_submit_s=job.first_step_s())
    began = time.monotonic()
    job.process.send_signal(signal.SIGINT)
    assert job.finish() == 130
    figure("Ctrl-C", ended_s=time.monotonic() - began)
    assert "continue with --resume" in job.said()
    namespace.wait_for(lambda: not [p for p in namespace.pods(JOB) if p.status.phase == "Running"])
    stopped = job.status()
    assert stopped["state"] == "stopped"
    assert 0 < stopped["records"]["done"] < RECORDS
    namespace.delete(JOB)
    with contextlib.closing(namespace.submit(*flags, "--resume", delay_s=0.0)) as rest:
        assert rest.finish(300) == 0, namespace.report()
    namespace.check()


@pytest.mark.slow
def test_a_job_that_finds_no_room_says_so_and_leaves_nothing(
    namespace: Namespace, submit: Callable[..., Job]
) -> None:
    job = submit(100, *FLAGS, "--master-resources", "cpu=99")
    job.wait_for(lambda: "Insufficient cpu" in job.said())
    job.process.send_signal(signal.SIGINT)
    job.finish()
    namespace.wait_for(lambda: namespace.left_of(JOB) == [])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_worker_whose_volume_cannot_be_mounted_says_so_and_begins_when_it_can(
    namespace: Namespace, submit: Callable[..., Job], tmp_path: Path
) -> None:
    template = {"spec": {
        "volumes": [{"name": "keys", "secret": {"secretName": "keys"}}],
        "containers": [{"name": "main", "volumeMounts": [{"name": "keys", "mountPath": "/keys"}]}],
    }}  # fmt: skip
    (tmp_path / "worker.yaml").write_text(json.dumps(template))
    flags = ("--workers", "1", "--ps", "1", "--batch-size", "10")
    job = submit(100, *flags, "--worker-template", str(tmp_path / "worker.yaml"), delay_s=0.0)
    said = 'worker-0 waits: MountVolume.SetUp failed for volume "keys" : secret "keys" not found'
    job.wait_for(lambda: said in job.said(), 200)
    namespace.core.create_namespaced_secret(namespace.name, {"metadata": {"name": "keys"}})
    assert job.finish(300) == 0, namespace.report()
    namespace.check()


def test_pods_beyond_the_limits_of_the_namespace_fail_the_job(
    namespace: Namespace, submit: Callable[..., Job]
) -> None:
    namespace.core.create_namespaced_limit_range(namespace.name, {
        "metadata": {"name": "small"},
        "spec": {"limits": [{"type": "Container", "max": {"memory": "1Gi"}}]},
    })  # fmt: skip
    resources = ("--worker-resources", "memory=2Gi", "--master-resources", "memory=1Gi")
    job = submit(100, *resources, "--workers", "2")
    assert job.finish() == 2, namespace.report()
    assert "maximum memory usage per Container is 1Gi, but limit is 2Gi" in job.said()
    assert job.status()["state"] == "failed"


@pytest.mark.slow
def test_a_job_whose_account_has_no_rights_says_so_and_stops(
    namespace: Namespace, submit: Callable[..., Job]
) -> None:
    namespace.core.create_namespaced_service_account(namespace.name, {"metadata": {"name": "weak"}})
    job = submit(100, "--service-account", "weak")
    job.wait_for(lambda: 'resources: ["pods"], verbs: ["create"]' in job.said(), 200)
    assert f"system:serviceaccount:{namespace.name}:weak" in job.said()
    stopped = namespace.edl("stop", JOB)
    assert "stopped" in stopped.stdout, stopped.stdout
    assert job.finish() != 0
    # The Job itself says that it is complete, and its master may not change it.
    assert job.status()["state"] == "stopped"


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
        job.wait_for(lambda: len(namespace.running("script", "worker")) == 2, 100)
        job.wait_for(lambda: "4 workers" in job.said(), 100)
        victim = namespace.running("script", "worker")[1]
        namespace.evict(victim)
        job.wait_for(
            lambda: (
                len(namespace.running("script", "worker")) == 2
                and victim not in namespace.running("script", "worker")
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
        for role in ("master", "worker"):
            victim = namespace.running("script", role)[0]
            namespace.kill(victim)
            job.wait_for(lambda: victim not in namespace.running("script", role), 100)  # noqa: B023
        assert namespace.run_python("open", "open('/data/run/gate', 'w')") == 0
        assert job.finish(300) == 0, namespace.report()
    assert namespace.run_python("counted", COUNTED) == 0, namespace.report()
