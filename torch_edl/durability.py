"""What survives the death of a parameter server: a part of the configuration of a job."""

from __future__ import annotations

from dataclasses import dataclass

from torch_edl.errors import UsageError
from torch_edl.option import TRAIN, TRAINING, Checked, option

DURABILITIES = ("checkpoint", "journal")
FSYNC_MODES = ("never", "interval", "always")
FAILOVERS = ("restart", "worker")


@dataclass(frozen=True, kw_only=True)
class DurabilityConfig(Checked):
    """What of the model survives the death of a parameter server."""

    mode: str = option(
        "checkpoint",
        "--durability NAME",
        "checkpoint|journal: what is left of a server that dies",
        kinds=TRAINING,
        choices=DURABILITIES,
    )
    """``checkpoint``: the newest checkpoint; ``journal``: every acknowledged push, from the log of
    its server; ``replica``: the same, from a peer of its server."""
    journal_dir: str = option(
        "", "--journal-dir DIR", "write journals to DIR (default: the job's folder)", kinds=TRAINING
    )
    fsync: str = option(
        "interval",
        "--fsync never|interval|always",
        "write journals to the disk: once a second, or at each push",
        kinds=TRAINING,
        choices=FSYNC_MODES,
    )
    """``never`` leaves it to the operating system. A journal survives the death of processes in any
    case; this is about the death of the machine."""
    failover: str = option(
        "restart",
        "--ps-failover restart|worker",
        "replace a server by a new process, or by one of the workers",
        kinds=TRAIN,
        choices=FAILOVERS,
    )
    """``restart`` takes a worker, too, where a new process cannot be had."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mode != "journal":
            given = "--journal-dir" if self.journal_dir else "--fsync"
            if self.journal_dir or self.fsync != "interval":
                raise UsageError(
                    f"{given}: there is a journal with --durability journal only; add that, or "
                    f"leave {given} out"
                )
        if self.failover != "restart" and self.mode == "checkpoint":
            raise UsageError(
                f"--ps-failover {self.failover}: with --durability checkpoint all servers are "
                "replaced when one dies; add --durability journal or replica"
            )
