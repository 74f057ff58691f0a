"""The load of parameter servers in the last seconds, from the counters in the status. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

WINDOW_S = 10.0
"""Seconds over which rates and percentiles are taken."""

CHANGES_S = 60.0
"""Seconds over which new and removed rows of tables are counted."""
MOST_IDS = 20
"""Number of frequent ids of one table."""

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
    share of the server that has most of its rows; the largest table first.

    ``frequent`` lists the ids with the most updates as (id, updates, share of the updates of the
    table); the id is a text, since a browser has no exact integers above 2**53. It is None unless
    the servers were asked.
    """
    found: dict[str, dict[str, Any]] = {}
    for process in processes:
        for each in (process.get("counts") or {}).get("tables", ()):
            new = {"name": each["name"], "rows": 0, "bytes": 0, "evicted": 0, "most": 0}
            table = found.setdefault(each["name"], {**new, "frequent": None})
            for field in ("rows", "bytes", "evicted"):
                table[field] += each[field]
            table["most"] = max(table["most"], each["rows"])
            ids, updates = each.get("frequent_ids", ()), each.get("frequent_updates", ())
            every = each.get("updates", 0)
            for id, count in zip(ids, updates, strict=False):
                share = round(min(1.0, count / every), 4) if every else None
                table["frequent"] = [*(table["frequent"] or ()), [str(id), count, share]]
    for table in found.values():
        if table["frequent"]:
            table["frequent"] = sorted(table["frequent"], key=lambda f: -f[1])[:MOST_IDS]
    return sorted(found.values(), key=lambda table: (-table["bytes"], table["name"]))


class TableChanges:
    """Rows that each table gained and lost in the last minute."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, dict[str, tuple[int, int]]]] = deque()

    def note(self, found: Sequence[dict[str, Any]], now: float) -> None:
        """Set ``new_s`` and ``evicted_s`` of each table: rows per second. They are None before
        numbers of two times are known, and after a restart of a server."""
        if not self._seen or now > self._seen[-1][0]:
            self._seen.append((now, {t["name"]: (t["rows"], t["evicted"]) for t in found}))
        while len(self._seen) > 2 and now - self._seen[0][0] > CHANGES_S:
            self._seen.popleft()
        began, before = self._seen[0]
        for table in found:
            rows, evicted = before.get(table["name"], (0, 0))
            gone = table["evicted"] - evicted
            new = table["rows"] - rows + gone
            known = now > began and gone >= 0 and new >= 0 and table["name"] in before
            table["new_s"] = round(new / (now - began), 3) if known else None
            table["evicted_s"] = round(gone / (now - began), 3) if known else None
