"""What a person sees of a training run: a bar on a terminal, a line for each epoch elsewhere."""

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
        epochs: of the whole run.
        bar: draw one if stdout is a terminal; several processes that share it would garble it.
    """

    def __init__(self, epochs: int, *, bar: bool) -> None:
        self._epochs = epochs
        self._bar = bar
        self._live: Progress | None = None
        self._task: Any = None
        self._start = 0.0

    def begin(self, epoch: int, batches: int | None) -> None:
        """An epoch (from 1) of so many batches; None: it cannot be said."""
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
        if self._live is not None:
            self._live.advance(self._task)

    def stop(self) -> None:
        """Takes the bar away."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def end(self, epoch: int, figures: Mapping[str, float]) -> None:
        """The figures of an epoch, as one line."""
        self.stop()
        shown = ", ".join(f"{name} {value:.4f}" for name, value in figures.items())
        seconds = time.monotonic() - self._start
        sys.stdout.write(f"epoch {epoch}/{self._epochs}: {shown} ({seconds:.1f} s)\n")
        sys.stdout.flush()
