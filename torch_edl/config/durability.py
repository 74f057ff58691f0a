"""Configuration of what survives the loss of a parameter server or of the master."""

from __future__ import annotations

from dataclasses import dataclass

from torch_edl.config.option import JOB_KINDS, TRAIN, TRAINING, Checked, option
from torch_edl.errors import UsageError

DURABILITIES = ("checkpoint", "journal", "replica")
FSYNC_MODES = ("never", "interval", "always")
FAILOVERS = ("restart", "worker")


@dataclass(frozen=True, kw_only=True)
class DurabilityConfig(Checked):
    """Storage of updates and state that survive the loss of a parameter server or of the master."""

    mode: str = option(
        "checkpoint",
        "--durability NAME",
        "checkpoint|journal|replica: what survives a dead server",
        kinds=TRAINING,
        choices=DURABILITIES,
    )
    """``checkpoint``: the newest checkpoint survives. ``journal``: every acknowledged push survives
    in the log of its server. ``replica``: every acknowledged push survives on a peer server."""
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
    """``never`` leaves writing to the operating system. A journal always survives the loss of
    processes; this option concerns the loss of a machine."""
    repair: bool = option(
        False,
        "--repair",
        "leave out damaged records of journals (default: restore)",
        kinds=TRAINING,
    )
    """By default, the model returns to the newest checkpoint if a journal is damaged, and lost
    updates are computed again. With ``--repair``, the updates in damaged records are lost, each on
    one server only."""
    failover: str = option(
        "restart",
        "--ps-failover restart|worker",
        "replace a server by a new process, or by one of the workers",
        kinds=TRAIN,
        choices=FAILOVERS,
    )
    """``restart`` also uses a worker if a new process cannot be started."""
    store: str = option(
        "sqlite",
        "--store URL",
        "keep the state in sqlite or etcd://HOST:PORT (etcds: TLS)",
        kinds=JOB_KINDS,
    )
    """``sqlite`` is a file in the folder of the job; ``etcds://`` is etcd with TLS. Several etcd
    members are separated by commas."""

    @property
    def shares_state(self) -> bool:
        """True if masters on other machines find the state of the job."""
        return self.store != "sqlite"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shares_state and "://" not in self.store:
            raise UsageError(
                f"--store {self.store}: write sqlite, or the URL of a store, such as "
                "etcd://127.0.0.1:2379"
            )
        of_journal = {
            "--journal-dir": bool(self.journal_dir),
            "--repair": self.repair,
            "--fsync": self.fsync != "interval",
        }
        for given, is_given in of_journal.items():
            if is_given and self.mode != "journal":
                raise UsageError(
                    f"{given}: there is a journal with --durability journal only; add that, or "
                    f"leave {given} out"
                )
        if self.failover != "restart" and self.mode == "checkpoint":
            raise UsageError(
                f"--ps-failover {self.failover}: with --durability checkpoint all servers are "
                "replaced when one dies; add --durability journal or replica"
            )
