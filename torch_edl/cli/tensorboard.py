"""Scalars for TensorBoard, written by the client, so that only the client needs the package."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from torch_edl.errors import UsageError
from torch_edl.wire import master_pb2 as pb

_EVERY_S = 1.0
_NO_TENSORFLOW = "tensorboard.compat.notf"


def writer_class() -> Any:
    """Return the class of the tensorboard package that writes event files.

    Raises:
        UsageError: the package is not installed.
    """
    # The package's own switch: this module exists in its build without TensorFlow. Without the
    # module, the package would import an installed TensorFlow, which takes seconds.
    sys.modules.setdefault(_NO_TENSORFLOW, ModuleType(_NO_TENSORFLOW))
    try:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError as error:
        raise UsageError(
            "--tensorboard: the package tensorboard is not installed; "
            "pip install 'torch-edl[tensorboard]'"
        ) from error
    return EventFileWriter


class Scalars:
    """Writes scalars over steps: ``train/…``, ``rate/…`` and ``eval/…``.

    ``train/…`` has the loss and the values of a script's ``job.log``. The writer is that of the
    tensorboard package, without torch and TensorFlow.

    Raises:
        UsageError: the package is not installed.
    """

    def __init__(self, directory: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._writer = writer_class()(directory)
        self._clock = clock
        self._written = -math.inf
        self._step = 0
        self._last: pb.GetStatusResponse | None = None
        self._evaluations: dict[int, dict[str, float]] = {}

    def update(self, status: pb.GetStatusResponse) -> None:
        """Write new values; training scalars at most once a second."""
        self._last = status
        for evaluation in status.evaluations:
            metrics = dict(evaluation.metrics)
            if self._evaluations.get(evaluation.steps) != metrics:
                self._evaluations[evaluation.steps] = metrics
                self._add(evaluation.steps, {f"eval/{k}": v for k, v in metrics.items()})
        if self._clock() - self._written >= _EVERY_S:
            self._train(status)

    def _train(self, status: pb.GetStatusResponse) -> None:
        if status.steps == self._step:
            return
        self._written, self._step = self._clock(), status.steps
        running = [p for p in status.processes if p.role == "worker" and p.state == "running"]
        values = {f"rate/{name}": rate for name, rate in status.rates.items()}
        values |= {f"train/{name}": value for name, value in status.logged.items()}
        if status.kind != "script":  # a script logs its loss itself
            values["train/loss"] = status.loss
        values["train/workers"] = len(running)
        self._add(status.steps, values)

    def close(self) -> None:
        """Write the last step and all buffered values, and close the file."""
        if self._last is not None:
            self._train(self._last)
        self._writer.close()

    def _add(self, step: int, values: dict[str, float]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        scalars = [Summary.Value(tag=tag, simple_value=v) for tag, v in sorted(values.items())]
        event = Event(wall_time=time.time(), step=step, summary=Summary(value=scalars))
        self._writer.add_event(event)
