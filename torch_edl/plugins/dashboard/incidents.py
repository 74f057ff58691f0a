"""Deaths, moves and restarts of a job, each with what it cost. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from torch_edl.plugins.dashboard import marks
from torch_edl.plugins.dashboard.lanes import Lanes
from torch_edl.plugins.dashboard.marks import Mark
from torch_edl.plugins.dashboard.samples import Samples

MOST = 200
"""Number of incidents that the page lists, the newest ones."""
# A fault that was injected earlier than this before the loss is another one.
_SAME_FAULT_S = 120.0

Event = dict[str, Any]


def costs(
    found: Sequence[tuple[Event, Mark]], samples: Samples, lanes: Lanes
) -> list[dict[str, Any]]:
    """Return the newest incidents with what each cost, oldest first.

    ``noticed_s``: seconds from the fault to the event; None if the time of the fault is unknown.
    ``step_s``: seconds from the event to the next step that was seen, an upper bound as precise as
    the samples; None if none followed. ``replaced_s``: seconds from the event until the next
    process of the role ran; None if none followed. ``again``: records that are trained again.
    """
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
    for event, mark in recent:
        if mark.kind == marks.FAULT:
            continue
        at = event["time"]
        # The event of a fault may follow that of its consequence, but has the time of the fault.
        earlier = [at - t for t in faults.get(mark.process, ()) if 0 <= at - t <= _SAME_FAULT_S]
        noticed_s = min(earlier, default=mark.silent_s)
        rows.append(
            {
                "sequence": event["sequence"],
                "time": at,
                "kind": mark.kind,
                "process": mark.process or mark.to,
                "text": event["text"].partition("\n")[0],
                "noticed_s": noticed_s,
                "step_s": samples.next_step_s(at),
                "replaced_s": _replaced_s(at, mark, runs),
                "again": mark.again,
            }
        )
    return rows[-MOST:]


def _replaced_s(at: float, mark: Mark, runs: dict[str, list[float]]) -> float | None:
    role = mark.process.partition("-")[0]
    if mark.kind not in (marks.LOST, marks.PREEMPTED, "restored", "role") or role not in (
        "worker",
        "ps",
    ):
        return None
    role = "ps" if mark.kind == "role" else role
    # The status that shows the replacement may be a moment older than the event.
    place = bisect_right(runs.get(role, []), at - 0.5)
    return max(0.0, runs[role][place] - at) if place < len(runs.get(role, [])) else None
