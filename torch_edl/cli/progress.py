"""The progress of a job: a live display on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from torch_edl.config.option import TRAINING
from torch_edl.events import JobStopping, counted
from torch_edl.launch.jobs.folder import ENDED
from torch_edl.wire import event_messages
from torch_edl.wire import master_pb2 as pb

_ALIVE = ("starting", "running", "draining", "stopping")
_VERBS = {
    "train": "training",
    "script": "training",
    "evaluate": "evaluating",
    "predict": "predicting",
}
_PLAIN_EVERY_S = 5.0
_PLAIN_LATER_S = 30.0
_PLAIN_SETTLED_S = 120.0
_STYLES = {"warning": "yellow", "error": "bold red"}
_COLOURS = ("cyan", "magenta", "green", "blue", "yellow", "bright_cyan", "bright_magenta")


def duration(seconds: float) -> str:
    """Return a duration as ``0:07``, ``12:34``, ``1:02:03`` or ``2 d 03:04``."""
    whole = int(seconds + 0.5)
    days, rest = divmod(whole, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, secs = divmod(rest, 60)
    if days:
        return f"{days} d {hours:02}:{minutes:02}"
    return f"{hours}:{minutes:02}:{secs:02}" if hours else f"{minutes}:{secs:02}"


def number(value: float) -> str:
    """Return a number with four significant digits, or as a whole number from 1,000 on."""
    if not math.isfinite(value):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def facts(status: pb.GetStatusResponse) -> list[str]:
    """Return the numbers beside the bar, the most important first."""
    found = []
    rate = status.rates.get("records_per_s", 0.0)
    done, total = extent(status)
    if rate > 0:
        found.append(f"{number(rate)} records/s")
        if total > done and math.isfinite(rate):
            found.append(f"{duration((total - done) / rate)} left")
    if status.kind in TRAINING and status.steps and math.isfinite(status.loss):
        found.append(f"loss {number(status.loss)}")
    roles = [p.role for p in status.processes if p.state in _ALIVE]
    workers, servers = roles.count("worker"), roles.count("ps")
    short = status.workers_wanted > workers and status.state in ("starting", "running")
    wanted = f" of {status.workers_wanted}" if short else ""
    found.append(f"{workers}{wanted} worker{'s' * (workers != 1 or bool(wanted))}")
    if servers:
        # While servers are added or removed, the old and the new ones run at once.
        moves = status.servers_wanted not in (0, servers) and status.state == "running"
        found.append(f"{servers} of {status.servers_wanted} servers" if moves
                     else counted(servers, "server"))  # fmt: skip
    if status.damaged:
        found.append(f"{status.damaged:,} damaged")
    if status.nan_steps:
        found.append(f"{counted(status.nan_steps, 'step')} skipped")
    return found


def newest_metrics(status: pb.GetStatusResponse) -> str:
    """Return ``accuracy 0.9532, auc 0.81 (step 200)``; empty before the first evaluation."""
    if not status.evaluations:
        return ""
    last = status.evaluations[-1]
    return metrics_text(dict(sorted(last.metrics.items())), last.steps)


def metrics_text(metrics: Mapping[str, float | None], steps: int) -> str:
    """Return ``accuracy 0.9532, auc 0.81 (step 200)``; a value of None is shown as nan.

    The step is left out if it is 0, as in a job that only evaluates.
    """
    values = (f"{k} {number(math.nan if v is None else v)}" for k, v in metrics.items())
    return ", ".join(values) + (f" (step {steps:,})" if steps else "")


def best_text(best: Mapping[str, Any]) -> str:
    """Return ``auc 0.81 (step 200)``."""
    return metrics_text({best["metric"]: best["value"]}, best["steps"])


def extent(status: pb.GetStatusResponse) -> tuple[int, int]:
    """Return the number of records done, and of all records.

    For a script that does not declare its number of epochs, both count the current epoch only.
    """
    begun = status.records.begun
    return status.records.done - begun, max(0, status.records.total - begun)


def percent(status: pb.GetStatusResponse) -> float:
    """Return the share of records done, 0 to 100; below 100 until the last record is done."""
    done, total = extent(status)
    if not total:
        return 0.0
    share = 100.0 * done / total
    return share if done >= total else min(share, 99.9)


def epoch_text(epoch: int, epochs: int, *, done: int, total: int, of: str = "/") -> str:
    """Return ``2/3``, or ``2`` of an unknown number; empty for a single epoch.

    Args:
        epoch: number of epochs that are over.
        epochs: number of all epochs; 0 if a script did not declare it.
        done: number of records done, of ``total``.
    """
    at = min(epoch + 1, epochs) if epochs else epoch + (done < total or not total)
    if max(at, epochs) <= 1:
        return ""
    return f"{at}{of}{epochs}" if epochs else str(at)


def epoch_of(status: pb.GetStatusResponse) -> str:
    """Return ``epoch`` and the text of :func:`epoch_text`; empty for a single epoch."""
    done, total = extent(status)
    text = epoch_text(status.epoch, status.epochs, done=done, total=total)
    return f"epoch {text}" if text else ""


def plain_line(status: pb.GetStatusResponse) -> str:
    """Return the progress as one log line."""
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
    """Return the live display of a status.

    Args:
        width: columns of the terminal; longer lines are cut.
        seconds: time since the start; animates the bar until the first status.
    """
    state = status.state if status is not None else "starting"
    running = status is not None and status.records.total > 0 and state != "starting"
    label = _VERBS.get(status.kind, state) if status is not None and state == "running" else state
    if label == "starting" and status is not None and _imports(status):
        label = "starting: importing the model and its framework"
    done, total = extent(status) if status is not None else (0, 0)
    counts = f"{int(percent(status)):3}%" if status is not None and running else ""
    if width >= 60 and total:
        counts += f"  {done:,} / {total:,} records"
    bar = ProgressBar(
        total=float(max(total, 1)),
        completed=float(done),
        pulse=not running,
        complete_style="cyan",
        finished_style="green",
        pulse_style="cyan",
        animation_time=seconds,
    )
    head = Table.grid(
        Column(no_wrap=True),
        Column(ratio=1),
        Column(no_wrap=True, justify="right"),
        padding=(0, 1),
        expand=True,
    )
    head.add_row(Text(label, style="bold"), bar, Text(counts))
    if status is None:
        return head
    numbers = ", ".join(filter(None, [epoch_of(status), *facts(status)]))
    lines = [Text(numbers, style="dim"), Text(newest_metrics(status), style="green")]
    for line in lines:
        line.no_wrap, line.overflow = True, "ellipsis"
    return Group(head, *filter(None, lines))


def _imports(status: pb.GetStatusResponse) -> bool:
    """Return whether workers run, and all of them import the model file; torch takes seconds."""
    phases = {p.phase for p in status.processes if p.role == "worker" and p.state in _ALIVE}
    return phases == {"importing"}


def colour_of(process: str) -> str:
    """Return the colour for the name of a process, chosen by the number of the process."""
    number = process.replace(" ", "-").rpartition("-")[2]
    return _COLOURS[int(number) % len(_COLOURS)] if number.isdecimal() else "bold"


class Display:
    """Shows the progress of a job below the lines of events, notes and output of processes.

    A terminal has a bar and the numbers at the bottom. Elsewhere the numbers are printed as a line
    every 5 s, and every 30 s after two minutes.

    Args:
        receivers: functions that also receive each status, several times a second.
        has_bar: False if other processes write to the terminal, too.
    """

    def __init__(
        self,
        console: Console,
        *receivers: Callable[[pb.GetStatusResponse], None],
        has_bar: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.console = console
        self.has_bar = has_bar and console.is_terminal and not console.is_dumb_terminal
        self._receivers = receivers
        self._clock = clock
        self._began = self._printed = clock()
        self._shown = ""
        self.last: pb.GetStatusResponse | None = None
        """The newest status; None before the first."""
        self.events_after = 0
        """Number of the newest event that was taken."""
        self.held: list[pb.Event] = []
        """Errors at the end of the job, which are not shown: the last line of the command shows the
        cause of the end."""
        self.is_stopped = False
        """True if the job was stopped; warnings of processes that lose their peers follow."""
        # Refreshed by the watching loop instead of a thread, so that signals are handled simply.
        self._live = Live(
            console=console, auto_refresh=False, transient=True, get_renderable=self._frame
        )
        if self.has_bar:
            self._live.start(refresh=True)

    def take(self, status: pb.GetStatusResponse, *, signals: Collection[str] = ()) -> None:
        """Show the numbers and the events of a new status.

        Args:
            signals: names of signals; the event that one of them stopped the job is not shown.
        """
        for event in status.events:
            self.events_after = max(self.events_after, event.sequence)
            if event.level == "error" and status.state in ("finishing", *ENDED):
                self.held.append(event)
                continue
            told = event_messages.from_message(event)
            if isinstance(told, JobStopping):
                self.is_stopped = True
                if told.reason in signals:
                    continue
            if event.level != "debug":
                self.event(event)
        self.update(status)

    def update(self, status: pb.GetStatusResponse) -> None:
        """Show the numbers of a new status."""
        self.last = status
        for receive in self._receivers:
            receive(status)
        if self.has_bar:
            self._live.refresh()
            return
        now = self._clock()
        settled = now - self._began >= _PLAIN_SETTLED_S
        due = now - self._printed >= (_PLAIN_LATER_S if settled else _PLAIN_EVERY_S)
        if not due or status.state != "running" or not status.records.total:
            return
        self._printed = now
        line = plain_line(status)
        if line != self._shown:
            self._shown = line
            self.console.print(f"{time.strftime('%H:%M:%S')} {line}", soft_wrap=True)

    def event(self, event: pb.Event) -> None:
        """Show an event of the job."""
        clock = time.strftime("%H:%M:%S", time.localtime(event.time))
        text = Text(f"{clock} ", style="dim")
        mark = f"{event.level}: " if event.level in _STYLES else ""
        text.append(mark + event.text, style=_STYLES.get(event.level, "not dim"))
        self.console.print(text, soft_wrap=True)

    def line(self, process: str, line: str) -> None:
        """Show a line that a process printed, after the name of the process if it is not empty."""
        text = Text(f"{process} | " if process else "", style=colour_of(process))
        # The output of user code may have colours of its own.
        text.append_text(Text.from_ansi(line, style="default"))
        self.console.print(text, soft_wrap=True)

    def note(self, text: str) -> None:
        """Show a message of the client."""
        self.console.print(text, style="yellow", soft_wrap=True)

    def close(self) -> None:
        """Restore the terminal; may be called again."""
        self._live.stop()

    def _frame(self) -> RenderableType:
        seconds = self._clock() - self._began
        return live_frame(self.last, width=self.console.width, seconds=seconds)
