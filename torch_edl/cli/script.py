"""``torch-edl run`` for a training script: this process becomes the node of this machine.

A script that uses torch_edl is run by the node of torch_edl/launch/script, any other script by
torch's own agent.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from torch_edl.cli import model_file, summary
from torch_edl.cli.arguments import preflight, script_arguments, user_file
from torch_edl.cli.arguments.options import given_flags, script_job
from torch_edl.cli.arguments.script_arguments import ONE_MACHINE, would_train
from torch_edl.cli.platforms import detach
from torch_edl.cli.progress import Display
from torch_edl.cli.terminal import stderr
from torch_edl.config import Experiment, JobConfig, Launch, TrainConfig
from torch_edl.config.environment import (
    ENV_NODE_OF_POD,
    ENV_UNSEEN,
    hash_environment,
    this_experiment,
)
from torch_edl.config.job import LOCAL
from torch_edl.errors import JobFailedError, ScriptFailedError, UsageError
from torch_edl.launch.jobs import master_host
from torch_edl.launch.jobs.folder import JobFolder, new_name
from torch_edl.launch.jobs.logs import is_chatter, text_of
from torch_edl.launch.jobs.observers import Observers
from torch_edl.launch.script.script_node import ScriptNode, ScriptSpec
from torch_edl.launch.script.workers import LocalWorker, capture_output, grace_s
from torch_edl.launch.torchrun import options as rendezvous
from torch_edl.wire import master_pb2 as pb

if TYPE_CHECKING:
    from torch_edl.launch.torchrun.options import LaunchConfig

log = logging.getLogger(__name__)

# Seconds for which the master may be unreachable, unless --rdzv-conf timeout=S is given.
_SILENCE_S = 900.0
# Keys of --rdzv-conf that are used; torch itself adds rank for --node-rank.
_HEEDED = {"timeout", "join_timeout", "rank"}
# Exit code of argparse after it has rejected an argument.
_EXIT_REJECTED = 2
_SIGNALS = {number.name for number in signal.Signals}


def main(args: argparse.Namespace) -> int:
    """Run a script on this machine until its workers have ended.

    Raises:
        UsageError: the arguments cannot work; nothing was started.
        JobFailedError: the job failed on another machine, or was stopped.
    """
    with stderr().status("importing torch, whose parser reads the options"):
        parsed = script_arguments.parse(args.words)
    args.places |= parsed.places
    if (parsed.platform or LOCAL) != LOCAL:
        return model_file.run(parsed, "script")
    if parsed.dry_run:
        raise would_train(parsed.training_script)
    if not (parsed.module or parsed.no_python) and Path(parsed.training_script).suffix == ".py":
        user_file.require_imports(parsed.training_script, shown=parsed.training_script)
    os.environ.update(hash_environment(parsed.seed or TrainConfig.seed))
    _log_to_stderr()
    return _run(parsed)


def _run(parsed: argparse.Namespace) -> int:
    """Run a script with our node, or with torch's agent."""
    if not _needs_us(parsed):
        return _run_plain(parsed)
    config, command = rendezvous.launch_config(parsed)
    if not rendezvous.meeting_point(parsed, config) and config.max_nodes > 1:
        log.info(
            "--nnodes %s: runs on this machine alone, since no rendezvous is named; other machines "
            "join if all name the same --rdzv-endpoint HOST:PORT (commands on one machine: "
            "--rdzv-id NAME)",
            parsed.nnodes,
        )
        config.max_nodes = 1
    name, per_node = rendezvous.name_of_job(parsed, config), config.nproc_per_node
    job = preflight.check_folders(
        script_job(
            parsed,
            name=name,
            min_workers=parsed.workers[0] if parsed.workers else config.min_nodes * per_node,
            max_workers=config.max_nodes * per_node,
            join_timeout_s=rendezvous.seconds(
                config.rdzv_configs, "join_timeout", rendezvous.JOIN_TIMEOUT_S
            ),
            experiment=_experiment(parsed),
            launch=Launch(
                min_nodes=config.min_nodes,
                max_nodes=config.max_nodes,
                per_node=per_node,
                max_restarts=config.max_restarts,
                grace_s=grace_s(config),
            ),
        )
    )
    config.run_id = name
    detached = [detach(name)] if parsed.detach else []
    return _run_ours(parsed, config, command, job, detached)


def _experiment(args: argparse.Namespace) -> Experiment:
    """Return what the command runs; the master compares it with that of the other nodes."""
    script = args.training_script
    file: Path | None = Path(script).expanduser().resolve()
    if args.module:
        file = user_file.find_module(script, [os.getcwd(), *sys.path])
    elif file is not None and file.exists():
        script = str(file)
    return this_experiment(script, args.training_script_args, rdzv_id=args.rdzv_id, file=file)


def _needs_us(args: argparse.Namespace) -> bool:
    """Return True if the script uses torch_edl, or may use it.

    A program that cannot be read may use torch_edl if options of torch-edl are given.

    Raises:
        UsageError: an option of torch-edl has no effect on the script.
    """
    script = args.training_script
    found = False
    if args.module:
        file = user_file.find_module(script, [os.getcwd(), *sys.path])
        if file is not None:
            found = user_file.uses_torch_edl(str(file), Path.cwd())
    elif not args.no_python or script.endswith(".py"):
        found = user_file.uses_torch_edl(script)
    if found:
        return True
    given = given_flags(args, "script")
    # --seed is allowed for any script, since it salts hash().
    if args.no_python or args.module:
        return bool(set(given) - {"--seed"})
    without_effect = [flag for flag in given if flag not in ("--seed", "--workers")]
    if without_effect:
        raise UsageError(
            f"{without_effect[0]}: no effect, since {script} does not use torch_edl; "
            "add torch_edl.init() to the script (or `import torch_edl`, if a package that it "
            "imports calls init), or leave the option out"
        )
    return False


def _run_plain(args: argparse.Namespace) -> int:
    """Run the script as torchrun does, with the same agent and the same errors."""
    shown = args.training_script
    if args.workers is not None:
        least, most = args.workers
        if least != most:
            raise UsageError(
                f"--workers {least}:{most}: {shown} does not use torch_edl, so its number of "
                f"workers is fixed; write --workers {most}, or add torch_edl.init() to the script"
            )
        args.nproc_per_node = str(most)
    if may_restart_here(args):
        # The stores of torch's own rendezvous keep the addresses of ended processes: about half of
        # all restarts wait for one of these addresses (torch 2.13).
        args.rdzv_backend, args.rdzv_endpoint = "edl", master_host.ANY_PORT
        args.standalone = False
        if args.rdzv_id == rendezvous.DEFAULT_ID:
            args.rdzv_id = new_name(args.training_script)
    log.info("%s is a training script without torch_edl: it runs as under torchrun", shown)
    os.environ[ENV_UNSEEN] = "1"
    try:
        rendezvous.run_torchrun(args)
    except ScriptFailedError as error:
        raise JobFailedError(f"{error}{_hint(args, error.code)}") from error
    return 0


def _hint(args: argparse.Namespace, code: int | None) -> str:
    """Return the advice for a script that has failed, as further lines of its error; empty if the
    exit code is not that of a parser that rejects an argument."""
    if code != _EXIT_REJECTED:
        return ""
    hint = script_arguments.rejection_hint(args.training_script, args.training_script_args)
    return hint and f"\n{hint}"


def may_restart_here(args: argparse.Namespace) -> bool:
    """Return True if a plain script has restarts, runs on this machine only and names no
    rendezvous."""
    is_named = args.rdzv_backend != "static" or args.rdzv_endpoint or args.master_port is not None
    is_alone = args.standalone or (args.nnodes in ONE_MACHINE and not is_named)
    return bool(args.max_restarts and is_alone)


def _run_ours(
    args: argparse.Namespace,
    config: LaunchConfig,
    command: list[str],
    job: JobConfig,
    detached: Sequence[Callable[[pb.GetStatusResponse], None]],
) -> int:
    assert job.experiment is not None
    configs = config.rdzv_configs
    silence_s = rendezvous.seconds(configs, "timeout", _SILENCE_S)
    for key in configs.keys() - _HEEDED:
        log.warning("--rdzv-conf %s: no effect on the node of torch-edl", key)
    endpoint = rendezvous.meeting_point(args, config)
    if endpoint:
        master = master_host.find_or_start(job, endpoint=endpoint, follows=True)
    else:
        master = master_host.start(job)
    pod = os.environ.pop(ENV_NODE_OF_POD, "")
    if not pod:
        log.info("%s", _announcement(args, config, job, master))
    captured = _capture(args, config, JobFolder(job.name))
    # The node that hosts the master receives every status of the job.
    unhosted = replace(job, observe=(), tensorboard="")
    observers = Observers(unhosted if master.hosted is None else job)
    several = job.cluster.max_workers > 1
    display = ScriptDisplay(*detached, observers.update, captured=captured, several=several)
    node = ScriptNode(
        ScriptSpec(
            config=config,
            command=command,
            name=args.training_script,
            experiment=job.experiment,
            # In pods, the client shows the progress of the job.
            show_status=(lambda status: None) if pod else display.status,
            show_output=(_write if pod else display.output) if captured else None,
            master=master,
            silence_s=silence_s,
            join_timeout_s=job.cluster.join_timeout_s,
            notice=job.cluster.preemption_notice or None,
            pod=pod,
        )
    )
    with observers:
        try:
            outcome = node.outcome()
        finally:
            display.close()
        if display.last is None or not display.last.steps:
            hint = _hint(args, node.failure_code)
            outcome = replace(outcome, error=f"{outcome.error}{hint}")
        observers.end(outcome.state, outcome.error)
    if master.hosted is None and outcome.state != "failed":
        return outcome.exit_code  # the node that hosts the master reports the end of the job
    return summary.finish(job, replace(outcome, status=display.last), display.console)


def _capture(args: argparse.Namespace, config: LaunchConfig, job: JobFolder) -> bool:
    """Redirect the output of the workers to files in the folder of the job, which are then shown,
    unless an option of torchrun redirects it; return True if the output is captured."""
    named = (args.log_dir, args.local_ranks_filter, args.logs_specs)
    filters = args.duplicate_stdout_filters or args.duplicate_stderr_filters
    if any(named) or filters or (args.redirects, args.tee) != ("0", "0"):
        return False
    # A machine without the master has no folder of the job; torch then creates a temporary folder.
    capture_output(config, str(job.logs) if job.dir.exists() else None)
    return True


def _announcement(
    args: argparse.Namespace, config: LaunchConfig, job: JobConfig, master: master_host.JobMaster
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


def _write(worker: LocalWorker, stream: str, line: bytes) -> None:
    """Write a line of a worker to the log of its pod, which begins with the name of the worker."""
    sys.stdout.buffer.write(f"{worker.name}: ".encode() + line + b"\n")
    sys.stdout.flush()


def _log_to_stderr() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("torch-edl: %(message)s"))
    ours = logging.getLogger("torch_edl")
    ours.handlers[:] = [handler]
    ours.setLevel(logging.INFO)
    ours.propagate = False


class ScriptDisplay(Display):
    """Shows a job on stderr; stdout carries the output of the script.

    If there are several workers, a line of a worker begins with its rank. A stdout that is a pipe
    or a file receives exactly the output of the script.

    Args:
        captured: True if :meth:`output` receives the output of the workers. Otherwise the workers
            write to the terminal themselves, and no bar is drawn.
        several: True if the job may have more than one worker.
    """

    def __init__(
        self,
        *receivers: Callable[[pb.GetStatusResponse], None],
        captured: bool,
        several: bool,
    ) -> None:
        super().__init__(stderr(), *receivers, has_bar=captured)
        self._stdout_is_ours = self.has_bar and sys.stdout.isatty()
        self._several = several
        logging.getLogger("torch_edl").handlers[:] = [_Notes(self)]

    def status(self, status: pb.GetStatusResponse) -> None:
        """Show the progress, and the events that are not shown in another way."""
        # The node reports signals.
        self.take(status, signals=_SIGNALS)

    def output(self, worker: LocalWorker, stream: str, line: bytes) -> None:
        """Show a line that a worker printed."""
        if stream == "stdout" and not self._stdout_is_ours:
            sys.stdout.buffer.write(line + b"\n")
            sys.stdout.flush()
            return
        text = text_of(line)
        if not is_chatter(text):
            self.line(f"rank {worker.rank}" if self._several else "", text)


class _Notes(logging.Handler):
    """Shows log records of torch_edl above the bar."""

    def __init__(self, display: Display) -> None:
        super().__init__()
        self._display = display

    def emit(self, record: logging.LogRecord) -> None:
        self._display.note(f"torch-edl: {record.getMessage()}")
