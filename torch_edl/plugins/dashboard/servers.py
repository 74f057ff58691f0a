"""The load of parameter servers in the last seconds, from the counters in the status. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

WINDOW_S = 10.0
"""Seconds over which rates and percentiles are taken."""

Counts = Mapping[str, Any]
_HISTOGRAMS = {"pull_s": "pull", "push_s": "push", "staleness": "staleness"}


class ServerLoads:
    """The newest counters of each server, and those of ten seconds ago."""

    def __init__(self) -> None:
        self._seen: dict[int, deque[tuple[float, Counts]]] = {}

    def load(self, id: int, counts: Counts, now: float) -> dict[str, Any]:
        """Note the counters of a server, and return its load.

        ``NAME_s`` is the number per second of a histogram's values, and None until counters of two
        times are known; ``NAME_p50`` and ``NAME_p99`` are upper bounds of percentiles, or None
        without values; ``busy`` is the seconds of all calls per second.
        """
        seen = self._seen.setdefault(id, deque())
        if not seen or now > seen[-1][0]:
            seen.append((now, counts))
        while now - seen[0][0] > 3 * WINDOW_S and len(seen) > 1:  # the page was not read meanwhile
            seen.popleft()
        while len(seen) > 2 and now - seen[1][0] >= WINDOW_S:
            seen.popleft()
        began, before = seen[0]
        seconds, busy_s, found = now - began, 0.0, {}
        for field, name in _HISTOGRAMS.items():
            histogram = counts.get(field) or {}
            new = list(histogram.get("counts", ()))
            old = list((before.get(field) or {}).get("counts", ())) if seconds else []
            values = [a - b for a, b in zip(new, old or [0] * len(new), strict=False)]
            found[f"{name}_s"] = round(sum(values) / seconds, 2) if seconds else None
            bounds = histogram.get("bounds", ())
            for share in (50, 99):
                found[f"{name}_p{share}"] = percentile(bounds, values, share / 100)
            if field != "staleness" and seconds:
                busy_s += histogram.get("sum", 0.0) - (before.get(field) or {}).get("sum", 0.0)
        found["busy"] = round(busy_s / seconds, 3) if seconds else None
        found["journal_lag_s"] = counts.get("journal_lag_s", 0.0)
        found["journal_bytes"] = counts.get("journal_bytes", 0)
        return found


def percentile(bounds: Sequence[float], counts: Sequence[int], share: float) -> float | None:
    """Return an upper bound of a percentile of a histogram: the bound of its bucket, or the largest
    bound for a value above all bounds; None without values."""
    total, below = sum(counts), 0
    if not total or not bounds:
        return None
    for place, count in enumerate(counts):
        below += count
        if below >= share * total:
            return bounds[min(place, len(bounds) - 1)]
    return bounds[-1]


def tables(processes: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows, bytes and evicted rows of each table, summed over the servers that run, with the
    share of the server that has most of its rows; the largest table first."""
    found: dict[str, dict[str, Any]] = {}
    for process in processes:
        for each in (process.get("counts") or {}).get("tables", ()):
            table = found.setdefault(
                each["name"], {"name": each["name"], "rows": 0, "bytes": 0, "evicted": 0, "most": 0}
            )
            for field in ("rows", "bytes", "evicted"):
                table[field] += each[field]
            table["most"] = max(table["most"], each["rows"])
    return sorted(found.values(), key=lambda table: (-table["bytes"], table["name"]))
