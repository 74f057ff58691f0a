"""The progress of a training run on stdout: a bar on a terminal, and a line for each epoch."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress


class Epochs:
    """Shows the epochs of a run on stdout.

    Args:
        epochs: number of epochs of the whole run.
        bar: draw a progress bar if stdout is a terminal. Must be False for processes that share a
            terminal.
    """

    def __init__(self, epochs: int, *, bar: bool) -> None:
        self._epochs = epochs
        self._bar = bar
        self._live: Progress | None = None
        self._task: Any = None
        self._start = 0.0

    def begin(self, epoch: int, batches: int | None) -> None:
        """Start the clock and the bar of an epoch.

        Args:
            epoch: number of the epoch, from 1.
            batches: number of batches of the epoch; None: unknown.
        """
        self._start = time.monotonic()
        if not (self._bar and sys.stdout.isatty()):
            return
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

        self._live = Progress(
            "epoch {task.fields[epoch]}", BarColumn(), MofNCompleteColumn(),
            TimeRemainingColumn(), transient=True,
        )  # fmt: skip
        self._task = self._live.add_task("", total=batches, epoch=f"{epoch}/{self._epochs}")
        self._live.start()

    def advance(self) -> None:
        """Advance the bar by one batch."""
        if self._live is not None:
            self._live.advance(self._task)

    def stop(self) -> None:
        """Remove the bar."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def end(self, epoch: int, figures: Mapping[str, float]) -> None:
        """Remove the bar and print the figures of an epoch as one line."""
        self.stop()
        shown = ", ".join(f"{name} {value:.4f}" for name, value in figures.items())
        seconds = time.monotonic() - self._start
        sys.stdout.write(f"epoch {epoch}/{self._epochs}: {shown} ({seconds:.1f} s)\n")
        sys.stdout.flush()
