"""Polls the brokers for new records of a job's streams, as long as the job runs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from master.state.actions import Note
from master.state.job.preparation import StreamGrown
from torch_edl.errors import EdlError

log = logging.getLogger(__name__)

EVERY_S = 0.5
"""Seconds between two polls; the longest delay until a new record is in a task."""


class StreamWatch:
    """A thread that reports the offsets of partitions to the job.

    Args:
        topics: names of the streams; empty if the job has none.
        apply: receives each event.
    """

    def __init__(
        self,
        topics: Sequence[str],
        apply: Callable[[StreamGrown | Note], None],
    ) -> None:
        self._topics = topics
        self._apply = apply
        self._ended = threading.Event()
        self._silent = False  # the brokers do not answer, and this was reported
        self._thread = threading.Thread(target=self._run, name="streams", daemon=True)

    def start(self) -> None:
        """Begin to poll."""
        if self._topics:
            self._thread.start()

    def stop(self) -> None:
        """Stop to poll, without waiting for a poll in progress."""
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.is_set():
            self._ask()
            self._ended.wait(EVERY_S)

    def _ask(self) -> None:
        try:
            # Imported when needed: it may bring pyarrow.
            from torch_edl.data.sources.kinds import url_type

            offsets: dict[str, tuple[int, int]] = {}
            for topic in self._topics:
                offsets |= url_type(topic).offsets([topic])
        except EdlError as error:
            self._tell(str(error))
            return
        self._tell("")
        if not self._ended.is_set():
            self._apply(StreamGrown(offsets))

    def _tell(self, error: str) -> None:
        """Report once that the brokers do not answer, and once that they answer again."""
        if self._silent == bool(error):
            return
        self._silent = bool(error)
        text = f"no new records for now: {error}" if error else "the streams answer again"
        self._apply(Note("warning" if error else "info", text))
