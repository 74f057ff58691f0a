"""``torch-edl run`` for a training script: torchrun's command line, and an agent.

A script without torch_edl gets torch's own agent; one that uses it gets ours, see torch_edl/agent.
"""

from __future__ import annotations

import argparse
import difflib
import logging
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from torch_edl.cli import file_kind, preflight
from torch_edl.cli.detach import detach
from torch_edl.cli.job_config import default_name, script_job
from torch_edl.cli.options import add_options, given_flags
from torch_edl.cli.parser import run_options
from torch_edl.cli.script_words import why_not
from torch_edl.config import TrainConfig
from torch_edl.environment import hash_environment, this_experiment
from torch_edl.errors import UsageError
from torch_edl.experiment import Experiment
from torch_edl.jobs import master_host
from torch_edl.jobs.folder import JobFolder
from torch_edl.torchrun_plugin import options as rendezvous

if TYPE_CHECKING:
    from torch.distributed.launcher.api import LaunchConfig

    from torch_edl.cli.submit import Observer
    from torch_edl.config import JobConfig

log = logging.getLogger(__name__)

# torchrun's defaults of --master-addr and --master-port.
_STATIC_ADDRESS, _STATIC_PORT = "127.0.0.1", 29500
_MEETING_PLACES = ("static", "c10d", "edl")
# So long a master may be silent, unless --rdzv-conf says otherwise.
_SILENCE_S = 900.0
# Of --rdzv-conf; the rank is torch's word for --node-rank.
_HEEDED = {"timeout", "join_timeout", "rank"}
_RUN_PATH = (
    "import runpy, sys; from torch.distributed.elastic.multiprocessing.errors import record; "
    "sys.argv = sys.argv[1:]; record(runpy.run_path)(sys.argv[0], run_name='__main__')"
)


def main(args: argparse.Namespace) -> int:
    """Runs a script on this machine until its workers are over.

    Raises:
        UsageError: what was asked for cannot work; nothing was started.
        JobFailedError: the job failed elsewhere, or was stopped.
    """
    parsed = parse(args.words)
    os.environ.update(hash_environment(parsed.seed or TrainConfig.seed))
    _log_to_stderr()
    uses = _uses_torch_edl(parsed)
    shown = parsed.training_script
    if uses is False:
        return _run_plain(parsed, shown)
    config, command = _launch_config(parsed)
    if not _endpoint(parsed, config) and config.max_nodes > 1:
        log.info(
            "--nnodes %s: this machine alone, since no place to meet is named; others join where "
            "all name one --rdzv-endpoint HOST:PORT (on one machine --rdzv-id NAME is enough)",
            parsed.nnodes,
        )
        config.max_nodes = 1
    least = config.min_nodes * config.nproc_per_node
    if parsed.workers is not None:
        least = parsed.workers[0]
    name = parsed.job_name or _job_name(parsed, config)
    job = preflight.check_script(
        script_job(
            parsed,
            name=name,
            min_workers=least,
            max_workers=config.max_nodes * config.nproc_per_node,
            join_timeout_s=_join_timeout_s(config),
            experiment=_experiment(parsed),
        )
    )
    config.run_id = name
    detached = detach(name) if parsed.detach else None
    if isinstance(detached, int):
        return detached
    return _run_ours(parsed, config, command, job, [detached] if detached else [])


def build_parser() -> argparse.ArgumentParser:
    """torch's own parser of torchrun's command line, with our options."""
    from torch.distributed.run import get_args_parser

    parser = get_args_parser()
    parser.prog = "torch-edl run"
    parser.description = (
        "Launch a training script, with torchrun's options and environment. "
        "Everything behind the script is the script's."
    )
    add_options(parser, "script")
    return parser


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parses what follows ``run``.

    Raises:
        UsageError: an option that nobody knows, or that goes with another one or a model file
            only.
    """
    parser = build_parser()

    def refuse(message: str) -> NoReturn:
        message = re.sub(r"^argument ([^:]*): ", lambda m: m[1].split("/")[0] + ": ", message)
        missing = message.startswith("the following arguments are required: training_script")
        if missing:
            message = "SCRIPT.py: missing; it comes after the options of torchrun"
        raise UsageError(f"{message}\nsee: torch-edl run --help-torchrun")

    parser.error = refuse  # type: ignore[method-assign]
    args, unknown = parser.parse_known_args(list(words))
    if unknown:
        flag = unknown[0].split("=")[0]
        if flag in run_options():
            raise UsageError(f"{flag}: with torchrun's options it is a script: {why_not(flag)}")
        close = difflib.get_close_matches(flag, list(parser._option_string_actions), n=1)
        hint = f"; did you mean {close[0]}?" if close else "; the script's own go behind it"
        raise UsageError(f"{flag}: no option of torchrun or of torch-edl run for scripts{hint}")
    _check(args)
    return args


def _check(args: argparse.Namespace) -> None:
    script = args.training_script
    if not (args.module or args.no_python):
        kind = file_kind.kind_of(script, shown=script, has_data=False, launched=True)
        if not kind.is_script:
            raise UsageError(
                f"{script}: a model file ({kind.reason}), and options of torchrun are for training "
                "scripts; use --workers MIN:MAX, see torch-edl run --help"
            )
    if args.module and args.no_python:
        raise UsageError("--no-python and --module: choose one")
    if args.workers is not None:
        if args.nproc_per_node != "1":
            raise UsageError(f"--workers and --nproc-per-node {args.nproc_per_node}: choose one")
        if args.nnodes not in ("1", "1:1"):
            raise UsageError(
                f"--workers and --nnodes {args.nnodes}: --workers is for one machine; "
                "write --nnodes MIN:MAX --nproc-per-node N"
            )


def _uses_torch_edl(args: argparse.Namespace) -> bool | None:
    """Whether the script does; None if it cannot be seen and our options say that it does."""
    script = args.training_script
    found = False
    if args.module:
        file = file_kind.find_module(script, [os.getcwd(), *sys.path])
        if file is not None:
            found = file_kind.module_uses_torch_edl(file, Path.cwd())
    elif not args.no_python or script.endswith(".py"):
        found = file_kind.uses_torch_edl(script)
    if found:
        return True
    # A seed salts hash() of any script.
    own = [flag for flag in given_flags(args, "script") if flag != "--seed"]
    if not own:
        return False
    if args.no_python or args.module:
        return None
    if own != ["--workers"]:
        raise UsageError(
            f"{own[0]}: {script} does not use torch_edl, so nothing would come of it; "
            "add torch_edl.init() to it, or leave the option out"
        )
    return False


def _run_plain(args: argparse.Namespace, shown: str) -> int:
    """As torchrun: the same agent, the same errors."""
    from torch.distributed.elastic.multiprocessing.errors import record
    from torch.distributed.run import run

    if args.workers is not None:
        least, most = args.workers
        if least != most:
            raise UsageError(
                f"--workers {least}:{most}: {shown} does not use torch_edl, so its number of "
                f"workers cannot change; write --workers {most}, or add torch_edl.init() to it"
            )
        args.nproc_per_node = str(most)
    if _may_restart_here(args):
        # Torch's own meeting places keep their store, and in it the addresses of processes that
        # are gone: about half of all restarts wait for one of them (torch 2.13).
        args.rdzv_backend, args.rdzv_endpoint = "edl", master_host.ANY_PORT
        args.standalone = False
        if args.rdzv_id == rendezvous.DEFAULT_ID:
            args.rdzv_id = default_name(args.training_script)
    log.info("%s is a training script without torch_edl: it runs as under torchrun", shown)
    record(run)(args)
    return 0


def _may_restart_here(args: argparse.Namespace) -> bool:
    """Whether workers may be started again, all on this machine, and no place to meet is named."""
    if args.max_restarts == 0:
        return False
    is_named = args.rdzv_backend != "static" or args.rdzv_endpoint or args.master_port is not None
    return bool(args.standalone or (args.nnodes in ("1", "1:1") and not is_named))


def _launch_config(args: argparse.Namespace) -> tuple[LaunchConfig, list[str]]:
    """torchrun's configuration, and the command of a worker."""
    from torch.distributed.run import config_from_args, determine_local_world_size

    if args.rdzv_backend not in _MEETING_PLACES:
        raise UsageError(
            f"--rdzv-backend {args.rdzv_backend}: workers of torch_edl meet at their master; "
            "leave it out, or write --rdzv-backend edl"
        )
    if args.workers is not None:
        args.nproc_per_node = str(args.workers[1])
    try:
        _share_cores(determine_local_world_size(args.nproc_per_node))
        config, entrypoint, words = config_from_args(args)
    except (AssertionError, RuntimeError, ValueError, OSError) as error:
        raise UsageError(f"torchrun's options: {error}") from error
    if config.nproc_per_node < 1:
        raise UsageError(f"--nproc-per-node {args.nproc_per_node}: at least one is needed")
    config.rdzv_configs = rendezvous.unquoted(config.rdzv_configs)
    if not isinstance(entrypoint, str):  # --run-path
        return config, [sys.executable, "-u", "-c", _RUN_PATH, *words]
    return config, [entrypoint, *words]


def _share_cores(workers: int) -> None:
    """Divides the cores among the workers of this machine, unless the user said how many threads
    each has. torchrun gives each of several a single thread, and warns."""
    if workers > 1:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (cores or 1) // workers)))


def _endpoint(args: argparse.Namespace, config: LaunchConfig) -> str:
    """Where the agents meet: ``host:port``; port 0: at the job of that name on this machine,
    wherever it listens; empty: this one is alone.

    Nothing is joined that nobody named: two commands on one machine are two experiments. A job
    that cannot begin on one machine meets at torchrun's default.
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


def _job_name(args: argparse.Namespace, config: LaunchConfig) -> str:
    """All agents of a job must come to the same one: torchrun's id, or script and port."""
    if args.rdzv_id != rendezvous.DEFAULT_ID:
        return rendezvous.job_name(args.rdzv_id)
    stem = args.training_script.rsplit(".", 1)[-1] if args.module else args.training_script
    endpoint = _endpoint(args, config)
    name = default_name(stem)
    return f"{name.rpartition('-')[0]}-{endpoint.rpartition(':')[2]}" if endpoint else name


def _join_timeout_s(config: LaunchConfig) -> float:
    return rendezvous.seconds(config.rdzv_configs, "join_timeout", rendezvous.JOIN_TIMEOUT_S)


def _experiment(args: argparse.Namespace) -> Experiment:
    script = args.training_script
    file: Path | None = Path(script).expanduser().resolve()
    if args.module:
        file = file_kind.find_module(script, [os.getcwd(), *sys.path])
    elif file is not None and file.exists():
        script = str(file)
    return this_experiment(script, args.training_script_args, rdzv_id=args.rdzv_id, file=file)


def _run_ours(
    args: argparse.Namespace,
    config: LaunchConfig,
    command: list[str],
    job: JobConfig,
    observers: Sequence[Observer],
) -> int:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, record

    from torch_edl.agent.agent import Agent, AgentSpec
    from torch_edl.agent.failures import failure_of
    from torch_edl.cli import summary
    from torch_edl.cli.script_display import ScriptDisplay, capture
    from torch_edl.cli.submit import Outcome
    from torch_edl.cli.tensorboard import Scalars

    assert job.experiment is not None
    configs = config.rdzv_configs
    silence_s = rendezvous.seconds(configs, "timeout", _SILENCE_S)
    for key in configs.keys() - _HEEDED:
        log.warning("--rdzv-conf %s: no effect on the agent of torch-edl", key)
    endpoint = _endpoint(args, config)
    if endpoint:
        master = master_host.host_or_find(
            lambda _: job, names=[job.name], endpoint=endpoint, follows=True
        )
    else:
        master = master_host.host(job)
    log.info("%s", _announcement(args, config, job, master))
    captured = capture(args, config, JobFolder(job.name))
    # Whoever hosts the master hears of everything.
    if job.tensorboard and master.hosted is not None:
        observers = [*observers, Scalars(job.tensorboard)]
    display = ScriptDisplay(
        captured=captured,
        several=job.cluster.max_workers > 1,
        observers=observers,
    )
    agent = Agent(
        AgentSpec(
            config=config,
            command=command,
            name=args.training_script,
            experiment=job.experiment,
            watch=display,
            captured=captured,
            master=master,
            silence_s=silence_s,
            join_timeout_s=_join_timeout_s(config),
        )
    )
    assert config.logs_specs is not None
    outcome = Outcome(state="finished", status=None, logs=config.logs_specs.root_log_dir)
    # An agent that is a worker of another launcher tells it of the failure.
    run = record(agent.run) if "TORCHELASTIC_ERROR_FILE" in os.environ else agent.run
    try:
        code = run()
    except ChildFailedError as error:
        text, _ = failure_of(args.training_script, error.failures)
        outcome = replace(outcome, state="failed", error=text)
    else:
        if code:
            outcome = replace(outcome, state="stopped", signal=code - 128)
    finally:
        display.close()
    if master.hosted is None and outcome.state != "failed":
        return outcome.exit_code  # whoever hosts the master tells how the job ended
    return summary.conclude(job, replace(outcome, status=display.last), display.console)


def _announcement(
    args: argparse.Namespace, config: LaunchConfig, job: JobConfig, master: master_host.Master
) -> str:
    cluster = job.cluster
    most = cluster.max_workers
    number = str(most) if cluster.min_workers == most else f"{cluster.min_workers} to {most}"
    where = "" if config.max_nodes == 1 else f", {config.nproc_per_node} of them here"
    whose = "" if master.hosted is not None else f", master at {master.address}"
    return (
        f"{args.training_script} is a training script with torch_edl: "
        f"{number} worker{'s' * (most != 1)}{where}, job {job.name}{whose}"
    )


def _log_to_stderr() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("torch-edl: %(message)s"))
    ours = logging.getLogger("torch_edl")
    ours.handlers[:] = [handler]
    ours.setLevel(logging.INFO)
    ours.propagate = False
