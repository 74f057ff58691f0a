"""The workers of one agent, with the environment, logs and error files of torchrun.

torch starts, watches and stops all workers of a group together. Here, one worker may end while the
others continue.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from string import Template
from typing import TYPE_CHECKING, Any

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, LogsDest, Std
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from torch.distributed.elastic.multiprocessing.tail_log import TailLog
from torch.distributed.elastic.utils.api import macros
from torch.distributed.launcher.api import LaunchConfig

from torch_edl.launch.jobs.logs import WholeLines, WholeTracebacks
from torch_edl.node.children import Children
from torch_edl.processes.launcher import Command, ProcessSpec
from torch_edl.processes.oom_kills import OOM_KILLED
from torch_edl.processes.signals import describe_exit
from torch_edl.wire import master_pb2 as pb

if TYPE_CHECKING:
    from torch.numa.binding import NumaOptions

STDOUT, STDERR = "stdout", "stderr"
_REAP_POLL_S = 0.02
_ROLE = "worker"


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Position of this agent's workers in the job at their start.

    Environment variables of a running process cannot change. A script that uses torch_edl therefore
    asks the job for its current rank.
    """

    node_rank: int
    nodes: int
    master_addr: str
    master_port: int

    @classmethod
    def of(
        cls, response: pb.AgentReportResponse, config: LaunchConfig, *, before: Placement | None
    ) -> Placement:
        """Create the placement from an answer of the master; the machine keeps its rank."""
        return cls(
            node_rank=response.node_rank if before is None else before.node_rank,
            # A fixed number of machines does not shrink while one of them is being replaced.
            nodes=min(max(config.min_nodes, response.nodes), config.max_nodes),
            master_addr=response.master_addr,
            master_port=response.master_port,
        )


@dataclass(kw_only=True)
class LocalWorker:
    """A started worker."""

    local_rank: int
    rank: int
    pid: int
    files: Mapping[str, str]
    """Log files by stream, ``stdout`` and ``stderr``; none for a stream that is not redirected."""
    error_file: str
    """File for the traceback of the script, in torch's format."""
    started_at: float
    """Monotonic start time in seconds."""
    close: Callable[[], None] = lambda: None
    """Forwards the rest of the output to the terminal, in up to 0.1 s; called after the end."""
    code: int | None = None
    """Exit code, -N if signal N ended the worker; None while it runs."""
    stopping: bool = False
    """True if this agent has stopped the worker."""
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


def failure_text(name: str, failures: Mapping[int, ProcessFailure]) -> tuple[str, str]:
    """Return the first of the failures by rank as a sentence, and its traceback or ""."""
    rank, failure = min(failures.items(), key=lambda item: item[1].timestamp)
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
    """The workers of one agent by local rank. Must be used from the main thread."""

    def __init__(
        self,
        config: LaunchConfig,
        command: Sequence[str],
        env: dict[str, str],
        *,
        wakes: SimpleQueue[None],
    ) -> None:
        self._config = config
        self._command = list(command)
        self._is_python = self._command[0] == os.getenv("PYTHON_EXEC", sys.executable)
        self._env = env
        # A command that differs by rank, or that numactl runs, cannot be forked.
        differs = macros.substitute(self._command, "0") != self._command or config.numa_options
        forked = () if differs else Command(words=self._command, env=env)
        self._children = Children("", job=config.run_id, forked=forked, wakes=wakes)
        # By the number with which the worker was started.
        self._running: dict[int, LocalWorker] = {}
        self._started = 0
        self._attempt = 0

    @property
    def are_ready(self) -> bool:
        """True if workers can be started now: False while their fork server imports torch."""
        return self._children.is_ready

    @property
    def running(self) -> list[LocalWorker]:
        """Workers whose end was not noticed yet."""
        return list(self._running.values())

    @property
    def local_ranks(self) -> set[int]:
        """Local ranks of the workers whose end was not noticed yet."""
        return {worker.local_rank for worker in self.running}

    def start(self, local_ranks: Iterable[int], placement: Placement) -> list[LocalWorker]:
        """Start workers. Each call is one attempt with its own log folder.

        Raises:
            OSError: a worker cannot be started.
        """
        wanted = sorted(local_ranks)
        assert not self.local_ranks & set(wanted), f"of {wanted}, some run"
        envs = {
            local_rank: {
                **_environment(self._config, placement, local_rank, attempt=self._attempt),
                **self._env,
            }
            for local_rank in range(max(self._config.nproc_per_node, wanted[-1] + 1))
        }
        assert self._config.logs_specs is not None
        dest = self._config.logs_specs.reify(envs)
        for local_rank, file in dest.error_files.items():
            if local_rank not in wanted:
                with contextlib.suppress(OSError):  # the folder of a worker that keeps running
                    os.rmdir(os.path.dirname(file))
        self._attempt += 1
        return [self._start(local_rank, envs[local_rank], dest) for local_rank in wanted]

    def reap(self) -> list[LocalWorker]:
        """Return each worker that ended since the last call; kill those whose grace expired."""
        ended = []
        for exit in self._children.poll():
            worker = self._running.pop(exit.id)
            worker.code = exit.code if exit.signal is None else -exit.signal
            worker.open_loop, worker.why = exit.open_loop, exit.why
            ended.append(worker)
        return ended

    def stop(self, local_ranks: Iterable[int], *, grace_s: float) -> None:
        """Send SIGTERM; :meth:`reap` sends SIGKILL ``grace_s`` seconds later.

        A second call may shorten the grace. For a Python worker, only the worker itself gets
        SIGTERM: if the processes of its DataLoader ended first, its step would fail. The rest of
        its process group gets SIGKILL after its end.
        """
        wanted = set(local_ranks)
        for id, worker in self._running.items():
            if worker.local_rank in wanted:
                worker.stopping = True
                self._children.stop(_ROLE, id, grace_s=grace_s)

    def kill(self, pid: int) -> None:
        """Kill the worker with that pid, if it belongs to this agent; it counts as lost."""
        for id, worker in self._running.items():
            if worker.pid == pid:
                self._children.stop(_ROLE, id, grace_s=0.0)

    def close(self) -> None:
        """Kill the remaining workers and wait for their end."""
        for id in self._running:
            self._children.stop(_ROLE, id, grace_s=0.0)
        while self._running:
            for worker in self.reap():
                worker.close()
            time.sleep(_REAP_POLL_S)
        self._children.stop_all(grace_s=0.0)

    def _start(self, local_rank: int, env: dict[str, str], dest: LogsDest) -> LocalWorker:
        command = macros.substitute(self._command, str(local_rank))
        if self._config.numa_options is not None:
            command = _bind(command, local_rank, self._config.numa_options)
        files = {STDOUT: dest.stdouts[local_rank], STDERR: dest.stderrs[local_rank]}
        error_file = dest.error_files[local_rank]
        id, self._started = self._started, self._started + 1
        pid = self._children.start(
            ProcessSpec(
                role=_ROLE,
                id=id,
                command=Command(
                    words=command,
                    env=env,
                    **files,
                    error_file=error_file,
                    # Other programs, such as shell scripts, may not forward a signal.
                    terminates_group=not self._is_python,
                ),
            )
        )
        worker = self._running[id] = LocalWorker(
            local_rank=local_rank,
            rank=int(env["RANK"]),
            pid=pid,
            files={stream: path for stream, path in files.items() if path},
            error_file=error_file,
            started_at=time.monotonic(),
            close=_start_tails(self._config, env["RANK"], local_rank, dest).close,
        )
        return worker


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


def _environment(
    config: LaunchConfig, placement: Placement, local_rank: int, *, attempt: int
) -> dict[str, str]:
    """Return the variables that torchrun sets, as torch's LocalElasticAgent does.

    Raises:
        ValueError: CUDA_VISIBLE_DEVICES has too few devices for --virtual-local-rank.
    """
    rank = placement.node_rank * config.nproc_per_node + local_rank
    world_size = max(placement.nodes * config.nproc_per_node, rank + 1)
    env = {
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "GROUP_RANK": str(placement.node_rank),
        "ROLE_RANK": str(rank),
        "ROLE_NAME": config.role,
        "LOCAL_WORLD_SIZE": str(config.nproc_per_node),
        "WORLD_SIZE": str(world_size),
        "GROUP_WORLD_SIZE": str(placement.nodes),
        "ROLE_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": placement.master_addr,
        "MASTER_PORT": str(placement.master_port),
        "TORCHELASTIC_RESTART_COUNT": str(attempt),
        "TORCHELASTIC_MAX_RESTARTS": str(config.max_restarts),
        "TORCHELASTIC_RUN_ID": config.run_id,
        # Rank 0 serves the store of a process group that the script creates.
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.getenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    }
    if config.virtual_local_rank:
        env["LOCAL_RANK"] = "0"
        env["CUDA_VISIBLE_DEVICES"] = _device(local_rank)
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
