"""Does what takes long, one thing after the other in a thread of its own: checkpoints, output."""

from __future__ import annotations

import logging
import queue
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

from master.runtime import checkpoints
from master.runtime.service import Clock, Service
from master.state.actions import CommitLocal, Effect, Flush, MakeFolder, SaveServers, WriteOutput
from torch_edl.checkpoint import layout
from torch_edl.errors import EdlError

log = logging.getLogger(__name__)

_Result = Callable[[float], None]


class Effects:
    """A thread that runs effects and tells the job what came of them."""

    def __init__(self, service: Service, *, token: str, clock: Clock) -> None:
        self._service = service
        self._job = service.job
        self._token = token
        self._clock = clock
        self._queue: queue.SimpleQueue[Effect] = queue.SimpleQueue()
        # A daemon: a job that failed does not wait for a disk.
        threading.Thread(target=self._run, name="effects", daemon=True).start()

    def submit(self, effect: Effect) -> None:
        """Appends one to what is to be done."""
        self._queue.put(effect)

    def _run(self) -> None:
        while True:
            effect = self._queue.get()
            try:
                result = self._do(effect)
            except EdlError as error:
                result = self._failed(effect, str(error))
            except OSError as error:
                file = f": {error.filename}" if error.filename else ""
                result = self._failed(effect, f"{error.strerror or error}{file}")
            except Exception as error:
                log.exception("%s failed", type(effect).__name__)
                result = self._failed(effect, f"{type(error).__name__}: {error}")
            saves = self._job.keeper.saves
            with self._service.changed:
                before = saves.newest
                result(self._clock())
                newest = saves.newest
                self._service.changed.notify_all()
            # Not before it is the one to go back to, and not while servers read an earlier one.
            if newest is not None and newest is not before:
                layout.prune(newest.path.parent, saves.keep)

    def _do(self, effect: Effect) -> _Result:
        """Does it without the lock, so the job is none of its business but in what it returns."""
        keeper = self._job.keeper
        if isinstance(effect, SaveServers):
            saved = checkpoints.save_servers(
                effect.addresses,
                token=self._token,
                incarnation=effect.incarnation,
                root=effect.root,
                known=effect.progress,
                contents=effect.contents,
            )
            return lambda now: keeper.saved(saved, effect.incarnation, now)
        if isinstance(effect, CommitLocal):
            saved = checkpoints.commit_local(
                effect.directory,
                effect.files,
                version=effect.version,
                progress=effect.progress,
                contents=effect.contents,
                root=effect.root,
            )
            return lambda now: keeper.saved(saved, effect.incarnation, now)
        if isinstance(effect, MakeFolder):
            # A snapshot that failed for want of space must not take the space of the next one.
            checkpoints.remove_leftovers(effect.directory.parent)
            effect.directory.mkdir()
            return lambda now: self._job.folder_made(effect.directory, effect.incarnation)
        if isinstance(effect, Flush):
            checkpoints.flush(
                effect.addresses,
                token=self._token,
                job=effect.job,
                incarnation=effect.incarnation,
            )
            return lambda now: keeper.flushed(effect.incarnation, success=True)
        # Imported when needed: it brings the formats of files with it.
        from torch_edl.checkpoint.export import write_output

        write_output(effect.checkpoint, effect.output)
        return lambda now: keeper.written("", now)

    def _failed(self, effect: Effect, error: str) -> _Result:
        job = self._job
        if isinstance(effect, Flush):
            log.warning("flush: %s", error)
            return lambda now: job.keeper.flushed(effect.incarnation, success=False)
        if isinstance(effect, WriteOutput):
            return lambda now: job.keeper.written(error, now)
        return lambda now: job.keeper.save_failed(error, effect.incarnation, now)


def remove_temporary(root: Path) -> None:
    """Removes the final state of a job that keeps no checkpoints."""
    shutil.rmtree(root, ignore_errors=True)
