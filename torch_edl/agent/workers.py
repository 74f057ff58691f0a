"""The worker processes of one agent, each by a process context of torch.distributed.elastic.

torch starts, logs and stops a gang as one; here each worker has a context of its own, so that one
can end while its siblings go on. Folders of logs, environment and error files are torchrun's.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

from torch.distributed.elastic.multiprocessing import (
    LogsDest,
    LogsSpecs,
    SubprocessContext,
    start_processes,
)
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from torch.distributed.elastic.multiprocessing.tail_log import TailLog
from torch.distributed.elastic.utils.api import macros
from torch.distributed.launcher.api import LaunchConfig

from torch_edl.agent.placement import Placement, worker_environment
from torch_edl.processes import exec_child
from torch_edl.processes.child_group import ChildGroup
from torch_edl.processes.signals import describe_exit

_HAS_PIDFD = hasattr(os, "pidfd_open")
_REAP_POLL_S = 0.02


@dataclass(frozen=True, kw_only=True)
class Worker:
    """A worker that was started."""

    local_rank: int
    rank: int
    pid: int
    stdout: str
    """File of its stdout; empty: it is the agent's."""
    stderr: str
    error_file: str
    """Where the script may leave its traceback, in torch's format."""
    started_at: float
    """By the monotonic clock."""

    @property
    def log(self) -> str:
        """The file that tells most; empty if there is none."""
        return self.stderr or self.stdout


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A worker that ended."""

    worker: Worker
    code: int
    """Exit code; -N: signal N ended it."""
    stopping: bool
    """The agent had told the worker to end."""
    close: Callable[[], None]
    """To be called when time allows: drains what is left of the output, up to 0.1 s."""

    def failure(self) -> ProcessFailure:
        """torch's record of the failure; reads the error file."""
        return ProcessFailure(
            local_rank=self.worker.local_rank,
            pid=self.worker.pid,
            exitcode=self.code,
            error_file=self.worker.error_file,
        )


def failure_text(name: str, failures: Mapping[int, ProcessFailure]) -> tuple[str, str]:
    """The first failure of a script's workers in a sentence, and its traceback if there is one.

    Args:
        name: of the script.
        failures: by rank.
    """
    rank, failure = min(failures.items(), key=lambda item: item[1].timestamp)
    error = f"{name}: rank {rank} ended ({describe_exit(failure.exitcode)})"
    message: Any = failure.message
    if not isinstance(message, dict):
        return error, ""
    trace = str(message.get("extraInfo", {}).get("py_callstack", ""))
    return f"{error}: {message.get('message', '')}", trace


@dataclass(frozen=True, kw_only=True)
class _Running:
    worker: Worker
    child: ChildGroup
    close: Callable[[], None]
    pidfd: int


class _LogsOfOne(LogsSpecs):
    """The files of one worker's output, in the folders that were made for all workers."""

    def __init__(self, dest: LogsDest, local_rank: int) -> None:
        super().__init__()
        self._dest = dest
        self._local_rank = local_rank

    @property
    def root_log_dir(self) -> str:
        return ""

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        def only(files: dict[int, str]) -> dict[int, str]:
            return {0: files[self._local_rank]} if self._local_rank in files else {}

        dest = self._dest
        return LogsDest(
            stdouts=only(dest.stdouts),
            stderrs=only(dest.stderrs),
            tee_stdouts=only(dest.tee_stdouts),
            tee_stderrs=only(dest.tee_stderrs),
            error_files=only(dest.error_files),
        )


class Workers:
    """Starts, watches and stops workers. One thread, the main one, owns it.

    Args:
        config: torchrun's configuration.
        command: the command of a worker, with its arguments.
        env: added to torchrun's variables of each worker.
    """

    def __init__(self, config: LaunchConfig, command: Sequence[str], env: dict[str, str]) -> None:
        self._config = config
        self._command = list(command)
        # Any other program, such as a shell script, may not pass a signal on.
        self._is_python = self._command[0] == os.getenv("PYTHON_EXEC", sys.executable)
        self._env = env
        self._running: dict[int, _Running] = {}
        self._attempt = 0

    def start(self, local_ranks: Iterable[int], placement: Placement) -> None:
        """Starts workers; each call is an attempt with a log folder of its own.

        Raises:
            SignalException: a signal came meanwhile; the worker that was being started is gone.
            OSError: a worker could not be started.
        """
        wanted = sorted(local_ranks)
        assert not self._running.keys() & set(wanted), f"of {wanted}, some run"
        envs = {
            local_rank: {
                **worker_environment(self._config, placement, local_rank, attempt=self._attempt),
                **self._env,
            }
            for local_rank in range(max(placement.local_world_size, wanted[-1] + 1))
        }
        assert self._config.logs_specs is not None
        dest = self._config.logs_specs.reify(envs)
        for local_rank, file in dest.error_files.items():
            if local_rank not in wanted:
                with contextlib.suppress(OSError):  # the folder of a worker that runs on
                    os.rmdir(os.path.dirname(file))
        self._attempt += 1
        for local_rank in wanted:
            self._running[local_rank] = self._start(local_rank, envs[local_rank], dest)

    def running(self) -> list[Worker]:
        """The workers that have not been seen to end."""
        return [running.worker for running in self._running.values()]

    @property
    def local_ranks(self) -> set[int]:
        """Local ranks of the workers that have not been seen to end."""
        return set(self._running)

    def pidfds(self) -> list[int]:
        """Readable when a worker has ended; empty where the system has no such thing."""
        return [running.pidfd for running in self._running.values() if running.pidfd >= 0]

    def reap(self) -> list[Ended]:
        """The workers that ended since the last call, each once."""
        ended = []
        for local_rank, running in list(self._running.items()):
            code = running.child.reap(spare_forked=True)
            if code is None:
                continue
            del self._running[local_rank]
            if running.pidfd >= 0:
                os.close(running.pidfd)
            ended.append(
                Ended(
                    worker=running.worker,
                    code=code,
                    stopping=running.child.stopping,
                    close=running.close,
                )
            )
        return ended

    def stop(self, local_ranks: Iterable[int], *, grace_s: float, now: float) -> None:
        """Sends SIGTERM, and SIGKILL ``grace_s`` later (by :meth:`kill_overdue`). Another call may
        shorten the grace.

        A Python worker gets SIGTERM alone: if the readers of its DataLoader ended first, its step
        would fail. What is left of its process group after its end gets SIGKILL.
        """
        for local_rank in local_ranks:
            if local_rank in self._running:
                child = self._running[local_rank].child
                child.stop(grace_s=grace_s, now=now, whole_group=not self._is_python)

    def kill(self, pid: int) -> None:
        """Kills the worker of that pid, if it is one of this agent's; it counts as lost."""
        for running in self._running.values():
            if running.worker.pid == pid:
                running.child.kill()

    def kill_overdue(self, now: float) -> None:
        """Kills the workers whose grace has expired."""
        for running in self._running.values():
            running.child.kill_overdue(now)

    def close(self) -> None:
        """Kills the workers that are left, and waits for them."""
        for running in self._running.values():
            running.child.kill()
        while self._running:
            for ended in self.reap():
                ended.close()
            time.sleep(_REAP_POLL_S)

    def _start(self, local_rank: int, env: dict[str, str], dest: LogsDest) -> _Running:
        config = self._config
        command = macros.substitute(self._command, str(local_rank))
        if config.numa_options is not None:
            # torch's context would bind by the index in it, which is always 0 here.
            command = _bind_to_numa(command, local_rank, config)
        words = [exec_child.__file__, str(os.getpid()), *command]
        context = start_processes(
            name=config.role,
            entrypoint=sys.executable,
            args={0: ("-I", "-S", *words)},
            envs={0: env},
            logs_specs=_LogsOfOne(dest, local_rank),
            log_line_prefixes={0: _prefix(config, env, local_rank)},
        )
        assert isinstance(context, SubprocessContext)
        process = context.subprocess_handlers[0].proc
        close = contextlib.ExitStack()
        close.callback(context.close)
        _filter(close, config, env, dest, local_rank)
        worker = Worker(
            local_rank=local_rank,
            rank=int(env["RANK"]),
            pid=process.pid,
            stdout=dest.stdouts[local_rank],
            stderr=dest.stderrs[local_rank],
            error_file=dest.error_files[local_rank],
            started_at=time.monotonic(),
        )
        pidfd = os.pidfd_open(process.pid) if _HAS_PIDFD else -1
        return _Running(worker=worker, child=ChildGroup(process), close=close.close, pidfd=pidfd)


def _prefix(config: LaunchConfig, env: dict[str, str], local_rank: int) -> str:
    if not config.log_line_prefix_template:
        return f"[{config.role}{local_rank}]:"
    return Template(config.log_line_prefix_template).safe_substitute(
        role_name=config.role, rank=env["RANK"], local_rank=local_rank
    )


def _filter(
    close: contextlib.ExitStack,
    config: LaunchConfig,
    env: dict[str, str],
    dest: LogsDest,
    local_rank: int,
) -> None:
    """Starts the tails of --duplicate-*-filters. torch's context would truncate the file of all
    workers each time a worker is started."""
    prefix = {0: _prefix(config, env, local_rank)}
    for filters, tees, target in (
        (config.duplicate_stdout_filters, dest.tee_stdouts, dest.filtered_stdout),
        (config.duplicate_stderr_filters, dest.tee_stderrs, dest.filtered_stderr),
    ):
        if not filters or local_rank not in tees:
            continue

        def is_shown(line: str, needles: tuple[str, ...] = tuple(filters)) -> bool:
            return any(needle in line for needle in needles)

        file = close.enter_context(
            Path(target).open("a", buffering=1, encoding="utf-8", errors="replace")  # noqa: SIM115
        )
        tail = TailLog(config.role, {0: tees[local_rank]}, file, prefix, log_line_filter=is_shown)
        close.callback(tail.start().stop)


def _bind_to_numa(command: list[str], local_rank: int, config: LaunchConfig) -> list[str]:
    from torch.numa.binding import _maybe_wrap_command_args_with_numa_binding

    return list(
        _maybe_wrap_command_args_with_numa_binding(
            tuple(command), gpu_index=local_rank, numa_options=config.numa_options
        )
    )
