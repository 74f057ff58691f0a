"""Verdicts of watches about processes: their events, and the replacements that they ask for.
Pure."""

from __future__ import annotations

from collections.abc import Sequence

from master.state.job.job import ManagedJob
from torch_edl.interfaces.watch import Verdict

# Seconds within which a worker must leave.
_LEAVE_S = 60.0


def judge(job: ManagedJob, verdicts: Sequence[Verdict], now: float) -> None:
    """Apply the newest verdicts, which replace all earlier ones."""
    job.verdicts = {(each.role, each.id): each for each in verdicts}
    for each in verdicts:
        then = _replaced(job, each.role, each.id, now) if each.replace else ""
        if each.event:
            job.lifecycle.note(each.level, f"{each.event}{then}", now)


def _replaced(job: ManagedJob, role: str, id: int, now: float) -> str:
    """Replace a process, if that is useful. Returns the text of it; empty if it is not replaced."""
    process = job.fleet.process(role, id)
    if process is None:
        return ""
    if (worker := job.fleet.worker(id)) is not None and role == "worker":
        worker.retire(now, by=now + _LEAVE_S, starting_too=False)
        then = "; it is replaced"
    elif role == "ps" and job.config.shares_files and not job.tasks.trained:
        job.fleet.servers.moving = True
        then = "; the model moves to other servers"
    else:
        return ""
    job.fleet.starts.machines.avoid(process.node, now)
    return then
