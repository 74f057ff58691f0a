"""The interface of observers: receivers of the events and metrics of a job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch_edl.config import JobConfig
    from torch_edl.events import Event


class Observer:
    """Receives the events and the metrics of a job: for a tracker, a chart, an alert.

    An entry point of the group ``torch_edl.observers`` names a class; the name of the entry point
    is NAME of ``--observe NAME=VALUE``. A class replaces the methods that it needs::

        class Printed(Observer):
            def __init__(self, value: str) -> None:
                self._file = open(value, "a")

            def scalars(self, step: int, time: float, values: Mapping[str, float]) -> None:
                print(step, values, file=self._file)

    An observer runs in the process that follows the job: the command ``torch-edl run`` (with
    ``--detach`` its detached process), or for a script the node that hosts the master. It never
    delays the job and never fails it. All methods of an observer, its constructor included, are
    called on one thread of its own, in the order of the calls below. The thread has a queue of
    10,000 items: the items that an observer is too slow for are dropped, and an exception loses the
    item. One warning is logged for each observer. If the constructor or :meth:`begin` raises, the
    observer receives nothing else.

    The terminal and ``events.jsonl`` in the job's folder are built in, and are no observers: the
    master itself writes the file.
    """

    END_S = 5.0
    """Seconds that the observer may take for its last items after the end of the job."""

    @classmethod
    def check(cls, value: str) -> str:
        """Check the value of ``--observe``, and return it as the job stores it.

        It is called before the job starts. A path becomes absolute here, because ``torch-edl
        continue`` may run in another folder.

        Args:
            value: the text after ``NAME=``; empty if there is none.

        Raises:
            UsageError: the value cannot work.
        """
        return value

    def __init__(self, value: str) -> None:
        """Open what the observer writes to.

        Args:
            value: what :meth:`check` returned.
        """

    def begin(self, job: JobConfig) -> None:
        """Receive the configuration of the job before anything else.

        ``job.name`` identifies the job; a job that is continued begins again with the same name.
        ``json.loads(job.to_json())`` gives all settings as plain values.
        """

    def scalars(self, step: int, time: float, values: Mapping[str, float]) -> None:
        """Receive numbers of a step, at most once a second and once at the end.

        Args:
            step: optimizer steps of the job so far.
            time: Unix time in seconds.
            values: ``train/loss`` and ``train/NAME`` of ``job.log(NAME=...)``, ``train/workers``,
                ``rate/records_per_s`` and ``rate/steps_per_s``, and ``servers/rows`` and
                ``servers/bytes`` of all tables, while no server restores its rows. The metrics
                of an evaluation, ``eval/NAME``, come in a call of their own with the step that
                was evaluated.
        """

    def event(self, time: float, event: Event) -> None:
        """Receive an event.

        Args:
            time: Unix time in seconds.
            event: an object of one of the classes of :mod:`torch_edl.events`, such as
                :class:`~torch_edl.events.WorkerLost`. Its level ``debug`` marks changes of
                processes, which a terminal does not show.
        """

    def end(self, state: str, error: str) -> None:
        """Receive the end, and close all files and connections. The thread ends afterwards.

        Args:
            state: ``finished``, ``failed`` or ``stopped``; ``left`` if the job runs on without the
                process of the observer.
            error: cause of a failure or a stop; empty if there is none.
        """
