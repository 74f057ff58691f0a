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

from tests.cluster.cluster import Cluster
from tests.cluster.jobs import DELAY_S, FLAGS, JOB, RECORDS, Job, Namespace, figure


def test_a_job_trains_in_pods_and_leaves_its_model(
    namespace: Namespace, submit: Callable[..., Job]
) -> None:
    job = submit(600, "--workers", "2", "--ps", "1", "--batch-size", "20", delay_s=0.0)
    assert job.finish() == 0, namespace.report()
    namespace.check()


ONES = Path(__file__).parent / "models" / "ones.py"


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
    said = namespace.edl("status", "fail", "--json").stdout
    status = json.loads(said[said.index("{") :])
    assert status["state"] == "failed"
    assert "this data is not for me" in status["error"]
    assert "feed" in status["traceback"]
    assert "this data is not for me" in failed.said()
    ended = namespace.edl("status", "train", "--json").stdout
    assert json.loads(ended[ended.index("{") :])["records"]["done"] == 100


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ctrl_c_keeps_a_checkpoint_and_the_rest_is_trained_later(
    namespace: Namespace, submit: Callable[..., Job]
) -> None:
    flags = (*FLAGS, "--checkpoint-dir", "/data/checkpoints")
    job = submit(RECORDS, *flags, delay_s=DELAY_S)
    job.wait_for(lambda: job.done() > 0, 100)
    figure("first step", after_submit_s=job.first_step_s())
    began = time.monotonic()
    job.process.send_signal(signal.SIGINT)
    assert job.finish() == 130
    figure("Ctrl-C", ended_s=time.monotonic() - began)
    assert "continue with --resume" in job.said()
    namespace.wait_for(lambda: not [p for p in namespace.pods(JOB) if p.status.phase == "Running"])
    status = namespace.edl("status", JOB, "--json").stdout
    stopped = json.loads(status[status.index("{") :])
    assert stopped["state"] == "stopped"
    assert 0 < stopped["records"]["done"] < RECORDS
    namespace.delete(JOB)
    with contextlib.closing(namespace.submit(JOB, *flags, "--resume", delay_s=0.0)) as rest:
        assert rest.finish(300) == 0, namespace.report()
    namespace.check()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--image", "registry.example/wrong:1"), "the image registry.example/wrong:1 cannot be"),
        (("--master-resources", "cpu=99"), "Insufficient cpu"),
    ],
)
def test_what_cannot_start_is_said_in_one_line(
    namespace: Namespace, submit: Callable[..., Job], flags: tuple[str, str], said: str
) -> None:
    job = submit(100, *FLAGS, *flags)
    job.wait_for(lambda: said in job.said())
    job.process.send_signal(signal.SIGINT)
    job.finish()
    namespace.wait_for(lambda: namespace.left_of(JOB) == [])


@pytest.mark.slow
def test_a_quota_and_a_lack_of_rights_are_said_in_one_line(
    orders: Cluster, namespace: Namespace, submit: Callable[..., Job]
) -> None:
    orders.control(
        "fail", verb="create", resource="jobs", code=403, message="jobs.batch is forbidden: no"
    )
    job = submit(100, *FLAGS)
    assert job.finish() != 0
    assert "forbidden" in job.said()
    namespace.core.create_namespaced_resource_quota(
        namespace.name, {"metadata": {"name": "few"}, "spec": {"hard": {"pods": "1"}}}
    )
    job = namespace.submit(JOB, *FLAGS)
    job.wait_for(lambda: "exceeded quota: few" in job.said())
    job.process.send_signal(signal.SIGINT)
    job.finish()
    namespace.delete(JOB)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_stopped_job_leaves_no_pod_that_runs(
    namespace: Namespace, submit: Callable[..., Job]
) -> None:
    job = submit(RECORDS, *FLAGS, delay_s=DELAY_S)
    job.wait_for(lambda: job.done() > 0, 100)
    stopped = namespace.edl("stop", JOB)
    assert stopped.returncode == 0, stopped.stdout
    assert job.finish() != 0
    namespace.wait_for(lambda: not [p for p in namespace.pods(JOB) if p.status.phase == "Running"])
    namespace.delete(JOB)


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
    assert '"state": "failed"' in namespace.edl("status", JOB, "--json").stdout


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
    assert '"state": "stopped"' in namespace.edl("status", JOB, "--json").stdout
