"""Parse torchrun's rendezvous options, for torch's agent and for torch_edl's."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch_edl.errors import JobFailedError, ScriptFailedError, UsageError, describe_error
from torch_edl.launch.jobs.folder import new_name
from torch_edl.launch.jobs.master_host import ANY_PORT
from torch_edl.processes.this_process import configure_torch
from torch_edl.wire.endpoint import LOOPBACK, is_any, is_local

if TYPE_CHECKING:
    from torch.distributed.launcher.api import LaunchConfig as LaunchConfig

DEFAULT_PORT = 29400
# Default of torchrun's --rdzv-id.
DEFAULT_ID = "none"
# Default of torch's c10d backend.
JOIN_TIMEOUT_S = 600.0
# torchrun's defaults of --master-addr and --master-port.
_STATIC_ADDRESS, _STATIC_PORT = "127.0.0.1", 29500
_BACKENDS = ("static", "c10d", "edl")
_RUN_PATH = (
    "import runpy, sys; from torch.distributed.elastic.multiprocessing.errors import record; "
    "sys.argv = sys.argv[1:]; record(runpy.run_path)(sys.argv[0], run_name='__main__')"
)


def endpoint(named: str, *, machines: int) -> str:
    """Return ``host:port`` of ``--rdzv-endpoint``, with default port and IPv6 brackets.

    For a single machine, an address of this machine is replaced by the loopback address, so that no
    other machine can connect.

    Raises:
        UsageError: the endpoint is invalid, or names no machine.
    """
    from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

    try:
        host, port = parse_rendezvous_endpoint(named, default_port=DEFAULT_PORT)
    except ValueError as error:
        raise UsageError(f"--rdzv-endpoint {named}: {error}") from error
    found = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if machines == 1 and is_local(found):
        return f"{LOOPBACK}:{port}"
    if is_any(found):
        raise UsageError(
            f"--rdzv-endpoint {named}: all interfaces, which names no machine; write an address of "
            "the machine of the master that the other machines reach"
        )
    return found


def job_name(run_id: str) -> str:
    """Return the name of the job for ``--rdzv-id``, which is also a valid folder name."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", run_id).strip("-.") or "job"


def job_names(run_id: str, port: int) -> list[str]:
    """Return the possible names of the job for ``--rdzv-id`` and a port, the preferred one first.

    Jobs with the same id at two ports are two jobs.
    """
    if run_id == DEFAULT_ID:
        return [f"torchrun-{port}"]
    name = job_name(run_id)
    return [name, f"{name}-{port}"]


def unquoted(configs: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``--rdzv-conf`` without quotes that a YAML file or script may have added."""
    return {
        key.strip("'\""): value.strip("'\"") if isinstance(value, str) else value
        for key, value in configs.items()
    }


def seconds(configs: Mapping[str, Any], key: str, default: float) -> float:
    """Return a duration in seconds from ``--rdzv-conf``.

    Raises:
        UsageError: the value is not a valid duration.
    """
    value = configs.get(key)
    if value is None:
        return default
    try:
        found = float(value)
    except ValueError:
        found = -1.0
    if not 0 <= found < float("inf"):
        raise UsageError(f"--rdzv-conf {key}={value}: write a number of seconds, {key}=60")
    return found


def torchrun_parser() -> argparse.ArgumentParser:
    """Return torchrun's own parser of its command line."""
    from torch.distributed.run import get_args_parser

    return get_args_parser()


def run_torchrun(args: argparse.Namespace) -> None:
    """Run a script as torchrun does, with the same agent and the same report of failures.

    Raises:
        ScriptFailedError: a worker failed.
        JobFailedError: the machines did not meet.
    """
    from torch.distributed import DistError
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, record
    from torch.distributed.elastic.rendezvous import RendezvousError
    from torch.distributed.run import run

    try:
        record(run)(args)
    except ChildFailedError as error:  # the table of all failures
        _, first = error.get_first_failure()
        raise ScriptFailedError(
            f"{args.training_script} failed\n{str(error).strip()}", code=first.exitcode
        ) from None
    except (RendezvousError, DistError) as error:
        raise JobFailedError(
            f"{args.training_script}: the machines did not meet ({describe_error(error)}); start "
            f"the command on each of --nnodes {args.nnodes} machines, with the same --rdzv-id and "
            "an --rdzv-endpoint (or --master-addr) that all of them can reach"
        ) from None


def launch_config(args: argparse.Namespace) -> tuple[LaunchConfig, list[str]]:
    """Return torchrun's configuration for the agent, and the command of a worker.

    Raises:
        UsageError: a value that torchrun rejects, or an unsupported rendezvous backend.
    """
    from torch.distributed.run import config_from_args, determine_local_world_size

    if args.rdzv_backend not in _BACKENDS:
        raise UsageError(
            f"--rdzv-backend {args.rdzv_backend}: the workers of a job of torch_edl meet at its "
            "master; leave the option out, or write --rdzv-backend edl"
        )
    if args.workers is not None:
        args.nproc_per_node = str(args.workers[1])
    try:
        _set_threads(determine_local_world_size(args.nproc_per_node))
        config, entrypoint, words = config_from_args(args)
    except (AssertionError, RuntimeError, ValueError, OSError) as error:
        raise UsageError(f"torchrun's options: {error}") from error
    if config.nproc_per_node < 1:
        raise UsageError(f"--nproc-per-node {args.nproc_per_node}: must be 1 or more")
    config.rdzv_configs = unquoted(config.rdzv_configs)
    if not isinstance(entrypoint, str):  # --run-path
        return config, [sys.executable, "-u", "-c", _RUN_PATH, *words]
    return config, [entrypoint, *words]


def _set_threads(workers: int) -> None:
    """Set ``OMP_NUM_THREADS`` to an equal share of the cores and the variables of
    :func:`configure_torch`, except for those that the user has set.

    torchrun sets one thread for each of several workers, with a warning.
    """
    configure_torch()
    if workers > 1:
        cores = len(os.sched_getaffinity(0))
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores // workers)))


def meeting_point(args: argparse.Namespace, config: LaunchConfig) -> str:
    """Return the address at which the agents of the job meet.

    Two commands on one machine start two separate jobs unless they name the same job. A job that
    needs several machines meets at torchrun's default endpoint.

    Returns:
        ``host:port``. Port 0 stands for any port: the agent looks up the master of the job by its
        name on this machine. Empty: the agent starts a job of its own.
    """
    named = args.rdzv_endpoint
    if args.standalone:
        return ""
    if named:
        return endpoint(named, machines=config.max_nodes)
    if config.max_nodes == 1:
        return ""
    is_placed = args.master_port is not None or args.master_addr != _STATIC_ADDRESS
    if is_placed or (config.min_nodes > 1 and args.rdzv_id == DEFAULT_ID):
        port = _STATIC_PORT if args.master_port is None else args.master_port
        return endpoint(f"{args.master_addr}:{port}", machines=config.max_nodes)
    return "" if args.rdzv_id == DEFAULT_ID else ANY_PORT


def name_of_job(args: argparse.Namespace, config: LaunchConfig) -> str:
    """Return the name that all agents of the job derive: ``--rdzv-id``, or the script and the
    port."""
    if args.job_name:
        return str(args.job_name)
    if args.rdzv_id != DEFAULT_ID:
        return job_name(args.rdzv_id)
    stem = args.training_script.rsplit(".", 1)[-1] if args.module else args.training_script
    place = meeting_point(args, config)
    name = new_name(stem)
    return f"{name.rpartition('-')[0]}-{place.rpartition(':')[2]}" if place else name
