"""From options to the configuration of a job."""

from __future__ import annotations

import argparse
import re
import secrets
from pathlib import Path

from torch_edl.config import (
    CheckpointConfig,
    ClusterConfig,
    DataConfig,
    JobConfig,
    TrainConfig,
)
from torch_edl.errors import UsageError
from torch_edl.experiment import Experiment

_SUFFIX_LETTERS = "abcdefghjkmnpqrstuvwxyz23456789"  # none that is read as another


def train_job(args: argparse.Namespace) -> JobConfig:
    """The job of ``torch-edl run``; data paths are still as the user wrote them.

    Raises:
        UsageError: a value that cannot work.
    """
    waits = args.grads_to_wait
    if waits is None:
        # A group of more pushes than workers would hold two of the fastest worker's.
        waits = max(1, args.workers[0]) if args.mode == "sync" else 1
    return JobConfig(
        name=args.job_name or default_name(args.model_file),
        kind="train",
        model_file=_absolute(args.model_file),
        model_args=args.model_args,
        data=DataConfig(
            train=tuple(args.data),
            eval=tuple(args.eval_data),
            format=args.format,
            batch_size=args.batch_size,
            records_per_task=args.records_per_task,
            epochs=args.epochs,
            shuffle=args.shuffle,
            skip_damaged=args.skip_damaged,
            loader_workers=args.loader_workers,
            pin_memory=args.pin_memory,
        ),
        train=TrainConfig(
            # Who names a number of servers wants servers.
            strategy="ps" if args.servers and args.strategy == "auto" else args.strategy,
            mode=args.mode,
            grads_to_wait=waits,
            staleness=args.staleness,
            local_steps=args.local_steps,
            learning_rate_by_staleness=args.learning_rate_by_staleness,
            max_steps=args.max_steps,
            eval_every=args.eval_every,
            seed=args.seed,
            on_nan=args.on_nan,
            log_layers=args.log_layers,
            large_embedding=args.large_embedding,
        ),
        cluster=_cluster(args),
        checkpoint=CheckpointConfig(
            dir=_absolute(args.checkpoint_dir),
            every=args.checkpoint_every,
            keep=args.keep_checkpoints,
            resume=args.resume,
            load=args.load,
            output=_absolute(args.output),
        ),
        tensorboard=_absolute(args.tensorboard),
    )


def inference_job(args: argparse.Namespace, kind: str) -> JobConfig:
    """The job of ``torch-edl evaluate`` or ``predict``: one pass, in the order of the data.

    Raises:
        UsageError: a value that cannot work.
    """
    paths = tuple(args.data)
    return JobConfig(
        name=args.job_name or default_name(args.model_file),
        kind=kind,
        model_file=_absolute(args.model_file),
        model_args=args.model_args,
        data=DataConfig(
            eval=paths if kind == "evaluate" else (),
            predict=paths if kind == "predict" else (),
            format=args.format,
            batch_size=args.batch_size,
            records_per_task=args.records_per_task,
            # Predictions are put together in the order of the task ids.
            shuffle=False,
            skip_damaged=args.skip_damaged,
            loader_workers=args.loader_workers,
            pin_memory=args.pin_memory,
        ),
        train=TrainConfig(
            strategy=args.strategy, seed=args.seed, large_embedding=args.large_embedding
        ),
        cluster=_cluster(args),
        checkpoint=CheckpointConfig(load=args.saved),
    )


def script_job(
    args: argparse.Namespace,
    *,
    name: str,
    min_workers: int,
    max_workers: int,
    join_timeout_s: float = ClusterConfig.join_timeout_s,
    experiment: Experiment | None = None,
) -> JobConfig:
    """The job of ``torch-edl run`` for a script: its data and its model are its own.

    Raises:
        UsageError: a value that cannot work.
    """
    return JobConfig(
        name=name,
        kind="script",
        model_file=args.training_script if args.module else _absolute(args.training_script),
        model_args=tuple(args.training_script_args),
        train=TrainConfig(strategy=_script_strategy(args), seed=args.seed),
        cluster=ClusterConfig(
            min_workers=min_workers,
            max_workers=max_workers,
            servers=_servers(args),
            heartbeat_timeout_s=args.heartbeat_timeout,
            join_timeout_s=join_timeout_s,
        ),
        checkpoint=CheckpointConfig(
            dir=_absolute(args.checkpoint_dir),
            every=args.checkpoint_every,
            keep=args.keep_checkpoints,
            resume=args.resume,
            load=args.load,
            output=_absolute(args.output),
        ),
        tensorboard=_absolute(args.tensorboard),
        experiment=experiment,
    )


def _script_strategy(args: argparse.Namespace) -> str:
    strategy = str(args.strategy)
    if strategy == "local":
        raise UsageError(
            "--strategy local: it is for model files; a script of one worker runs without "
            "torch-edl too, or with --strategy allreduce"
        )
    if args.servers is None:
        return strategy
    if strategy not in ("auto", "ps"):
        raise UsageError(
            f"--ps {args.servers} and --strategy {strategy}: servers are for the strategy ps; "
            "leave one of them out"
        )
    return "ps"


def default_name(model_file: str) -> str:
    """The model file's stem, or its folder's name where that says more, and a unique suffix."""
    path = Path(_absolute(model_file))
    stem = path.parent.name if path.stem == "model" else path.stem
    stem = re.sub(r"[^A-Za-z0-9_-]+", "-", stem).strip("-") or "job"
    return f"{stem}-" + "".join(secrets.choice(_SUFFIX_LETTERS) for _ in range(6))


def _cluster(args: argparse.Namespace) -> ClusterConfig:
    least, most = args.workers
    return ClusterConfig(
        min_workers=least,
        max_workers=most,
        servers=_servers(args),
        worker_threads=args.worker_threads,
        heartbeat_timeout_s=args.heartbeat_timeout,
        task_timeout_s=args.task_timeout,
        max_task_failures=args.max_task_failures,
    )


def _servers(args: argparse.Namespace) -> int:
    return ClusterConfig().servers if args.servers is None else int(args.servers)


def _absolute(path: str) -> str:
    # The processes of the job may run elsewhere; symbolic links stay what they are.
    return str(Path(path).expanduser().absolute()) if path else ""
