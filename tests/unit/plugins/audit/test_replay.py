"""The ledger, its file, and what an audit says of entries that cannot be."""

from __future__ import annotations

import contextlib
import json
import random
import re
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from master.runtime.ledger_file import LedgerFile
from master.runtime.store import SqliteStore
from master.state.work.ledger import TaskLedger
from torch_edl.data.task_space import Shard, TaskSpace
from torch_edl.plugins.audit.done_tasks import DoneTasks
from torch_edl.plugins.audit.records import Records
from torch_edl.plugins.audit.replay import Replay, replay, runs


def _ledger() -> TaskLedger:
    ledger = TaskLedger()
    ledger.begin(TaskSpace([Shard("a", 10)], 2))
    ledger.close_line(1.0, "", 5, 0)
    return ledger


def _read(folder: Path, *, runs: bool = False) -> Records:
    found = Records(folder, runs=runs)
    list(found.entries())
    return found


def _replayed(*entries: list[Any]) -> Replay:
    return replay([(1, 0.0, entry) for entry in entries], "f")


def test_done_tasks_of_a_worker_are_ranges() -> None:
    ledger = _ledger()
    for task in (3, 1, 2, 7):
        ledger.done(4, task, 0)
    ledger.close_line(2.0, "", 5, 0)
    line = json.loads(ledger.to_state()["lines"][1])
    assert line["entries"] == [["done", 4, 0, "1-3,7"]]
    assert list(runs("1-3,7")) == [(1, 3), (7, 7)]


def test_many_tasks_in_order_are_a_short_line() -> None:
    ledger = TaskLedger()
    for task in range(100_000):
        ledger.done(0, task, 0)
    ledger.close_line(1.0, "", 0, 0)
    assert len(ledger.to_state()["lines"][0]) < 200


def test_the_file_of_a_master_that_died_is_repaired(tmp_path: Path) -> None:
    """The store has two lines; the file has one, and the beginning of the other."""
    path, ledger = tmp_path / "tasks.jsonl", _ledger()
    file = LedgerFile(path, anew=True)
    file.write(ledger.to_state())
    ledger.done(0, 0, 0)
    ledger.close_line(2.0, "", 5, 0)
    state = ledger.to_state()
    with open(path, "a") as cut:
        cut.write(state["lines"][1][:20])
    next_file, next_ledger = LedgerFile(path, anew=False), TaskLedger()
    next_ledger.from_state(json.loads(json.dumps(state)), 0.0)
    assert next_file.written == 1
    next_file.write(next_ledger.to_state())
    next_ledger.close_line(3.0, "", 5, next_file.written)
    assert not next_ledger.to_state()["lines"]
    found = _read(tmp_path)
    assert (found.lines, found.problems) == (2, [])


def test_a_job_that_began_nothing_has_no_file(tmp_path: Path) -> None:
    assert "no ledger" in _read(tmp_path).problems[0]
    assert not _read(tmp_path, runs=True).problems, "its master has stored nothing yet"
    store, ledger = SqliteStore(tmp_path / "state.sqlite"), TaskLedger()

    def keep() -> None:
        state = json.dumps({"ledger": ledger.to_state()}).encode()
        store.commit(
            {"state": state}, {"state": entry.revision if (entry := store.get("state")) else 0}
        )

    keep()
    assert not _read(tmp_path).problems
    ledger.begin(TaskSpace([Shard("a", 10)], 2))
    ledger.close_line(1.0, "", 5, 0)
    ledger.close_line(1.0, "", 5, 1)  # the file had the line, and was removed
    keep()
    assert "lines 1 to 1 are missing" in _read(tmp_path).problems[0]


def test_a_write_of_the_state_that_a_crash_cut_off_is_undone(tmp_path: Path) -> None:
    """The file is half written, and its journal is there."""
    alive, crashed = tmp_path / "alive", tmp_path / "crashed"
    alive.mkdir()
    crashed.mkdir()
    state = json.dumps({"ledger": TaskLedger().to_state()}).encode()
    SqliteStore(alive / "state.sqlite").commit({"state": state}, {})
    writer = sqlite3.connect(alive / "state.sqlite", isolation_level=None)
    with contextlib.closing(writer):
        writer.execute("PRAGMA cache_size=1")  # pages go to the file before the end of the write
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("UPDATE entries SET value = ?", (b"x" * 2_000_000,))
        for file in alive.glob("state.sqlite*"):
            shutil.copy(file, crashed)
    assert (crashed / "state.sqlite-journal").stat().st_size > 0
    assert not _read(crashed).problems


def test_a_full_disk_keeps_lines_in_the_store(tmp_path: Path) -> None:
    ledger = _ledger()
    file = LedgerFile(tmp_path / "missing" / "tasks.jsonl", anew=True)
    file.write(ledger.to_state())
    ledger.close_line(2.0, "", 5, file.written)
    assert len(ledger.to_state()["lines"]) == 1
    (tmp_path / "missing").mkdir()
    file.write(ledger.to_state())
    assert file.written == 1


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        ([["done", 0, 0, "1"], ["done", 2, 0, "0-1"]], "task 1 is done twice, now by worker-2"),
        ([["restored", 3, [], ""], ["done", 0, 0, "2"]], "task 2 is done twice"),
        ([["restored", 0, [], "2"], ["done", 0, 0, "2"]], "task 2 is done twice"),
        ([["done", 0, 4, "1"]], "task 1 went on at record 4"),
        ([["done", 0, 0, "1"], ["back", 0, 1, 0, 0, "released"]], "returned .* after it was done"),
        ([["position", 0, 9, 9, 0, 0], ["position", 0, 8, 9, 0, 0]], "the ring went back"),
        ([["position", 1, 9, 9, 9, 0], ["position", 0, 9, 9, 0, 0]], "the ring went back"),
        ([["done", 0, 0, "1"], ["lost", 1, 6], ["done", 0, 0, "2"]], "shard 1 .* lost 6 records"),
        ([["done", 0]], "not an entry"),
    ],
)
def test_entries_that_cannot_be(entries: list[list[Any]], problem: str) -> None:
    found = _replayed(*entries)
    assert len(found.problems) == 1
    assert found.problems[0].startswith("f, line 1: ")
    assert re.search(problem, found.problems[0])


def test_a_late_report_counts_for_the_worker_whose_lease_expired() -> None:
    found = _replayed(["back", 3, 1, 0, 8, "lease expired"], ["done", -1, 8, "1"])
    assert (list(found.done.runs()), found.problems) == ([(1, 1, 3)], [])


def test_a_restored_job_may_do_tasks_again() -> None:
    found = _replayed(["done", 0, 0, "0-5"], ["restored", 2, [[3, 8]], ""], ["done", 1, 8, "3"])
    assert not found.problems
    assert list(found.done.runs()) == [(0, 1, 0), (3, 3, 1)]
    assert [(each.lost, each.resumed) for each in found.restores] == [(4, False)]
    assert [task for task in range(6) if found.is_done(task)] == [0, 1, 3]


def test_a_running_job_is_read_up_to_its_stored_state(tmp_path: Path) -> None:
    """The master writes on while the file is read: later lines, and the beginning of one."""
    store, ledger = SqliteStore(tmp_path / "state.sqlite"), _ledger()
    file = LedgerFile(tmp_path / "tasks.jsonl", anew=True)
    store.commit({"state": json.dumps({"ledger": ledger.to_state()}).encode()}, {"state": 0})
    file.write(ledger.to_state())
    for task in range(2):
        ledger.done(0, task, 0)
        ledger.close_line(2.0, "", 5, 0)
    file.write(ledger.to_state())
    with open(tmp_path / "tasks.jsonl", "a") as cut:
        cut.write('{"n": 4')
    found = _read(tmp_path, runs=True)
    assert (found.lines, found.problems) == (1, [])


def test_a_job_in_its_first_second_has_no_ledger_yet(tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / "state.sqlite").close()
    (tmp_path / "state.sqlite").touch()  # the master has not made its tables
    found = _read(tmp_path, runs=True)
    assert (found.lines, found.problems) == (0, [])


def test_runs_of_tasks_are_joined_and_taken_back() -> None:
    done, chance, known = DoneTasks(), random.Random(0), dict[int, int]()
    for _ in range(400):
        first = chance.randrange(300)
        last = min(first + chance.randrange(9), 299)
        if not any(task in known for task in range(first, last + 1)):
            worker = chance.randrange(2)
            done.add(first, last, worker)
            known |= dict.fromkeys(range(first, last + 1), worker)
        if chance.random() < 0.02:
            taken = done.take_from(first)
            assert sum(end + 1 - begin for begin, end, _ in taken) == sum(t >= first for t in known)
            known = {task: by for task, by in known.items() if task < first}
        found = {t: by for begin, end, by in done.runs() for t in range(begin, end + 1)}
        assert found == known
        assert done.last == max(known, default=-1)
        assert [done.worker(task) for task in range(300)] == [known.get(t) for t in range(300)]
