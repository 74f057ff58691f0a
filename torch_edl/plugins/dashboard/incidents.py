"""Deaths, moves and restarts of a job, each with what it cost. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

from torch_edl.plugins.dashboard import marks
from torch_edl.plugins.dashboard.lanes import Lanes
from torch_edl.plugins.dashboard.marks import Mark

MOST = 200
"""Number of incidents that the page lists, the newest ones."""
# A fault that was injected earlier than this before the loss is another one.
_SAME_FAULT_S = 120.0

Event = dict[str, Any]


def costs(
    found: Sequence[tuple[Event, Mark]], outages: Sequence[Mapping[str, Any]], lanes: Lanes
) -> list[dict[str, Any]]:
    """Return the newest incidents with what each cost, oldest first.

    ``noticed_s``: seconds from the fault to the event; None if the time of the fault is unknown.
    ``stalled_s``: seconds without a step, from the ``outages`` of the status, which have the times
    of their events; None if no step followed, or the event began no outage. ``stands``: no step
    followed. ``replaced_s``: seconds from the event until the next process of the role ran; None
    if none followed. ``again``: records that are trained again.
    """
    stalls = {round(each["time"], 3): each["stalled_s"] for each in outages}
    runs: dict[str, list[float]] = {}
    for lane in lanes.all.values():
        for start, state in lane.segments:
            if state.endswith(" running") and not state.startswith("spare"):
                runs.setdefault(lane.role, []).append(start)
    for starts in runs.values():
        starts.sort()
    recent = found[-2 * MOST :]
    faults: dict[str, list[float]] = {}
    for event, mark in recent:
        if mark.kind == marks.FAULT:
            faults.setdefault(mark.process, []).append(event["time"])
    rows = []
    lost: set[str] = set()
    for event, mark in recent:
        # The exit of a process that was declared lost is no second loss.
        if mark.kind == marks.FAULT or (mark.kind == marks.LOST and mark.process in lost):
            continue
        if mark.kind == marks.LOST:
            lost.add(mark.process)
        at = event["time"]
        # The event of a fault may follow that of its consequence, but has the time of the fault.
        earlier = [at - t for t in faults.get(mark.process, ()) if 0 <= at - t <= _SAME_FAULT_S]
        noticed_s = min(earlier, default=mark.silent_s)
        rows.append(
            {
                "sequence": event["sequence"],
                "time": at,
                "kind": mark.kind,
                "process": mark.process,
                "text": event["text"].partition("\n")[0],
                "noticed_s": noticed_s,
                "stalled_s": stalls.get(round(at, 3)),
                "stands": stalls.get(round(at, 3), 0.0) is None,
                "replaced_s": _replaced_s(at, mark, runs),
                "again": mark.again,
            }
        )
    return rows[-MOST:]


def _replaced_s(at: float, mark: Mark, runs: dict[str, list[float]]) -> float | None:
    role = mark.process.partition("-")[0]
    kinds = (marks.LOST, marks.PREEMPTED, "restored")
    if mark.kind not in kinds or role not in ("worker", "ps"):
        return None
    # The status that shows the replacement may be a moment older than the event.
    place = bisect_right(runs.get(role, []), at - 0.5)
    return max(0.0, runs[role][place] - at) if place < len(runs.get(role, [])) else None
