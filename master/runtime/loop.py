"""The main loop of the master: collect events, let the job decide, execute its actions. A thread
beside it keeps the state."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from master.runtime.clock import Clock, of_notes, of_ticks
from master.runtime.effects import Effects
from master.runtime.job_files import EventFile
from master.runtime.persistence import StateWriter
from master.runtime.service import Service
from master.runtime.store import RENEW_S
from master.state.actions import (
    Action,
    KeepPlan,
    PlanKept,
    Prune,
    Remove,
    SaveServers,
    Start,
    Stop,
)
from torch_edl.checkpoint.durable import write_text
from torch_edl.errors import StoreConflictError
from torch_edl.launch.jobs.status import as_dict
from torch_edl.node.orders import NodeLauncher
from torch_edl.processes.launcher import Launcher, ProcessExit, ProcessNotStarted
from torch_edl.processes.signals import StopSignals
from torch_edl.wire import master_pb2 as pb

log = logging.getLogger(__name__)

# Seconds within which the exit of a process is noticed.
_POLL_S = 0.1
_EVERY_S = RENEW_S
_CLOSE_S = 5.0
# Fields of a status and of its processes that change as time passes, without an event.
_TIMES = ("wall_s", "rates")
_USAGE = "usage"


def run(
    service: Service,
    launcher: Launcher,
    effects: Effects,
    stop: StopSignals,
    journal: EventFile,
    clock: Clock,
    *,
    leaves: Callable[[], bool] = lambda: False,
) -> bool:
    """Run the job until all processes have ended. Returns False if the master leaves before that.

    Args:
        leaves: called after the first stop signal; returns True if the signal ends the master, but
            not the job.
    """
    job = service.job
    ticks = of_ticks()
    waiting: list[Action] = []  # until the state that caused them is stored
    has_ends = False  # the state with the ends of processes is not stored yet
    signalled = False
    while True:
        if stop.name and not signalled:
            signalled = True
            if leaves():
                log.warning("%s: leaving the job to the next master", stop.name)
                return False
        heard = launcher.poll()
        with service.changed:
            began, now = time.monotonic(), clock()
            if pause_s := clock.take_pause():
                text = "paused, or waiting for a disk, for %.0f s: nobody is declared lost for that"
                log.warning(text, pause_s)
                job.lifecycle.paused(pause_s)
            if stop.name:
                job.stop(stop.name, now, at_once=stop.count > 1)
            for each in heard:
                if isinstance(each, ProcessExit):
                    job.exited(each, now, log=launcher.log_path(each.role, each.id))
                else:
                    job.apply(each, now)
            actions = job.tick(now)
            news, job.changed = job.changed or bool(heard or actions), False
            if news or job.lifecycle.outcome is not None or job.tasks.available:
                service.changed.notify_all()
            over = job.lifecycle.over
            events = job.lifecycle.log.after(journal.written)
            ticks.took(time.monotonic() - began, time.monotonic())
        journal.write(events)
        has_ends = has_ends or any(isinstance(each, ProcessExit) for each in heard)
        for action in actions:
            if waits(action):
                waiting.append(action)
            else:
                _act(action, service, launcher, effects)
        if (waiting or has_ends) and _is_kept(service):
            if has_ends and isinstance(launcher, NodeLauncher):
                launcher.nodes.stored()
            has_ends = False
            for action in waiting:
                _act(action, service, launcher, effects)
            waiting.clear()
        elif waiting and job.lifecycle.outcome is not None:
            for action in waiting:
                if isinstance(action, Start):
                    spec = action.spec
                    service.apply(ProcessNotStarted(role=spec.role, id=spec.id, why="not started"))
                else:
                    _act(action, service, launcher, effects)
            waiting.clear()
        if over:
            return True
        time.sleep(ticks.until_due(time.monotonic()))
        with service.changed:
            service.changed.wait(_POLL_S)


def waits(action: Action) -> bool:
    """Return whether the action must wait until the state is stored.

    A successor must know of it, else it would start a process twice, expect a server that is gone,
    or restore a removed folder. A master that was paused or disconnected learns by the write
    whether it was superseded; processes, checkpoints and servers then belong to the other master.
    Tasks of a stream are defined by the stored plan.
    """
    moves = isinstance(action, SaveServers) and action.move > 0
    return moves or isinstance(action, Start | Stop | Remove | Prune | KeepPlan)


def _is_kept(service: Service) -> bool:
    """Store the state. Returns whether it was stored."""
    try:
        service.keep()
    except OSError:  # reported by the persistence
        return False
    return True


def _act(action: Action, service: Service, launcher: Launcher, effects: Effects) -> None:
    match action:
        case Start(spec):
            launcher.start(spec)
        case Stop():
            launcher.stop(action.role, action.id, grace_s=action.grace_s)
        case KeepPlan():
            service.apply(PlanKept(action.life, action.end))
        case _:
            effects.submit(action)


class StateThread:
    """A thread that renews the lock of the job, and writes its state, and its status for
    ``torch-edl status``, once a second.

    Args:
        shown: functions that receive the status.
    """

    def __init__(
        self,
        service: Service,
        writer: StateWriter,
        *,
        status_file: Path,
        shown: Sequence[Callable[[pb.GetStatusResponse], None]] = (),
    ) -> None:
        self._service = service
        self._writer = writer
        self._status_file = status_file
        self._shown = shown
        self._status_written: dict[str, Any] | None = None
        self._events_after = 0  # number of the newest event that was shown
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="state", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write the last state."""
        self._ended.set()
        self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        notes = of_notes()
        while not self._ended.wait(_EVERY_S):
            began = time.monotonic()
            whole = not notes.until_due(began)
            self._keep(whole=whole)
            if whole:
                notes.took(time.monotonic() - began, began)
        self._status_written = None  # the last status has the final times
        self._keep()

    def _keep(self, *, whole: bool = True) -> None:
        """Renew the lock if that is due, and write the state if ``whole``."""
        try:
            self._writer.renew()
            if not whole:
                return
            self._service.keep()
            with self._service.changed:
                asked = pb.GetStatusRequest(events_after=self._events_after)
                status = self._service.status(asked)
            for show in self._shown:
                show(status)
            self._events_after = max([self._events_after, *(e.sequence for e in status.events)])
            self._keep_status(as_dict(status))
            self._service.store_answered(None)
        except StoreConflictError:
            return  # reported by the writer
        except OSError as error:
            self._service.store_answered(error)

    def _keep_status(self, status: dict[str, Any]) -> None:
        """Write the status file if more than the times has changed."""
        processes = [{**process, _USAGE: None} for process in status["processes"]]
        lasting = {key: value for key, value in status.items() if key not in _TIMES}
        lasting["processes"] = processes
        if lasting != self._status_written:
            write_text(self._status_file, json.dumps(status, indent=1))
            self._status_written = lasting
