"""What the user sees of a script's job: its events and numbers, and what its workers print."""

from __future__ import annotations

import logging
import signal
import sys
from typing import TYPE_CHECKING

from torch_edl.cli.progress import LiveDisplay, PlainDisplay
from torch_edl.cli.terminal import stderr
from torch_edl.jobs.folder import ENDED, JobFolder
from torch_edl.jobs.log_tail import is_chatter, text_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from torch.distributed.launcher.api import LaunchConfig

    from torch_edl.cli.submit import Observer
    from torch_edl.wire import master_pb2 as pb


def capture(args: argparse.Namespace, config: LaunchConfig, job: JobFolder) -> bool:
    """Lets what the workers print be kept in the folder of the job, and shown from there, unless
    torchrun's options say where it goes.

    Returns:
        Whether it is so.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std

    named = (args.log_dir, args.local_ranks_filter, args.logs_specs)
    filters = args.duplicate_stdout_filters or args.duplicate_stderr_filters
    if any(named) or filters or (args.redirects, args.tee) != ("0", "0"):
        return False
    # A machine without the master has no folder of the job: a temporary one is made there.
    logs = str(job.logs) if job.dir.exists() else None
    config.logs_specs = DefaultLogsSpecs(log_dir=logs, redirects=Std.ALL)
    return True


class ScriptDisplay:
    """Shows a job on stderr: stdout is the script's.

    On a terminal a bar stands below the lines. A line of a worker has its rank in front where there
    are several, except on a stdout that is no terminal: what reads it gets what the script printed.

    Args:
        captured: what workers print comes here; else it goes to the terminal by itself, and no bar
            may stand there.
        several: there may be more than one worker.
        observers: see each status too.
    """

    def __init__(
        self, *, captured: bool, several: bool, observers: Sequence[Observer] = ()
    ) -> None:
        self.last: pb.GetStatusResponse | None = None
        """The newest status."""
        console = stderr()
        self.console = console
        is_live = captured and console.is_terminal and not console.is_dumb_terminal
        self._display = LiveDisplay(console) if is_live else PlainDisplay(console)
        self._stdout_is_ours = is_live and sys.stdout.isatty()
        self._several = several
        self._observers = observers
        self._log = _Notes(self)
        logging.getLogger("torch_edl").handlers[:] = [self._log]

    def status(self, status: pb.GetStatusResponse) -> None:
        """Shows the numbers, and events that nothing else tells of."""
        self.last = status
        for event in status.events:
            # The cause of the end is told in the last line, and of a signal the agent tells.
            is_end = event.level == "error" and status.state in ("finishing", *ENDED)
            if not is_end and event.text.removeprefix("stopping: ") not in _SIGNALS:
                self._display.event(event)
        self._display.update(status)
        for observer in self._observers:
            observer.update(status)

    def output(self, rank: int, stream: str, line: bytes) -> None:
        """Shows a line of a worker."""
        if stream == "stdout" and not self._stdout_is_ours:
            sys.stdout.buffer.write(line + b"\n")
            sys.stdout.flush()
            return
        text = text_of(line)
        if not is_chatter(text):
            self._display.output(f"rank {rank}" if self._several else "", text)

    def note(self, text: str) -> None:
        """A remark of the agent's."""
        self._display.note(text)

    def close(self) -> None:
        """Leaves the terminal as it was."""
        self._display.close()
        for observer in self._observers:
            observer.close()


_SIGNALS = {number.name for number in signal.Signals}


class _Notes(logging.Handler):
    """Log records of ours, above the bar."""

    def __init__(self, display: ScriptDisplay) -> None:
        super().__init__()
        self._display = display

    def emit(self, record: logging.LogRecord) -> None:
        """Shows one."""
        self._display.note(f"torch-edl: {record.getMessage()}")
