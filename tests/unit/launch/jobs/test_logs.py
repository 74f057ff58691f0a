from __future__ import annotations

from pathlib import Path

import pytest

from torch_edl.launch.jobs.logs import (
    WholeLines,
    WholeTracebacks,
    is_chatter,
    last_error,
    last_lines,
    shown,
    shown_lines,
)

# Reports of torch's process groups about a lost member, from jobs on GPUs; ends are cut.
GROUP_LINES = """\
[rank1]:[E626 06:24:44.903881913 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective
[rank3]:[W602 11:18:52.489301002 ProcessGroupNCCL.cpp:2111] [PG ID 1 PG GUID 1 Rank 3] timed out
[rank1]:[W1229 22:06:38.558655037 TCPStore.cpp:106] [c10d] sendBytes failed on SocketImpl(fd=67)
[rank0]:[E ProcessGroupNCCL.cpp:583] [Rank 0] To avoid data inconsistency, we are taking the
[E1129 09:56:24.098387554 socket.cpp:1028] [c10d] The client socket has timed out after 2000ms"""
STACK_LINES = """\
Exception raised from sendBytes at /pytorch/torch/csrc/distributed/c10d/Utils.hpp:653 (most recent \
call first):
frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x96 (0x7f3b6d41df86 in \
/usr/local/lib/python3.10/dist-packages/torch/lib/libc10.so)
frame #4: <unknown function> + 0xd6df4 (0x7f3bca9d5df4 in /usr/lib/libstdc++.so.6)
<omitting python frames>"""
CAUSES = """\
  what():  [PG ID 0 PG GUID 0(default_pg) Rank 3] Process group watchdog thread terminated
[W1129 10:02:40.713349733 Module.cpp:206] symbolizing C++ stack trace for exception
RuntimeError: inconsistent tensor size, expected tensor [2] and src [3]
Exception raised from dot_check at /pytorch/aten/src/ATen/native/Blas.cpp:155 (most recent call \
first):
#4 at::native::dot_check(at::Tensor const&, at::Tensor const&) from Blas.cpp:0
frame #3 of the video: skipped"""


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


@pytest.mark.parametrize(
    ("lines", "in_a_job", "in_a_script"),
    [(GROUP_LINES, False, True), (STACK_LINES, False, False), (CAUSES, True, True)],
)
def test_reports_of_process_groups_stay_in_the_log(
    lines: str, in_a_job: bool, in_a_script: bool
) -> None:
    """The rings of a model file are ours. A script may have a process group of its own, and then
    only the report names the cause of a failure."""
    for line in lines.splitlines():
        assert (shown(line) == line, not is_chatter(line)) == (in_a_job, in_a_script), line


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


HEAD = b"Traceback (most recent call last):"


def test_a_traceback_is_held_back_until_its_process_writes_no_more() -> None:
    tracebacks = WholeTracebacks()

    def shown_at(now: float, *lines: bytes) -> list[bytes]:
        return tracebacks.pass_on(list(lines), final=False, now=now)

    assert shown_at(0.0, b"loss 1", b"[rank1]: " + HEAD, b"  File a") == [b"loss 1"]
    assert shown_at(0.1, b"ValueError") == []
    assert shown_at(0.2, b"", b"The above exception was the direct cause", HEAD) == []
    assert shown_at(0.3, b"KeyError") == []
    assert shown_at(0.5) == []
    whole = [b"[rank1]: " + HEAD, b"  File a", b"ValueError", b""]
    whole += [b"The above exception was the direct cause", HEAD, b"KeyError"]
    assert shown_at(0.6) == whole
    assert shown_at(0.7, b"loss 2") == [b"loss 2"]


def test_output_is_not_held_back_for_longer_than_a_moment_and_not_at_the_end() -> None:
    tracebacks = WholeTracebacks()
    assert tracebacks.pass_on([HEAD], final=False, now=0.0) == []
    shown = [tracebacks.pass_on([b"loss"], final=False, now=0.1 * tenth) for tenth in range(1, 10)]
    assert list(map(len, shown)) == [0, 0, 0, 0, 0, 0, 0, 9, 1]
    assert tracebacks.pass_on([HEAD], final=False, now=2.0) == []
    assert tracebacks.pass_on([b"KeyError"], final=True, now=2.0) == [HEAD, b"KeyError"]


def test_last_lines(tmp_path: Path) -> None:
    path = tmp_path / "master-0.log"
    path.write_text("".join(f"line {i}\n" for i in range(20_000)))
    assert last_lines(path, 2) == "line 19998\nline 19999"
    assert last_lines(tmp_path / "none", 2) == ""
