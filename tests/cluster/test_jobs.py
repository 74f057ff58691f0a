"""Jobs on a cluster that takes machines away: nothing is lost, nothing is counted twice, and what
goes wrong is said in one line."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("kubernetes", reason="pip install torch-edl[kubernetes]")

from tests.cluster.cluster import Cluster
from tests.cluster.jobs import STATE, Job, Namespace

NODES = [{"name": f"node-{word}", "cpu": "8"} for word in "abc"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, machine: None) -> Iterator[Cluster | None]:
    """None: the tests run on a cluster of somebody else, see `make test-kubernetes`."""
    if os.environ.get("EDL_TEST_KUBECONFIG"):
        yield None
        return
    with Cluster(tmp_path_factory.mktemp("cluster"), nodes=NODES) as started:
        yield started


@pytest.fixture
def orders(cluster: Cluster | None) -> Iterator[Cluster]:
    """The cluster, for a test that orders something to fail in it."""
    if cluster is None:
        pytest.skip("only the cluster of the tests takes orders to fail")
    yield cluster
    cluster.heal()


@pytest.fixture
def namespace(cluster: Cluster | None, tmp_path: Path) -> Iterator[Namespace]:
    """A new one, which goes with all that is in it."""
    kubeconfig = cluster.kubeconfig if cluster else Path(os.environ["EDL_TEST_KUBECONFIG"])
    image = os.environ.get("EDL_TEST_IMAGE") or "edl:test"
    with Namespace(kubeconfig, image, tmp_path) as made:
        yield made


@pytest.fixture
def submit(namespace: Namespace) -> Iterator[Callable[..., Job]]:
    """``submit(records, *flags)``: the counting model, named ``count``."""
    with contextlib.ExitStack() as stack:

        def start(records: int, *flags: str, delay_s: float = 0.02) -> Job:
            namespace.prepare(records)
            job = namespace.submit("count", *flags, delay_s=delay_s)
            return stack.enter_context(contextlib.closing(job))

        yield start


RECORDS = 8000
_BROKEN_S = 30.0
# Each batch takes so long that the job is not over before it is hurt.
FLAGS = (
    "--workers", "2", "--ps", "2", "--batch-size", "10", "--records-per-task", "40",
    "--spares", "0", "--durability", "journal", "--journal-dir", "/data/journals",
    "--state-claim", STATE,
)  # fmt: skip
DELAY_S = 0.06
JOB = "count"


def figure(name: str, **values: float) -> None:
    """What was measured, for whoever reads the output of the test (``pytest -rP``)."""
    print(f"{name}: " + ", ".join(f"{key} {value:.1f}" for key, value in values.items()))


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
        "run", FAULTS / "counting_script.py", "script", "/data/run",
        "--records", "480", "--epochs", "3", "--delay", "0.1",
        before=("--nnodes", "1:2", "--nproc-per-node", "2"),
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


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_chaos_kills_pods_and_clean_removes_what_is_over(
    namespace: Namespace, submit: Callable[..., Job]
) -> None:
    job = submit(RECORDS, *FLAGS, delay_s=DELAY_S)
    job.wait_for(lambda: job.done() > 0, 100)
    refused = namespace.edl("chaos", JOB, "--pause", "worker=1:5s")
    assert refused.returncode == 2
    assert "a cluster pauses no process" in refused.stdout
    found = namespace.edl(
        "chaos", JOB, "--kill", "worker=1,ps=1,master=1", "--every", "4s", "--for", "8s", "--json",
        timeout_s=200,
    )  # fmt: skip
    assert found.returncode == 0, f"{found.stdout}{namespace.report()}"
    verdict = json.loads(found.stdout[found.stdout.index("{") :])
    assert verdict["held"]
    assert verdict["kills"] == {"worker": 2, "ps": 2, "master": 2}
    assert verdict["replaced"]["ps"] >= 2
    assert job.finish(300) == 0, namespace.report()
    namespace.check()
    kept = namespace.edl("clean", "--keep", "1")
    assert "nothing to remove" in kept.stdout
    removed = namespace.edl("clean")
    assert f"removed: job {JOB}" in removed.stdout, removed.stdout
    namespace.wait_for(lambda: namespace.left_of(JOB) == [])


@pytest.fixture
def running(
    namespace: Namespace, submit: Callable[..., Job], request: pytest.FixtureRequest
) -> Iterator[Job]:
    """Two workers and two servers that train; the test ends with an exact count."""
    job = submit(getattr(request, "param", RECORDS), *FLAGS, delay_s=DELAY_S)
    job.wait_for(lambda: len(namespace.running(JOB, "worker")) == 2, 100)
    job.wait_for(lambda: job.done() > 0, 100)
    yield job
    assert job.finish(300) == 0, namespace.report()
    namespace.check()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_half_of_the_workers_are_preempted_and_return(
    namespace: Namespace, submit: Callable[..., Job]
) -> None:
    """Pods of a higher priority take two of three nodes, and give them back."""
    flags = [*FLAGS, "--worker-resources", "cpu=5", "--state-claim", STATE]
    flags[flags.index("--workers") + 1] = "1:3"
    job = submit(RECORDS, *flags, delay_s=DELAY_S)
    job.wait_for(lambda: len(namespace.running(JOB, "worker")) == 3, 100)
    job.wait_for(lambda: job.done() > 0, 100)
    namespace.add_priority("high", 1000)
    began = time.monotonic()
    for name in ("first", "second"):
        namespace.sleep(name, cpu="5", priority="high")
    job.wait_for(lambda: len(namespace.running(JOB, "worker")) == 1, 100)
    gone = time.monotonic() - began
    job.wait_for(lambda: "wait: no node has room" in job.said(), 100)
    job.trains_on()
    began = time.monotonic()
    for name in ("first", "second"):
        namespace.kill(name)
    job.wait_for(lambda: len(namespace.running(JOB, "worker")) == 3, 100)
    figure("two of three workers preempted", gone_s=gone, back_s=time.monotonic() - began)
    assert job.finish(300) == 0, namespace.report()
    assert "error" not in job.said()
    namespace.check()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_node_is_lost_with_what_ran_on_it(
    orders: Cluster, namespace: Namespace, running: Job
) -> None:
    """A server is among it: its journal is on the volume."""
    [server] = [p for p in namespace.pods(JOB, "ps") if p.metadata.name.startswith(f"{JOB}-ps-0")]
    node = server.spec.node_name
    lost = {p.metadata.name for p in namespace.pods(JOB) if p.spec.node_name == node}
    began = time.monotonic()
    orders.control("lose-node", name=node)
    running.wait_for(
        lambda: (
            len(namespace.elsewhere(JOB, "worker", node)) == 2
            and len(namespace.elsewhere(JOB, "ps", node)) == 2
            and len(namespace.elsewhere(JOB, "master", node)) == 1
        ),
        200,
    )
    figure("node lost", pods=len(lost), replaced_s=time.monotonic() - began)
    running.trains_on()
    orders.control("return-node", name=node)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_hundred_workers_are_asked_for_and_a_few_fit(
    orders: Cluster, namespace: Namespace, submit: Callable[..., Job]
) -> None:
    """The calls to the API server are as many as the pods, and do not grow with time."""
    before = orders.control("calls")
    job = submit(
        4000, "--workers", "1:200", "--ps", "1", "--batch-size", "20", "--worker-resources",
        "cpu=5", "--spares", "0", delay_s=0.05,
    )  # fmt: skip
    job.wait_for(lambda: len(namespace.pods(JOB, "worker")) == 200, 200)
    asked_s = time.monotonic() - job.began
    job.wait_for(lambda: len(namespace.running(JOB, "worker")) == 3, 200)

    def calls() -> dict[str, int]:
        account = f"system:serviceaccount:{namespace.name}:{JOB}-master "
        now = orders.control("calls")
        return {
            key.removeprefix(account): count - before.get(key, 0)
            for key, count in now.items()
            if key.startswith(account)
        }

    made = calls()
    assert made == {"create pods": 201, "list pods": 1, "watch pods": 1}
    job.trains_on()
    assert calls() == made
    assert job.finish(600) == 0, namespace.report()
    ended = calls()
    figure("200 workers", asked_s=asked_s, **{k.replace(" ", "_"): v for k, v in ended.items()})
    assert ended["delete pods"] <= 202
    assert ended["create pods"] <= 204  # those that ended before the last pods were deleted
    namespace.check()


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
@pytest.mark.timeout(600)
@pytest.mark.parametrize("role", ["master", "ps"])
def test_a_pod_is_deleted_at_once(namespace: Namespace, running: Job, role: str) -> None:
    victim = namespace.running(JOB, role)[0]
    namespace.kill(victim)
    running.wait_for(
        lambda: namespace.running(JOB, role) and victim not in namespace.running(JOB, role), 100
    )
    running.trains_on()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("running", [3 * RECORDS], indirect=True)
def test_the_watch_breaks_and_its_revision_is_forgotten(
    orders: Cluster, namespace: Namespace, running: Job
) -> None:
    orders.control("watches", refused=True, drop=True)
    victim = namespace.running(JOB, "worker")[0]
    namespace.kill(victim)
    orders.control("compact")
    broken = time.monotonic()
    running.trains_on()
    running.wait_for(lambda: time.monotonic() - broken >= _BROKEN_S, 2 * _BROKEN_S)
    running.trains_on()
    orders.control("watches", refused=False)
    healed = time.monotonic()
    running.wait_for(
        lambda: (
            len(namespace.running(JOB, "worker")) == 2
            and victim not in namespace.running(JOB, "worker")
        ),
        100,
    )
    figure("watch broken", s=healed - broken, whole_again_s=time.monotonic() - healed)


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
