"""The options of the verbs, in the groups of their help pages; defaults are the configuration's."""

from __future__ import annotations

import argparse

from torch_edl.cli.argument_types import seconds, whole, worker_range
from torch_edl.config import CheckpointConfig, ClusterConfig, DataConfig, TrainConfig

_DATA = DataConfig()
_TRAIN = TrainConfig()
_CLUSTER = ClusterConfig()
_KEEP = CheckpointConfig()

# The names of torch_edl.data.sources; `auto` looks at the suffix and the first bytes.
FORMATS = "auto|recordio|tfrecord|csv|parquet"


def add_model(parser: argparse.ArgumentParser) -> None:
    """MODEL.py."""
    parser.add_argument("model_file", metavar="MODEL.py", help="the file that defines the model")


SAVED = "an output folder, (a folder of) checkpoints, or a job"


def add_saved(parser: argparse.ArgumentParser) -> None:
    """--from, of evaluate and predict."""
    parser.add_argument(
        "--from",
        dest="saved",
        required=True,
        metavar="SOURCE",
        help=SAVED,
    )


def add_train_data(parser: argparse.ArgumentParser) -> None:
    """The data of run."""
    group = parser.add_argument_group("data")
    group.add_argument(
        "--data",
        nargs="+",
        action="extend",
        default=[],
        metavar="PATH",
        help="files, folders or globs to train on; repeatable",
    )
    group.add_argument(
        "--eval-data",
        nargs="+",
        action="extend",
        default=[],
        metavar="PATH",
        help="files, folders or globs to evaluate on",
    )
    _add_cutting(group)
    group.add_argument(
        "--epochs",
        type=whole,
        default=_DATA.epochs,
        metavar="N",
        help="passes over the data (default %(default)s)",
    )
    group.add_argument(
        "--no-shuffle",
        dest="shuffle",
        action="store_false",
        help="keep the order of the data (default shuffled)",
    )


def add_data(parser: argparse.ArgumentParser, purpose: str) -> None:
    """The data of evaluate and predict."""
    group = parser.add_argument_group("data")
    group.add_argument(
        "--data",
        nargs="+",
        action="extend",
        default=[],
        metavar="PATH",
        help=f"files, folders or globs {purpose}",
    )
    _add_cutting(group)


def _add_cutting(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--format",
        default=_DATA.format,
        metavar="NAME",
        help=f"{FORMATS} (default auto)",
    )
    group.add_argument(
        "--batch-size",
        type=whole,
        default=_DATA.batch_size,
        metavar="N",
        help="records per minibatch and worker (default %(default)s)",
    )
    group.add_argument(
        "--records-per-task",
        type=whole,
        default=_DATA.records_per_task,
        metavar="N",
        help="records leased at once (default 32 minibatches)",
    )
    group.add_argument(
        "--skip-damaged",
        action="store_true",
        help="leave out and count records that cannot be read (default stop)",
    )
    group.add_argument(
        "--loader-workers",
        type=whole,
        default=_DATA.loader_workers,
        metavar="N",
        help="DataLoader processes for a Dataset (default %(default)s)",
    )
    group.add_argument(
        "--pin-memory",
        action="store_true",
        help="pin the batches of that DataLoader (default no)",
    )


def add_processes(parser: argparse.ArgumentParser) -> None:
    """How many processes, and when one is given up."""
    group = parser.add_argument_group("processes")
    add_workers(
        group,
        default=(_CLUSTER.min_workers, _CLUSTER.max_workers),
        help="worker processes, or a range (default 1)",
    )
    add_servers(group)
    group.add_argument(
        "--worker-threads",
        type=whole,
        default=_CLUSTER.worker_threads,
        metavar="N",
        help="torch threads each (default: cores, divided)",
    )
    add_heartbeat_timeout(group)
    group.add_argument(
        "--task-timeout",
        type=seconds,
        default=_CLUSTER.task_timeout_s,
        metavar="S",
        help=f"no step for so long: replaced (default {_CLUSTER.task_timeout_s:g})",
    )
    group.add_argument(
        "--max-task-failures",
        type=whole,
        default=_CLUSTER.max_task_failures,
        metavar="N",
        help="exceptions in a task: job fails (default %(default)s)",
    )


def add_workers(
    group: argparse._ArgumentGroup, *, default: tuple[int, int] | None, help: str
) -> None:
    """How many workers."""
    group.add_argument(
        "--workers", type=worker_range, default=default, metavar="N|MIN:MAX", help=help
    )


def add_servers(group: argparse._ArgumentGroup) -> None:
    """How many parameter servers."""
    group.add_argument(
        "--ps",
        "--servers",
        dest="servers",
        type=whole,
        default=None,
        metavar="N",
        help=f"parameter servers, strategy ps (default {_CLUSTER.servers})",
    )


def add_heartbeat_timeout(group: argparse._ArgumentGroup) -> None:
    """When a worker is given up."""
    group.add_argument(
        "--heartbeat-timeout",
        type=seconds,
        default=_CLUSTER.heartbeat_timeout_s,
        metavar="S",
        help=f"silence that means lost, s (default {_CLUSTER.heartbeat_timeout_s:g})",
    )


def add_strategy(group: argparse._ArgumentGroup, names: str) -> None:
    """How workers share a model."""
    group.add_argument(
        "--strategy",
        default=_TRAIN.strategy,
        metavar="NAME",
        help=f"{names} (default {_TRAIN.strategy}: by model)",
    )


def add_seed(group: argparse._ArgumentGroup, of: str) -> None:
    """What chance begins with."""
    group.add_argument(
        "--seed",
        type=whole,
        default=_TRAIN.seed,
        metavar="N",
        help=f"of {of} (default %(default)s)",
    )


def add_job_name(group: argparse._ArgumentGroup) -> None:
    """What status, scale and stop call the job."""
    group.add_argument(
        "--job-name",
        default="",
        metavar="NAME",
        help="default: the file's name and a suffix",
    )


def add_detach(group: argparse._ArgumentGroup) -> None:
    """Whether the client stays."""
    group.add_argument(
        "--detach",
        action="store_true",
        help="go on without this terminal (default: end with it)",
    )


def _add_model(group: argparse._ArgumentGroup) -> None:
    add_strategy(group, "auto|ps|allreduce|local")
    group.add_argument(
        "--large-embedding",
        type=whole,
        default=_TRAIN.large_embedding,
        metavar="N",
        help="elements that belong on servers (default 4e6)",
    )
    add_seed(group, "model, order and new rows")


def add_inference(parser: argparse.ArgumentParser) -> None:
    """How evaluate and predict hold the model."""
    _add_model(parser.add_argument_group("model"))


def add_training(parser: argparse.ArgumentParser) -> None:
    """How gradients become parameters."""
    group = parser.add_argument_group("training")
    _add_model(group)
    group.add_argument(
        "--mode",
        default=_TRAIN.mode,
        metavar="async|sync",
        help="pushes apply alone or averaged (default %(default)s)",
    )
    group.add_argument(
        "--grads-to-wait",
        type=whole,
        default=None,
        metavar="N",
        help="pushes per sync update (default: least workers)",
    )
    group.add_argument(
        "--staleness",
        type=whole,
        default=_TRAIN.staleness,
        metavar="N",
        help="own pushes a batch may lack (default %(default)s; 0: none)",
    )
    group.add_argument(
        "--local-steps",
        type=whole,
        default=_TRAIN.local_steps,
        metavar="N",
        help="delayed update: batches per push (default %(default)s)",
    )
    group.add_argument(
        "--learning-rate-by-staleness",
        action="store_true",
        help="divide the rate by parameters' age (default no)",
    )
    group.add_argument(
        "--max-steps",
        type=whole,
        default=_TRAIN.max_steps,
        metavar="N",
        help="stop after so many minibatches (default never)",
    )
    group.add_argument(
        "--eval-every",
        type=whole,
        default=_TRAIN.eval_every,
        metavar="STEPS",
        help="steps between evaluations (default: only at end)",
    )
    group.add_argument(
        "--on-nan",
        default=_TRAIN.on_nan,
        metavar="stop|skip",
        help="at a loss that is not finite (default %(default)s)",
    )


def add_keeping(parser: argparse.ArgumentParser) -> None:
    """Where the model is kept."""
    group = parser.add_argument_group("keeping the model")
    add_output(group)
    add_checkpoints(group)


def add_output(group: argparse._ArgumentGroup) -> None:
    """Where the trained model goes."""
    group.add_argument(
        "--output",
        default=_KEEP.output,
        metavar="DIR",
        help="the trained model goes there (default nowhere)",
    )


def add_checkpoints(group: argparse._ArgumentGroup) -> None:
    """Where checkpoints go, and where to start from."""
    group.add_argument(
        "--checkpoint-dir",
        default=_KEEP.dir,
        metavar="DIR",
        help="checkpoints go there (default nowhere)",
    )
    group.add_argument(
        "--checkpoint-every",
        type=whole,
        default=_KEEP.every,
        metavar="STEPS",
        help="steps between them (default: only at the end)",
    )
    group.add_argument(
        "--keep-checkpoints",
        type=whole,
        default=_KEEP.keep,
        metavar="N",
        help="how many stay (default %(default)s)",
    )
    group.add_argument(
        "--resume",
        action="store_true",
        help="go on from the newest checkpoint (default no)",
    )
    group.add_argument(
        "--load",
        default=_KEEP.load,
        metavar="SOURCE",
        help="a trained model to start from (default none)",
    )


def add_job(parser: argparse.ArgumentParser) -> None:
    """The job's name and its report."""
    group = parser.add_argument_group("job")
    add_job_name(group)
    group.add_argument(
        "--summary",
        default="",
        metavar="FILE",
        help="report at the end, JSON (default none)",
    )


def add_looking(parser: argparse.ArgumentParser) -> None:
    """What is shown while training."""
    group = parser.add_argument_group("looking inside")
    add_detach(group)
    group.add_argument(
        "--dry-run",
        action="store_true",
        help="try one minibatch, print the plan, start nothing",
    )
    group.add_argument(
        "--log-layers",
        default=_TRAIN.log_layers,
        metavar="PATTERN",
        help="log outputs of modules 'deep.*' (default none)",
    )
    add_tensorboard(group)


def add_tensorboard(group: argparse._ArgumentGroup) -> None:
    """Where scalars go."""
    group.add_argument(
        "--tensorboard",
        default="",
        metavar="DIR",
        help="TensorBoard scalars go there (default nowhere)",
    )
