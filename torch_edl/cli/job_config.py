"""From the words of the command line to the configuration of a job."""

from __future__ import annotations

import argparse
import re
import secrets
from pathlib import Path
from typing import Any

from torch_edl.cli.options import absolute, given
from torch_edl.config import ClusterConfig, JobConfig
from torch_edl.errors import UsageError
from torch_edl.experiment import Experiment

_SUFFIX_LETTERS = "abcdefghjkmnpqrstuvwxyz23456789"  # none that looks like another


def model_file_job(args: argparse.Namespace, kind: str) -> JobConfig:
    """The job of ``torch-edl run``, ``evaluate`` or ``predict`` for a model file.

    Paths of data are still as the user wrote them.

    Raises:
        UsageError: a value that cannot work.
    """
    found = given(args, kind)
    _imply_servers(found)
    if found["train"].get("mode") == "sync":
        # A group of more pushes than workers would hold two pushes of the fastest worker.
        least = found["cluster"].get("min_workers", ClusterConfig.min_workers)
        found["train"].setdefault("grads_to_wait", max(1, least))
    if kind != "train":
        # Predictions are put together in the order of the tasks.
        found["data"]["shuffle"] = False
    found["name"] = found.get("name") or default_name(args.model_file)
    model_file = absolute(args.model_file)
    return JobConfig.of(
        {**found, "kind": kind, "model_file": model_file, "model_args": args.model_args}
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
    """The job of ``torch-edl run`` for a script, which has data and a model of its own.

    Raises:
        UsageError: a value that cannot work.
    """
    found = given(args, "script")
    _imply_servers(found)
    strategy = found["train"].get("strategy")
    if "servers" in found["cluster"] and strategy not in ("ps", "local"):
        raise UsageError(
            f"--ps {args.servers} and --strategy {strategy}: servers are for the strategy ps; "
            "leave one of them out"
        )
    found["cluster"] |= {
        "min_workers": min_workers,
        "max_workers": max_workers,
        "join_timeout_s": join_timeout_s,
    }
    found |= {
        "name": name,
        "kind": "script",
        "model_file": args.training_script if args.module else absolute(args.training_script),
        "model_args": args.training_script_args,
        "experiment": experiment,
    }
    return JobConfig.of(found)


def _imply_servers(found: dict[str, Any]) -> None:
    """A number of servers asks for the strategy that has servers."""
    if "servers" in found["cluster"] and found["train"].get("strategy", "auto") == "auto":
        found["train"]["strategy"] = "ps"


def default_name(model_file: str) -> str:
    """The model file's stem, or its folder's name where that says more, and a unique suffix."""
    path = Path(absolute(model_file))
    stem = path.parent.name if path.stem == "model" else path.stem
    stem = re.sub(r"[^A-Za-z0-9_-]+", "-", stem).strip("-") or "job"
    return f"{stem}-" + "".join(secrets.choice(_SUFFIX_LETTERS) for _ in range(6))
