"""The progress of a job: a live display on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

    from torch_edl.wire import master_pb2 as pb

_ALIVE = ("starting", "running", "draining", "stopping")
_VERBS = {
    "train": "training",
    "script": "training",
    "evaluate": "evaluating",
    "predict": "predicting",
}
TRAINS = ("train", "script")
"""Kinds of jobs that have steps and a loss."""
_PLAIN_EVERY_S = 5.0
_PLAIN_LATER_S = 30.0
_PLAIN_SETTLED_S = 120.0
_STYLES = {"warning": "yellow", "error": "bold red"}
_COLOURS = ("cyan", "magenta", "green", "blue", "yellow", "bright_cyan", "bright_magenta")


class Display(Protocol):
    """Where the client shows the progress of a job."""

    def update(self, status: pb.GetStatusResponse) -> None:
        """Shows the numbers of a new status."""

    def event(self, event: pb.Event) -> None:
        """Shows an event of the job, above the numbers."""

    def output(self, process: str, line: str) -> None:
        """Shows a line that a process printed, after the name of the process unless it is empty."""

    def note(self, text: str) -> None:
        """Shows a message of the client itself."""

    def close(self) -> None:
        """Restores the terminal; may be called again."""


def make_display(console: Console) -> Display:
    """The live display if the console is a terminal, else plain lines."""
    if console.is_terminal and not console.is_dumb_terminal:
        return LiveDisplay(console)
    return PlainDisplay(console)


def alive(status: pb.GetStatusResponse, role: str) -> int:
    """Number of live processes of a role."""
    return sum(p.role == role and p.state in _ALIVE for p in status.processes)


def eta_s(status: pb.GetStatusResponse) -> float | None:
    """Seconds until all records are done at the current rate; None if unknown."""
    rate = status.rates.get("records_per_s", 0.0)
    done, total = extent(status)
    left = total - done
    if rate <= 0 or not math.isfinite(rate) or left <= 0:
        return None
    return left / rate


def duration(seconds: float) -> str:
    """``0:07``, ``12:34``, ``1:02:03``, ``2 d 03:04``."""
    whole = int(seconds + 0.5)
    days, rest = divmod(whole, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, secs = divmod(rest, 60)
    if days:
        return f"{days} d {hours:02}:{minutes:02}"
    return f"{hours}:{minutes:02}:{secs:02}" if hours else f"{minutes}:{secs:02}"


def number(value: float) -> str:
    """Four significant digits, grouped where large."""
    if not math.isfinite(value):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def counted(count: int, noun: str) -> str:
    """``1 worker``, ``2,000 workers``."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def facts(status: pb.GetStatusResponse) -> list[str]:
    """The numbers beside the bar, the most important first."""
    found = []
    rate = status.rates.get("records_per_s", 0.0)
    if rate > 0:
        found.append(f"{number(rate)} records/s")
    left = eta_s(status)
    if left is not None:
        found.append(f"{duration(left)} left")
    if status.kind in TRAINS and status.steps and math.isfinite(status.loss):
        found.append(f"loss {number(status.loss)}")
    workers = alive(status, "worker")
    short = status.workers_wanted > workers and status.state in ("starting", "running")
    wanted = f" of {status.workers_wanted}" if short else ""
    found.append(f"{workers}{wanted} worker{'s' * (workers != 1 or bool(wanted))}")
    servers = alive(status, "ps")
    if servers:
        found.append(counted(servers, "server"))
    if status.damaged:
        found.append(f"{status.damaged:,} damaged")
    if status.nan_steps:
        found.append(f"{counted(status.nan_steps, 'step')} skipped")
    return found


def newest_metrics(status: pb.GetStatusResponse) -> str:
    """``accuracy 0.9532, auc 0.81 (step 200)``; empty before the first evaluation."""
    if not status.evaluations:
        return ""
    last = status.evaluations[-1]
    values = ", ".join(f"{name} {number(value)}" for name, value in sorted(last.metrics.items()))
    return f"{values} (step {last.steps:,})"


def extent(status: pb.GetStatusResponse) -> tuple[int, int]:
    """Records done, and all records. A script may not say how many passes over its data it makes;
    the records are those of the current pass then."""
    begun = status.records_begun
    return status.records_done - begun, max(0, status.records_total - begun)


def percent(status: pb.GetStatusResponse) -> float:
    """Records done of all, 0 to 100; below 100 until the last record is done."""
    done, total = extent(status)
    if not total:
        return 0.0
    share = 100.0 * done / total
    return share if done >= total else min(share, 99.9)


def epoch_of(status: pb.GetStatusResponse) -> str:
    """``epoch 2/3``; ``epoch 2`` if their number is unknown; empty if there is one epoch."""
    done, total = extent(status)
    at = status.epoch + (done < total or not total)
    if not status.epochs:
        return f"epoch {at}" if at > 1 else ""
    return f"epoch {min(at, status.epochs)}/{status.epochs}" if status.epochs > 1 else ""


def plain_line(status: pb.GetStatusResponse) -> str:
    """One line of a log with all that the live display shows."""
    done, total = extent(status)
    parts = [
        epoch_of(status),
        f"{done:,} of {total:,} records ({int(percent(status))}%)",
        *facts(status),
        newest_metrics(status),
    ]
    return ", ".join(p for p in parts if p)


def live_frame(
    status: pb.GetStatusResponse | None, *, width: int, seconds: float
) -> RenderableType:
    """The live display as it stands.

    Args:
        width: columns of the terminal; no line is longer.
        seconds: since the start; moves the bar until the first status.
    """
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    running = status is not None and status.records_total > 0 and status.state != "starting"
    state = status.state if status is not None else "starting"
    label = _VERBS.get(status.kind, state) if status is not None and state == "running" else state
    done, total = extent(status) if status is not None else (0, 0)
    counts = f"{int(percent(status)):3}%" if status is not None and running else ""
    if width >= 60 and total:
        counts += f"  {done:,} / {total:,} records"
    head = Table.grid(padding=(0, 1), expand=True)
    head.add_column(no_wrap=True)
    head.add_column(ratio=1)
    head.add_column(no_wrap=True, justify="right")
    bar = ProgressBar(
        total=float(max(total, 1)),
        completed=float(done),
        pulse=not running,
        complete_style="cyan",
        finished_style="green",
        pulse_style="cyan",
        animation_time=seconds,
    )
    head.add_row(Text(label, style="bold"), bar, Text(counts))
    if status is None:
        return head
    rows: list[RenderableType] = [head]
    line = ", ".join(p for p in [epoch_of(status), *facts(status)] if p)
    rows.append(Text(line, no_wrap=True, overflow="ellipsis", style="dim"))
    metrics = newest_metrics(status)
    if metrics:
        rows.append(Text(metrics, no_wrap=True, overflow="ellipsis", style="green"))
    return Group(*rows)


def _event_text(event: pb.Event) -> Text:
    from rich.text import Text

    clock = time.strftime("%H:%M:%S", time.localtime(event.time))
    text = Text(f"{clock} ", style="dim")
    mark = f"{event.level}: " if event.level in _STYLES else ""
    text.append(mark + event.text, style=_STYLES.get(event.level, "not dim"))
    return text


def colour_of(process: str) -> str:
    """The colour of the name of a process before its lines, by the number of the process."""
    number = process.replace(" ", "-").rpartition("-")[2]
    return _COLOURS[int(number) % len(_COLOURS)] if number.isdecimal() else "bold"


def _output_text(process: str, line: str) -> Text:
    from rich.text import Text

    text = Text(f"{process} | " if process else "", style=colour_of(process))
    # The output of the user's code may have colours of its own.
    text.append_text(Text.from_ansi(line, style="default"))
    return text


class _Lines:
    """What both displays share: lines, one below the other."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def event(self, event: pb.Event) -> None:
        self._console.print(_event_text(event), soft_wrap=True)

    def output(self, process: str, line: str) -> None:
        self._console.print(_output_text(process, line), soft_wrap=True)

    def note(self, text: str) -> None:
        self._console.print(text, style="yellow", soft_wrap=True)


class PlainDisplay(_Lines):
    """One line per interval: 5 s at first, 30 s after two minutes."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(console)
        self._clock = clock
        self._began = self._last = clock()
        self._shown = ""

    def update(self, status: pb.GetStatusResponse) -> None:
        now = self._clock()
        settled = now - self._began >= _PLAIN_SETTLED_S
        due = now - self._last >= (_PLAIN_LATER_S if settled else _PLAIN_EVERY_S)
        if not due or status.state != "running" or not status.records_total:
            return
        self._last = now
        line = plain_line(status)
        if line != self._shown:
            self._shown = line
            self._console.print(f"{time.strftime('%H:%M:%S')} {line}", soft_wrap=True)

    def close(self) -> None:
        pass


class LiveDisplay(_Lines):
    """A bar and the numbers at the bottom of a terminal, lines above it."""

    def __init__(self, console: Console) -> None:
        from rich.live import Live

        super().__init__(console)
        self._began = time.monotonic()
        self._status: pb.GetStatusResponse | None = None
        # Refreshed by the watching loop and not by a thread, so that signals stay simple.
        self._live = Live(
            console=console, auto_refresh=False, transient=True, get_renderable=self._frame
        )
        self._live.start(refresh=True)

    def _frame(self) -> RenderableType:
        seconds = time.monotonic() - self._began
        return live_frame(self._status, width=self._console.width, seconds=seconds)

    def update(self, status: pb.GetStatusResponse) -> None:
        self._status = status
        self._live.refresh()

    def close(self) -> None:
        self._live.stop()
