"""The history and the events of a job whose folder ends with the pod of its master."""

from __future__ import annotations

import logging
import threading

from torch_edl.checkpoint.durable import write_text
from torch_edl.launch.jobs.folder import JobFolder
from torch_edl.plugins.kubernetes.cluster.failures import ClusterError
from torch_edl.plugins.kubernetes.master.own_job import OwnJob
from torch_edl.plugins.kubernetes.objects import final_history

log = logging.getLogger(__name__)

_EVERY_S = 60.0
# Each write makes the API server store the whole Job object, so it is small until the job ends.
_RUNNING_BYTES = 32 * 1024


class KeptHistory(threading.Thread):
    """Writes the files to the Job object once a minute, so that the next master restores them.

    Args:
        folder: folder of the job in the pod of the master.
    """

    def __init__(self, own: OwnJob, folder: JobFolder) -> None:
        super().__init__(name="history", daemon=True)
        self._own = own
        self._files = folder.history_file, folder.events_file
        self._written = ""
        self._closed = threading.Event()

    def restore(self) -> None:
        """Write the files that an earlier master left and this pod lacks.

        Raises:
            OSError: a file cannot be written.
        """
        for file, content in zip(self._files, final_history.parts(self._own.left), strict=True):
            if content and not file.exists():
                write_text(file, content.decode("utf-8", "replace"))

    def run(self) -> None:
        while not self._closed.wait(_EVERY_S):
            self.write()

    def write(self) -> None:
        """Write the Job object if the files have changed. An error is logged: training does not
        depend on the history."""
        text = self.text(most=_RUNNING_BYTES)
        if text in ("", self._written):
            return
        try:
            self._own.note_history(text)
            self._written = text
        except ClusterError as error:
            log.warning("the history of the job is noted later: %s", error)

    def text(self, *, most: int = final_history.MAX_BYTES) -> str:
        """Return the encoded files; empty if there are none."""
        found = (file.read_bytes() if file.exists() else b"" for file in self._files)
        return final_history.to_text(*found, most=most)

    def close(self) -> None:
        """End the thread, after a write that has begun."""
        self._closed.set()
        if self.is_alive():
            self.join()
