"""Executes the actions that take long, one after the other in a thread: checkpoints, output."""

from __future__ import annotations

import logging
import queue
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

from master.runtime import checkpoints
from master.state.actions import (
    CheckpointFailed,
    CheckpointSaved,
    CommitLocal,
    Effect,
    EffectEvent,
    Flush,
    Flushed,
    OutputWritten,
    Prune,
    SaveServers,
    WriteOutput,
)
from torch_edl.checkpoint import layout
from torch_edl.errors import EdlError

log = logging.getLogger(__name__)


class Effects:
    """A thread that executes actions.

    Args:
        apply: takes what came of each action.
        token: of the job, for the servers.
    """

    def __init__(self, apply: Callable[[EffectEvent], None], *, token: str) -> None:
        self._apply = apply
        self._token = token
        self._queue: queue.SimpleQueue[Effect] = queue.SimpleQueue()
        # A daemon: a job that failed does not wait for a disk.
        threading.Thread(target=self._run, name="effects", daemon=True).start()

    def submit(self, effect: Effect) -> None:
        """Appends an action to those that are to be executed."""
        self._queue.put(effect)

    def _run(self) -> None:
        while True:
            event = execute(self._queue.get(), token=self._token)
            if event is not None:
                self._apply(event)


def execute(effect: Effect, *, token: str) -> EffectEvent | None:
    """Executes an action; returns what came of it, a failure too."""
    try:
        return _execute(effect, token)
    except EdlError as error:
        text = str(error)
    except OSError as error:
        file = f": {error.filename}" if error.filename else ""
        text = f"{error.strerror or error}{file}"
    except Exception as error:
        log.exception("%s failed", type(effect).__name__)
        text = f"{type(error).__name__}: {error}"
    match effect:
        case SaveServers() | CommitLocal():
            return CheckpointFailed(text, effect.incarnation)
        case Flush():
            log.warning("flush: %s", text)
            return Flushed(effect.incarnation, success=False)
        case WriteOutput():
            return OutputWritten(error=text)
    log.warning("%s", text)
    return None


def _execute(effect: Effect, token: str) -> EffectEvent | None:
    match effect:
        case SaveServers():
            return CheckpointSaved(checkpoints.save_servers(effect, token), effect.incarnation)
        case CommitLocal():
            return CheckpointSaved(checkpoints.commit_local(effect), effect.incarnation)
        case Flush():
            checkpoints.flush(effect, token)
            return Flushed(effect.incarnation, success=True)
        case WriteOutput():
            # Imported when needed: it brings the formats of files with it.
            from torch_edl.checkpoint.export import write_output

            write_output(effect.checkpoint, effect.output)
            return OutputWritten()
        case Prune():
            layout.prune(effect.root, effect.keep)
    return None


def remove_temporary(root: Path) -> None:
    """Removes the final state of a job that keeps no checkpoints."""
    shutil.rmtree(root, ignore_errors=True)
