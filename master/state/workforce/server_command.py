"""Command line of the process that serves a shard. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch_edl.config import JobConfig


@dataclass(frozen=True, kw_only=True)
class ServerCommand:
    """The arguments that all servers of a job share."""

    job: str
    module: str = "torch_edl.ps_server"
    """Module of the server, run with ``python -m``."""
    args: Sequence[str] = ()
    journals: str = ""
    """Folder of the journals; empty if the servers keep none."""

    @classmethod
    def of(cls, config: JobConfig, *, module: str, host: str, journals: str) -> ServerCommand:
        """Return the command for the servers of a job.

        Args:
            host: host at which the master listens; empty if only this machine reaches it.
            journals: folder of the journals of this run; ignored unless the job keeps journals.
        """
        train, durability = config.train, config.durability
        args = ["--mode", train.mode, "--staleness", str(train.staleness)]
        args += ["--grads-to-wait", str(train.grads_to_wait)]
        if config.kind == "script" and host:
            # Workers of other machines reach servers where they reach the master.
            args += ["--host", host]
        if durability.mode == "replica":
            args.append("--replica")
        if durability.mode == "journal":
            args += ["--fsync", durability.fsync]
            args += ["--repair"] * durability.repair
        journals = journals if durability.mode == "journal" else ""
        return cls(job=config.name, module=module, args=args, journals=journals)

    def journals_of(self, model: int) -> Path | None:
        """Return the folder of the journals of one incarnation of the model; None without
        journals."""
        return Path(self.journals) / f"model-{model}" if self.journals else None

    def words(
        self,
        shard: int,
        shards: int,
        incarnation: int,
        *,
        model: int,
        restore: str,
        values_only: bool,
        successor: bool = False,
    ) -> list[str]:
        """Return the arguments of one server.

        Args:
            incarnation: incarnation of the server.
            model: incarnation of the model.
            restore: checkpoint or exported model; empty for a new model.
            values_only: take only values from ``restore``.
            successor: the peer of an earlier server has a copy of the shard.
        """
        words = [
            *("--job", self.job),
            *("--shard", str(shard)),
            *("--shards", str(shards)),
            *("--incarnation", str(incarnation)),
            *self.args,
        ]
        # Each incarnation of the model has its own journals: those of earlier ones are void.
        journals = self.journals_of(model)
        if journals:
            folder = journals / f"shard-{shard}-of-{shards}"
            words += ["--journal", str(folder), "--model-incarnation", str(model)]
        elif successor:
            words.append("--successor")
        if restore:
            words += ["--restore", restore]
            words += ["--values-only"] if values_only else []
        return words
