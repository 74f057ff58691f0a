"""Configuration of the parts of a job except the training: data, processes, checkpoints and
durability."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch_edl.config.option import (
    Checked,
    Option,
    job_option,
    option,
    train_option,
    training_option,
)
from torch_edl.config.training import FLOAT_DTYPES
from torch_edl.errors import UsageError

PREPROCESSING_FILE = "preprocessing.safetensors"
"""File of the fitted preprocessing in a checkpoint or model folder."""
MOST_WORKERS = 10_000
MOST_SERVERS = 1_000
_URLS = ("http://", "https://")
FSYNC_MODES = ("never", "interval", "always")


def training_dir(root: str | Path, number: int) -> Path:
    """Return the folder for the checkpoints of a training of a script. The first training, number
    1, uses ``root`` itself."""
    return Path(root) / f"training-{number}" if number > 1 else Path(root)


@dataclass(frozen=True, kw_only=True)
class DataConfig(Checked):
    """Sources of the records, and their division into tasks."""

    train: tuple[str, ...] = train_option(
        (), "--data PATH", "files, folders or globs to train on; repeatable"
    )
    eval: tuple[str, ...] = train_option(
        (),
        "--eval-data PATH",
        "files, folders or globs to evaluate on",
        Option("--data PATH", "files, folders or globs to evaluate on", kinds=("evaluate",)),
    )
    predict: tuple[str, ...] = option(
        (), "--data PATH", "files, folders or globs to predict for", kinds=("predict",)
    )
    keep: str = option(
        "",
        "--keep COLUMNS",
        "columns of the data to write before the predictions: user,item",
        kinds=("predict",),
    )
    expanded: bool = False
    """True if all names are names of files, so that no folders or patterns must be expanded."""
    format: str = option("auto", "--format NAME", "format of the files: see docs/data.md")
    """``auto`` selects the format by suffix and first bytes of a file."""
    batch_size: int = option(64, "--batch-size N", "records per minibatch and worker", minimum=1)
    records_per_task: int = option(
        0,
        "--records-per-task N",
        "records that a worker leases at once (default: 32 minibatches)",
        minimum=0,
    )
    """0 for 32 minibatches, rounded to whole windows of ``local_steps`` minibatches."""
    epochs: int = train_option(
        1,
        "--epochs N|stream",
        "passes over the training data; stream: what comes, without end",
        minimum=0,
    )
    """0 for a stream."""
    max_records: int = train_option(
        0, "--max-records N", "end a stream after N records (default: no end)", minimum=0
    )
    shuffle: bool = train_option(
        True, "--no-shuffle", "keep the order of the data (default: shuffled)"
    )
    """Seed and epoch determine the order of tasks and of the records of a task."""
    skip_damaged: bool = option(
        False,
        "--skip-damaged",
        "skip and count records that cannot be read, or kill workers (default: fail)",
    )
    loader_workers: int = option(
        0,
        "--loader-workers N",
        "DataLoader processes for a Dataset of feed; one if iterable",
        minimum=0,
    )
    pin_memory: bool = option(
        False, "--pin-memory", "pin the memory of the batches of the DataLoader"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_records and not self.streams:
            raise UsageError(
                f"--max-records {self.max_records}: only a stream has no end of its own; add "
                "--epochs stream, or use --max-steps",
            )

    @property
    def kept(self) -> list[str]:
        """Columns of the data that are written before the predictions."""
        return self.keep.split(",") if self.keep else []

    @property
    def streams(self) -> bool:
        """True if the training data are streams without an end."""
        return self.epochs == 0


@dataclass(frozen=True, kw_only=True)
class ClusterConfig(Checked):
    """Number of processes of a job, and time limits after which a worker is declared lost."""

    min_workers: int = option(
        1,
        "--workers N|MIN:MAX",
        "number of worker processes, or a range",
        Option(
            "--workers N|MIN:MAX",
            "start MAX workers here; MIN suffice (default: --nproc-per-node)",
            kinds=("script",),
        ),
        minimum=1,
    )
    max_workers: int = 1
    servers: int = job_option(
        1, "--ps, --servers N", "parameter servers, with the strategy ps", minimum=1
    )
    min_nodes: int = train_option(
        1,
        "--nnodes N|MIN:MAX",
        "machines of the job; each runs the command, or torch-edl join",
        minimum=1,
    )
    max_nodes: int = 1
    workers_per_node: int = train_option(
        0,
        "--nproc-per-node N",
        "most workers of a machine (default: an equal share)",
        minimum=0,
    )
    """0: :attr:`max_workers` divided by :attr:`max_nodes`, rounded up."""
    endpoint: str = train_option(
        "",
        "--rdzv-endpoint HOST:PORT",
        "address of the master, on the machine that starts it (default: loopback)",
    )
    wire_dtype: str = job_option(
        "fp32",
        "--wire-dtype fp32|bf16|fp16",
        "type of rows and gradients on the way to servers and back",
        choices=FLOAT_DTYPES,
    )
    worker_threads: int = option(
        0, "--worker-threads N", "torch threads per worker (default: cores / workers)", minimum=0
    )
    heartbeat_timeout_s: float = job_option(
        30.0, "--heartbeat-timeout S", "declare a worker lost after S seconds without a heartbeat"
    )
    grace_s: float = job_option(
        25.0, "--grace-period S", "a worker that gets SIGTERM leaves within S seconds"
    )
    """The default is below the 30 s after which Kubernetes and torchrun send SIGKILL."""
    preemption_notice: str = job_option(
        "",
        "--preemption-notice PATH|URL",
        "leave once PATH exists or URL answers 200 (default: SIGTERM)",
    )
    """``{name}`` stands for the name of a process, such as ``worker-3``, ``{host}`` for the name of
    its machine."""
    check_machine: bool = train_option(
        False, "--check-machine", "measure machines for 2 s before workers train (default: no)"
    )
    """Workers whose machines are below half of the median are slow."""
    replace_slow: bool = train_option(
        False, "--replace-slow", "replace workers and servers that are slow (default: name them)"
    )
    """A process is slow if its rate is below half of the median for 30 s."""
    task_timeout_s: float = option(
        600.0, "--task-timeout S", "replace a worker that makes no progress for S seconds"
    )
    join_timeout_s: float = 600.0
    """Seconds for which the workers of a script wait for their first ring."""
    max_task_failures: int = option(
        3,
        "--max-task-failures N",
        "fail after N exceptions, timeouts or deaths in the same task",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_nodes > self.max_nodes:
            raise UsageError(
                f"--nnodes {self.min_nodes}:{self.max_nodes}: the minimum is above the maximum; "
                f"write {self.max_nodes}:{self.min_nodes}"
            )
        if self.min_workers > self.max_workers:
            raise UsageError(
                f"--workers {self.min_workers}:{self.max_workers}: the minimum is above the "
                f"maximum; write {self.max_workers}:{self.min_workers}"
            )
        if self.max_nodes > 1 and not self.endpoint:
            raise UsageError(
                f"--nnodes {_range(self.min_nodes, self.max_nodes)}: add --rdzv-endpoint "
                "HOST:PORT, an address of one of the machines that the others reach"
            )
        if self.slots * self.max_nodes < self.max_workers:
            raise UsageError(
                f"--workers {self.max_workers}: {self.max_nodes} machines (--nnodes) of "
                f"{self.slots} workers (--nproc-per-node) have only "
                f"{self.slots * self.max_nodes}; raise --nproc-per-node, or leave it out"
            )
        if self.preemption_notice and not self.preemption_notice.startswith(("/", *_URLS)):
            raise UsageError(
                f"--preemption-notice {self.preemption_notice}: write the path of a file from / "
                "on, or a URL that begins with http:// or https://"
            )
        if self.max_workers > MOST_WORKERS:
            raise UsageError(
                f"--workers {self.max_workers}: a job has {MOST_WORKERS:,} workers at most"
            )
        if self.servers > MOST_SERVERS:
            raise UsageError(
                f"--ps {self.servers}: a job has {MOST_SERVERS:,} parameter servers at most"
            )

    @property
    def slots(self) -> int:
        """Maximum number of workers of a machine."""
        return self.workers_per_node or -(-self.max_workers // self.max_nodes)


def _range(low: int, high: int) -> str:
    return str(low) if low == high else f"{low}:{high}"


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig(Checked):
    """Source of the model, outputs and checkpoints."""

    output: str = training_option(
        "",
        "--output DIR",
        "write the trained model to DIR",
        Option(
            "--output FILE",
            ".parquet, .csv or .npz; rows in the order of the input",
            kinds=("predict",),
            required=True,
            group="data",
        ),
    )
    parts: str = ""
    """Folder of partial predictions, one file per task, before they are merged; empty if there are
    none."""
    dir: str = training_option("", "--checkpoint-dir DIR", "write checkpoints to DIR")
    every: int = training_option(
        0,
        "--checkpoint-every STEPS",
        "steps between two checkpoints (default: only at the end)",
        minimum=0,
    )
    keep: int = training_option(
        3, "--keep-checkpoints N", "number of checkpoints to keep", minimum=1
    )
    """The newest checkpoints are kept."""
    resume: bool = training_option(
        False, "--resume", "continue from the newest checkpoint in --checkpoint-dir"
    )
    load: str = training_option(
        "",
        "--load SOURCE",
        "start from the model of a job, an output or a checkpoint",
        Option(
            "--from SOURCE",
            "the trained model: a job, an output folder or checkpoints",
            kinds=("evaluate", "predict"),
            required=True,
            group="model",
        ),
    )
    load_optimizer: bool = training_option(
        False, "--load-optimizer", "with --load: also load optimizer state (default: values only)"
    )
    """The source must then be a checkpoint. Learning rates and schedules are those of this job."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.load_optimizer and not self.load:
            raise UsageError("--load-optimizer: add --load SOURCE, the checkpoints that have it")
        if (self.every or self.resume) and not self.dir:
            given = "--resume" if self.resume else f"--checkpoint-every {self.every}"
            raise UsageError(f"{given}: add --checkpoint-dir DIR, where the checkpoints are")


@dataclass(frozen=True, kw_only=True)
class DurabilityConfig(Checked):
    """Storage of updates and state that survive the loss of a parameter server or of the master."""

    mode: str = training_option(
        "checkpoint",
        "--durability NAME",
        "checkpoint|journal|replica: what survives a dead server",
        choices=("checkpoint", "journal", "replica"),
    )
    """``checkpoint``: the newest checkpoint survives. ``journal``: every acknowledged push survives
    in the log of its server. ``replica``: every acknowledged push survives on a peer server."""
    journal_dir: str = training_option(
        "", "--journal-dir DIR", "write journals to DIR (default: the job's folder)"
    )
    fsync: str = training_option(
        "interval",
        "--fsync never|interval|always",
        "write journals to the disk: once a second, or at each push",
        choices=FSYNC_MODES,
    )
    """``never`` leaves writing to the operating system. A journal always survives the loss of
    processes; this option concerns the loss of a machine."""
    repair: bool = training_option(
        False, "--repair", "leave out damaged records of journals (default: restore)"
    )
    """By default, the model returns to the newest checkpoint if a journal is damaged, and lost
    updates are computed again. With ``--repair``, the updates in damaged records are lost, each on
    one server only."""
    failover: str = train_option(
        "restart",
        "--ps-failover restart|worker",
        "on Kubernetes, a lost server gets a new or a worker's pod",
        choices=("restart", "worker"),
    )
    """``restart`` also uses the pod of a worker if no machine has room for a new pod."""
    store: str = job_option(
        "sqlite", "--store URL", "keep the state in sqlite or etcd://HOST:PORT (etcds: TLS)"
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
