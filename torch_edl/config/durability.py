"""Configuration of what survives the loss of a parameter server or of the master."""

from __future__ import annotations

import re
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
    def etcd_endpoints(self) -> tuple[str, ...]:
        """HOST:PORT of the etcd members that store the state; empty if the state is in a file."""
        scheme, found, members = self.store.partition("://")
        of_etcd = found and scheme in ("etcd", "etcds")
        return tuple(members.rstrip("/").split(",")) if of_etcd else ()

    @property
    def etcd_tls(self) -> bool:
        """True if the connection to etcd is encrypted."""
        return self.store.startswith("etcds:")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.store != "sqlite" and not (
            self.etcd_endpoints and all(map(_is_address, self.etcd_endpoints))
        ):
            raise UsageError(
                f"--store {self.store}: write sqlite, etcd://HOST:PORT[,HOST:PORT] or, with "
                "TLS, etcds://HOST:PORT, such as etcd://127.0.0.1:2379"
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


def _is_address(text: str) -> bool:
    """Return True for HOST:PORT or [IPV6]:PORT."""
    found = re.fullmatch(r"(\[[0-9a-fA-F:]+\]|[A-Za-z0-9_.-]+):([0-9]{1,5})", text)
    return found is not None and 0 < int(found[2]) < 1 << 16
