"""Shows a script's job on the terminal: its events, its progress and the output of its workers."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from collections.abc import Sequence

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.launcher.api import LaunchConfig

from torch_edl.cli.progress import Display, Observer
from torch_edl.cli.terminal import stderr
from torch_edl.jobs.folder import ENDED, JobFolder
from torch_edl.jobs.log_tail import is_chatter, text_of
from torch_edl.wire import master_pb2 as pb


def capture(args: argparse.Namespace, config: LaunchConfig, job: JobFolder) -> bool:
    """Captures the output of the workers in the folder of the job, from which it is shown, unless
    torchrun's options redirect the output.

    Returns:
        Whether the output is captured.
    """
    named = (args.log_dir, args.local_ranks_filter, args.logs_specs)
    filters = args.duplicate_stdout_filters or args.duplicate_stderr_filters
    if any(named) or filters or (args.redirects, args.tee) != ("0", "0"):
        return False
    # A machine without the master has no folder of the job; a temporary folder is made there.
    logs = str(job.logs) if job.dir.exists() else None
    config.logs_specs = DefaultLogsSpecs(log_dir=logs, redirects=Std.ALL)
    return True


class ScriptDisplay(Display):
    """Shows a job on stderr; stdout belongs to the script.

    If there are several workers, a line of a worker begins with its rank, except on a stdout that
    is no terminal: a pipe or a file gets exactly the output of the script.

    Args:
        captured: the output of the workers arrives here. Otherwise the workers write to the
            terminal themselves, and there is no bar.
        several: the job may have more than one worker.
        observers: receive each status too.
    """

    def __init__(
        self, *, captured: bool, several: bool, observers: Sequence[Observer] = ()
    ) -> None:
        super().__init__(stderr(), observers, has_bar=captured)
        self._stdout_is_ours = self.has_bar and sys.stdout.isatty()
        self._several = several
        logging.getLogger("torch_edl").handlers[:] = [_Notes(self)]

    def status(self, status: pb.GetStatusResponse) -> None:
        """Shows the progress, and the events that are not shown in another way."""
        for event in status.events:
            # The last line shows the cause of the end, and the agent reports signals.
            is_end = event.level == "error" and status.state in ("finishing", *ENDED)
            if not is_end and event.text.removeprefix("stopping: ") not in _SIGNALS:
                self.event(event)
        self.update(status)

    def output(self, rank: int, stream: str, line: bytes) -> None:
        """Shows a line of a worker."""
        if stream == "stdout" and not self._stdout_is_ours:
            sys.stdout.buffer.write(line + b"\n")
            sys.stdout.flush()
            return
        text = text_of(line)
        if not is_chatter(text):
            self.line(f"rank {rank}" if self._several else "", text)


_SIGNALS = {number.name for number in signal.Signals}


class _Notes(logging.Handler):
    """Shows our log records above the bar."""

    def __init__(self, display: Display) -> None:
        super().__init__()
        self._display = display

    def emit(self, record: logging.LogRecord) -> None:
        self._display.note(f"torch-edl: {record.getMessage()}")
