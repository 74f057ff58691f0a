"""The observer that keeps the curves of a job in the job's folder.

``history.jsonl`` has one JSON object per line: ``scalars`` at most once a second, and ``begin``,
from which on the interval between scalars is known. The events of the job are in ``events.jsonl``.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, TextIO, TypedDict

from torch_edl import typed_json
from torch_edl.checkpoint.durable import write_text
from torch_edl.config import JobConfig
from torch_edl.interfaces import Observer
from torch_edl.launch.jobs.folder import JobFolder
from torch_edl.typed_json import Count, Range, Time

_FIRST_INTERVAL_S = 1.0
# The file stays below some megabytes: at this number of scalars, every second one is removed, and
# the interval doubles. A job of a day has one point every 16 to 32 seconds.
_MOST_SCALARS = 6000
_MOST_VALUES = 40


class _Line(TypedDict):
    kind: str


class _Begin(_Line):
    interval_s: Annotated[float, Range(1e-3, 1e9)]


class _Scalars(_Line):
    time: Time
    step: Count
    values: dict[str, float | None]


_LINES: dict[str, Any] = {
    "begin": _Begin,
    "scalars": _Scalars,
}


class Recorder(Observer):
    """Writes ``JobFolder.history_file``; does nothing for a job without a folder here."""

    def __init__(self, value: str) -> None:
        self._file: TextIO | None = None
        self._path = Path()
        self._interval_s = _FIRST_INTERVAL_S
        self._last = -math.inf
        self._next: tuple[int, float, Mapping[str, float]] | None = None
        self._scalars = 0

    def begin(self, job: JobConfig) -> None:
        """Note where the file of the job is. The folder of a new job may not exist yet."""
        self._path = JobFolder(job.name).history_file

    def scalars(self, step: int, time: float, values: Mapping[str, float]) -> None:
        """Write the scalars of a step if the interval is over; those of an evaluation always."""
        evaluated = any(name.startswith("eval/") for name in values)
        if not evaluated and time - self._last < self._interval_s * 0.9:
            self._next = step, time, values
            return
        if not evaluated:
            self._last, self._next = time, None
        kept = {name: _rounded(value) for name, value in islice(values.items(), _MOST_VALUES)}
        self._write(kind="scalars", time=round(time, 3), step=step, values=kept)
        self._scalars += 1
        if self._scalars > _MOST_SCALARS:
            self._thin()

    def end(self, state: str, error: str) -> None:
        """Write the last scalars, and close the file."""
        if self._next is not None:
            self._last = -math.inf
            self.scalars(*self._next)
        if self._file is not None:
            self._file.close()

    def _thin(self) -> None:
        """Remove every second line of scalars, and double the interval."""
        assert self._file is not None
        self._file.close()
        self._interval_s *= 2
        kept, count = [{"kind": "begin", "interval_s": self._interval_s}], 0
        for line in read(self._path):
            scalars = line["kind"] == "scalars"
            count += scalars
            if scalars and count % 2:
                kept.append(line)
        self._scalars = (count + 1) // 2
        write_text(self._path, "".join(f"{json.dumps(line)}\n" for line in kept))
        self._file = open(self._path, "a", encoding="utf-8")  # noqa: SIM115 - end() closes it

    def _write(self, **line: Any) -> None:
        if self._file is None:
            if not self._path.parent.is_dir():
                return
            self._continue()
        assert self._file is not None
        self._file.write(f"{json.dumps(line)}\n")
        self._file.flush()

    def _continue(self) -> None:
        """Continue the file of the job, or begin one."""
        for line in read(self._path):
            self._interval_s = line.get("interval_s", self._interval_s)
            self._scalars += line["kind"] == "scalars"
        self._file = open(self._path, "a", encoding="utf-8")  # noqa: SIM115 - end() closes it
        self._write(kind="begin", interval_s=self._interval_s)


def _rounded(value: float) -> float | None:
    """Return six significant digits; None if the value is not finite, since JSON has no NaN."""
    return float(f"{value:.6g}") if math.isfinite(value) else None


def read(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a history; empty if there is none."""
    try:
        return parse(path.read_bytes().split(b"\n"))
    except OSError:
        return []


def parse(lines: list[bytes]) -> list[dict[str, Any]]:
    """Return the objects of some lines; lines that are damaged, as by a full disk, are left out."""
    found = []
    for line in lines:
        with contextlib.suppress(ValueError):
            value = typed_json.parse(line, _Line)
            found.append(typed_json.convert(value, _LINES.get(value["kind"], _Line)))
    return found
