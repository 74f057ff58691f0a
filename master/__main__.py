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
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from master.runtime import job_files
from master.runtime.clock import Clock
from master.runtime.effects import Effects
from master.runtime.job_files import EventFile
from master.runtime.local_node import LocalNode
from master.runtime.loop import StateThread, run
from master.runtime.machines import Machines
from master.runtime.persistence import StateWriter, left_behind
from master.runtime.scan import scan, watch_streams
from master.runtime.service import Service
from master.runtime.store import Lock, SqliteStore, acquire
from master.runtime.watching import Watches, export
from master.state.job.job import ManagedJob
from master.state.job.restart import after_failure, from_state
from master.state.workforce.fleet import Fleet
from master.state.workforce.processes import PENDING, Spare
from master.state.workforce.servers import ServerCommand
from master.state.workforce.starts import AgentPods
from master.state.workforce.workforce import StopRequested
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
        return config.cluster.max_nodes > 1

    def launcher(self, config: JobConfig, token: str, incarnation: str) -> Launcher:
        preload = preloaded(config)
        local = LocalNode(JobFolder(config.name), incarnation=incarnation, preload=preload)
        if config.cluster.max_nodes == 1:
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
    folder = JobFolder(name)
    opened = ExitStack()  # what an early error gives back
    try:
        if (code := host.begin(name)) is not None:
            return code
        config = host.prepare(name)
        token = os.environ.get(ENV_TOKEN, "")
        if not token:
            raise UsageError(f"{ENV_TOKEN} is not set: start jobs with torch-edl run")
        # A restarted master waits for disk space, as its workers do.
        goes_on = folder.master_file.exists()
        lock = _with_room(lambda: _open(config, folder, host), stop, waits=goes_on)
        opened.callback(lock.close)
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
        fleet_name = left["fleet"]["name"] if left is not None else secrets.token_hex(3)
        launcher = host.launcher(config, token, fleet_name)
    except (EdlError, OSError) as error:
        log.error("%s", error)
        opened.close()
        return stop.exit_code or host.refused(error)
    temporary = host.temporary(config)
    preprocessing = temporary / PREPROCESSING_FILE
    listens_at = listen.rpartition(":")[0]
    server = ServerCommand.of(config, module=server_module, host=listens_at, journals=str(journals))
    fleet = Fleet(
        server,
        workers=config.cluster.max_workers,
        servers=config.cluster.servers,
        worker_module=worker_module,
        spares=host.spares(config),
        workers_per_pod=host.workers_per_pod(config),
        is_scheduled=host.schedules(config),
        in_pods=host.asks,
        name=fleet_name,
        agents=AgentPods(**host.agents(config)) if config.kind == "script" else None,
    )
    clock = Clock()
    job = ManagedJob(
        config,
        fleet,
        folder=temporary,
        resumed=resumed,
        resumed_later=resumed_later,
        evaluated=evaluated,
        preprocessing=job_files.preprocessing(
            preprocessing, config, resumed, restarted=left is not None
        ),
        wall_offset_s=time.time() - clock(),
    )
    journal = EventFile(folder.events_file)
    job.lifecycle.log.continue_after(journal.written, journal.newest() if left is not None else ())
    if left is None:
        for text in [*job_files.left_journals(config, journals), *host.warnings(config)]:
            job.lifecycle.note(Other(severity="warning", message=text), clock())
    else:
        from_state(job, left, clock())
        try:
            launcher.adopt(_known(fleet))
        except EdlError as error:  # the cluster does not answer
            log.error("%s", error)
            opened.close()
            return host.refused(error)
    job.lifecycle.note(
        ProcessChanged(process="master-0", state="running", pid=os.getpid()), clock()
    )
    job.start(clock())
    lines = extensions.load(extensions.LEDGERS, "file", "tasks.jsonl")
    ledger = lines(folder.dir / "tasks.jsonl", anew=left is None)
    writer = StateWriter(lock, secret=token, superseded=_give_way, ledger=ledger)
    service = Service(
        job,
        clock=clock,
        log_path=launcher.log_path,
        cores=host.cores(config),
        nodes=launcher.nodes if isinstance(launcher, NodeLauncher) else None,
        writer=writer,
        history=folder.history_file if host.asks else None,
    )
    exported = ExitStack()
    # Other observers run where the user is.
    history = Observers(replace(config, observe=(), tensorboard="")) if host.asks else None
    kept = StateThread(
        service,
        writer,
        status_file=folder.status_file,
        shown=[Watches(service, clock).look, *([history.update] if history is not None else [])],
    )
    # Workers of the earlier master look for its successor at the same address.
    earlier = folder.master() if left is not None else None
    try:
        if left is not None:
            # Leases and moves are numbered by the count of restarts: it must be stored before any
            # call is answered.
            _with_room(service.keep, stop, waits=goes_on)
        address = service.listen(token, host.listen(earlier.listen if earlier is not None else ""))
        if config.metrics_port:
            exported.callback(export(service, config))
        if left is not None:
            job.lifecycle.listens(
                clock(),
                same_address=keeps_address(host, earlier, service.listens),
                heartbeat_timeout_s=config.cluster.heartbeat_timeout_s,
            )
        fleet.starts.env.update({ENV_MASTER: host.address(name, address), ENV_TOKEN: token})
        if config.process_notice:
            fleet.starts.env[ENV_NOTICE] = config.process_notice
        elif config.kind != "script":  # agents watch for the notices of their machines
            heed = partial(_stop, service)
            preemption.watch(heed, config.cluster.preemption_notice)
        where = MasterAddress(
            address=address,
            listen=service.listens,
            pid=os.getpid(),
            started=start_time(os.getpid()),
            token=token,
        )
        _with_room(lambda: folder.note_master(where), stop, waits=goes_on)
    except (UsageError, OSError) as error:
        log.error("%s", error)
        exported.close()
        service.close()
        kept.close()
        writer.close()
        return stop.exit_code or host.refused(error)
    over = not host.hands_over
    ended = threading.Event()
    effects = Effects(token=token, preprocessing=preprocessing, claim=claim)
    effects.start(service.apply)
    try:
        if job.preparation.needs_scan:
            threading.Thread(
                target=lambda: service.apply(scan(config)), name="scan", daemon=True
            ).start()
        if config.data.streams:
            threading.Thread(
                target=watch_streams,
                args=(config.data.train, service.apply, ended),
                name="streams",
                daemon=True,
            ).start()
        leaves = host.leaves_job if host.hands_over else lambda: False
        over = run(service, launcher, effects, stop, journal, clock, leaves=leaves)
        # Only the process that started the master waits for the outcome; it may have exited.
        if over and job.workforce.awaits_outcome and os.getppid() == parent:
            service.end_seen.wait(_LINGER_S)
        if over:
            with service.changed:
                last = service.status(history.events_after if history is not None else 0)
            if history is not None:
                history.update(last)
                history.end(last.state, last.error)
            host.tell_end(last)
    except Exception:
        if over:
            raise
        log.exception("the master failed; the next one goes on with the job")
    finally:
        ended.set()
        if over:
            if isinstance(launcher, NodeLauncher):
                last_word = job.lifecycle.outcome
                assert last_word is not None, "a job that is over has an outcome"
                launcher.nodes.over(last_word.reason, failed=last_word.state == "failed")
            launcher.stop_all(grace_s=0)
        launcher.close()
        exported.close()
        service.close()
        goes_on = over and not host.hands_over and job_files.may_go_on(job, journals)
        kept.close()
        writer.close(over=over and not goes_on)
        if over:
            job_files.tidy(job, temporary, journals, claim, goes_on=goes_on)
    if not over and stop.name:
        host.hand_over()
    outcome = job.lifecycle.outcome if over else None
    state, code = (outcome.state, outcome.exit_code) if outcome is not None else ("", 0)
    return host.exit_code(state, code, signalled=stop.exit_code)


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
