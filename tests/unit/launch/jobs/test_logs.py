from __future__ import annotations

from pathlib import Path

import pytest

from torch_edl.launch.jobs.logs import WholeLines, last_error, last_lines, shown, shown_lines


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("hello", "hello"),
        ("  File 'x.py', line 3", "  File 'x.py', line 3"),
        ("12:00:01.123 worker-3 INFO torch_edl.training.worker: leased task 4", None),
        ("12:00:01.123 worker-3 INFO __main__: up", None),
        ("12:00:01.123 ps-0 DEBUG torch_edl.tables.table: x", None),
        ("12:00:01.123 worker-3 WARNING torch_edl.training.worker: slow", "warning: slow"),
        ("12:00:01.123 worker-3 ERROR torch_edl.training.worker: no: way", "error: no: way"),
        ("12:00:01.123 worker-3 ERROR torch_edl.training.one_off: task 3 failed", None),
        ("12:00:01.123 worker-3 WARNING torch_edl.training.one_off: x", "warning: x"),
        ("12:00:01.123 worker-3 INFO torch_edl.layers: deep mean 0.1", "deep mean 0.1"),
        ("12:00:01.123 worker-3 INFO net: my own line", "my own line"),
        ("I0000 00:00:1732.123456 77 fork_posix.cc:75] Other threads", None),
        ("WARNING: All log messages before absl::InitializeLog() is called are", None),
        ("", None),
    ],
)
def test_which_lines_reach_the_terminal(line: str, expected: str | None) -> None:
    assert shown(line) == expected


def test_without_our_own_lines_those_of_the_user_stay() -> None:
    assert shown("12:00:01.123 worker-3 WARNING torch_edl.training.worker: slow", own=False) is None
    assert shown("12:00:01.123 worker-3 INFO torch_edl.layers: deep 0.1", own=False) is None
    assert shown("12:00:01.123 worker-3 WARNING net: mine", own=False) == "warning: mine"
    assert shown("hello", own=False) == "hello"


def test_last_error(tmp_path: Path) -> None:
    log = tmp_path / "master-0.log"
    log.write_text("12:00:01.123 master-0 ERROR __main__: a: b\n12:00:01.123 master-0 INFO x: y\n")
    assert last_error(log) == "a: b"
    log.write_text("12:00:01.123 master-0 INFO x: y\nTraceback\n")
    assert last_error(log) == ""


def test_whole_lines_only_each_once(tmp_path: Path) -> None:
    path = tmp_path / "worker-0.log"
    tail = WholeLines(path)
    assert shown_lines(tail) == []
    with open(path, "ab", buffering=0) as log:
        log.write(b"one\ntw")
        assert shown_lines(tail) == ["one"]
        assert shown_lines(tail) == []
        log.write("o é\n".encode()[:-2])
        assert shown_lines(tail) == []
        log.write("o é\n".encode()[-2:])
        assert shown_lines(tail) == ["two é"]
        log.write(b"10%\r20%\r30%\r\nunfinished")
        assert shown_lines(tail) == ["30%"]
    assert shown_lines(tail, final=True) == ["unfinished"]
    assert shown_lines(tail, final=True) == []


def test_a_long_log_comes_in_portions_and_whole_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "worker-0.log"
    path.write_text("".join(f"{i:09}\n" for i in range(60_000)))
    tail = WholeLines(path)
    first = shown_lines(tail)
    assert 0 < len(first) < 60_000
    rest = shown_lines(tail, final=True)
    assert [int(line) for line in first + rest] == list(range(60_000))


def test_last_lines(tmp_path: Path) -> None:
    path = tmp_path / "master-0.log"
    path.write_text("".join(f"line {i}\n" for i in range(20_000)))
    assert last_lines(path, 2) == "line 19998\nline 19999"
    assert last_lines(tmp_path / "none", 2) == ""
