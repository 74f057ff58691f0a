from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.terminal import Terminal
from torch_edl.checkpoint.durable import write_text
from torch_edl.cli.__main__ import main
from torch_edl.config import JobConfig, TrainConfig
from torch_edl.launch.jobs.folder import JobFolder, MasterAddress
from torch_edl.launch.jobs.status import as_dict
from torch_edl.plugins.kubernetes.config import KubernetesConfig
from torch_edl.processes.process_group import start_time
from torch_edl.wire import master_pb2 as pb

Make = Callable[..., pb.GetStatusResponse]
Serve = Callable[[pb.GetStatusResponse], int]

# A process with the name of the job among its words, which answers as a master does.
_MASTER = """
import json, sys
from torch_edl.wire import master_pb2 as pb, services
from torch_edl.wire.server import serve
status = pb.GetStatusResponse.FromString(bytes.fromhex(sys.argv[3]))
handlers = dict.fromkeys(services.methods(services.MASTER), lambda request, context: None)
handlers["GetStatus"] = lambda request, context: status
handlers["Scale"] = lambda request, context: pb.ScaleResponse(
    text=f"{request.min_workers} to {request.max_workers} workers")
def stop(request, context):
    print("stop", flush=True)
    return pb.StopResponse()
handlers["Stop"] = stop
server, port = serve(services.MASTER, handlers, address="127.0.0.1:0", token="t", threads=2)
print(port, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def job(home: Path) -> JobFolder:
    """A job whose client and master are gone, and that nobody saw end."""
    job = JobFolder("net-abc")
    job.dir.mkdir(parents=True)
    job.config_file.write_text("{}")
    return job


@pytest.fixture
def master(
    job: JobFolder,
) -> Iterator[Callable[[pb.GetStatusResponse], subprocess.Popen[str]]]:
    """Starts a process that answers for the job."""
    started: list[subprocess.Popen[str]] = []

    def start(status: pb.GetStatusResponse) -> subprocess.Popen[str]:
        words = [sys.executable, "-c", _MASTER, "--job", job.name]
        words.append(status.SerializeToString().hex())
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        address = f"127.0.0.1:{int(process.stdout.readline())}"
        began = start_time(process.pid)
        job.note_master(MasterAddress(address=address, pid=process.pid, token="t", started=began))
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_status_of_a_running_job(
    job: JobFolder,
    master: Callable[..., object],
    make_status: Make,
    capsys: pytest.CaptureFixture[str],
) -> None:
    master(make_status())
    assert main(["status", "--json"]) == 0
    got = json.loads(capsys.readouterr().out)
    assert got == as_dict(make_status())
    for key in ("job", "strategy", "state", "epoch"):
        assert got[key] == getattr(make_status(), key)
    assert got["records"] == {"done": 12_345, "total": 30_000, "begun": 0}
    assert got["tasks"] == {"todo": 8, "doing": 2, "done": 7}
    assert got["processes"][1].items() >= {
        "role": "ps", "id": 0, "pid": 11, "state": "running", "address": "h:2"
    }.items()  # fmt: skip
    assert main(["status", job.name]) == 0
    text = capsys.readouterr().out
    for part in ("net-abc  running", "12,345 of 30,000", "worker-0", "exited (signal 9)", "2 of 3"):
        assert part in text


def test_a_row_of_each_process_that_matters(
    job: JobFolder, make_status: Make, capsys: pytest.CaptureFixture[str],
    master: Callable[..., object], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.delenv("COLUMNS", raising=False)
    dead = [
        pb.ProcessStatus(role="worker", id=id, pid=99, state="exited", exit="signal 9" + 70 * "!")
        for id in range(20)
    ]
    living = [pb.ProcessStatus(role="worker", id=20, pid=7, state="running", address="h:20")]
    master(make_status(processes=[*dead, *living], strategy="allreduce"))
    assert main(["status"]) == 0
    text = capsys.readouterr().out
    rows = [line.split()[0] for line in text.splitlines() if "  worker-" in line]
    assert rows == ["worker-17", "worker-18", "worker-19", "worker-20"]
    assert "17 more ended earlier; --all lists them" in text
    assert f"exited (signal 9{70 * '!'})" in text  # in one row
    assert "8 to do, 7 done" in text
    assert main(["status", "--all"]) == 0
    assert capsys.readouterr().out.count("  worker-") == 21
    assert main(["status", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["processes"]) == 21


def test_who_stopped_a_job_is_no_error(
    job: JobFolder, make_status: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped = as_dict(make_status(state="stopped", error="torch-edl stop"))
    write_text(job.status_file, json.dumps(stopped))
    assert main(["status"]) == 0
    text = capsys.readouterr().out
    assert "stopped by  torch-edl stop" in text
    assert "error" not in text


def test_json_has_no_nan(make_status: Make) -> None:
    status = make_status(loss=float("nan"), rates={"records_per_s": float("inf")})
    status.evaluations.add(steps=1, metrics={"auc": float("nan")})
    text = json.dumps(as_dict(status))
    assert "NaN" not in text
    assert "Infinity" not in text


@pytest.mark.parametrize(
    ("seen", "state"),
    [(None, "dead"), ("running", "dead"), ("finished", "finished"), ("failed", "failed")],
)
def test_status_of_a_job_whose_master_is_gone(
    job: JobFolder,
    make_status: Make,
    capsys: pytest.CaptureFixture[str],
    seen: str | None,
    state: str,
) -> None:
    job.note_master(MasterAddress(address="127.0.0.1:1", pid=1, token="t", started=0))
    if seen:
        text = json.dumps(as_dict(make_status(state=seen)))
        write_text(job.status_file, text)
    assert main(["status", "net-abc", "--json"]) == 0
    got = json.loads(capsys.readouterr().out)
    assert got["state"] == state
    assert all(p["state"] == "exited" for p in got["processes"])
    assert {"strategy", "epoch", "records", "tasks", "rates"} <= got.keys()
    assert main(["status"]) == 0
    assert f"net-abc  {state}" in capsys.readouterr().out


def test_a_job_whose_client_lives_is_starting(
    job: JobFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    code = (
        "from torch_edl.launch.jobs.folder import JobFolder, MasterAddress\n"
        f"with JobFolder({job.name!r}).hold():\n    print(1, flush=True)\n    input()"
    )
    client = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert client.stdout is not None
        assert client.stdout.readline() == "1\n"
        assert job.is_watched()
        assert main(["status", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["state"] == "starting"
    finally:
        client.kill()
        client.communicate()
    assert not job.is_watched()


def test_scale_and_stop_reach_the_master(
    job: JobFolder, master: Callable[..., subprocess.Popen[str]], make_status: Make,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    process = master(make_status())
    assert main(["scale", job.name, "--workers", "2:8"]) == 0
    assert capsys.readouterr().out == "2 to 8 workers\n"
    assert main(["scale", job.name, "--workers", "8:2"]) == 2
    assert "write 2:8" in capsys.readouterr().err
    monkeypatch.setattr("torch_edl.cli.jobs._PATIENCE_S", 0.3)
    assert main(["stop", job.name]) == 1  # this master hears it, and stays
    assert process.stdout is not None
    assert process.stdout.readline() == "stop\n"
    assert "still there after" in capsys.readouterr().err


def test_servers_that_cannot_be_scaled_are_refused_before_the_master_is_asked(
    job: JobFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    """No master answers here: what the client knows comes first."""
    pods = KubernetesConfig(image="edl")
    config = JobConfig(
        name=job.name, model_file="/m.py", platform="kubernetes", platform_config=pods,
        train=TrainConfig(strategy="ps"),
    )  # fmt: skip
    job.config_file.write_text(config.to_json())
    assert main(["scale", job.name, "--ps", "3"]) == 2
    said = capsys.readouterr().err
    assert "--ps 3: the model moves through files, and the pods of this job have no folder" in said
    assert "start the job with --checkpoint-dir on a --volume" in said


@pytest.mark.parametrize("option", ["--ps", "--workers"])
@pytest.mark.parametrize("number", ["0", "99999999999"])
def test_a_number_of_processes_that_no_job_has_is_refused(
    job: JobFolder, capsys: pytest.CaptureFixture[str], option: str, number: str
) -> None:
    job.config_file.write_text(JobConfig(name=job.name, model_file="/m.py").to_json())
    assert main(["scale", job.name, option, number]) == 2
    assert capsys.readouterr().err.startswith(f"error: {option} {number}")


@pytest.mark.parametrize("words", [["stop"], ["scale", "--workers", "2"]])
def test_jobs_that_are_over_cannot_be_asked(
    job: JobFolder, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert main([*words, job.name]) == 2
    assert "net-abc: no longer runs, it is dead" in capsys.readouterr().err
    assert main([*words, "other"]) == 2
    assert "other: no such job; the newest is net-abc" in capsys.readouterr().err


# The alternate screen, and the cursor.
_ENTER, _LEAVE, _SHOW = "\x1b[?1049h", "\x1b[?1049l", "\x1b[?25h"
_WATCH = [sys.executable, "-m", "torch_edl", "status", "--watch"]


def watched(text: str) -> tuple[str, str]:
    """What was drawn while the view lasted, and what is left on the terminal after it."""
    before, _, rest = text.partition(_ENTER)
    drawn, _, left = rest.partition(_LEAVE)
    assert before == ""
    assert drawn.rstrip().endswith(_SHOW)
    return drawn, left


def test_ctrl_c_ends_a_watched_status_and_leaves_the_terminal_as_it_was(
    job: JobFolder, master: Callable[..., subprocess.Popen[str]], make_status: Make
) -> None:
    process = master(make_status())
    with Terminal(_WATCH) as terminal:
        terminal.read_until("leaves the job alone", times=2)
        terminal.type("\x03")
        assert terminal.finish() == 0
    drawn, left = watched(terminal.text)
    assert drawn.count("12,345 of 30,000") >= 2
    assert left.count("12,345 of 30,000") == 1  # the last one stays
    assert "Ctrl-C" not in left
    assert process.poll() is None


def test_a_watched_status_ends_with_its_job(
    job: JobFolder, master: Callable[..., subprocess.Popen[str]], make_status: Make
) -> None:
    process = master(make_status())
    with Terminal(_WATCH) as terminal:
        terminal.read_until("leaves the job alone")
        process.kill()
        process.wait()
        assert terminal.finish() == 0
    assert "dead" in watched(terminal.text)[1]


def test_a_status_is_watched_on_a_terminal_only(
    job: JobFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", "--watch"]) == 2
    assert "--watch: stdout is no terminal" in capsys.readouterr().err
    assert main(["status", "--watch", "--json"]) == 2
    assert "leave one out" in capsys.readouterr().err
