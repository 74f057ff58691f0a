"""The master process: ``python -m master --job NAME``, with the token in TORCH_EDL_TOKEN.

Reads ``job.json`` in the folder of the job, writes its address to ``master.json``, and runs the job
to its end. It listens on loopback unless ``--listen HOST:PORT`` is given. A restarted master
resumes the job at the same address, with the processes that its predecessor started.

With ``--continue`` the master also resumes a job that failed and left journals.

Exit code: 0 finished, 1 failed, 2 for an error that the user can fix, 3 if another master has taken
over the job, 128 + signal if it was stopped.
"""

from __future__ import annotations

import argparse
import logging
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from master.runtime import job_files
from master.runtime.clock import Clock
from master.runtime.effects import Effects
from master.runtime.job_files import EventFile
from master.runtime.ledger_file import LedgerFile
from master.runtime.local_node import LocalNode
from master.runtime.loop import StateThread, run
from master.runtime.machines import Machines
from master.runtime.persistence import StateWriter, left_behind
from master.runtime.scan import scan, watch_streams
from master.runtime.service import Service
from master.runtime.store import Lock, SqliteStore, acquire
from master.runtime.watching import Watches, export
from master.state.actions import Saved
from master.state.job.job import ManagedJob
from master.state.job.restart import after_failure, from_state
from master.state.workforce.fleet import Fleet
from master.state.workforce.processes import PENDING, Spare
from master.state.workforce.servers import ServerCommand
from master.state.workforce.workforce import StopRequested
from torch_edl.checkpoint.claim import Claim
from torch_edl.config import JobConfig, extensions
from torch_edl.config.environment import ENV_MASTER, ENV_NOTICE, ENV_PLATFORM, ENV_TOKEN
from torch_edl.config.parts import PREPROCESSING_FILE
from torch_edl.data.resuming import continued
from torch_edl.errors import EdlError, UsageError
from torch_edl.events import Other, ProcessChanged
from torch_edl.interfaces import Store, StoreType
from torch_edl.interfaces.platform import Host, Platform
from torch_edl.launch.jobs.folder import JobFolder, MasterAddress
from torch_edl.launch.jobs.master_process import SUPERSEDED
from torch_edl.launch.jobs.observers import Observers
from torch_edl.node.orders import NodeLauncher
from torch_edl.processes import preemption
from torch_edl.processes.launcher import Known, Launcher
from torch_edl.processes.process_group import start_time
from torch_edl.processes.signals import StopSignals
from torch_edl.processes.this_process import STOPS, revived, setup_logging
from torch_edl.training.contract.backends import preloaded
from torch_edl.wire import master_pb2 as pb

log = logging.getLogger(__name__)

_LOOPBACK = "127.0.0.1:0"
_LINGER_S = 10.0
_ROOM_POLL_S = 0.5

T = TypeVar("T")


def main(
    argv: Sequence[str] | None = None,
    *,
    worker_module: str = "torch_edl.training.worker",
    server_module: str = "torch_edl.ps_server",
) -> int:
    """Run one job to its end. Returns the exit code, see the module."""
    parser = argparse.ArgumentParser(prog="master")
    parser.add_argument("--job", required=True)
    parser.add_argument("--listen", metavar="HOST:PORT", default="")
    parser.add_argument("--continue", dest="continues", action="store_true")
    args = parser.parse_args(argv)
    setup_logging("master", 0)
    host = _host(os.environ) or Machine(args.listen)

    def run_once() -> int:
        return _run_once(
            args.job,
            args.listen,
            host,
            continues=args.continues,
            worker_module=worker_module,
            server_module=server_module,
        )

    return revived(run_once, final=host.final_codes) if host.final_codes else run_once()


class Machine(Host):
    """All processes run on this machine, or on this and others that join. The address to listen at
    is that of the command line, of the earlier master, or loopback."""

    def __init__(self, listen: str) -> None:
        self._listen = listen

    def prepare(self, job: str) -> JobConfig:
        return JobFolder(job).config()

    def schedules(self, config: JobConfig) -> bool:
        return config.cluster.max_nodes > 1 or config.launch is not None

    def launcher(self, config: JobConfig, token: str, incarnation: str) -> Launcher:
        preload = preloaded(config)
        local = LocalNode(JobFolder(config.name), incarnation=incarnation, preload=preload)
        if config.cluster.max_nodes == 1 and config.launch is None:
            return local
        mark = job_files.mark_shared(config, incarnation)
        return Machines(local, config, incarnation=incarnation, preload=preload, mark=mark)

    def temporary(self, config: JobConfig) -> Path:
        return job_files.temporary(config, JobFolder(config.name).dir)

    def listen(self, earlier: str) -> str:
        return self._listen or earlier or _LOOPBACK

    def cores(self, config: JobConfig) -> int:
        # The machines that join are assumed to be like this one.
        return len(os.sched_getaffinity(0)) * config.cluster.max_nodes


def _host(environment: Mapping[str, str]) -> Host | None:
    """Return the platform that started this master; None: the machine of the master."""
    name = environment.get(ENV_PLATFORM)
    if not name:
        return None
    platform: Platform = extensions.load(extensions.PLATFORMS, name, f"{ENV_PLATFORM}={name}")
    return platform.host(environment)


def keeps_address(host: Host, earlier: MasterAddress | None, listens: str) -> bool:
    """Return whether processes find a restarted master at the address that they know.

    Args:
        earlier: address of the earlier master; None if it is unknown here.
        listens: ``host:port`` at which the restarted master listens.
    """
    return not host.asks and earlier is not None and earlier.listen == listens


@dataclass(frozen=True, kw_only=True)
class _Claimed:
    """A job that this master has locked, and what earlier runs and masters left of it."""

    config: JobConfig
    folder: JobFolder
    token: str
    lock: Lock
    left: dict[str, Any] | None
    """State that the earlier master stored; None: there is none, so the job begins."""
    waits: bool
    """True for a restarted master, which waits for disk space, as its workers do."""
    claim: Claim | None
    """Claim of the folder of checkpoints; None: the job writes none."""
    resumed: Saved | None
    """Checkpoint from which the job continues; None: there is none."""
    resumed_later: dict[int, Saved]
    """Checkpoints of later trainings of a script by number."""
    evaluated: list[Saved]
    """Checkpoints with an evaluation."""
    journals: Path
    """Folder of the journals of the parameter servers."""
    temporary: Path
    """Folder of files that are removed at the end of the job."""
    incarnation: str
    """Name of this run in the names of processes."""
    launcher: Launcher


class _Run:
    """A job that this master runs, with what answers calls and stores the state. Nothing listens
    before :meth:`listen`."""

    def __init__(
        self, claimed: _Claimed, job: ManagedJob, host: Host, stop: StopSignals, clock: Clock
    ) -> None:
        self.claimed, self.job, self.host = claimed, job, host
        self.stop, self.clock = stop, clock
        config, folder, launcher = claimed.config, claimed.folder, claimed.launcher
        ledger = LedgerFile(folder.dir / "tasks.jsonl", anew=claimed.left is None)
        self.writer = StateWriter(
            claimed.lock, secret=claimed.token, superseded=_give_way, ledger=ledger
        )
        self.service = Service(
            job,
            clock=clock,
            log_path=launcher.log_path,
            cores=host.cores(config),
            nodes=launcher.nodes if isinstance(launcher, NodeLauncher) else None,
            writer=self.writer,
            history=folder.history_file if host.asks else None,
        )
        if isinstance(launcher, Machines):
            launcher.hears = self.service.hears
        # In the pod of the master; other observers run where the user is.
        self.history = Observers(replace(config, observe=(), tensorboard="")) if host.asks else None
        shown = [Watches(self.service, clock).look]
        if self.history is not None:
            shown.append(self.history.update)
        self.kept = StateThread(
            self.service, self.writer, status_file=folder.status_file, shown=shown
        )
        self.exported = ExitStack()

    def listen(self) -> None:
        """Answer calls, and let processes and users find this master.

        Raises:
            UsageError: the address or the port of the metrics is not free.
            OSError: the state or the address cannot be written.
        """
        claimed, host, service = self.claimed, self.host, self.service
        config, folder, restarted = claimed.config, claimed.folder, claimed.left is not None
        # Workers of the earlier master look for its successor at the same address.
        earlier = folder.master() if restarted else None
        if restarted:
            # Leases and moves are numbered by the count of restarts: it must be stored before any
            # call is answered.
            _with_room(service.keep, self.stop, waits=claimed.waits)
        listen = host.listen(earlier.listen if earlier is not None else "")
        address = service.listen(claimed.token, listen)
        if config.metrics_port:
            self.exported.callback(export(service, config))
        if restarted:
            self.job.lifecycle.listens(
                self.clock(),
                same_address=keeps_address(host, earlier, service.listens),
                heartbeat_timeout_s=config.cluster.heartbeat_timeout_s,
            )
        env = self.job.fleet.starts.env
        env.update({ENV_MASTER: host.address(folder.name, address), ENV_TOKEN: claimed.token})
        if config.process_notice:
            env[ENV_NOTICE] = config.process_notice
        elif config.kind != "script":  # the nodes of a script watch for those of theirs
            preemption.watch(partial(_stop, service), config.cluster.preemption_notice)
        where = MasterAddress(
            address=address,
            listen=service.listens,
            pid=os.getpid(),
            started=start_time(os.getpid()),
            token=claimed.token,
        )
        _with_room(lambda: folder.note_master(where), self.stop, waits=claimed.waits)

    def carry_out(self, journal: EventFile, *, parent: int) -> bool:
        """Run the job; return True if it is over, False if another master goes on with it.

        Args:
            parent: id of the process that started the master.
        """
        claimed, host, service = self.claimed, self.host, self.service
        over = not host.hands_over
        ended = threading.Event()
        preprocessing = claimed.temporary / PREPROCESSING_FILE
        effects = Effects(token=claimed.token, preprocessing=preprocessing, claim=claimed.claim)
        effects.start(service.apply)
        try:
            self._read_data(ended)
            leaves = host.leaves_job if host.hands_over else lambda: False
            over = run(
                service, claimed.launcher, effects, self.stop, journal, self.clock, leaves=leaves
            )
            # Only the process that started the master waits for the outcome; it may have exited.
            if over and self.job.workforce.awaits_outcome and os.getppid() == parent:
                service.end_seen.wait(_LINGER_S)
            if over:
                self._tell_end()
        except Exception:
            if over:
                raise
            log.exception("the master failed; the next one goes on with the job")
        finally:
            ended.set()
            self._end_processes(over=over)
            goes_on = over and not host.hands_over
            goes_on = goes_on and job_files.may_go_on(self.job, claimed.journals)
            self.close(over=over and not goes_on)
            if over:
                job_files.tidy(
                    self.job, claimed.temporary, claimed.journals, claimed.claim, goes_on=goes_on
                )
        return over

    def _read_data(self, ended: threading.Event) -> None:
        """Start to count the records of the data, or to watch streams until the job has ended."""
        config, apply = self.claimed.config, self.service.apply
        if self.job.preparation.needs_scan:
            threading.Thread(target=lambda: apply(scan(config)), name="scan", daemon=True).start()
        if config.data.streams:
            threading.Thread(
                target=watch_streams,
                args=(config.data.train, apply, ended),
                name="streams",
                daemon=True,
            ).start()

    def _tell_end(self) -> None:
        """Give the last status to the observers of the master and to the platform."""
        history, service = self.history, self.service
        after = history.events_after if history is not None else 0
        while True:
            with service.changed:
                last = service.status(pb.GetStatusRequest(events_after=after))
            if history is None or not last.events:
                break
            history.update(last)
            after = history.events_after
        if history is not None:
            history.end(last.state, last.error)
        self.host.tell_end(last)

    def _end_processes(self, *, over: bool) -> None:
        launcher = self.claimed.launcher
        if over:
            if isinstance(launcher, NodeLauncher):
                last_word = self.job.lifecycle.outcome
                assert last_word is not None, "a job that is over has an outcome"
                launcher.nodes.over(last_word.reason, failed=last_word.state == "failed")
            launcher.stop_all(grace_s=0)
        launcher.close()

    def close(self, *, over: bool = False) -> None:
        """Answer no more calls, and store the last state; ``over``: remove it from the store."""
        self.exported.close()
        self.service.close()
        self.kept.close()
        self.writer.close(over=over)


def _run_once(
    name: str,
    listen: str,
    host: Host,
    *,
    continues: bool,
    worker_module: str,
    server_module: str,
) -> int:
    parent = os.getppid()
    stop = StopSignals(STOPS, even_ignored=True)
    stop.install()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    try:
        if (code := host.begin(name)) is not None:
            return code
        claimed = _claim(name, host, stop, continues=continues)
    except (EdlError, OSError) as error:
        log.error("%s", error)
        return stop.exit_code or host.refused(error)
    config, left = claimed.config, claimed.left
    clock = Clock()
    fleet = _fleet(claimed, host, listen.rpartition(":")[0], worker_module, server_module)
    job = _job(claimed, fleet, clock)
    journal = EventFile(claimed.folder.events_file)
    job.lifecycle.log.continue_after(journal.written, journal.newest() if left is not None else ())
    if left is None:
        for text in [*job_files.left_journals(config, claimed.journals), *host.warnings(config)]:
            job.lifecycle.note(Other(severity="warning", message=text), clock())
    else:
        from_state(job, left, clock())
        try:
            claimed.launcher.adopt(_known(fleet))
        except EdlError as error:  # the cluster does not answer
            log.error("%s", error)
            claimed.lock.close()
            return host.refused(error)
    job.lifecycle.note(
        ProcessChanged(process="master-0", state="running", pid=os.getpid()), clock()
    )
    job.start(clock())
    running = _Run(claimed, job, host, stop, clock)
    try:
        running.listen()
    except (UsageError, OSError) as error:
        log.error("%s", error)
        running.close()
        return stop.exit_code or host.refused(error)
    over = running.carry_out(journal, parent=parent)
    if not over and stop.name:
        host.hand_over()
    outcome = job.lifecycle.outcome if over else None
    state, code = (outcome.state, outcome.exit_code) if outcome is not None else ("", 0)
    return host.exit_code(state, code, signalled=stop.exit_code)


def _claim(name: str, host: Host, stop: StopSignals, *, continues: bool) -> _Claimed:
    """Lock the job and find what earlier runs and masters left of it.

    Raises:
        EdlError: the configuration cannot be run, or another master has the job.
        OSError: a folder cannot be written.
    """
    folder = JobFolder(name)
    config = host.prepare(name)
    token = os.environ.get(ENV_TOKEN, "")
    if not token:
        raise UsageError(f"{ENV_TOKEN} is not set: start jobs with torch-edl run")
    waits = folder.master_file.exists()
    lock = _with_room(lambda: _open(config, folder, host), stop, waits=waits)
    with ExitStack() as on_error:
        on_error.callback(lock.close)
        left = left_behind(lock.store, token)
        if continues:
            if left is None:
                text = "its state is gone, so it cannot continue; start it again"
                raise UsageError(f"{name}: {text}")
            left = after_failure(left)
        claim = job_files.claim(config, token)
        if left:
            resumed = job_files.newest(config, left, claim)
        else:
            resumed = job_files.prepare(config)
        resumed_later = {} if left else job_files.prepare_later(config)
        evaluated = job_files.evaluated(config, left)
        if resumed is not None and not (left and left["fleet"]["strategy"]):
            config = continued(config, resumed.path, resumed.manifest)
        job_files.prepare_parts(config, anew=left is None)
        journals = job_files.journals_of(config, folder, token)
        incarnation = left["fleet"]["name"] if left is not None else secrets.token_hex(3)
        launcher = host.launcher(config, token, incarnation)
        temporary = host.temporary(config)
        on_error.pop_all()
    return _Claimed(
        config=config,
        folder=folder,
        token=token,
        lock=lock,
        left=left,
        waits=waits,
        claim=claim,
        resumed=resumed,
        resumed_later=resumed_later,
        evaluated=evaluated,
        journals=journals,
        temporary=temporary,
        incarnation=incarnation,
        launcher=launcher,
    )


def _fleet(
    claimed: _Claimed, host: Host, listens_at: str, worker_module: str, server_module: str
) -> Fleet:
    config = claimed.config
    server = ServerCommand.of(
        config, module=server_module, host=listens_at, journals=str(claimed.journals)
    )
    return Fleet(
        server,
        workers=config.cluster.max_workers,
        servers=config.cluster.servers,
        worker_module=worker_module,
        spares=host.spares(config),
        workers_per_pod=host.workers_per_pod(config),
        is_scheduled=host.schedules(config),
        in_pods=host.asks,
        name=claimed.incarnation,
        launch=config.launch,
        starts_workers=config.kind != "script" or config.launch is not None,
    )


def _job(claimed: _Claimed, fleet: Fleet, clock: Clock) -> ManagedJob:
    preprocessing = job_files.preprocessing(
        claimed.temporary / PREPROCESSING_FILE,
        claimed.config,
        claimed.resumed,
        restarted=claimed.left is not None,
    )
    return ManagedJob(
        claimed.config,
        fleet,
        folder=claimed.temporary,
        resumed=claimed.resumed,
        resumed_later=claimed.resumed_later,
        evaluated=claimed.evaluated,
        preprocessing=preprocessing,
        wall_offset_s=time.time() - clock(),
    )


def _open(config: JobConfig, folder: JobFolder, host: Host) -> Lock:
    """Open the store of the job and acquire its lock."""
    store = _store(config, folder, host)
    try:
        return acquire(store, folder.name)
    except BaseException:
        store.close()
        raise


def _store(config: JobConfig, folder: JobFolder, host: Host) -> Store:
    url = config.durability.store
    if not config.durability.shares_state:
        return host.store(config) or SqliteStore(folder.dir / "state.sqlite")
    kind: StoreType = extensions.load(extensions.STORES, url.partition("://")[0], f"--store {url}")
    kind.check(url)
    return kind.open(url, host.store_key(folder.name))


def _stop(service: Service, notice: str) -> None:
    """Stop the job, because the machine of all its processes will be taken away."""
    service.apply(StopRequested(f"notice of preemption: {notice}"))


def _give_way(why: str) -> None:
    """Exit at once: another master has taken over the job and its processes."""
    log.error("another master took this job over: %s", why)
    os._exit(SUPERSEDED)


def _known(fleet: Fleet) -> list[Known]:
    """Return the processes that the earlier master has started."""
    return [
        Known(
            role=p.role,
            id=p.id,
            pid=p.pid,
            ran=p.state != PENDING,
            pod=p.pod,
            idle=isinstance(p, Spare),
            slot=p.slot,
        )
        for p in fleet.launched()
    ]


def _with_room(write: Callable[[], T], stop: StopSignals, *, waits: bool) -> T:
    """Return the result of ``write``. If ``waits``, repeat it until the disk has space.

    Raises:
        OSError: the write failed, and ``waits`` is False or a stop signal arrived.
    """
    told = False
    while True:
        try:
            return write()
        except OSError as error:
            if not waits or stop.name:
                raise
            if not told:
                told = True
                log.warning("%s: waiting until there is room", error)
            time.sleep(_ROOM_POLL_S)


if __name__ == "__main__":
    sys.exit(main())
