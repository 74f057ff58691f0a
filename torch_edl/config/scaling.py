"""To which numbers of workers and parameter servers a running job can be scaled: the client knows
before it asks, and the master decides."""

from __future__ import annotations

from torch_edl.config import JobConfig
from torch_edl.errors import UsageError

_MOST_WORKERS = 10_000
_MOST_SERVERS = 1_000


def check_servers(config: JobConfig, servers: int, *, strategy: str = "") -> None:
    """Raise UsageError if a running job cannot have this number of parameter servers.

    Args:
        strategy: the strategy that the master has chosen; empty if it is not chosen yet.
    """
    wanted = f"--ps {servers}"
    if not config.trains:
        raise UsageError(f"{wanted}: the servers of a job that does not train stay as they are")
    if not config.shares_files:
        raise UsageError(
            f"{wanted}: the model moves through files, and the pods of this job have no folder in "
            "common; start the job with --checkpoint-dir on a --volume"
        )
    if servers < 1:
        raise UsageError(f"{wanted}: at least one server is needed; write --ps 1 or more")
    if servers > _MOST_SERVERS:
        raise UsageError(f"{wanted}: a job has {_MOST_SERVERS:,} parameter servers at most")
    strategy = strategy or config.train.strategy
    if strategy not in ("ps", "auto"):
        raise UsageError(
            f"{wanted}: the strategy {strategy} has no parameter servers; start the job with "
            "--strategy ps"
        )
    if config.durability.mode == "replica" and servers == 1:
        raise UsageError(
            f"{wanted}: --durability replica keeps the replica of a shard on another server; "
            "write --ps 2 or more"
        )


def check_workers(min_workers: int, max_workers: int, *, strategy: str) -> None:
    """Raises UsageError if a running job cannot be scaled so."""
    wanted = f"--workers {min_workers}:{max_workers}"
    if min_workers < 1 or max_workers < 1:
        raise UsageError(f"{wanted}: at least one worker is needed; torch-edl stop ends a job")
    if min_workers > max_workers:
        raise UsageError(
            f"{wanted}: the minimum is above the maximum; write {max_workers}:{min_workers}"
        )
    if max_workers > _MOST_WORKERS:
        raise UsageError(f"{wanted}: a job has {_MOST_WORKERS:,} workers at most")
    if strategy == "local" and max_workers > 1:
        raise UsageError(
            f"{wanted}: the strategy local runs one worker; start the job with --strategy allreduce"
        )
