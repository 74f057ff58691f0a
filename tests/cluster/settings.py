"""What a test says about its cluster when the cluster starts."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any


@dataclasses.dataclass(frozen=True)
class Settings:
    """One field for each time and limit of the cluster; shorter times than those of a real one.

    Args:
        nodes: the nodes at the start, see :class:`tests.cluster.cluster.Cluster`.
        images: the images that can be pulled.
        pull_s: the first pull of an image on a node takes so long.
        start_s: a container starts so long after its image is there.
        unreachable_s: without a word from a node, it is unreachable after that time.
        job_back_off_s: a Job waits so long after the first failure of a pod, then twice that.
        pull_back_off_s: the pause after a pull that failed.
        toleration_factor: a pod that tolerates the loss of its node for 300 seconds tolerates it
            for this part of the time.
        forks: modules that are imported once; a command ``python -P -m`` of one of them is forked,
            see :mod:`tests.cluster.zygote`.
        enforces_policies: network policies have an effect; needs the command nft.
    """

    nodes: list[dict[str, Any]]
    images: tuple[str, ...] = ("edl", "edl:test")
    pull_s: float = 0.0
    start_s: float = 0.0
    unreachable_s: float = 2.0
    job_back_off_s: float = 0.5
    pull_back_off_s: float = 1.0
    toleration_factor: float = 0.01
    forks: tuple[str, ...] = ()
    enforces_policies: bool = False

    @classmethod
    def read(cls, path: Path) -> Settings:
        return cls(**json.loads(path.read_text()))
