"""The times of a real cluster in seconds, all shortened by one factor."""

from __future__ import annotations

import os

FACTOR = float(os.environ.get("EDL_TEST_CLUSTER_FACTOR", "0.05"))
"""Shortens the times below, and what pods tolerate of their nodes; 1: those of a real cluster."""
# Without any pause, a fault that one brings about would not be seen.
assert FACTOR > 0, f"EDL_TEST_CLUSTER_FACTOR {FACTOR}: write a number above 0, 1 at most"

UNREACHABLE_S = 50.0 * FACTOR
"""Of a kubelet without a word, until its node is tainted: --node-monitor-grace-period."""
FAILED_POD_BACK_OFF_S = 10.0 * FACTOR, 600.0 * FACTOR
"""Of the Job controller after a pod has failed: the first pause, which doubles, and the longest."""
REFUSED_POD_BACK_OFF_S = 1.0 * FACTOR, 60.0 * FACTOR
"""Of the Job controller after a pod was refused, likewise."""
PULL_BACK_OFF_S = 10.0 * FACTOR, 300.0 * FACTOR
"""Of the kubelet after a pull that failed."""
NAME_TTL_S = 5
"""Of CoreDNS, for which it repeats an answer about a Service; not shortened, since answers name
it."""
LEAST_GRACE_S = 2.0 * FACTOR
"""Of the kubelet between SIGTERM and SIGKILL, whatever the grace period."""


def doubling(times: tuple[float, float], failures: int) -> float:
    """The pause after that number of failures; 0 before the first."""
    first, longest = times
    return min(first * 2.0 ** (failures - 1), longest) if failures else 0.0
