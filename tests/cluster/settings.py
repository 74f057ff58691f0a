"""What a test says about its cluster when the cluster starts, and the times of a real one."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

UNREACHABLE_S = 50.0
"""Of a kubelet without a word, until its node is tainted: --node-monitor-grace-period."""
FAILED_POD_BACK_OFF_S = 10.0, 600.0
"""Of the Job controller after a pod has failed: the first pause, which doubles, and the longest."""
REFUSED_POD_BACK_OFF_S = 1.0, 60.0
"""Of the Job controller after a pod was refused, likewise."""
RESTART_BACK_OFF_S = 10.0, 300.0
"""Of the kubelet before a container is restarted once more; the first time there is no pause."""
PULL_BACK_OFF_S = 10.0, 300.0
"""Of the kubelet after a pull that failed."""
NAME_TTL_S = 5
"""Of CoreDNS, for which it repeats an answer about a Service."""
LEAST_GRACE_S = 2.0
"""Of the kubelet between SIGTERM and SIGKILL, whatever the grace period."""
ENV_FACTOR = "EDL_TEST_CLUSTER_FACTOR"
"""Overrides the factor of all clusters: 1 for the times of a real one."""


def doubling(times: tuple[float, float], failures: int) -> float:
    """The pause after that number of failures; 0 before the first."""
    first, longest = times
    return min(first * 2.0 ** (failures - 1), longest) if failures else 0.0


@dataclasses.dataclass(frozen=True)
class Settings:
    """One field for each property of the cluster.

    Args:
        nodes: the nodes at the start, see :class:`tests.cluster.cluster.Cluster`.
        images: the images that can be pulled.
        factor: shortens all times of this module, and what pods tolerate of their nodes.
        enforces_policies: network policies have an effect; needs the command nft.
    """

    nodes: list[dict[str, Any]]
    images: tuple[str, ...] = ("edl", "edl:test")
    factor: float = 0.05
    enforces_policies: bool = False

    @classmethod
    def read(cls, path: Path) -> Settings:
        made = cls(**json.loads(path.read_text()))
        return dataclasses.replace(made, factor=float(os.environ.get(ENV_FACTOR, made.factor)))

    def __post_init__(self) -> None:
        # Without any pause, a fault that one brings about would not be seen.
        assert self.factor > 0, f"{ENV_FACTOR} {self.factor}: write a number above 0, 1 at most"
