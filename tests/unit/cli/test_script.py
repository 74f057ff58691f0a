"""A training script: the environment of its workers, options without effect, and its display."""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from torch_edl.cli import script as script_cli
from torch_edl.cli.script import ScriptDisplay
from torch_edl.errors import UsageError
from torch_edl.events import JobStopping
from torch_edl.launch.script.workers import LocalWorker
from torch_edl.wire import master_pb2 as pb
from torch_edl.wire.event_messages import to_message


@pytest.mark.parametrize(("named", "salt"), [(None, "7"), ("11", "11"), ("random", "random")])
def test_texts_hash_alike_in_all_workers(
    named: str | None, salt: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", named or "")  # put back after the test
    seen: list[str] = []
    monkeypatch.setattr(
        script_cli, "_run_plain", lambda *_: seen.append(os.environ["PYTHONHASHSEED"])
    )
    script = tmp_path / "plain.py"
    script.write_text("print(hash('user-1'))\n")
    script_cli.main(argparse.Namespace(words=["--seed", "7", str(script)], places={}))
    assert seen == [salt]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--output out", "--output: no effect, since .* does not use torch_edl"),
        ("--workers 2 --keep-checkpoints 1", "--keep-checkpoints: no effect"),
        ("--detach", "--detach: no effect"),
        ("--workers 1:2", "--workers 1:2: .* its number of workers is fixed; write --workers 2"),
    ],
)
def test_options_that_a_plain_script_cannot_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, message: str
) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    script = tmp_path / "plain.py"
    script.write_text("import torch\n")
    with pytest.raises(UsageError, match=message):
        script_cli.main(argparse.Namespace(words=[*words.split(), str(script)], places={}))


Make = Callable[..., pb.GetStatusResponse]


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = logging.getLogger("torch_edl").handlers[:]
    yield
    logging.getLogger("torch_edl").handlers[:] = before


@pytest.mark.parametrize(("several", "prefix"), [(True, "rank 3 | "), (False, "")])
def test_stdout_is_the_scripts_and_stderr_has_ranks(
    several: bool, prefix: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    display = ScriptDisplay(captured=True, several=several)
    worker = LocalWorker(name="worker-7", local_rank=1, rank=3, pid=7, files={}, error_file="")
    display.output(worker, "stdout", b"1,2\t\xff")
    display.output(worker, "stdout", b"")
    display.output(worker, "stderr", b"  1%\r 50%\r100%")
    display.output(worker, "stderr", b"I0000 00:00:1732.123456 77 fork_posix.cc:75] Other threads")
    logging.getLogger("torch_edl.launch.script").warning("rank %d ended", 1)
    display.close()
    out, err = capfdbinary.readouterr()
    assert out == b"1,2\t\xff\n\n"
    assert err.decode() == f"{prefix}100%\ntorch-edl: rank 1 ended\n"


def test_events_but_those_that_are_told_elsewhere(
    make_status: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    display = ScriptDisplay(captured=True, several=True)
    running, ended = make_status(kind="script"), make_status(kind="script", state="finishing")
    running.events.add(sequence=1, level="info", text="ring 1: 2 workers")
    running.events.append(to_message(JobStopping(reason="SIGINT"), 2, 0.0))
    ended.events.add(sequence=3, level="error", text="train.py: rank 1 ended (exit code 1)")
    display.status(running)
    display.status(ended)
    display.close()
    err = capsys.readouterr().err
    assert [line[9:] for line in err.splitlines()] == ["ring 1: 2 workers"]
    assert display.last is ended


def test_a_terminal_gets_a_bar_unless_workers_write_to_it_themselves(
    make_status: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    for captured in (True, False):
        display = ScriptDisplay(captured=captured, several=True)
        display.status(make_status(kind="script"))
        display.close()
        assert ("━" in capsys.readouterr().err) == captured
