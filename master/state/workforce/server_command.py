"""The command line of the process that serves a shard. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch_edl.config import JobConfig


@dataclass(frozen=True, kw_only=True)
class ServerCommand:
    """What all servers of a job are started with."""

    job: str
    module: str = "torch_edl.ps_server"
    """Run with ``python -m``."""
    args: Sequence[str] = ()
    journals: str = ""
    """The folder of their journals; empty: they keep none."""

    @classmethod
    def of(cls, config: JobConfig, *, module: str, host: str, journals: str) -> ServerCommand:
        """The command for the servers of a job.

        Args:
            host: that the master listens at; empty: only this machine reaches it.
            journals: the folder of the journals of this run, if the job has any.
        """
        train, durability = config.train, config.durability
        args = ["--mode", train.mode, "--staleness", str(train.staleness)]
        args += ["--grads-to-wait", str(train.grads_to_wait)]
        args += ["--transport", config.cluster.transport]
        if config.kind == "script" and host:
            # Workers of other machines reach servers where they reach the master.
            args += ["--host", host]
        if durability.mode == "replica":
            args.append("--replica")
        if durability.mode == "journal":
            args += ["--fsync", durability.fsync]
            args += ["--repair"] * durability.repair
        args += ["--learning-rate-by-staleness"] * train.learning_rate_by_staleness
        journals = journals if durability.mode == "journal" else ""
        return cls(job=config.name, module=module, args=args, journals=journals)

    def journals_of(self, model: int) -> Path | None:
        """The folder of the journals of one incarnation of the model."""
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
        """The arguments of one server.

        Args:
            incarnation: of the server.
            model: incarnation of the model.
            restore: a checkpoint or exported model, of which only values are taken if
                ``values_only``; empty: the model starts from scratch.
            successor: the peer of an earlier server has a copy of the shard.
        """
        words = [
            *("--job", self.job),
            *("--shard", str(shard)),
            *("--shards", str(shards)),
            *("--incarnation", str(incarnation)),
            *self.args,
        ]
        # What was trained before the model was restored is void.
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
