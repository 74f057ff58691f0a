"""What survives the death of a parameter server: a part of the configuration of a job."""

from __future__ import annotations

from dataclasses import dataclass

from torch_edl.errors import UsageError
from torch_edl.option import Checked, declare

DURABILITIES = ("checkpoint", "journal", "replica")
FSYNC_MODES = ("never", "interval", "always")
FAILOVERS = ("restart", "worker")


@dataclass(frozen=True, kw_only=True)
class DurabilityConfig(Checked):
    """What of the model survives the death of a parameter server."""

    mode: str = declare(set_by="nothing yet", default="checkpoint", choices=DURABILITIES)
    """``checkpoint``: the newest checkpoint; ``journal``: every acknowledged push, from the log of
    its server; ``replica``: the same, from a peer of its server."""
    journal_dir: str = declare(set_by="nothing yet", default="")
    """The folder of journals; empty: in the folder of the job."""
    fsync: str = declare(set_by="nothing yet", default="interval", choices=FSYNC_MODES)
    """When a journal is written through to the disk: ``never`` by us, once a second, or before each
    acknowledgement."""
    failover: str = declare(set_by="nothing yet", default="restart", choices=FAILOVERS)
    """What serves the shard of a server that died: a new process, or a worker that becomes one."""

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
