"""The master process, from its start to its end."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from master.__main__ import Machine, keeps_address
from master.runtime.store import SqliteStore
from tests.unit.master.runtime.master_process import TOKEN, Master, alive, every_record, kept
from tests.waiting import HANG_S, wait_for
from torch_edl.checkpoint.claim import Claim, run_id
from torch_edl.interfaces.platform import Host
from torch_edl.launch.jobs.folder import MasterAddress
from torch_edl.plugins.kubernetes.master.host import ClusterHost
from torch_edl.plugins.kubernetes.objects.job import ENV_JOB_UID
from torch_edl.wire import master_pb2 as pb


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Master]]:
    made: list[Master] = []

    def make(plan: dict[str, object] | None = None, **config) -> Master:
        made.append(Master(tmp_path, plan=plan or {}, **config))
        return made[-1]

    yield make
    for master in made:
        master.close()


@pytest.mark.parametrize(
    ("host", "earlier", "keeps"),
    [
        (Machine(""), "127.0.0.1:4000", True),
        (Machine(""), "127.0.0.1:4001", False),
        (Machine(""), None, False),
        (ClusterHost({ENV_JOB_UID: "u"}), "127.0.0.1:4000", False),
    ],
    ids=["same", "another port", "unknown", "cluster"],
)
def test_processes_find_a_restarted_master_where_they_know_it(
    host: Host, earlier: str | None, keeps: bool
) -> None:
    """The next master of a cluster listens at the same port, also on another machine."""
    known = earlier and MasterAddress(address="", pid=1, started=1, token=TOKEN, listen=earlier)
    assert keeps_address(host, known or None, "127.0.0.1:4000") is keeps


def test_a_whole_job(start):
    master = start(data={"epochs": 2})
    path = master.folder / "master.json"
    wait_for(path.exists, "master.json")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert master.end("finished") == "exit code 0"
    assert master.records() == every_record(epochs=2)
    s = master.status
    assert (s.job, s.strategy, s.epoch, s.epochs) == ("j", "ps", 2, 2)
    assert (s.records.done, s.records.total, s.steps) == (64, 64, 34)
    assert (s.tasks.todo, s.tasks.doing, s.tasks.done) == (0, 0, 16)
    assert s.rates["mean_records_per_s"] > 0
    assert sorted((p.role, p.id) for p in s.processes) == [
        ("master", 0),
        ("ps", 0),
        ("ps", 1),
        ("worker", 0),
        ("worker", 1),
    ]
    assert all(p.exit for p in master.children())
    (trained, *_) = (p for p in master.children() if p.exit == "exit code 0")
    assert f"worker {trained.id} with" in Path(trained.log).read_text()


@pytest.mark.parametrize("fails", [False, True])
def test_the_journals_of_a_run_stay_where_it_fails(start, tmp_path, fails):
    journals = tmp_path / "jobs" / "j" / "journal"
    (journals / run_id("j", TOKEN)).mkdir(parents=True)
    (journals / "of-another-run").mkdir()
    master = start({"*": {"fail_task": 3}} if fails else {})
    assert master.end("failed" if fails else "finished") == f"exit code {int(fails)}"
    if fails:
        error = "ValueError: task 3; the task was tried 3 times"
        assert (master.status.error, master.status.traceback) == (error, "Traceback: in feed")
    left = {run_id("j", TOKEN), "of-another-run"} if fails else {"of-another-run"}
    assert {folder.name for folder in journals.iterdir()} == left
    assert ("journals of this job stay in" in master.log()) is fails


def test_data_that_is_not_there(start):
    master = start(data={"train": ("/nowhere/*.csv",)})
    assert master.end("failed") == "exit code 2"
    assert "/nowhere/*.csv" in master.status.error


@pytest.mark.parametrize("how", ["SIGTERM", "Stop"])
def test_stopping_ends_everything(start, how):
    master = start({"*": {"wait_at": 1}})
    master.until(lambda s: s.tasks.done >= 2, "some tasks")
    if how == "Stop":
        master.stub().call(pb.StopRequest(reason="enough"), timeout_s=HANG_S)
    else:
        os.kill(master.pid, signal.SIGTERM)
    assert master.end("stopped") == "exit code 143"
    assert {p.exit for p in master.children()} == {"stopped"}


def test_a_master_that_is_killed_goes_on_with_the_same_processes(start):
    local = {"max_workers": 1}
    master = start({"*": {"wait_at": 2}}, train={"strategy": "local"}, cluster=local)
    done = 2
    master.until(lambda s: s.tasks.done == done, "tasks")
    wait_for((master.folder / "status.json").exists, "the first state")
    wait_for(lambda: kept(master)["tasks"]["done"] == done, "the state with these tasks")
    before = {(p.role, p.id): p.pid for p in master.children()}
    address = master.status.processes[0].address
    for number in (1, 2):
        kill(master)
        restart(master, number)
        assert restarts(master) == number, "before it leases: its leases are numbered by that"
        master.until(lambda s: s.state == "running", "its status")
        wait_for(lambda n=number: restarts_noted(master) == n, "its event")
    assert {(p.role, p.id): p.pid for p in master.children()} == before
    assert where(master)["address"] == address
    assert all(alive(pid) for pid in before.values())
    (master.home / "go").touch()
    assert master.end("finished") == "exit code 0"
    assert master.records() == every_record()
    assert {(p.role, p.id): p.pid for p in master.children()} == before
    assert {p.exit for p in master.children()} <= {"stopped", "exit code 0"}, "the node knows"
    numbers = [json.loads(line)["sequence"] for line in events(master)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert restarts_noted(master) == 2


def test_a_worker_that_died_while_there_was_no_master_is_replaced(start):
    master = start({"0": {"wait_at": 1}, "1": {"wait_at": 1}})
    master.until(lambda s: len(master.running("worker")) == 2, "workers")
    wait_for((master.folder / "status.json").exists, "the first state")
    wait_for(lambda: kept(master)["tasks"]["done"] == 2, "the state with these tasks")
    kill(master)
    os.kill(master.running("worker")[0].pid, signal.SIGKILL)
    (master.home / "go").touch()
    restart(master, 1)
    assert master.end("finished") == "exit code 0"
    assert [p.id for p in master.children() if p.role == "worker"][:3] == [0, 1, 2]


def kill(master: Master) -> None:
    os.kill(master.pid, signal.SIGKILL)
    assert master.exited() == "signal 9"


def restart(master: Master, number: int) -> None:
    before = master.pid
    master.start(id=number)
    wait_for(lambda: where(master)["pid"] != before, "the next master")
    master.pid = where(master)["pid"]


def restarts(master: Master) -> int:
    """Return the number from the store, which the next master reads."""
    store = SqliteStore(master.folder / "state.sqlite")
    state = store.get("state")
    store.close()
    assert state is not None
    return int(json.loads(state.value)["job"]["restarts"])


def where(master: Master) -> dict[str, object]:
    return json.loads((master.folder / "master.json").read_text())


def events(master: Master) -> list[str]:
    return (master.folder / "events.jsonl").read_text().splitlines()


def restarts_noted(master: Master) -> int:
    return sum("the master was restarted" in line for line in events(master))


def test_local_checkpoints_survive_the_death_of_the_worker_and_a_resume(start, tmp_path):
    local = {"max_workers": 1}
    keep = {"dir": str(tmp_path / "ck"), "every": 4}
    master = start(
        {"0": {"wait_at": 5}, "*": {"wait_at": 2}},
        train={"strategy": "auto"},
        cluster=local,
        checkpoint=keep,
    )
    master.until(lambda s: len(s.checkpoint) > 0, "a checkpoint")
    [worker] = master.running("worker")
    os.kill(worker.pid, signal.SIGKILL)
    master.until(lambda s: [p.id for p in master.running("worker")] == [1], "another worker")
    wait_for(lambda: "from '" in master.log("worker-1"), "its start")
    assert f"strategy local, from '{tmp_path}/ck/step-" in master.log("worker-1")
    os.kill(master.pid, signal.SIGTERM)
    assert master.end("stopped") == "exit code 143"
    master.close()
    (master.folder / "master.json").unlink()
    rest = start({}, train={"strategy": "auto"}, cluster=local, checkpoint=keep | {"resume": True})
    assert rest.end("finished") == "exit code 0"
    assert any("training continues from" in event.text for event in rest.status.events)
    assert rest.status.checkpoint.endswith("step-0000000017")
    assert (rest.status.records.done, rest.status.steps) == (32, 17)
    assert not list((tmp_path / "ck").glob(".snapshot-*"))


def test_a_directory_of_a_running_job_or_with_checkpoints_of_another_run_is_refused(
    start, tmp_path
):
    options = {
        "train": {"strategy": "local"},
        "cluster": {"max_workers": 1},
        "checkpoint": {"dir": str(tmp_path / "ck")},
    }
    other = Claim(tmp_path / "ck", job="other", run="another run")
    early = start(**options)
    assert early.left() == "exit code 2"
    assert "belongs to the job other" in early.log()
    assert not list(early.folder.glob("logs/worker-*")), "before anything is started"
    lock = SqliteStore(early.folder / "state.sqlite").get("lock")
    assert lock is not None
    assert lock.value == b"", "the lock is given back"
    early.close()
    other.release()
    first = start(**options)
    assert first.end("finished") == "exit code 0"
    first.close()
    second = start(**options)
    assert second.left() == "exit code 2"
    assert "add --resume" in second.log()


def test_it_starts_without_torch_and_without_what_it_does_not_need():
    source = (
        "import sys, master.__main__;"
        "print({'torch', 'tensorflow', 'pyarrow', 'pandas'} & set(sys.modules))"
    )
    found = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "set()"
