"""The curves of a job: numbers by step and time, from the history in its folder or from polls."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from torch_edl.launch.jobs.logs import WholeLines
from torch_edl.launch.jobs.status import finite, scalars
from torch_edl.plugins.dashboard import recorder
from torch_edl.wire import master_pb2 as pb

MOST_ROWS = 1500
"""Number of samples in one answer."""
_MOST_POLLED = 20_000


class Sample(NamedTuple):
    """Numbers of one moment."""

    time: float
    """Unix time in seconds."""
    step: int
    values: dict[str, float | None]
    """Numbers by name, as an observer receives them."""


class Samples:
    """The samples of a job in the order of time, without those of evaluations."""

    def __init__(self) -> None:
        self.all: list[Sample] = []
        self.generation = 0
        """Number that changes when samples were removed."""
        self.interval_s = 1.0
        """Seconds between samples while the job trains."""
        self.kept = False
        """True if the job records its samples; False if only this page does, while it is read."""
        self.eval_times: dict[int, float] = {}
        """Unix time at which each evaluation was known, by its step."""

    def add(self, sample: Sample) -> None:
        """Append a sample; beyond 20,000, every second one is removed."""
        self.all.append(sample)
        if len(self.all) > _MOST_POLLED:
            del self.all[1::2]
            self.generation += 1

    def clear(self) -> None:
        """Remove all samples."""
        self.all.clear()
        self.generation += 1

    def rows(self, first: int) -> list[list[Any]]:
        """Return the samples from an index on; more than :data:`MOST_ROWS` are thinned, but the
        newest is kept."""
        new = self.all[first:]
        stride = -(-len(new) // MOST_ROWS) or 1
        kept = new[(len(new) - 1) % stride :: stride]
        return [[sample.time, sample.step, sample.values] for sample in kept]


class History:
    """Reads what the recorder of a job adds to its history.

    Args:
        file: the history on this machine; None for a job on a cluster, whose master sends it.
    """

    def __init__(self, file: Path | None) -> None:
        self._path = file
        self._part = pb.HistoryPart()
        self._rest = b""
        self._lines = WholeLines(file or "")

    @property
    def after(self) -> pb.HistoryPart | None:
        """What to ask the master for; None for a job of this machine."""
        return None if self._path is not None else self._part

    def read(self, samples: Samples) -> bool:
        """Add what is new in the file to the samples. Return False if there is none."""
        if self._path is None:
            return samples.kept
        try:
            inode = self._path.stat().st_ino
        except OSError:
            return False
        if inode != self._part.inode:
            self._lines = WholeLines(self._path)
            self._begin(inode, samples)
        self._add(self._lines.read_all(final=False), samples)
        return True

    def take(self, part: pb.HistoryPart, samples: Samples) -> bool:
        """Add a part that the master sent. Return whether more may follow at once."""
        if not part.inode:
            return False
        if part.inode != self._part.inode or part.offset != self._part.offset:
            if part.offset:
                return False
            self._rest = b""
            self._begin(part.inode, samples)
        *lines, self._rest = (self._rest + part.content).split(b"\n")
        self._part.offset = part.offset + len(part.content)
        self._add(lines, samples)
        return bool(part.content)

    def _begin(self, inode: int, samples: Samples) -> None:
        """Begin a file: the first one, or the one that the recorder has thinned."""
        self._part.inode, self._part.offset = inode, 0
        samples.clear()
        samples.kept = True

    @staticmethod
    def _add(lines: Iterable[bytes], samples: Samples) -> None:
        for line in recorder.parse(list(lines)):
            if line["kind"] == "begin":
                samples.interval_s = line["interval_s"]
            elif line["kind"] == "scalars" and any(n.startswith("eval/") for n in line["values"]):
                samples.eval_times[line["step"]] = line["time"]
            elif line["kind"] == "scalars":
                samples.add(Sample(line["time"], line["step"], line["values"]))


def of_status(status: pb.GetStatusResponse, time: float) -> Sample:
    """Return the sample of a status, for a job that keeps no history."""
    return Sample(time, status.steps, finite(scalars(status)))
