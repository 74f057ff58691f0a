"""The complete configuration of a job, created by the command line and sent to every process of the
job as JSON."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch_edl.config import extensions
from torch_edl.config.option import JOB_KINDS, TRAINING, Checked, Option, declare, option
from torch_edl.config.parts import (
    MOST_SERVERS,
    MOST_WORKERS,
    CheckpointConfig,
    ClusterConfig,
    DataConfig,
    DurabilityConfig,
)
from torch_edl.config.training import TrainConfig
from torch_edl.errors import UsageError
from torch_edl.typed_json import convert, parse

LOCAL = "local"
"""Name of the built-in platform: the machine of the command."""
_SHOWN_CHARACTERS = 200
# Updates of one minibatch at the beginning of a training, per worker. Measured on DeepFM with 4
# workers and updates of 8 minibatches: 8 cost as much accuracy as none, 32 are no better.
_SINGLE_UPDATES = 16


@dataclass(frozen=True, kw_only=True)
class Launch:
    """How the nodes of a script start its workers: options of torchrun that the master applies."""

    min_nodes: int = 1
    """Number of machines that must have joined before any worker starts."""
    max_nodes: int = 1
    """Maximum number of machines."""
    per_node: int = 1
    """Number of workers on each machine."""
    max_restarts: int = 0
    """Number of failures of each machine after which workers are replaced."""
    grace_s: float = 30.0
    """Seconds between SIGTERM and SIGKILL of a worker that should end."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """The command of one node; all nodes of a job run the same.

    Paths are compared on the same machine only. There, different working folders are different
    experiments, because relative paths of data and results depend on the folder. On other machines,
    the same checkout may have another path (home folders, mounts), and replicas agree if the same
    program runs with the same arguments. Nodes of different machines therefore compare the name
    of the script and the digest of its text.
    """

    script: str
    """Absolute path of the script without symbolic links, or the name of a module."""
    args: tuple[str, ...]
    """Arguments of the script."""
    folder: str
    """Absolute path of the working folder without symbolic links."""
    machine: str
    """Host name and boot id; nodes with the same value see the same paths."""
    rdzv_id: str
    """Value of ``--rdzv-id``; ``none`` by default."""
    digest: str
    """SHA-256 of the text of the script; empty if the script is not a readable file."""

    def difference(self, other: Experiment) -> str:
        """Return the first difference with both values, ``self`` first; empty if both agree."""
        if self.rdzv_id != other.rdzv_id:
            return f"--rdzv-id {self.rdzv_id} there, {other.rdzv_id} here"
        here = self.machine == other.machine
        theirs, ours = (e.script if here else Path(e.script).name for e in (self, other))
        if theirs != ours:
            return f"script {theirs} there, {ours} here"
        if self.args != other.args:
            return f"arguments {_shown(self.args)} there, {_shown(other.args)} here"
        if here and self.folder != other.folder:
            return f"working folder {self.folder} there, {other.folder} here"
        if self.digest != other.digest:
            return f"the text of {ours} has changed since the start of the job"
        return ""

    def require(self, other: Experiment, job: str) -> None:
        """Reject a node that runs ``other`` if the job runs ``self``.

        Raises:
            UsageError: the experiments differ; the message contains both values.
        """
        difference = self.difference(other)
        if difference:
            raise UsageError(
                f"job {job} runs another experiment: {difference}; choose another --rdzv-endpoint "
                "and --rdzv-id, or leave both out to start a separate job"
            )


@dataclass(frozen=True, kw_only=True)
class JobConfig(Checked):
    """Everything that a process of the job must know, equal for all processes.

    The metadata ``section`` of a part is the section of the help page with its options.
    """

    name: str = declare(
        Option(
            "--job-name NAME",
            "name of the job (default: the file's name and a suffix)",
            kinds=JOB_KINDS,
            group="job",
        )
    )
    """Name of the job and of the job's folder."""
    kind: str = declare(choices=JOB_KINDS, default="train")
    model_file: str
    """Absolute path of the model file or script, or the name of a module (``-m``)."""
    model_args: tuple[str, ...] = ()
    """``sys.argv[1:]`` of the model file."""
    data: DataConfig = field(default_factory=DataConfig, metadata={"section": "data"})
    cluster: ClusterConfig = field(default_factory=ClusterConfig, metadata={"section": "processes"})
    train: TrainConfig = field(default_factory=TrainConfig, metadata={"section": "training"})
    checkpoint: CheckpointConfig = field(
        default_factory=CheckpointConfig, metadata={"section": "checkpoints and output"}
    )
    durability: DurabilityConfig = field(
        default_factory=DurabilityConfig, metadata={"section": "durability"}
    )
    platform: str = option(
        LOCAL, "--platform NAME", "where the processes run", kinds=JOB_KINDS, group="job"
    )
    platform_config: Any = None
    """The part of the configuration that the platform adds, see
    :attr:`torch_edl.interfaces.platform.Platform.config`; None for ``local``."""
    tensorboard: str = option(
        "",
        "--tensorboard DIR",
        "write TensorBoard scalars to DIR",
        kinds=TRAINING,
        group="monitoring",
    )
    observe: tuple[str, ...] = option(
        (),
        "--observe NAME[=VALUE]",
        "send events and metrics to it; may be repeated (default: none)",
        kinds=TRAINING,
        group="monitoring",
    )
    metrics_port: str = option(
        "",
        "--metrics-port [HOST:]PORT",
        "serve the metrics of the job to Prometheus there (default: none)",
        kinds=TRAINING,
        group="monitoring",
    )
    trace: str = option(
        "",
        "--trace URL",
        "send spans of all steps to this OpenTelemetry collector (default: none)",
        kinds=TRAINING,
        group="monitoring",
    )
    experiment: Experiment | None = None
    """The experiment that all nodes of a script must run; None if there is none to compare."""
    launch: Launch | None = None
    """How the nodes of a script start its workers; None for a model file, and if torchrun starts
    the workers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(
            bool(self.name)
            and all(c.isalnum() or c in "-_." for c in self.name)
            and not self.name.startswith("."),
            f"--job-name {self.name}: use letters, digits, '-', '_' and '.'",
        )
        _require(
            self.kind != "script" or self.train.strategy != "local",
            "--strategy local: it is for model files; a script of one worker runs without "
            "torch-edl too, or with --strategy allreduce",
        )
        port = self.metrics_port.rpartition(":")[2]
        _require(
            not self.metrics_port or (port.isdecimal() and 0 < int(port) < 1 << 16),
            f"--metrics-port {self.metrics_port}: write PORT or HOST:PORT, PORT from 1 to 65535",
        )
        notice = self.cluster.preemption_notice
        _require(
            self.kind != "script" or "{name}" not in notice,
            f"--preemption-notice {notice}: all workers of a script on a machine leave together; "
            "write {host}, the name of the machine",
        )
        most = self.cluster.max_workers
        _require(
            self.train.strategy != "local" or most == 1,
            f"--workers {most}: the strategy local runs one worker; use --workers 1, --strategy "
            "allreduce or --strategy ps",
        )
        if self.platform != LOCAL:
            self.platform_config.check_job(self)
        _require(
            self.platform == LOCAL or not self.cluster.endpoint,
            f"--rdzv-endpoint {self.cluster.endpoint}: on --platform {self.platform}, the machines "
            "of a job are pods; leave --rdzv-endpoint and --nnodes out",
        )
        _require(
            not self.data.streams or self.train.strategy in ("ps", "local"),
            f"--epochs stream: with --strategy {self.train.strategy}, every process must know the "
            "order of all records before; use --strategy ps",
        )
        _require(
            not self.train.eval_every or bool(self.data.eval),
            f"--eval-every {self.train.eval_every}: there is nothing to evaluate on; add "
            "--eval-data, or leave it out",
        )
        _require(
            not self.train.evaluates_epochs or bool(self.data.eval),
            f"{self.train.epochs_option}: there is nothing to evaluate on; add --eval-data, or "
            "leave it out",
        )
        _require(
            not self.train.evaluates_epochs or not self.data.streams,
            "--epochs stream: a stream has no epochs at whose end to evaluate; use --eval-every",
        )
        _require(
            not self.train.keep_best or bool(self.checkpoint.dir or self.checkpoint.output),
            f"--keep-best {self.train.keep_best}: there is no place for the best model; add "
            "--output or --checkpoint-dir, or leave it out",
        )
        durability, servers = self.durability.mode, self.cluster.servers
        _require(
            durability != "journal"
            or self.cluster.max_nodes == 1
            or bool(self.durability.journal_dir),
            "--durability journal: the journal of a server would be lost with its machine; add "
            "--journal-dir on a file system that all machines share, or write --durability replica",
        )
        _require(
            durability == "checkpoint" or self.train.strategy not in ("allreduce", "local"),
            f"--durability {durability}: it is for parameter servers, and --strategy "
            f"{self.train.strategy} has none; leave it out",
        )
        _require(
            durability != "replica" or servers > 1,
            f"--durability replica: the replica of a shard is kept by the server of another one, "
            f"and --ps {servers} has no other; write --ps 2 or more, or --durability journal",
        )

    @property
    def trains(self) -> bool:
        """True if the job trains a model; False if it evaluates or predicts."""
        return self.kind in TRAINING

    @property
    def process_notice(self) -> str:
        """The notice for which each process of the job watches. It is empty if all of them run on
        the machine of the master, which then watches for the notice and stops the job."""
        notice = self.cluster.preemption_notice
        return notice if not self.is_on_one_machine or "{name}" in notice else ""

    @property
    def is_on_one_machine(self) -> bool:
        """True if all processes run on the machine of the master. A script is one machine's too:
        its servers are there, and its workers are on any number of machines."""
        return self.platform == LOCAL and self.cluster.max_nodes == 1

    @property
    def is_module(self) -> bool:
        """True if the script is a module name rather than a path."""
        return "/" not in self.model_file

    @property
    def shares_files(self) -> bool:
        """True if all processes of the job share a folder for exchanging files."""
        return self.is_on_one_machine or bool(self.checkpoint.dir or self.checkpoint.output)

    @property
    def window(self) -> int:
        """Records of ``local_steps`` minibatches, usually of one push. Tasks consist of whole
        windows."""
        return self.data.batch_size * self.train.local_steps

    def minibatches(self, version: int) -> int:
        """Return the number of minibatches of an update that begins at a version of the model.

        A training begins with single minibatches, whatever ``local_steps`` is (post-local SGD, Lin
        et al. 2020): early gradients change the model most, and a worker that begins an update
        with several of them does not know what the other workers do meanwhile.
        """
        return 1 if version < self._single_updates else self.train.local_steps

    def minibatches_before(self, version: int) -> int:
        """Return the number of minibatches of all updates before a version of the model."""
        single = min(version, self._single_updates)
        return single + (version - single) * self.train.local_steps

    @property
    def _single_updates(self) -> int:
        return _SINGLE_UPDATES * self.cluster.max_workers

    @property
    def records_per_task(self) -> int:
        """Records of a task; whole windows unless the user set another number."""
        if self.data.records_per_task:
            return self.data.records_per_task
        return max(1, 32 // self.train.local_steps) * self.window

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> JobConfig:
        """Create a configuration from its fields. A part is a mapping; lists are converted to
        tuples.

        Raises:
            UsageError: a value is invalid, or no installed package offers the platform.
        """
        found = dict(fields)
        try:
            platform = convert(found.get("platform", LOCAL), str)
            own = extensions.platform(platform).config if platform != LOCAL else type(None)
            found["platform_config"] = convert(found.get("platform_config"), own)
            return convert(found, cls)
        except UsageError:
            raise
        except ValueError as error:
            raise UsageError(f"job configuration: {error}") from None

    def to_json(self) -> str:
        """Encode the configuration as one JSON object for :meth:`from_json`."""
        return json.dumps(dataclasses.asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str | bytes) -> JobConfig:
        """Decode what :meth:`to_json` returned.

        Raises:
            UsageError: a field is unknown or has an invalid value.
        """
        try:
            fields = parse(text, dict[str, Any])
        except ValueError as error:
            raise UsageError(f"job configuration: {error}") from None
        return cls.of(fields)


PARTS: dict[str, Any] = {
    each.name: each.default_factory
    for each in dataclasses.fields(JobConfig)
    if "section" in each.metadata
}
"""Classes of the parts by their field of :class:`JobConfig`."""


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
    if servers > MOST_SERVERS:
        raise UsageError(f"{wanted}: a job has {MOST_SERVERS:,} parameter servers at most")
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
    """Raise UsageError if a running job cannot have this number of workers."""
    upto = "" if min_workers == max_workers else f":{max_workers}"
    wanted = f"--workers {min_workers}{upto}"
    if min_workers < 1 or max_workers < 1:
        raise UsageError(f"{wanted}: at least one worker is needed; torch-edl stop ends a job")
    if min_workers > max_workers:
        raise UsageError(
            f"{wanted}: the minimum is above the maximum; write {max_workers}:{min_workers}"
        )
    if max_workers > MOST_WORKERS:
        raise UsageError(f"{wanted}: a job has {MOST_WORKERS:,} workers at most")
    if strategy == "local" and max_workers > 1:
        raise UsageError(
            f"{wanted}: the strategy local runs one worker; start the job with --strategy allreduce"
        )


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise UsageError(message)


def _shown(args: Sequence[str]) -> str:
    text = shlex.join(args) or "(none)"
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."
