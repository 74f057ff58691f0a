"""The verdict on folders of each kind of job, as recorded, and after they were changed."""

from __future__ import annotations

import dataclasses
import json
import re
import time
import tracemalloc
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from master.runtime.ledger_file import LedgerFile
from master.state.work.ledger import TaskLedger, line_of
from tests.mutations import mutations
from tests.schemas import require_valid
from torch_edl.checkpoint import layout
from torch_edl.checkpoint.manifest import Manifest
from torch_edl.config import JobConfig
from torch_edl.data.stream_space import StreamSpace
from torch_edl.data.task_space import Shard, TaskSpace
from torch_edl.launch.jobs.folder import JobFolder
from torch_edl.plugins.audit.verdict import audit
from torch_edl.tables.watermarks import Watermarks

Recorded = Callable[..., dict[str, Any]]


def heartbeat(number: int, at: int, *, of: int = 10, before: int = 0, left: int = 0) -> Any:
    return SimpleNamespace(
        pass_index=number, position=at, pass_records=of, records_before=before, records_left=left
    )


@pytest.fixture
def ledger() -> TaskLedger:
    return TaskLedger()


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ledger: TaskLedger) -> Recorded:
    """``record(kind=..., end=..., total=..., status=..., data=...)`` writes the folder of a job
    whose ledger is ``ledger``, and returns the report."""
    monkeypatch.setenv("TORCH_EDL_HOME", str(tmp_path))
    folder = JobFolder("audited")
    folder.dir.mkdir(parents=True)

    def write(
        *,
        kind: str = "train",
        end: str = "finished",
        total: int = 0,
        status: Mapping[str, Any] = {},
        tasks: bool = False,
        marks: Watermarks | None = None,
        at: Mapping[str, int] = {},
        **data: Any,
    ) -> dict[str, Any]:
        config = JobConfig(name="audited", kind=kind, model_file="m.py")
        config = dataclasses.replace(config, data=dataclasses.replace(config.data, **data))
        if marks is not None:
            checkpoint = dataclasses.replace(config.checkpoint, dir=str(tmp_path / "checkpoints"))
            config = dataclasses.replace(config, checkpoint=checkpoint)
            manifest = Manifest(
                job="audited", strategy="ps", steps=4, watermarks=marks, data=dict(at)
            )
            layout.save(Path(checkpoint.dir), 4, lambda _: manifest)
        folder.config_file.write_text(config.to_json())
        folder.status_file.write_text(json.dumps({"state": end or "running", **status}))
        file = LedgerFile(folder.dir / "tasks.jsonl", anew=True)
        ledger.close_line(1.0, end, total, 0)
        file.write(ledger.to_state())
        report = audit(folder, tasks=tasks)
        require_valid("audit", report)
        return report

    return write


def begin(ledger: TaskLedger, **more: Any) -> None:
    """Three tasks of two records an epoch."""
    ledger.begin(TaskSpace([Shard("a", 5)], 2, **more))


def stream(ledger: TaskLedger, *ranges: tuple[str, int, int]) -> StreamSpace:
    space = StreamSpace(8, batch_size=4)
    ledger.begin(space)
    for one in ranges:
        space.plan = space.plan.with_task(*one, batch_size=4)
    space.total = space.plan.end
    return space


# ---- tasks ----


@pytest.mark.parametrize("lacks", [False, True])
@pytest.mark.parametrize("again", [False, True])
def test_each_training_of_a_script_on_servers_has_tasks_of_its_own(
    ledger: TaskLedger, record: Recorded, lacks: bool, again: bool
) -> None:
    def train(*tasks: int) -> None:
        begin(ledger)
        for task in tasks:
            ledger.done(4, task, 0)

    train(*range(3 - lacks))
    ledger.begin_training(2, 3)
    if again:  # all processes of training 2 were lost
        train(0)
        ledger.begin_training(1, 3)
        begin(ledger)
        ledger.restored(Watermarks(3 - lacks, {}))
        ledger.begin_training(2, 3)
    train(0, 1, 2)
    report = record(kind="script", total=3, tasks=True)
    assert report["verdict"] == ("unproven" if lacks else "holds"), report
    assert report["problems"] == []
    assert [each.partition(":")[0] for each in report["unproven"]] == ["training 1"] * lacks
    done = [(epoch["training"], epoch["records_done"]) for epoch in report["epochs"]]
    assert done == [(1, 4 if lacks else 5), (2, 5)]
    assert [task["training"] for task in report["tasks"]] == [1, 1, 1, 2, 2, 2]


def test_a_task_that_is_done_twice_in_a_training_is_wrong(
    ledger: TaskLedger, record: Recorded
) -> None:
    begin(ledger)
    ledger.begin_training(2, 3)
    begin(ledger)
    for task in (0, 1, 2, 1):
        ledger.done(4, task, 0)
        ledger.add("")
    report = record(kind="script", total=3)
    assert [each.partition(": ")[2] for each in report["problems"]] == [
        "task 1 is done twice, now by worker-4"
    ]


def test_tasks_that_a_checkpoint_had_out_of_order(ledger: TaskLedger, record: Recorded) -> None:
    """A resumed job begins with whole tasks after the first one that is open."""
    begin(ledger)
    ledger.restored(Watermarks(0, {0: 1, 2: 1}))
    for task, offset in ((0, 1), (1, 0)):
        ledger.done(4, task, offset)
    report = record(total=3, tasks=True)
    assert report["verdict"] == "holds", report
    assert [task["worker"] for task in report["tasks"]] == ["worker-4", "worker-4", "checkpoint"]
    assert report["restores"] == 0
    assert "resumed the progress of an earlier job" in report["notes"][0]


def test_a_worker_keeps_its_tasks_when_others_are_taken_back(
    ledger: TaskLedger, record: Recorded
) -> None:
    begin(ledger)
    for worker, task in ((0, 0), (1, 1), (1, 2)):
        ledger.done(worker, task, 0)
    ledger.restored(Watermarks(1, {2: 1}))
    ledger.done(2, 1, 0)
    report = record(total=3)
    assert report["verdict"] == "holds", report
    assert report["epochs"][0]["workers"] == {"worker-0": 1, "worker-1": 1, "worker-2": 1}
    assert "1 task was to be done again" in report["notes"][0]


def test_a_master_that_goes_on_does_not_begin_again(ledger: TaskLedger) -> None:
    begin(ledger)
    ledger.close_line(1.0, "", 3, 0)
    next = TaskLedger()
    next.from_state(json.loads(json.dumps(ledger.to_state())), 0.0)
    begin(next)
    next.close_line(2.0, "", 3, 0)
    assert next.to_state() == ledger.to_state()


@pytest.mark.parametrize(
    ("kind", "verdict", "text"),
    [("train", "wrong", "finished, but 3 records"), ("script", "unproven", "script left its loop")],
)
def test_records_that_nobody_did(
    ledger: TaskLedger, record: Recorded, kind: str, verdict: str, text: str
) -> None:
    begin(ledger)
    ledger.done(0, 0, 0)
    report = record(kind=kind, total=3)
    assert report["verdict"] == verdict
    assert text in " ".join(report["problems"] + report["unproven"])


def test_a_task_after_the_last_one(ledger: TaskLedger, record: Recorded) -> None:
    begin(ledger)
    for task in range(4):
        ledger.done(0, task, 0)
    assert "task 3 is done, but the job had 3 tasks only" in record(total=3)["problems"]


def test_predictions_are_not_called_training(ledger: TaskLedger, record: Recorded) -> None:
    begin(ledger)
    for task in range(3):
        ledger.done(0, task, 0)
    assert record(kind="predict", total=3)["text"] == "each record was predicted once"


# ---- what cannot be proven, or was left out ----


@pytest.mark.parametrize(("kind", "why"), [("evaluate", "trained nothing"), ("script", "no loop")])
def test_a_job_that_recorded_nothing_is_not_proven(record: Recorded, kind: str, why: str) -> None:
    report = record(kind=kind)
    assert report["verdict"] == "unproven"
    assert why in report["unproven"][0]


@pytest.mark.parametrize(
    ("status", "verdict", "text"),
    [
        ({"damaged": 2}, "holds", "2 damaged records were left out"),
        ({"nan_steps": 3}, "holds", "3 minibatches"),
        ({"updates_lost": 1}, "wrong", "1 updates that a server had acknowledged were lost"),
    ],
)
def test_records_that_the_job_itself_left_out(
    ledger: TaskLedger, record: Recorded, status: dict[str, Any], verdict: str, text: str
) -> None:
    begin(ledger)
    for task in range(3):
        ledger.done(0, task, 0)
    report = record(total=3, status=status)
    assert report["verdict"] == verdict
    assert text in " ".join(report["problems"] + report["notes"])
    assert report["text"] != "each training record counted once"


# ---- rings ----


def test_the_ring_of_a_model_file_has_epochs(ledger: TaskLedger, record: Recorded) -> None:
    begin(ledger, epochs=2)
    ledger.add("ring", 1, [0, 1])
    ledger.heard(heartbeat(0, 7))
    ledger.add("ring", 2, [1])
    ledger.heard(heartbeat(0, 7))  # no progress, no entry
    report = record(end="", total=6, tasks=True)
    assert report["verdict"] == "incomplete"
    assert [(e["done"], e["records_done"]) for e in report["epochs"]] == [(3, 5), (1, 2)]
    assert [task["worker"] for task in report["tasks"]] == ["ring"] * 4 + [""] * 2
    assert [(r["workers"], r["position"]) for r in report["rings"]] == [([0, 1], 0), ([1], 7)]


def test_a_later_report_tells_that_a_pass_was_whole(ledger: TaskLedger, record: Recorded) -> None:
    """The last report of pass 1 and all of pass 0 are missing; pass 2 is an evaluation."""
    ledger.heard(heartbeat(1, 4, before=10))
    ledger.heard(heartbeat(3, 10, before=20))
    report = record(kind="script")
    assert report["verdict"] == "holds", report
    assert [(p["pass"], p["position"]) for p in report["ring"]] == [(1, 10), (3, 10)]
    assert "10 records were trained in passes that were too short" in report["notes"][0]


@pytest.mark.parametrize(
    ("reports", "text"),
    [
        ([(0, 4, 0, 0), (1, 10, 6, 4)], "pass 0 ended with 4 records to do"),
        ([(0, 10, 0, 0), (1, 6, 10, 0)], "pass 1 ended at record 6 of 10"),
        ([(2, 10, 12, 8)], "passes before pass 2 ended with 8 records to do"),
        ([(0, 10, 0, 0), (2, 10, 17, 3)], "a pass before pass 2 ended with 3 records to do"),
    ],
)
def test_a_pass_that_ended_early_is_not_proven(
    ledger: TaskLedger, record: Recorded, reports: list[tuple[int, int, int, int]], text: str
) -> None:
    for number, at, before, left in reports:
        ledger.heard(heartbeat(number, at, before=before, left=left))
    report = record(kind="script")
    assert report["verdict"] == "unproven"
    assert text in report["unproven"][0]


def test_a_pass_of_unknown_length_is_not_proven(ledger: TaskLedger, record: Recorded) -> None:
    """A stream may be a part of the data, such as that of one rank."""
    ledger.heard(heartbeat(0, 32, of=0))
    report = record(kind="script")
    assert report["verdict"] == "unproven"
    assert "pass 0 trained 32 records of an IterableDataset" in report["unproven"][0]


def test_a_ring_that_lost_all_its_members(ledger: TaskLedger, record: Recorded) -> None:
    """It goes on from a checkpoint of pass 1, whose reports the ledger had before."""
    for number, at, before in ((0, 10, 0), (1, 8, 10)):
        ledger.heard(heartbeat(number, at, before=before))
    ledger.restored(Watermarks())
    ledger.add("ring", 2, [3])
    ledger.heard(heartbeat(1, 5, before=10))
    ledger.heard(heartbeat(1, 10, before=10))
    report = record(kind="script")
    assert (report["verdict"], report["restores"]) == ("holds", 1), report
    assert [(p["pass"], p["position"]) for p in report["ring"]] == [(0, 10), (1, 10)]
    assert "the last report was of record 8 of pass 1" in report["notes"][0]
    assert report["rings"] == [{"ring": 2, "workers": [3], "pass": None, "position": None}]


# ---- streams ----


def test_the_ranges_of_a_stream(ledger: TaskLedger, record: Recorded) -> None:
    stream(ledger, ("t/0", 3, 8), ("t/1", 0, 6), ("t/0", 8, 9))
    for task in range(3):
        ledger.done(0, task, 0)
    report = record(total=3, tasks=True)
    assert report["verdict"] == "holds", report
    assert [(t["shard"], t["start"], t["end"]) for t in report["tasks"]] == [
        ("t/0", 3, 8), ("t/1", 0, 6), ("t/0", 8, 9),
    ]  # fmt: skip
    assert report["epochs"][0]["records_done"] == 12


@pytest.mark.parametrize(
    ("second", "skip", "verdict", "text"),
    [
        ((7, 9), False, "wrong", "t/0: record 7 is in tasks 0 and 1"),
        ((9, 12), False, "wrong", "t/0: records 8 to 8 are in no task"),
        ((9, 12), True, "holds", "t/0: records 8 to 8 are in no task: the brokers removed them"),
    ],
)
def test_ranges_that_do_not_meet(
    ledger: TaskLedger,
    record: Recorded,
    second: tuple[int, int],
    skip: bool,
    verdict: str,
    text: str,
) -> None:
    stream(ledger, ("t/0", 3, 8), ("t/0", *second))
    for task in range(2):
        ledger.done(0, task, 0)
    report = record(total=2, skip_damaged=skip)
    assert report["verdict"] == verdict
    assert text in " ".join(report["problems"] + report["notes"])


def test_a_task_of_a_stream_without_its_range(ledger: TaskLedger, record: Recorded) -> None:
    stream(ledger, ("t/0", 3, 8))
    ledger._entries.append(["done", 0, 0, "0"])
    assert record(total=1)["problems"] == ["task 0 is done, and its records are not recorded"]


def test_a_stream_goes_on_from_a_checkpoint(ledger: TaskLedger, record: Recorded) -> None:
    """Task 1 was pushed before its worker reported it; its range comes from the plan."""
    stream(ledger, ("t/0", 0, 8), ("t/0", 8, 16), ("t/0", 16, 20))
    ledger.done(0, 0, 0)
    ledger.restored(Watermarks(1, {1: 8}))
    ledger.done(1, 2, 0)
    report = record(total=3)
    assert report["verdict"] == "holds", report
    assert report["epochs"][0]["workers"] == {"checkpoint": 1, "worker-0": 1, "worker-1": 1}
    assert report["epochs"][0]["records_done"] == 20


# ---- checkpoints ----


@pytest.mark.parametrize(
    ("marks", "problem"),
    [
        (Watermarks(3), ""),
        (Watermarks(1, {1: 2, 2: 1}), ""),
        (Watermarks(2), "task 2 is done by the ledger, and not in the last model"),
        (Watermarks(1, {1: 1, 2: 1}), "task 1 is done by the ledger"),
    ],
)
def test_the_last_checkpoint_of_a_job(
    ledger: TaskLedger, record: Recorded, marks: Watermarks, problem: str
) -> None:
    begin(ledger)
    for task in range(3):
        ledger.done(0, task, 0)
    report = record(total=3, marks=marks)
    assert (report["verdict"] == "holds") == (not problem), report
    assert problem in " ".join(report["problems"])


@pytest.mark.parametrize(
    ("marks", "problem"),
    [
        (Watermarks(1, {1: 1}), ""),
        (Watermarks(1), "the job ended with 1 records of task 1 by the ledger, .* has 0"),
        (Watermarks(2), "task 1 is in the model, and not done by the ledger"),
    ],
)
def test_the_checkpoint_of_a_stopped_job(
    ledger: TaskLedger, record: Recorded, marks: Watermarks, problem: str
) -> None:
    begin(ledger)
    ledger.done(0, 0, 0)
    ledger.add("back", 0, 1, 0, 1, "released")
    ledger.restored(Watermarks(1, {1: 1}))
    report = record(end="stopped", total=3, marks=marks)
    assert (report["verdict"] == "incomplete") == (not problem), report
    assert "ended with the progress of its last checkpoint" in report["notes"][-1]
    assert re.search(problem, " ".join(report["problems"]))


@pytest.mark.parametrize(
    ("at", "problem"),
    [
        ({"pass": 1, "records": 0}, ""),
        ({"pass": 0, "records": 8}, ""),
        ({"pass": 1, "records": 2}, "the model is at record 2 of pass 1, and the ring was at"),
    ],
)
def test_the_checkpoint_of_a_ring(
    ledger: TaskLedger, record: Recorded, at: dict[str, int], problem: str
) -> None:
    ledger.heard(heartbeat(0, 10))
    report = record(kind="script", marks=Watermarks(), at=at)
    assert (report["verdict"] == "holds") == (not problem), report
    assert problem in " ".join(report["problems"])


# ---- running jobs, and crafted ledgers ----


@pytest.mark.parametrize(
    ("kind", "verdict"),
    [("train", "incomplete"), ("script", "incomplete"), ("evaluate", "unproven")],
)
def test_a_running_job_without_a_task(record: Recorded, kind: str, verdict: str) -> None:
    with JobFolder("audited").hold():
        report = record(kind=kind, end="")
    assert report["verdict"] == verdict
    assert (kind == "evaluate") or report["text"] == "running; no task or pass has begun yet"


def crafted(folder: JobFolder, entries: list[Any]) -> None:
    """Replace the ledger by one whose chain of hashes holds."""
    before, lines = "", []
    for number, each in enumerate(entries, 1):
        line, before = line_of(number, 1.0, [each], before)
        lines.append(f"{line}\n")
    (folder.dir / "tasks.jsonl").write_text("".join(lines))


def test_crafted_ledgers_end_soon_in_a_verdict(ledger: TaskLedger, record: Recorded) -> None:
    """Each entry is mutated, and the chain of hashes computed again."""
    begin(ledger)
    record(total=3, status={"wall_s": 1.0})
    folder = JobFolder("audited")
    start: list[Any] = [
        ["begin", {"of": "tasks", "shards": [["a", 5]], "records_per_task": 2, "epochs": 3,
                   "batch_size": 1, "seed": 0, "shuffle": True}],
        ["done", 0, 0, "0-2"], ["back", 1, 3, 0, 1, "released"], ["done", -1, 0, "4"],
        ["restored", 1, [[3, 1]], "4"], ["ring", 1, [0, 1]], ["position", 0, 1, 9, 0, 0],
        ["cut", "t/0", [[5, 0, 2]]], ["done", 1, 0, "5-6"], ["end", "finished", 9],
    ]  # fmt: skip
    for seed, entry in enumerate(start):
        for what, text in mutations(json.dumps(entry).encode(), seed, 60):
            try:
                mutated = json.loads(text)
            except (ValueError, RecursionError):
                continue
            crafted(folder, [*start[:seed], mutated, *start[seed + 1 :]])
            began = time.monotonic()
            require_valid("audit", audit(folder, tasks=True))
            assert time.monotonic() - began < 10, (entry, what)
    for kind in ("tasks", "stream"):
        crafted(folder, [["begin", {"of": kind}], ["done", 0, 0, "1-99999999999"], start[-1]])
        assert audit(folder)["verdict"] == "wrong"


def test_a_long_ledger_is_read_in_little_memory(ledger: TaskLedger, record: Recorded) -> None:
    """A list of all entries of these lines needs 3 MB."""
    count = 5_000
    ledger.begin(TaskSpace([Shard("a", 2 * count)], 2))
    record(end="", total=count)
    folder = JobFolder("audited")
    shards = {"of": "tasks", "shards": [["a", 2 * count]], "records_per_task": 2}
    done = [["done", task % 4, 0, str(task)] for task in range(count)]
    crafted(folder, [["begin", shards], *done, ["end", "finished", count]])
    folder.status_file.write_text('{"state": "finished"}')
    told: list[tuple[int, int]] = []
    tracemalloc.start()
    report = audit(folder, progress=lambda *at: told.append(at))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (report["verdict"], report["lines"]) == ("holds", count + 2)
    assert peak < 1.5e6
    assert told
    assert told[-1][1] == (folder.dir / "tasks.jsonl").stat().st_size
