"""What a job of the experiments asks for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """What a job asks for: a CPU for each process."""

    name: str
    records: int
    records_per_s: float
    """Records that one worker trains in a second."""
    max_workers: int
    min_workers: int = 1
    servers: int = 4
    records_per_task: int = 2048
    gang: bool = False
    """Nothing of it is placed before all of it fits."""
    heartbeat_s: float = 1.0
    tick_s: float = 0.1
    """Seconds between two rounds of the loop of the master."""
    keeps_state: bool = False
    """The master notes its state as often as with a store."""
    seed: int = 0

    @property
    def cpus(self) -> int:
        """Number of CPUs of the whole job."""
        return 1 + self.servers + self.max_workers
