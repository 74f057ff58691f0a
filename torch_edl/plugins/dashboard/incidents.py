"""Deaths, moves and restarts of a job, each with what it cost. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

from torch_edl.events import (
    Event,
    FaultInjected,
    Loss,
    MasterRestarted,
    ModelRestored,
    ProcessLeft,
    RecordsLacked,
)
from torch_edl.plugins.dashboard.events import Told
from torch_edl.plugins.dashboard.lanes import Lanes

MOST = 200
"""Number of incidents that the page lists, the newest ones."""
_MASTER = "master-0"


def costs(
    found: Sequence[Told], outages: Sequence[Mapping[str, Any]], lanes: Lanes
) -> list[dict[str, Any]]:
    """Return the newest incidents with what each cost, oldest first.

    ``end``: how the process ended, ``died`` or ``taken``; empty if none did. ``noticed_s``: seconds
    from the fault to the event; None if the time of the fault is unknown.
    ``stalled_s``: seconds without a step, from the ``outages`` of the status, which have the
    numbers of their events; None if no step followed, or the event began no outage. ``stands``: no
    step followed. ``replaced_s``: seconds from the event until the next process in the place of the
    lost one ran; None if none followed. ``again``: records that are trained again.
    """
    stalls = {each["event"]: each["stalled_s"] for each in outages}
    runs = lanes.starts()
    recent = found[-2 * MOST :]
    # The event of a fault may follow that of its consequence, but has the time of the fault.
    faults: dict[str, list[float]] = {}
    for told in recent:
        if isinstance(told.event, FaultInjected) and told.event.fault != "continued":
            faults.setdefault(told.event.process, []).append(told.time)
    rows = []
    for told in recent:
        if isinstance(told.event, FaultInjected):
            continue
        process = _process(told.event)
        earlier = [told.time - at for at in faults.get(process, ()) if at <= told.time]
        noticed_s = min(earlier, default=told.event.silence_s or None)
        rows.append(
            {
                "sequence": told.sequence,
                "time": told.time,
                "kind": told.event.kind,
                "end": _end(told.event),
                "process": process,
                "text": told.text.partition("\n")[0],
                "noticed_s": noticed_s,
                "stalled_s": stalls.get(told.sequence),
                "stands": stalls.get(told.sequence, 0.0) is None,
                "replaced_s": _replaced_s(told, runs.get(lanes.place(process), [])),
                "again": _records_again(told.event),
            }
        )
    return rows[-MOST:]


def _process(event: Event) -> str:
    found = _MASTER if isinstance(event, MasterRestarted) else getattr(event, "process", None)
    return found or ""


def _end(event: Event) -> str:
    """Return how a process ended: ``died``, or ``taken`` away; empty if none did."""
    match event:
        case ProcessLeft(preempted=True) | Loss(way="taken"):
            return "taken"
        case ModelRestored(process=str(), way="taken"):
            return "taken"
        case Loss() | MasterRestarted():
            return "died"
        case ModelRestored() if event.process:
            return "died"
    return ""


def _records_again(event: Event) -> int:
    match event:
        case ModelRestored() | ProcessLeft():
            return event.records_again
        case RecordsLacked(trained_again=True):
            return event.records
    return 0


def _replaced_s(told: Told, runs: Sequence[float]) -> float | None:
    if not isinstance(told.event, Loss | ModelRestored | ProcessLeft):
        return None
    place = bisect_right(runs, told.time)
    return runs[place] - told.time if place < len(runs) else None
