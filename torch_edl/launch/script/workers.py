"""The workers of a script on one machine: environment, logs and error files of torchrun."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, LogsDest, Std
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from torch.distributed.elastic.multiprocessing.tail_log import TailLog
from torch.distributed.elastic.utils.api import macros
from torch.distributed.launcher.api import LaunchConfig

from torch_edl.config.environment import ENV_PROCESS
from torch_edl.launch.jobs.logs import WholeLines, WholeTracebacks
from torch_edl.processes.launcher import Command, ProcessSpec
from torch_edl.processes.oom_kills import OOM_KILLED
from torch_edl.processes.signals import describe_exit

if TYPE_CHECKING:
    from torch.numa.binding import NumaOptions

STDOUT, STDERR = "stdout", "stderr"


@dataclass(kw_only=True)
class LocalWorker:
    """A started worker."""

    name: str
    """Name of the process in the job, such as ``worker-3``."""
    local_rank: int
    rank: int
    pid: int
    files: Mapping[str, str]
    """Log files by stream, ``stdout`` and ``stderr``; none for a stream that is not redirected."""
    error_file: str
    """File for the traceback of the script, in torch's format."""
    close: Callable[[], None] = lambda: None
    """Forwards the rest of the output to the terminal, in up to 0.1 s; called after the end."""
    code: int | None = None
    """Exit code, -N if signal N ended the worker; None while it runs."""
    open_loop: str | None = None
    """Set if the worker ended with exit code 0 in a loop over a loader: the error that ended the
    loop, or an empty string."""
    why: str = ""
    """Cause of the signal that ended the worker, in words; empty if it is unknown."""
    _lines: dict[str, tuple[WholeLines, WholeTracebacks]] = field(init=False)

    def __post_init__(self) -> None:
        self._lines = {
            stream: (WholeLines(path), WholeTracebacks()) for stream, path in self.files.items()
        }

    @property
    def log(self) -> str:
        """The most useful log file: stderr, else stdout; empty if there is none."""
        return self.files.get(STDERR) or self.files.get(STDOUT, "")

    def output(self, *, now: float, final: bool = False) -> Iterator[tuple[str, bytes]]:
        """Yield stream and text of each new line in the files; the lines of a traceback together,
        and an incomplete last line only if ``final``, or after the end."""
        final = final or self.code is not None
        for stream, (lines, tracebacks) in self._lines.items():
            for line in tracebacks.pass_on(lines.read(final=final), final=final, now=now):
                yield stream, line

    def failure(self) -> ProcessFailure:
        """Return torch's record of the failure, including the error file."""
        assert self.code is not None, f"the worker of pid {self.pid} runs"
        failure = ProcessFailure(
            local_rank=self.local_rank,
            pid=self.pid,
            exitcode=self.code,
            error_file=self.error_file,
        )
        if self.open_loop is not None:
            failure.message = self.open_loop or (
                "the loop over the loader had records left; end the script after the loop, or "
                "leave the loop with break first"
            )
        if self.why:
            failure.message = self.why
        return failure


def grace_s(config: LaunchConfig) -> float:
    """Return the seconds from SIGTERM to SIGKILL of a worker; torch 2.11 has no such option."""
    return float(getattr(config, "shutdown_timeout", None) or 0)


def capture_output(config: LaunchConfig, folder: str | None) -> None:
    """Redirect the output of the workers to files below a folder; None: a temporary folder."""
    config.logs_specs = DefaultLogsSpecs(log_dir=folder, redirects=Std.ALL)


def failure_text(name: str, rank: int, failure: ProcessFailure) -> tuple[str, str]:
    """Return the failure of a worker as a sentence, and its traceback or ""."""
    error = f"{name}: rank {rank} ended ({describe_exit(failure.exitcode)})"
    message: Any = failure.message
    if message == OOM_KILLED:
        return f"{error}: {message}", ""
    if failure.exitcode == 0:
        return f"{error} inside its loop: {message}", ""
    if not isinstance(message, dict):
        return error, ""
    trace = str(message.get("extraInfo", {}).get("py_callstack", ""))
    return f"{error}: {message.get('message', '')}", trace


class Workers:
    """Makes the commands of workers, and remembers the workers that run.

    Args:
        words: command of a worker.
        env: variables with which a worker finds the master.
    """

    def __init__(self, config: LaunchConfig, words: Sequence[str], env: Mapping[str, str]) -> None:
        self._config = config
        self._words = list(words)
        self._is_python = self._words[0] == os.getenv("PYTHON_EXEC", sys.executable)
        self._env = env
        self._attempt = 0
        self._dest: dict[int, LogsDest] = {}  # by id, between command and start
        self.running: dict[int, LocalWorker] = {}
        """Workers whose end was not noticed yet, by id."""
        self.shown: list[LocalWorker] = []
        """Workers whose output is shown: running workers, and those that ended last."""

    @property
    def forked(self) -> Command | tuple[()]:
        """The command that a fork server may run; empty if workers must be new programs."""
        # A command that differs by rank, or that numactl runs, cannot be forked.
        differs = macros.substitute(self._words, "0") != self._words or self._config.numa_options
        return () if differs else Command(words=self._words, env=self._env)

    def commands(self, ordered: Sequence[ProcessSpec]) -> list[ProcessSpec]:
        """Return the ordered workers with their whole commands. Each call is one attempt with its
        own log folder.

        Raises:
            OSError: the log folder cannot be made.
            ValueError: CUDA_VISIBLE_DEVICES has too few devices for --virtual-local-rank.
        """
        if not ordered:
            return []
        envs = {}
        for spec in ordered:
            assert spec.command is not None, f"{spec.name} is no worker of a script"
            envs[int(spec.command.env["LOCAL_RANK"])] = {
                **_environment(self._config, spec.command.env, attempt=self._attempt),
                **self._env,
                ENV_PROCESS: spec.name,
            }
        any_env = next(iter(envs.values()))
        places = range(max(self._config.nproc_per_node, max(envs) + 1))
        assert self._config.logs_specs is not None
        dest = self._config.logs_specs.reify({place: envs.get(place, any_env) for place in places})
        for place, file in dest.error_files.items():
            if place not in envs:
                with contextlib.suppress(OSError):  # the folder of a worker that keeps running
                    os.rmdir(os.path.dirname(file))
        self._attempt += 1
        return [
            self._command(spec, place, envs[place], dest)
            for spec, place in zip(ordered, envs, strict=True)
        ]

    def started(self, spec: ProcessSpec, pid: int) -> LocalWorker:
        """Record that a worker was started."""
        assert spec.command is not None
        command, place = spec.command, self._place_of(spec)
        files = {STDOUT: command.stdout, STDERR: command.stderr}
        worker = self.running[spec.id] = LocalWorker(
            name=spec.name,
            local_rank=place,
            rank=int(command.env["RANK"]),
            pid=pid,
            files={stream: path for stream, path in files.items() if path},
            error_file=command.error_file,
            close=_start_tails(
                self._config, command.env["RANK"], place, self._dest.pop(spec.id)
            ).close,
        )
        self.shown = [each for each in self.shown if each.code is None] + [worker]
        return worker

    def output(self, *, now: float, final: bool) -> Iterator[tuple[LocalWorker, str, bytes]]:
        """Yield worker, stream and text of each new line, and the lines of a traceback together."""
        for worker in self.shown:
            for stream, line in worker.output(now=now, final=final):
                yield worker, stream, line

    def _place_of(self, spec: ProcessSpec) -> int:
        assert spec.command is not None
        env = spec.command.env
        return int(env["RANK"]) - int(env["GROUP_RANK"]) * int(env["LOCAL_WORLD_SIZE"])

    def _command(
        self, spec: ProcessSpec, local_rank: int, env: Mapping[str, str], dest: LogsDest
    ) -> ProcessSpec:
        words = macros.substitute(self._words, str(local_rank))
        if self._config.numa_options is not None:
            words = _bind(words, local_rank, self._config.numa_options)
        self._dest[spec.id] = dest
        command = Command(
            words=words,
            env=env,
            stdout=dest.stdouts[local_rank],
            stderr=dest.stderrs[local_rank],
            error_file=dest.error_files[local_rank],
            # Other programs, such as shell scripts, may not forward a signal.
            terminates_group=not self._is_python,
        )
        return replace(spec, command=command)


def _bind(command: Sequence[str], local_rank: int, options: NumaOptions) -> list[str]:
    """Return the command that binds a worker to the cores near its GPU, for --numa-binding."""
    from torch.numa.binding import _maybe_wrap_command_args_with_numa_binding as bind

    return list(bind(tuple(command), gpu_index=local_rank, numa_options=options))


def _start_tails(
    config: LaunchConfig, rank: str, local_rank: int, dest: LogsDest
) -> contextlib.ExitStack:
    """Start torch's tails for --tee and --duplicate-*-filters; return a handle to close them."""
    prefixes = None
    if config.log_line_prefix_template:
        template = Template(config.log_line_prefix_template)
        prefix = template.safe_substitute(role_name=config.role, rank=rank, local_rank=local_rank)
        prefixes = {local_rank: prefix}
    tails = contextlib.ExitStack()
    for teed, terminal, copy, needles in (
        (dest.tee_stdouts, sys.stdout, dest.filtered_stdout, config.duplicate_stdout_filters),
        (dest.tee_stderrs, sys.stderr, dest.filtered_stderr, config.duplicate_stderr_filters),
    ):
        if local_rank not in teed:
            continue
        files = {local_rank: teed[local_rank]}
        tails.callback(TailLog(config.role, files, terminal, prefixes).start().stop)
        if needles:

            def is_copied(line: str, needles: tuple[str, ...] = tuple(needles)) -> bool:
                return any(needle in line for needle in needles)

            # Opened for appending, as all workers of the attempt share the file.
            target = tails.enter_context(
                Path(copy).open("a", buffering=1, encoding="utf-8", errors="replace")  # noqa: SIM115
            )
            tail = TailLog(config.role, files, target, prefixes, log_line_filter=is_copied)
            tails.callback(tail.start().stop)
    return tails


def _environment(config: LaunchConfig, ranks: Mapping[str, str], *, attempt: int) -> dict[str, str]:
    """Return the variables that torchrun sets, as torch's LocalElasticAgent does.

    Args:
        ranks: the variables that the master has set.

    Raises:
        ValueError: CUDA_VISIBLE_DEVICES has too few devices for --virtual-local-rank.
    """
    env = {
        **ranks,
        "ROLE_NAME": config.role,
        "TORCHELASTIC_RESTART_COUNT": str(attempt),
        "TORCHELASTIC_MAX_RESTARTS": str(config.max_restarts),
        "TORCHELASTIC_RUN_ID": config.run_id,
        # Rank 0 serves the store of a process group that the script creates.
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.getenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    }
    if config.virtual_local_rank:
        env["CUDA_VISIBLE_DEVICES"] = _device(int(ranks["LOCAL_RANK"]))
        env["LOCAL_RANK"] = "0"
    return env


def _device(local_rank: int) -> str:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return str(local_rank)
    devices = [device.strip() for device in visible.split(",")]
    if local_rank >= len(devices):
        raise ValueError(
            f"CUDA_VISIBLE_DEVICES={visible}: no device for local rank {local_rank}; "
            "name one for each worker"
        )
    return devices[local_rank]
