"""``torch-edl audit`` after jobs of each kind that were hurt, and on folders that were changed."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from master.state.work.ledger import line_of
from tests.faults.conftest import KEEP, MODEL, TASKS, Job, ModelJob
from tests.faults.ring_jobs import RingJob
from tests.faults.test_audit import audit
from tests.faults.test_continue import go_down, torch_edl
from tests.faults.test_ring_of_a_model_file import MODEL as RING_MODEL
from tests.faults.test_streams import MODEL as STREAM_MODEL
from tests.faults.test_streams import STREAM, Producer
from tests.kafka_server import Kafka
from tests.place import EDL
from torch_edl.checkpoint import layout

HERE = Path(__file__).parent
TRAINER = """
import sys
import torch, torch_edl
from torch import nn
from torch.utils.data import TensorDataset

torch.manual_seed(0)
numbers = torch.randn(640, 4)
data = TensorDataset(numbers, numbers.sum(1, keepdim=True))
model = nn.Linear(4, 1)
trainer = torch_edl.ElasticTrainer(model, nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1))
if "early" in sys.argv:
    class Stop:
        def on_epoch_end(self, epoch, figures):
            trainer.stop()
    trainer.callbacks.append(Stop())
trainer.fit(data, batch_size=8, epochs=3, eval_dataset=data, verbose=False)
trainer.evaluate(data, batch_size=8)
"""


def holds(job: Job) -> dict[str, Any]:
    code, report = audit(job)
    assert (code, report["verdict"]) == (0, "holds"), report
    return report


def change(job: Job, edit: Callable[[list[Any]], list[Any]]) -> None:
    """Edit the entries of the ledger, with a chain of hashes that is right again."""
    file, before, found = job.folder / "tasks.jsonl", "", []
    for number, text in enumerate(file.read_text().splitlines(), 1):
        line = json.loads(text)
        entries = [each for entry in line["entries"] for each in edit(entry)]
        text, before = line_of(number, line["time"], entries, before)
        found.append(f"{text}\n")
    file.write_text("".join(found))


def require_found(job: Job, kind: str, edit: Callable[[list[Any]], list[Any]], text: str) -> None:
    """Edit entries of a kind; the audit must find it, and hold again without the change."""
    file = job.folder / "tasks.jsonl"
    whole = file.read_text()
    change(job, lambda entry: edit(entry) if entry[0] == kind else [entry])
    code, report = audit(job)
    assert code == 1
    assert text in " ".join(report["problems"] + report["unproven"]), report
    file.write_text(whole)


def require_lines_matter(job: Job) -> None:
    """Each line is missed, and a line that is there twice."""
    file = job.folder / "tasks.jsonl"
    whole = file.read_text()
    lines = whole.splitlines(keepends=True)
    for at in {0, len(lines) // 2, len(lines) - 1}:
        for changed in (lines[:at] + lines[at + 1 :], lines[: at + 1] + lines[at:]):
            file.write_text("".join(changed))
            code, report = audit(job)
            assert (code, report["verdict"]) == (1, "wrong"), (at, report)
    file.write_text(whole)


def move_mark(job: ModelJob, folder: Path) -> None:
    """Takes the last record of a task out of the newest checkpoint; the audit must find it."""
    file = layout.complete(folder)[-1] / layout.MANIFEST
    whole = file.read_text()
    manifest = json.loads(whole)
    manifest["retired_before"] -= 1
    file.write_text(json.dumps(manifest))
    code, report = audit(job)
    assert (code, report["verdict"]) == (1, "wrong"), report
    assert str(file) in report["problems"][0]
    file.write_text(whole)


def twice(entry: list[Any]) -> list[Any]:
    return [entry, entry]


def nothing(entry: list[Any]) -> list[Any]:
    return []


# ---- servers, local, streams ----


@pytest.mark.slow
def test_a_job_that_is_continued_after_all_its_processes_died(
    start_job: Callable[..., ModelJob], tmp_path: Path
) -> None:
    flags = ["--workers", "2", "--ps", "2", *TASKS, "--durability", "journal", *KEEP]
    job = start_job(1000, *flags, delay_s=0.05)
    job.wait_for(lambda: job.done() > 300 and job.status().checkpoint)
    go_down(job)
    code, report = audit(job)
    assert (code, report["verdict"]) == (0, "incomplete"), report
    assert report["text"].startswith("not running")
    job.go_on()
    assert torch_edl(job, "continue", job.name).returncode == 0
    job.check_counts()
    report = holds(job)
    assert report["epochs"][0]["records_done"] == 1000
    assert {"worker-0", "worker-1"} <= report["epochs"][0]["workers"].keys()
    require_lines_matter(job)
    require_found(job, "done", twice, "is done twice")
    move_mark(job, tmp_path / "checkpoints")


@pytest.mark.slow
def test_the_strategy_local(start_job: Callable[..., ModelJob], tmp_path: Path) -> None:
    flags = ["--strategy", "local", *TASKS, *KEEP, "--no-shuffle"]
    job = start_job(1000, *flags, delay_s=0.05)
    job.wait_for(lambda: job.done() > 300 and job.status().checkpoint)
    job.kill("worker")
    job.wait_for(lambda: job.done() > 500)
    job.kill_master()
    job.check()
    report = holds(job)
    assert report["restores"] == 1
    assert report["epochs"][0]["done"] == report["epochs"][0]["tasks"]
    require_found(job, "done", nothing, "records are not done")
    move_mark(job, tmp_path / "checkpoints")


@pytest.mark.slow
def test_a_stream(start_job: Callable[..., ModelJob]) -> None:
    kafka = Kafka("numbers:3")
    try:
        producer = Producer(kafka)
        producer.up_to(400)
        flags = [*STREAM, *KEEP, "--ps", "2", "--max-records", "1000"]
        url = kafka.url("numbers")
        job = start_job(1000, *flags, delay_s=0.05, data=url, model=STREAM_MODEL)
        for done, role in ((100, "worker"), (200, "master"), (300, "ps")):
            job.wait_for(lambda done=done: job.done() > done and job.status().checkpoint)
            job.kill(role)
        producer.up_to(1000)
        job.check()
    finally:
        kafka.stop()
    report = holds(job)
    assert report["epochs"][0]["records_done"] == 1000
    assert sum(task["end"] - task["start"] for task in report["tasks"]) == 1000
    require_lines_matter(job)
    require_found(job, "cut", lambda cut: [[*cut[:2], cut[2][:-1]]], "its records are not recorded")
    moved = lambda cut: [[*cut[:2], [[id, start, end + 1] for id, start, end in cut[2]]]]  # noqa: E731
    require_found(job, "cut", moved, "which are both done")


@pytest.mark.slow
def test_evaluations_of_epochs_and_of_a_model(
    start_job: Callable[..., ModelJob], tmp_path: Path
) -> None:
    data = str(tmp_path / "data-*.parquet")
    flags = ["--workers", "2", "--ps", "1", *TASKS, "--epochs", "2", "--eval-data", data]
    job = start_job(1000, *flags, delay_s=0.02)
    job.wait_for(lambda: job.done() > 200)
    job.kill("worker")
    job.end_well()
    assert [epoch["records_done"] for epoch in holds(job)["epochs"]] == [1000, 1000]
    words = [
        "evaluate",
        str(MODEL),
        "--from",
        str(job.output),
        "--data",
        data,
        "--job-name",
        "tried",
    ]
    assert torch_edl(job, *words, "--", "999", str(job.gate)).returncode == 0
    job.name = "tried"
    code, report = audit(job)
    assert (code, report["verdict"]) == (1, "unproven")
    assert "trained nothing" in report["unproven"][0]


@pytest.mark.slow
def test_a_notice_stops_a_job_and_another_one_resumes(
    start_job: Callable[..., ModelJob], tmp_path: Path
) -> None:
    notice = tmp_path / "leave"
    flags = ["--workers", "2", "--ps", "2", *TASKS, "--no-shuffle", *KEEP]
    job = start_job(2000, *flags, "--preemption-notice", str(notice), delay_s=0.1)
    job.wait_for(lambda: job.done() > 200)
    notice.touch()
    assert job.finish() == 1
    code, report = audit(job)
    assert (code, report["verdict"]) == (0, "incomplete"), report
    assert report["text"].startswith("stopped")
    move_mark(job, tmp_path / "checkpoints")
    resumed = start_job(2000, *flags, "--resume", name="resumed")
    resumed.wait_for(lambda: resumed.status().records.done > 0)
    resumed.kill_master()
    resumed.check()
    report = holds(resumed)
    assert report["epochs"][0]["records_done"] == 2000
    assert any("resumed the progress" in note for note in report["notes"])
    move_mark(resumed, tmp_path / "checkpoints")


# ---- rings, scripts ----


@pytest.mark.slow
def test_the_ring_of_a_model_file(tmp_path: Path) -> None:
    keep = ["--checkpoint-every", "20", "--checkpoint-dir", str(tmp_path / "checkpoints")]
    job = RingJob(tmp_path, RING_MODEL, *keep, records=2400, delay_s=0.1)
    with contextlib.closing(job):
        job.trains()
        job.hurt(signal.SIGKILL, job.pids("worker")[0])
        job.trains()
        job.kill_master()
        job.wait_for(lambda: job.status().checkpoint)
        job.hurt(signal.SIGKILL, *job.pids("worker"))
        job.trains()
        job.check()
        report = holds(job)
        assert report["epochs"][0]["records_done"] == 2400
        assert report["epochs"][0]["workers"] == {"ring": report["epochs"][0]["tasks"]}
        assert {0, 1} in [set(ring["workers"]) for ring in report["rings"]]
        assert len(report["rings"]) >= 4
        assert report["restores"] == 1
        require_lines_matter(job)
        back = lambda entry: [entry, [*entry[:2], max(0, entry[2] - 8), *entry[3:]]]  # noqa: E731
        require_found(job, "position", back, "the ring went back")
        less = lambda entry: [[*entry[:2], min(entry[2], 2392), *entry[3:]]]  # noqa: E731
        require_found(job, "position", less, "8 records are not done")


@pytest.mark.slow
def test_a_script_in_a_ring(tmp_path: Path) -> None:
    told = tmp_path / "told"
    told.mkdir()
    script = HERE / "counting_script.py"
    words = [*EDL, "run", "--job-name", "ring", "--workers", "1:2", str(script), str(told)]
    words += ["--records", "480", "--epochs", "2", "--delay", "0.1", "--global-batch", "24"]
    (told / "slow").touch()  # until both workers train, and one was killed
    with contextlib.closing(Job(tmp_path, "ring", words, str(script))) as job:
        rings = lambda: [ring["workers"] for ring in audit(job)[1]["rings"]]  # noqa: E731
        job.wait_for(lambda: job.done() > 0 and [0, 1] in map(sorted, rings()))
        job.kill("worker")
        done = job.done()
        job.wait_for(lambda: job.done() > done + 24)
        (told / "slow").unlink()
        job.kill_master()
        job.end_well()
        report = holds(job)
        assert report["ring"] == [{"pass": 0, "position": 960, "records": 960}]
        assert len(report["rings"]) >= 2
        require_lines_matter(job)
        less = lambda entry: [[*entry[:2], entry[2] - 24, *entry[3:]]]  # noqa: E731
        require_found(job, "position", less, "ended at record 936 of 960")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "script", "verdict"),
    [
        (["--workers", "2"], TRAINER, "holds"),
        (["--nnodes", "1", "--nproc-per-node", "2"], TRAINER, "holds"),
        (["--strategy", "ps", "--workers", "2"], TRAINER, "holds"),
        (["--workers", "2"], "import torch_edl\ntorch_edl.init()\n", "unproven"),
    ],
)
def test_a_trainer_and_a_script_without_a_loader(
    tmp_path: Path, flags: list[str], script: str, verdict: str
) -> None:
    file = tmp_path / "script.py"
    file.write_text(script)
    words = [*EDL, "run", "--job-name", "fit", *flags, str(file)]
    with contextlib.closing(Job(tmp_path, "fit", words, str(file))) as job:
        job.end_well()
        code, report = audit(job)
        assert (code, report["verdict"]) == (int(verdict != "holds"), verdict), report


@pytest.mark.slow
@pytest.mark.parametrize("flags", [["--workers", "1:2"], ["--ps", "1", "--workers", "1"]])
def test_a_script_that_leaves_its_loop(tmp_path: Path, flags: list[str]) -> None:
    file = tmp_path / "script.py"
    file.write_text(
        "import torch, torch_edl\n"
        "job = torch_edl.init()\n"
        "model = torch.nn.Linear(1, 1)\n"
        "model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))\n"
        "for step, (x,) in enumerate(job.loader(torch.utils.data.TensorDataset(torch.ones(640, 1)),"
        " batch_size=8)):\n"
        "    optimizer.zero_grad(); model(x).sum().backward(); optimizer.step()\n"
        "    if step == 20: break\n"
    )
    words = [*EDL, "run", "--job-name", "early", *flags, str(file)]
    with contextlib.closing(Job(tmp_path, "early", words, str(file))) as job:
        job.end_well()
        code, report = audit(job)
        assert (code, report["verdict"]) == (1, "unproven"), report
        assert "the script left its loop" in report["unproven"][0]
