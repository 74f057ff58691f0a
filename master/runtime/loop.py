"""The loop of the master: events in, decisions, actions out."""

from __future__ import annotations

import time

from master.runtime.effects import Effects
from master.runtime.journal import Journal
from master.runtime.service import Service
from master.state.actions import Action, Become, NotStarted, Start, Started, Stop
from torch_edl.processes.adoption import start_time
from torch_edl.processes.local import LocalLauncher
from torch_edl.processes.signals import StopSignals

# How soon an exit of a process is noticed.
_POLL_S = 0.1


def run(
    service: Service, launcher: LocalLauncher, effects: Effects, stop: StopSignals, journal: Journal
) -> None:
    """Runs the job until every process has ended."""
    job = service.job
    starts: list[Start] = []  # not before the state that has them is kept
    while True:
        exits = launcher.poll()
        with service.changed:
            now = time.monotonic()
            if stop.name:
                job.stop(stop.name, now, at_once=stop.count > 1)
            for exit in exits:
                job.exited(exit, now, log=launcher.log_path(exit.role, exit.id))
            actions = job.tick(now)
            news, job.changed = job.changed or bool(exits or actions), False
            if news or job.lifecycle.outcome is not None or job.tasks.available:
                service.changed.notify_all()
            over = job.lifecycle.over
            events = job.lifecycle.log.after(journal.written)
        journal.write(events)
        for action in actions:
            if isinstance(action, Start):
                starts.append(action)
            else:
                _act(action, service, launcher, effects)
        if starts and _is_kept(service):
            for action in starts:
                _act(action, service, launcher, effects)
            starts.clear()
            _is_kept(service)  # with their pids
        elif starts and job.lifecycle.outcome is not None:
            for start in starts:
                service.apply(NotStarted(start.spec.role, start.spec.id, "not started"))
            starts.clear()
        if over:
            return
        with service.changed:
            service.changed.wait(_POLL_S)


def _is_kept(service: Service) -> bool:
    """Whether a master that would take this one's place knew what this one knows."""
    try:
        service.keep()
    except OSError:  # which the user has been told
        return False
    return True


def _act(action: Action, service: Service, launcher: LocalLauncher, effects: Effects) -> None:
    match action:
        case Start(spec):
            try:
                pid = launcher.start(spec)
                service.apply(Started(spec.role, spec.id, pid, start_time(pid)))
            except OSError as error:
                service.apply(NotStarted(spec.role, spec.id, str(error)))
        case Stop():
            launcher.stop(action.role, action.id, grace_s=action.grace_s)
        case Become():
            launcher.rename("worker", action.worker, "ps", action.server)
        case _:
            effects.submit(action)
