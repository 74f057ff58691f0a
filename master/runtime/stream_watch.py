"""Asks the brokers what the streams of a job have, as long as the job lasts."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from master.state.actions import Note
from master.state.job.streams import StreamGrown
from torch_edl.errors import EdlError

log = logging.getLogger(__name__)

EVERY_S = 0.5
"""Between two questions: a record waits so long at most until it is in a task."""


class StreamWatch:
    """A thread that tells the job of partitions and of their ends.

    Args:
        topics: the names of the streams; none: there is nothing to ask.
        apply: takes each event.
    """

    def __init__(
        self,
        topics: Sequence[str],
        apply: Callable[[StreamGrown | Note], None],
    ) -> None:
        self._topics = topics
        self._apply = apply
        self._ended = threading.Event()
        self._silent = False  # and told
        self._thread = threading.Thread(target=self._run, name="streams", daemon=True)

    def start(self) -> None:
        """Begins to ask."""
        if self._topics:
            self._thread.start()

    def stop(self) -> None:
        """Asks no more; a question that is under way is not waited for."""
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
        """Says once that there is no answer, and once that there is one again."""
        if self._silent == bool(error):
            return
        self._silent = bool(error)
        text = f"no new records for now: {error}" if error else "the streams answer again"
        self._apply(Note("warning" if error else "info", text))
