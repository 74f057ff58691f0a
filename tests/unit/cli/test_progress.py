from __future__ import annotations

import io
from collections.abc import Callable

import pytest
from rich.console import Console

from torch_edl.cli import progress
from torch_edl.wire import master_pb2 as pb

Make = Callable[..., pb.GetStatusResponse]


def render(status: pb.GetStatusResponse | None, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(progress.live_frame(status, width=width, seconds=1.0))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0:00"), (59.6, "1:00"), (754, "12:34"), (3723, "1:02:03"), (183845, "2 d 03:04")],
)
def test_durations(seconds: float, text: str) -> None:
    assert progress.duration(seconds) == text


def test_live_frame_at_80_columns(make_status: Make) -> None:
    status = make_status()
    status.evaluations.add(steps=100, metrics={"auc": 0.5})
    status.evaluations.add(steps=200, metrics={"auc": 0.81234, "accuracy": 0.95})
    head, line, metrics = render(status, 80)
    assert head.startswith("training ━")
    assert head.rstrip().endswith("41%  12,345 / 30,000 records")
    assert line.rstrip() == (
        "epoch 2/3, 1,500 records/s, 0:12 left, loss 0.3457, 2 workers, 1 server"
    )
    assert metrics.rstrip() == "accuracy 0.95, auc 0.8123 (step 200)"
    assert progress.metrics_text({"auc": 0.5}, 0) == "auc 0.5"  # of a job that only evaluates


@pytest.mark.parametrize("width", [20, 40, 60, 80, 200])
def test_live_frame_never_exceeds_the_width(make_status: Make, width: int) -> None:
    status = make_status(damaged=12, records={"done": 123_456_789, "total": 999_999_999_999})
    for i in range(20):
        status.evaluations.add(steps=9, metrics={f"metric_{i}_{k}": 1.0 for k in range(9)})
    lines = render(status, width)
    assert len(lines) == 3
    assert max(map(len, lines)) <= width


def test_live_frame_before_anything_is_known(make_status: Make) -> None:
    assert render(None, 80)[0].startswith("starting")
    lines = render(make_status(state="starting", records={"total": 0, "done": 0}), 80)
    assert lines[0].startswith("starting")
    assert "%" not in lines[0]


def test_live_frame_while_workers_import_torch(make_status: Make) -> None:
    status = make_status(state="starting", records={"total": 0, "done": 0})
    for process in status.processes:
        process.phase = "importing" if process.role == "worker" else ""
    assert render(status, 80)[0].startswith("starting: importing the model and its framework")


def test_facts_tell_what_is_amiss(make_status: Make) -> None:
    status = make_status(workers_wanted=4, damaged=1234, nan_steps=2, rates={}, loss=float("nan"))
    assert progress.facts(status) == [
        "2 of 4 workers",
        "1 server",
        "1,234 damaged",
        "2 steps skipped",
    ]


def test_a_script_that_does_not_say_how_many_epochs_shows_the_one_at_hand(
    make_status: Make,
) -> None:
    status = make_status(
        kind="script", epoch=1, epochs=0, records={"begun": 10_000, "total": 20_000}
    )
    assert progress.percent(status) == pytest.approx(23.45)
    assert progress.plain_line(status).startswith(
        "epoch 2, 2,345 of 10,000 records (23%), 1,500 records/s, 0:05 left, loss 0.3457"
    )
    status.records.done, status.epoch = 20_000, 2  # the end of the pass, before the next begins
    assert progress.epoch_of(status) == "epoch 2"
    status.epoch, status.records.done = 0, 1
    assert progress.epoch_of(status) == ""


def test_one_of_a_thing_is_singular(make_status: Make) -> None:
    status = make_status(workers_wanted=1, nan_steps=1, rates={}, steps=0)
    del status.processes[3]
    assert progress.facts(status) == ["1 worker", "1 server", "1 step skipped"]
    assert [progress.counted(n, "worker") for n in (0, 1, 2000)] == [
        "0 workers",
        "1 worker",
        "2,000 workers",
    ]


def test_done_is_only_told_when_all_is_done(make_status: Make) -> None:
    assert progress.percent(make_status(records={"done": 29_999_999, "total": 30_000_000})) < 100
    assert progress.percent(make_status(records={"done": 30_000})) == 100.0
    assert progress.percent(make_status(records={"total": 0})) == 0.0


def test_plain_lines_come_now_and_then(make_status: Make) -> None:
    now = 0.0
    console = Console(file=io.StringIO(), width=80)
    display = progress.Display(console, clock=lambda: now)

    def lines() -> list[str]:
        assert isinstance(console.file, io.StringIO)
        return console.file.getvalue().splitlines()

    for tick in range(200):  # 40 s, five statuses a second
        now = tick / 5
        display.update(make_status(records={"done": tick}))
    assert len(lines()) == 7
    assert lines()[0].split(" ", 1)[1].startswith("epoch 2/3, 25 of 30,000 records (0%), 1,500 ")
    for tick in range(1000, 4000):  # from 200 s to 800 s
        now = tick / 5
        display.update(make_status(records={"done": tick}))
    assert 7 + 18 <= len(lines()) <= 7 + 22


def test_events_and_output_are_lines(make_status: Make) -> None:
    console = Console(file=io.StringIO(), width=40, markup=False, highlight=False)
    display = progress.Display(console)
    display.event(pb.Event(time=0.0, level="info", text="worker-1 joined"))
    display.event(pb.Event(time=0.0, level="warning", text="worker-1 is gone [signal 9]"))
    display.line("worker-3", "x" * 100)
    display.line("worker-3", "[red]\x1b[31mred\x1b[0m")
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert lines[0][8:] == " worker-1 joined"
    assert lines[1][8:] == " warning: worker-1 is gone [signal 9]"
    assert lines[2] == "worker-3 | " + "x" * 100
    assert lines[3] == "worker-3 | [red]red"


def test_a_terminal_gets_the_live_display_and_a_pipe_lines(make_status: Make) -> None:
    pipe = Console(file=io.StringIO())
    terminal = Console(file=io.StringIO(), force_terminal=True, width=80)
    lines, display = progress.Display(pipe), progress.Display(terminal)
    assert (lines.has_bar, display.has_bar) == (False, True)
    lines.close()
    display.update(make_status())
    display.event(pb.Event(time=0.0, level="info", text="worker-1 joined"))
    display.close()
    display.close()
    assert isinstance(terminal.file, io.StringIO)
    assert "worker-1 joined" in terminal.file.getvalue()
    assert terminal.file.getvalue().rstrip().endswith("\x1b[2K")  # the bar is gone
