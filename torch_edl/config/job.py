"""The complete configuration of a job, created by the command line and sent to every process of the
job as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch_edl.config import extensions
from torch_edl.config.checkpoint import CheckpointConfig
from torch_edl.config.cluster import ClusterConfig
from torch_edl.config.data import DataConfig
from torch_edl.config.durability import DurabilityConfig
from torch_edl.config.experiment import Experiment
from torch_edl.config.option import JOB_KINDS, TRAINING, Checked, Option, declare, option
from torch_edl.config.training import TrainConfig
from torch_edl.errors import UsageError

LOCAL = "local"
"""Name of the built-in platform: the machine of the command."""


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
    kind: str = declare(set_by="the verb", choices=JOB_KINDS, default="train")
    model_file: str = declare(set_by="MODEL.py")
    """Absolute path of the model file or script, or the name of a module (``-m``)."""
    model_args: tuple[str, ...] = declare(set_by="the words after --", default=())
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
    platform_config: Any = declare(set_by="the options of the platform", default=None)  # noqa: RUF009
    """The part of the configuration that the platform adds, see
    :class:`torch_edl.interfaces.platform.PlatformConfig`; None for ``local``."""
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
    experiment: Experiment | None = declare(set_by="the agents", default=None)  # noqa: RUF009
    """The experiment that all agents of a script must run; None without agents."""

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
        most = self.cluster.max_workers
        _require(
            self.train.strategy != "local" or most == 1,
            f"--workers {most}: the strategy local runs one worker; use --workers 1, --strategy "
            "allreduce or --strategy ps",
        )
        if self.platform != LOCAL:
            self.platform_config.check_job(self)
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
        return self.kind in ("train", "script")

    @property
    def is_module(self) -> bool:
        """True if the script is a module name rather than a path."""
        return "/" not in self.model_file

    @property
    def shares_files(self) -> bool:
        """True if all processes of the job share a folder for exchanging files."""
        return self.platform == LOCAL or bool(self.checkpoint.dir or self.checkpoint.output)

    @property
    def window(self) -> int:
        """Records of one push: ``local_steps`` minibatches. Tasks consist of whole windows."""
        return self.data.batch_size * self.train.local_steps

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
        parts = {name: part(**_tuples(fields[name])) for name, part in PARTS.items()}
        platform, own = fields.get("platform", LOCAL), None
        if platform != LOCAL:
            own = extensions.platform(platform).config(**_tuples(fields["platform_config"]))
        return cls(**{**_tuples(fields), **parts, "platform_config": own})

    def to_json(self) -> str:
        """Encode the configuration as one JSON object for :meth:`from_json`."""
        return json.dumps(dataclasses.asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> JobConfig:
        """Decode what :meth:`to_json` returned.

        Raises:
            UsageError: a field is unknown or has an invalid value.
        """
        raw = json.loads(text)
        try:
            if raw["experiment"] is not None:
                raw["experiment"] = Experiment(**_tuples(raw["experiment"]))
            return cls.of(raw)
        except (KeyError, TypeError) as error:
            raise UsageError(f"job configuration: {error}") from error


PARTS: dict[str, Any] = {
    each.name: each.default_factory
    for each in dataclasses.fields(JobConfig)
    if "section" in each.metadata
}
"""Classes of the parts by their field of :class:`JobConfig`."""


def _tuples(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise UsageError(message)
