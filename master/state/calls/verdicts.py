"""Verdicts of watches about processes: their events, and the replacements that they ask for.
Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from master.state.job.job import ManagedJob
from torch_edl.events import Judged
from torch_edl.interfaces.watch import Verdict

# Seconds within which a worker must leave.
_LEAVE_S = 60.0


def judge(job: ManagedJob, verdicts: Sequence[Verdict], now: float) -> None:
    """Apply the newest verdicts, which replace all earlier ones."""
    job.verdicts = {(each.role, each.id): each for each in verdicts}
    for each in verdicts:
        then = _replaced(job, each.role, each.id, now) if each.replace else ""
        if each.event is not None:
            event = each.event
            if isinstance(event, Judged) and then:
                event = replace(event, then=then)
            job.lifecycle.note(event, now)


def _replaced(job: ManagedJob, role: str, id: int, now: float) -> Literal["", "replaced", "moved"]:
    """Replace a process, if that is useful. Returns what was done; empty if it is not replaced."""
    process = job.fleet.process(role, id)
    then: Literal["replaced", "moved"] = "replaced"
    if process is None:
        return ""
    if (worker := job.fleet.worker(id)) is not None and role == "worker":
        worker.retire(now, by=now + _LEAVE_S, starting_too=False)
    elif role == "ps" and job.config.shares_files and not job.tasks.trained:
        job.fleet.servers.moving = True
        then = "moved"
    else:
        return ""
    job.fleet.starts.machines.avoid(process.node, now)
    return then
