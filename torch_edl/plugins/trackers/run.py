"""The interface of a run of a tracker."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

Settings = Mapping[str, str | int | float]


class Run(ABC):
    """A run of a tracker. The library of the tracker is imported in its methods."""

    @abstractmethod
    def open(self, value: str, job: str, run: str, settings: Settings) -> str:
        """Open the run of a job, and return the id of the run.

        Args:
            value: the value of ``--observe``.
            job: name of the job.
            run: id of the run that the job had before; empty for a new run.
            settings: configuration of the job and versions, by name.
        """

    @abstractmethod
    def log(self, step: int, time: float, values: Mapping[str, float]) -> None:
        """Send the scalars of a step; ``time`` is Unix time in seconds."""

    @abstractmethod
    def log_model(self, output: str) -> None:
        """Send the exported model, a file or a folder."""

    @abstractmethod
    def close(self, state: str) -> None:
        """Close the run; ``state`` is that of ``Observer.end``."""
