"""The command line of torchrun with the options of torch-edl, and its translation to a job.

The workers of a script that uses torch_edl always meet at the master of the job; torchrun's
rendezvous backends are not used.
"""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from torch.distributed.launcher.api import LaunchConfig
from torch.distributed.run import config_from_args, determine_local_world_size, get_args_parser

from torch_edl.cli import config_file, user_file
from torch_edl.cli.options import add_options, default_name
from torch_edl.cli.parser import plain, run_options
from torch_edl.cli.script_arguments import why_not
from torch_edl.config import Experiment
from torch_edl.config.environment import this_experiment
from torch_edl.errors import UsageError
from torch_edl.launch.jobs import master_host
from torch_edl.launch.torchrun import options as rendezvous

# torchrun's defaults of --master-addr and --master-port.
_STATIC_ADDRESS, _STATIC_PORT = "127.0.0.1", 29500
_ONE_MACHINE = ("1", "1:1")
_BACKENDS = ("static", "c10d", "edl")
_RUN_PATH = (
    "import runpy, sys; from torch.distributed.elastic.multiprocessing.errors import record; "
    "sys.argv = sys.argv[1:]; record(runpy.run_path)(sys.argv[0], run_name='__main__')"
)


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments of ``torch-edl run`` for a script.

    Returns:
        The options of torchrun and of torch-edl; ``words`` holds the arguments with those of
        ``--config``, and ``places`` maps each option of ``--config`` to its place in the file.

    Raises:
        UsageError: an unknown option, an option of model files, or options that exclude each other.
    """
    parser = get_args_parser()
    parser.prog = "torch-edl run"
    parser.description = (
        "Launch a training script with torchrun's options and environment. "
        "All arguments after the script are passed to the script."
    )
    add_options(parser, "script")

    def refuse(message: str) -> NoReturn:
        message = plain(message)
        if message.startswith("the following arguments are required: training_script"):
            message = "SCRIPT.py: missing; the script comes after the options of torchrun"
        raise UsageError(f"{message}\nsee: torch-edl run --help-torchrun")

    parser.error = refuse  # type: ignore[method-assign]
    args, unknown = parser.parse_known_args(list(words))
    places: dict[str, str] = {}
    if args.config is not None:
        before, places = config_file.expand(before_script(args, words), parser)
        cut = ["--"] * ("--" in _up_to_script(args, words))
        rest = [*cut, args.training_script, *args.training_script_args]
        try:
            words = [*before, *rest]
            args, unknown = parser.parse_known_args(words)
        except UsageError as error:
            raise config_file.placed(error, places) from error
    args.words, args.places = list(words), places
    if unknown:
        flag = unknown[0].split("=")[0]
        if flag in run_options():
            raise UsageError(f"{flag}: options of torchrun launch a script: {why_not(flag)}")
        close = difflib.get_close_matches(flag, list(parser._option_string_actions), n=1)
        hint = f"did you mean {close[0]}?" if close else "options of the script go after the script"
        raise UsageError(f"{flag}: no option of torchrun or of torch-edl run for scripts; {hint}")
    _check(args)
    return args


def before_script(args: argparse.Namespace, words: Sequence[str]) -> list[str]:
    """Return the words in front of the script, without a ``--``.

    Args:
        args: the result of parsing ``words``.
    """
    before = _up_to_script(args, words)
    last = len(before) - 1 - before[::-1].index(args.training_script)
    return [word for word in before[:last] if word != "--"]


def _up_to_script(args: argparse.Namespace, words: Sequence[str]) -> list[str]:
    """Return the words without the arguments of the script."""
    return list(words[: len(words) - len(args.training_script_args)])


def _check(args: argparse.Namespace) -> None:
    script = args.training_script
    if not (args.module or args.no_python):
        kind = user_file.kind_of(script, has_data=False)
        if not kind.is_script and "--" not in _up_to_script(args, args.words):
            raise UsageError(
                f"{script}: a model file ({kind.reason}), and options of torchrun are for training "
                "scripts; use --workers MIN:MAX, see torch-edl run --help; if the file is a "
                f"training script, write -- {script}"
            )
    if args.module and args.no_python:
        raise UsageError("--no-python and --module: choose one")
    if args.workers is not None and min(args.workers) < 1:
        raise UsageError(f"--workers {min(args.workers)}: must be 1 or more")
    if args.workers is not None and args.nproc_per_node != "1":
        raise UsageError(f"--workers and --nproc-per-node {args.nproc_per_node}: choose one")
    if args.workers is not None and args.nnodes not in _ONE_MACHINE:
        raise UsageError(
            f"--workers and --nnodes {args.nnodes}: --workers is for one machine; "
            "write --nnodes MIN:MAX --nproc-per-node N"
        )


def may_restart_here(args: argparse.Namespace) -> bool:
    """Return True if a plain script has restarts, runs on this machine only and names no
    rendezvous."""
    is_named = args.rdzv_backend != "static" or args.rdzv_endpoint or args.master_port is not None
    is_alone = args.standalone or (args.nnodes in _ONE_MACHINE and not is_named)
    return bool(args.max_restarts and is_alone)


def launch_config(args: argparse.Namespace) -> tuple[LaunchConfig, list[str]]:
    """Return torchrun's configuration for the agent, and the command of a worker.

    Raises:
        UsageError: a value that torchrun rejects, or an unsupported rendezvous backend.
    """
    if args.rdzv_backend not in _BACKENDS:
        raise UsageError(
            f"--rdzv-backend {args.rdzv_backend}: the workers of a job of torch_edl meet at its "
            "master; leave the option out, or write --rdzv-backend edl"
        )
    if args.workers is not None:
        args.nproc_per_node = str(args.workers[1])
    try:
        _share_cores(determine_local_world_size(args.nproc_per_node))
        config, entrypoint, words = config_from_args(args)
    except (AssertionError, RuntimeError, ValueError, OSError) as error:
        raise UsageError(f"torchrun's options: {error}") from error
    if config.nproc_per_node < 1:
        raise UsageError(f"--nproc-per-node {args.nproc_per_node}: must be 1 or more")
    config.rdzv_configs = rendezvous.unquoted(config.rdzv_configs)
    if not isinstance(entrypoint, str):  # --run-path
        return config, [sys.executable, "-u", "-c", _RUN_PATH, *words]
    return config, [entrypoint, *words]


def _share_cores(workers: int) -> None:
    """Set ``OMP_NUM_THREADS`` to an equal share of the cores unless the user has set it.

    torchrun sets one thread for each of several workers, with a warning.
    """
    if workers > 1:
        cores = len(os.sched_getaffinity(0))
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores // workers)))


def endpoint(args: argparse.Namespace, config: LaunchConfig) -> str:
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
        return rendezvous.endpoint(named, machines=config.max_nodes)
    if config.max_nodes == 1:
        return ""
    is_placed = args.master_port is not None or args.master_addr != _STATIC_ADDRESS
    if is_placed or (config.min_nodes > 1 and args.rdzv_id == rendezvous.DEFAULT_ID):
        port = _STATIC_PORT if args.master_port is None else args.master_port
        return rendezvous.endpoint(f"{args.master_addr}:{port}", machines=config.max_nodes)
    return "" if args.rdzv_id == rendezvous.DEFAULT_ID else master_host.ANY_PORT


def job_name(args: argparse.Namespace, config: LaunchConfig) -> str:
    """Return the name that all agents of the job derive: ``--rdzv-id``, or the script and the
    port."""
    if args.job_name:
        return str(args.job_name)
    if args.rdzv_id != rendezvous.DEFAULT_ID:
        return rendezvous.job_name(args.rdzv_id)
    stem = args.training_script.rsplit(".", 1)[-1] if args.module else args.training_script
    place = endpoint(args, config)
    name = default_name(stem)
    return f"{name.rpartition('-')[0]}-{place.rpartition(':')[2]}" if place else name


def experiment(args: argparse.Namespace) -> Experiment:
    """Return what the command runs; the master compares it with that of the other agents."""
    script = args.training_script
    file: Path | None = Path(script).expanduser().resolve()
    if args.module:
        file = user_file.find_module(script, [os.getcwd(), *sys.path])
    elif file is not None and file.exists():
        script = str(file)
    return this_experiment(script, args.training_script_args, rdzv_id=args.rdzv_id, file=file)
