"""The observer that writes scalars to the event files of TensorBoard."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from torch_edl.checkpoint.durable import check_writable
from torch_edl.errors import UsageError
from torch_edl.interfaces import Observer

# The package's own switch: this module exists in its build without TensorFlow. Without the module,
# the package would import an installed TensorFlow, which takes seconds.
_NO_TENSORFLOW = "tensorboard.compat.notf"
sys.modules.setdefault(_NO_TENSORFLOW, ModuleType(_NO_TENSORFLOW))

from tensorboard.compat.proto.event_pb2 import Event  # noqa: E402
from tensorboard.compat.proto.summary_pb2 import Summary  # noqa: E402
from tensorboard.summary.writer.event_file_writer import EventFileWriter  # noqa: E402


class TensorBoard(Observer):
    """``--observe tensorboard=DIR``: writes all scalars of a job to a folder."""

    @classmethod
    def check(cls, value: str) -> str:
        """Return the absolute path of the folder.

        Raises:
            UsageError: no folder is named, or it cannot be written.
        """
        if not value:
            raise UsageError("--observe tensorboard: names no folder; write tensorboard=DIR")
        path = Path(os.path.abspath(Path(value).expanduser()))
        check_writable(path, "--observe tensorboard", is_file=False)
        return str(path)

    def __init__(self, value: str) -> None:
        self._writer = EventFileWriter(value)

    def scalars(self, step: int, time: float, values: Mapping[str, float]) -> None:
        """Write the scalars of a step."""
        scalars = [Summary.Value(tag=tag, simple_value=v) for tag, v in sorted(values.items())]
        self._writer.add_event(Event(wall_time=time, step=step, summary=Summary(value=scalars)))

    def end(self, state: str, error: str) -> None:
        """Write all buffered values, and close the file."""
        self._writer.close()
