from __future__ import annotations

from typing import Any

from torch_edl.plugins.dashboard.servers import ServerLoads, TableChanges, percentile, tables

BOUNDS = [0.001, 0.01, 0.1]


def _counts(pulls: list[int], pushes: list[int], *, busy_s: float = 0.0) -> dict[str, Any]:
    return {
        "pull_s": {"bounds": BOUNDS, "counts": pulls, "sum": busy_s},
        "push_s": {"bounds": BOUNDS, "counts": pushes, "sum": 0.0},
        "staleness": {"bounds": [0, 1, 2], "counts": [5, 4, 0, 0], "sum": 4.0},
        "journal_lag_s": 0.25,
        "journal_bytes": 4096,
    }


def test_percentiles_are_bounds_of_buckets() -> None:
    assert percentile(BOUNDS, [50, 49, 1, 0], 0.5) == 0.001
    assert percentile(BOUNDS, [50, 49, 1, 0], 0.99) == 0.01
    assert percentile(BOUNDS, [0, 0, 0, 3], 0.5) == 0.1  # above all bounds
    assert percentile(BOUNDS, [0, 0, 0, 0], 0.5) is None
    assert percentile([], [], 0.5) is None


def test_a_load_is_that_of_the_last_seconds() -> None:
    loads = ServerLoads()
    first = loads.load(0, _counts([1000, 0, 0, 0], [0, 0, 0, 0]), 100.0)
    assert (first["pull_s"], first["busy"], first["pull_p99"]) == (None, None, 0.001)
    loads.load(0, _counts([1000, 0, 0, 0], [0, 0, 0, 0]), 105.0)
    now = loads.load(0, _counts([1000, 40, 0, 0], [0, 0, 20, 0], busy_s=4.0), 110.0)
    assert (now["pull_s"], now["push_s"], now["busy"]) == (4.0, 2.0, 0.4)
    assert (now["pull_p50"], now["push_p99"]) == (0.01, 0.1)
    assert (now["journal_lag_s"], now["journal_bytes"]) == (0.25, 4096)
    later = loads.load(0, _counts([1000, 40, 0, 0], [0, 0, 20, 0], busy_s=4.0), 125.0)
    assert (later["pull_s"], later["pull_p50"], later["busy"]) == (0.0, None, 0.0)
    # The page was closed for an hour: the numbers of that time are not those of the last seconds.
    opened = loads.load(0, _counts([9000, 40, 0, 0], [0, 0, 20, 0]), 3725.0)
    assert opened["pull_s"] is None
    assert loads.load(1, {}, 125.0)["pull_p50"] is None  # a server without calls


def test_tables_of_all_servers_are_summed() -> None:
    def server(*rows: int) -> dict[str, Any]:
        found = [
            {"name": f"t{i}", "rows": n, "bytes": 64 * n, "evicted": i} for i, n in enumerate(rows)
        ]
        return {"counts": {"tables": found}}

    found = tables([server(10, 100), {}, server(30, 100)])
    assert found == [
        {"name": "t1", "rows": 200, "bytes": 12_800, "evicted": 2, "most": 100, "frequent": None},
        {"name": "t0", "rows": 40, "bytes": 2560, "evicted": 0, "most": 30, "frequent": None},
    ]


def test_frequent_ids_of_all_servers_are_one_list() -> None:
    """Ids are texts: a browser would round the largest ones."""

    def server(updates: int, ids: dict[int, int]) -> dict[str, Any]:
        table = {"name": "t", "rows": 9, "bytes": 9, "evicted": 0}
        frequent = {"frequent_ids": list(ids), "frequent_updates": list(ids.values())}
        return {"counts": {"tables": [{**table, **frequent, "updates": updates}]}}

    (found,) = tables([server(100, {2**63 - 1: 100, 5: 7}), server(50, {-1: 25})])
    assert found["frequent"] == [[str(2**63 - 1), 100, 1.0], ["-1", 25, 0.5], ["5", 7, 0.07]]
    many = [server(100, {100 * s + i: 90 - i for i in range(20)}) for s in range(3)]
    (found,) = tables(many)
    assert len(found["frequent"]) == 20


def test_changes_of_a_table_are_those_of_the_last_minute() -> None:
    def table(rows: int, evicted: int) -> list[dict[str, Any]]:
        return [{"name": "t", "rows": rows, "evicted": evicted}]

    changes = TableChanges()
    changes.note(first := table(100, 0), 0.0)
    assert (first[0]["new_s"], first[0]["evicted_s"]) == (None, None)
    for time in (30.0, 60.0):
        changes.note(table(100, 0), time)
    changes.note(now := table(130, 10), 80.0)
    assert (now[0]["new_s"], now[0]["evicted_s"]) == (0.8, 0.2)  # 40 and 10 rows in 50 s
    changes.note(again := table(5, 0), 90.0)
    assert again[0]["new_s"] is None  # a server was restarted
