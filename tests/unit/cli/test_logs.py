from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from master.runtime.job_files import EventFile
from tests.schemas import require_valid
from tests.terminal import Terminal
from torch_edl.checkpoint.durable import write_text
from torch_edl.cli import jobs
from torch_edl.cli.__main__ import main
from torch_edl.config import JobConfig
from torch_edl.events import JobFailed, RingFormed
from torch_edl.launch.jobs import folder
from torch_edl.launch.jobs.folder import JobFolder
from torch_edl.launch.jobs.status import as_dict
from torch_edl.wire import master_pb2 as pb
from torch_edl.wire.event_messages import to_message

Make = Callable[..., pb.GetStatusResponse]
Text = pytest.CaptureFixture[str]


def make_job(name: str, *, state: str = "finished", days_old: float = 0.0) -> JobFolder:
    job = JobFolder(name)
    job.logs.mkdir(parents=True)
    write_text(job.config_file, "{}")
    write_text(job.status_file, json.dumps({"state": state}))
    age(job, days_old)
    return job


def age(job: JobFolder, days: float) -> None:
    for file in (job.config_file, job.status_file):
        then = time.time() - days * 86400
        os.utime(file, (then, then))


@pytest.fixture
def job(home: Path, tmp_path: Path, make_status: Make) -> JobFolder:
    """A failed job: two logs, one of which lies elsewhere, and two events."""
    job = make_job("net-abc")
    logs = job.logs
    (logs / "master-0.log").write_text("up\n")
    elsewhere = tmp_path / "rank0.log"
    elsewhere.write_text("one\ntwo\nthree\n")
    status = make_status(state="failed", error="net.py: no")
    status.processes[2].log = str(elsewhere)
    text = json.dumps(as_dict(status))
    write_text(job.status_file, text)
    EventFile(job.events_file).write(
        [
            to_message(RingFormed(ring=1, workers=2), 1, 1.0),
            to_message(JobFailed(error="no", traceback="Traceback\n  x\n"), 2, 2.0),
        ]
    )
    return job


def test_all_logs_of_the_newest_job_the_events_last(job: JobFolder, capsys: Text) -> None:
    assert main(["logs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:4] == ["master-0 | up", "worker-0 | one", "worker-0 | two", "worker-0 | three"]
    assert lines[4].startswith("events | ")
    assert lines[4].endswith(" ring 1: 2 workers")
    assert lines[5].endswith(" error: no")
    assert lines[6:] == ["events | Traceback", "events |   x"]


def test_a_prefix_is_made_once_for_all_lines_of_a_process(
    job: JobFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made for each line, it takes most of the time of a long log."""
    made: list[str] = []
    monkeypatch.setattr(jobs, "_prefix", lambda name: made.append(name) or name)
    assert main(["logs"]) == 0
    assert made == ["master-0", "worker-0", "events"]


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        ("--role worker --id 0", ["one", "two", "three"]),
        ("--role worker --id 0 --tail 2", ["two", "three"]),
        (f"--role worker --id 0 --tail {10**30}", ["one", "two", "three"]),
        ("--role master", ["master-0 | up"]),
        ("--tail 1 --role worker", ["worker-0 | three"]),
    ],
)
def test_one_log_has_no_names_in_front(
    job: JobFolder, capsys: Text, words: str, lines: list[str]
) -> None:
    assert main(["logs", job.name, *words.split()]) == 0
    assert capsys.readouterr().out.splitlines() == lines


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("--role ps", "no log of ps on this machine; there is master-0, worker-0, events"),
        ("--role worker --id 7", "no log of worker-7 on"),
        ("--id 7", "add --role"),
        ("--role x", "--role: invalid choice"),
        ("--tail -1", "--tail -1: must be 0 or more"),
    ],
)
def test_a_log_that_is_not_there(job: JobFolder, capsys: Text, words: str, error: str) -> None:
    assert main(["logs", job.name, *words.split()]) == 2
    assert error in capsys.readouterr().err


def test_follow_ends_with_the_job(home: Path) -> None:
    """Lines come as they are whole, those of new processes too, and the end of the job ends it."""
    job = make_job("net-abc", state="running")
    log = job.logs / "worker-0.log"
    with job.hold() as held, open(log, "a", buffering=1) as file:
        file.write("old\nfirst\n")
        words = [sys.executable, "-m", "torch_edl", "logs", "--follow", "--tail", "1"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "worker-0 | first\n"
            file.write("sec")
            file.write("ond\n")
            assert process.stdout.readline() == "worker-0 | second\n"
            (job.logs / "worker-1.log").write_text("here\n")
            assert process.stdout.readline() == "worker-1 | here\n"
            file.write("unfinished")
            file.flush()
            status = json.dumps({"state": "finished"})
            write_text(job.status_file, status)
            held.close()
            assert process.stdout.read() == "worker-0 | unfinished\n"
        assert process.returncode == 0


def test_status_names_the_logs_and_tells_the_traceback(job: JobFolder, capsys: Text) -> None:
    assert main(["status"]) == 0
    text = capsys.readouterr().out
    assert f"logs        {job.dir}/logs\n" in text
    assert main(["status", "--json"]) == 0
    assert "traceback" in json.loads(capsys.readouterr().out)


def test_list_has_every_job_newest_first(
    home: Path, capsys: Text, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["list"]) == 0
    assert "no jobs on this machine" in capsys.readouterr().out
    make_job("old", days_old=1)
    new = make_job("new", state="failed")
    status = {"state": "failed", "error": "the loss is not finite\nat step 3", "wall_s": 3723.0}
    new.status_file.write_text(json.dumps(status))
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["list"]) == 0
    text = capsys.readouterr().out
    assert text.index("new") < text.index("old")
    assert "  new failed: the loss is not finite\n" in text
    assert max(map(len, text.splitlines())) <= 80
    assert "1:02:03" in text
    assert main(["list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    require_valid("list", found)
    assert [(r["job"], r["state"]) for r in found] == [("new", "failed"), ("old", "finished")]
    assert found[0]["started"] - found[1]["started"] == pytest.approx(86400, abs=60)


def names() -> set[str]:
    return {job.name for job in folder.all_jobs()}


def test_clean_removes_what_is_over(home: Path, capsys: Text) -> None:
    for days in range(4):
        make_job(f"d{days}", days_old=days)
    running = make_job("running", state="running", days_old=9)
    make_job("starting", state="starting")  # its client has not got any further yet
    with running.hold():
        assert main(["clean", "--days", "2", "--dry-run"]) == 0
        assert "would be removed" in capsys.readouterr().out
        assert len(names()) == 6
        assert main(["clean", "--days", "2"]) == 0
        assert names() == {"d0", "d1", "running", "starting"}
        assert main(["clean", "--keep", "2"]) == 0  # the newest are d0 and the one that starts
        assert names() == {"d0", "running", "starting"}
        assert main(["clean", "running", "d0"]) == 2
        assert "end it with torch-edl stop running" in capsys.readouterr().err
        assert main(["clean", "d0"]) == 0
        assert names() == {"running", "starting"}
    assert main(["clean"]) == 2  # no terminal to ask at
    assert "add --days N or --keep N" in capsys.readouterr().err
    assert names() == {"running", "starting"}
    assert main(["clean", "--days", "0"]) == 0
    assert names() == {"starting"}
    assert main(["clean"]) == 0  # nothing to ask
    assert main(["clean", "starting", "--keep", "1"]) == 2
    assert main(["clean", "--keep", "-1"]) == 2


@pytest.mark.parametrize(("answer", "left"), [("y\n", set()), ("\n", {"one", "two"})])
def test_clean_asks_before_it_removes_all_jobs(home: Path, answer: str, left: set[str]) -> None:
    make_job("one")
    make_job("two")
    with Terminal([sys.executable, "-m", "torch_edl.cli", "clean"]) as terminal:
        terminal.read_until("of 2 jobs that have ended? [y/N]")
        terminal.type(answer)
        assert terminal.finish() == bool(left)
    assert names() == left


def test_a_new_job_removes_what_is_old_and_what_is_too_many(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "KEEP_JOBS", 4)
    make_job("old", days_old=31)
    folder.create(JobConfig(name="first", model_file="/net.py"))
    assert names() == {"first"}
    for days in range(5):
        make_job(f"d{days}", days_old=days)
    folder.create(JobConfig(name="new", model_file="/net.py"))
    assert names() == {"new", "first", "d0", "d1", "d2"}
