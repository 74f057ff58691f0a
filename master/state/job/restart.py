"""The state of a job that a restarted master restores, part by part. Pure.

The stored state may be a second old. A worker's report on a task that the state does not know is
resolved on arrival: :meth:`~master.state.work.task_scheduler.TaskScheduler.recognize` adopts the
lease, and the watermarks of the engines prevent a second training of a task that is leased again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from master.state.job.job import ManagedJob
from master.state.workforce.processes import without_defaults
from torch_edl.events import MasterRestarted

FORMAT = 17
"""Format of the stored state; a change of what :func:`to_state` returns raises it."""
# Upper bound on the leases that one master grants. Lease ids stay below 2**53, see the service.
_LEASES_OF_A_MASTER = 1 << 32


class StatefulPart(Protocol):
    """A part of a job that a restarted master restores."""

    def to_state(self) -> Any:
        """Return the state for a restarted master, as JSON values."""
        ...

    def from_state(self, state: Any, now: float) -> None:
        """Restore what :meth:`to_state` returned; every process counts as heard at ``now``."""
        ...


def to_state(job: ManagedJob) -> dict[str, Any]:
    """Return the state for a restarted master, as JSON values."""
    own = {"reason": job.reason, "damaged": job.damaged, "restarts": job.restarts}
    return {"job": own, **{name: part.to_state() for name, part in _parts(job).items()}}


def stored(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return what :func:`to_state` returned without the default values of processes."""
    fleet = state["fleet"]
    return {
        **state,
        "fleet": {**fleet, "processes": [without_defaults(each) for each in fleet["processes"]]},
    }


def after_failure(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of a failed job, reset to continue: without the outcome and the failures
    that led to it. The state of any other job is returned unchanged."""
    outcome = state["lifecycle"]["outcome"]
    if outcome is None or outcome["state"] != "failed":
        return dict(state)
    changes: dict[str, dict[str, Any]] = {
        "lifecycle": {"outcome": None},
        "fleet": {"retired": False},
        "checkpoints": {"failures": 0},
    }
    if main := state["tasks"].get("main"):
        changes["tasks"] = {"main": {**main, "failures": []}}
    return {**state, **{name: {**state[name], **new} for name, new in changes.items()}}


def from_state(job: ManagedJob, state: Mapping[str, Any], now: float) -> None:
    """Restore what :func:`to_state` returned, before :meth:`ManagedJob.start`."""
    own = state["job"]
    job.reason, job.damaged, job.restarts = own["reason"], own["damaged"], own["restarts"] + 1
    job.compose(state["fleet"]["strategy"])
    for name, part in _parts(job).items():
        part.from_state(state[name], now)
    job.tasks.begin_leases_after(job.restarts * _LEASES_OF_A_MASTER)
    job.checkpoints.begin_master(job.restarts, job.fleet.cluster())
    job.lifecycle.note(MasterRestarted(workers=len(job.members)), now)


def _parts(job: ManagedJob) -> dict[str, StatefulPart]:
    """Return the parts by name, in the order in which they are restored."""
    parts: dict[str, StatefulPart] = {
        "lifecycle": job.lifecycle,
        "fleet": job.fleet,
        "members": job.members,
        "workforce": job.workforce,
        "ring": job.ring,
        "spans": job.spans,
        "trainings": job.trainings,
        "checkpoints": job.checkpoints,
        "tasks": job.tasks,
        "ledger": job.tasks.ledger,
        "fitting": job.tasks.fitting,
        "preparation": job.preparation,
        "milestones": job.milestones,
        "meetings": job.meetings,
    }
    return parts if job.workload is job.tasks else {**parts, "workload": job.workload}
