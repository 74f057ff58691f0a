"""``python -m torch_edl.ps_server``: the process of one shard."""

from __future__ import annotations

import argparse
import functools
import ipaddress
import logging
import math
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from torch_edl import _core
from torch_edl.checkpoint.claim import run_id
from torch_edl.checkpoint.reader import CheckpointReader
from torch_edl.config.environment import ENV_MASTER, ENV_TOKEN, own_host
from torch_edl.config.parts import FSYNC_MODES
from torch_edl.config.training import SYNC_MODES, TrainConfig
from torch_edl.errors import EdlError, JournalDamagedError, StateLostError, UsageError
from torch_edl.processes import preemption
from torch_edl.processes.this_process import setup_logging
from torch_edl.ps_server.durability.disk import Disk
from torch_edl.ps_server.durability.identity import JournalIdentity
from torch_edl.ps_server.durability.keeper import ReplicaKeeper
from torch_edl.ps_server.durability.log import ChangeLog
from torch_edl.ps_server.durability.peer import Peer
from torch_edl.ps_server.master_link import MasterLink
from torch_edl.ps_server.recovery import recover
from torch_edl.ps_server.scratch import Scratch
from torch_edl.ps_server.service import PserverService
from torch_edl.ps_server.shard import ModelShard
from torch_edl.wire import pserver_pb2, services
from torch_edl.wire.data_plane.server import DataServer
from torch_edl.wire.data_plane.sockets import LOCAL
from torch_edl.wire.server import serve

log = logging.getLogger(__name__)

# Each push that waits for the end of a hold occupies a thread, and the call that ends the hold
# needs one.
_THREADS = 256
_STOP_GRACE_S = 2.0
_LOOK_S = 0.1
_SOCKET_PATH = 100  # the kernel accepts 107 bytes
# Below the 30 s after which Kubernetes kills a terminating pod.
_LEAVE_S = 25.0
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m torch_edl.ps_server", description=__doc__)
    parser.add_argument("--job", required=True, help="name of the job")
    parser.add_argument("--id", type=int, help="number of this process (default: the shard)")
    parser.add_argument("--shard", type=int, required=True, help="index of this shard, from 0")
    parser.add_argument("--shards", type=int, required=True, help="number of shards")
    parser.add_argument("--incarnation", type=int, required=True, help="incarnation of this server")
    parser.add_argument("--host", default=own_host(), help="address to listen on")
    parser.add_argument("--port", type=int, default=0, help="port (default: a free one)")
    parser.add_argument("--mode", choices=SYNC_MODES, default="async")
    parser.add_argument("--grads-to-wait", type=int, default=1, help="sync: pushes per update")
    parser.add_argument(
        "--staleness",
        type=int,
        default=0,
        help="sync: versions that a push may lag",
    )
    parser.add_argument("--restore", type=Path, help="checkpoint or exported model to restore")
    parser.add_argument(
        "--values-only", action="store_true", help="restore without watermarks and optimizer state"
    )
    parser.add_argument(
        "--load-optimizer", action="store_true", help="with --values-only: also optimizer state"
    )
    parser.add_argument("--journal", type=Path, help="folder of the journal of this shard")
    parser.add_argument(
        "--replica", action="store_true", help="keep a copy of this shard on the next server"
    )
    parser.add_argument(
        "--successor", action="store_true", help="begin from the copy of an earlier server"
    )
    parser.add_argument(
        "--repair", action="store_true", help="leave out what is damaged in the journal"
    )
    parser.add_argument("--fsync", choices=FSYNC_MODES, default="interval")
    parser.add_argument(
        "--model-incarnation", type=int, default=1, help="incarnation of the model: of the journal"
    )
    return parser


def main() -> int:
    """Serve until SIGTERM or SIGINT. Returns the exit code: 128 + the signal, 1 for an error."""
    _core.tune_malloc()
    args = _parser().parse_args()
    setup_logging("ps", args.shard if args.id is None else args.id)
    try:
        return _run(args)
    except (EdlError, OSError) as error:
        log.error("%s", error)
        return 1


def _run(args: argparse.Namespace) -> int:
    token = os.environ.get(ENV_TOKEN, "")
    if not token:
        raise UsageError(f"{ENV_TOKEN}: not set; every call must carry the job's token")
    if not 0 <= args.shard < args.shards:
        raise UsageError(f"--shard {args.shard}: must be in 0..{args.shards - 1}")
    failed = threading.Event()

    def fail() -> None:
        failed.set()
        os.kill(os.getpid(), signal.SIGTERM)

    # Blocked in all threads and awaited below. A signal handler that sets an Event would deadlock
    # if it interrupted this thread while the thread holds the lock of the Event.
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
    identity = JournalIdentity(
        job=args.job,
        shard=args.shard,
        shards=args.shards,
        model=args.model_incarnation,
        run=run_id(args.job, token),
    )
    place: Peer | Disk | None = None
    keeper: ReplicaKeeper | None = None
    with ExitStack() as closing:
        if args.replica:
            scratch = _scratch(args, closing)
            own, other = scratch / "own", scratch / "peer"
            own.mkdir()
            other.mkdir()
            place = Peer(
                identity, args.incarnation, token=token, folder=own, is_successor=args.successor
            )
            closing.callback(place.close)
            keeper = ReplicaKeeper(other, args.job, args.shard, args.shards)
        elif args.journal is not None:
            place = Disk(
                args.journal,
                identity,
                args.incarnation,
                fsync=args.fsync,
                on_lost=lambda _: fail(),
                repair=args.repair,
            )
        link = _link(args, token, fail, place)
        if link is not None:
            closing.callback(link.close)
        number = _serve(args, token, place, keeper, link, failed, fail)
    log.info("stopped")
    return 1 if failed.is_set() else 128 + number


def _serve(
    args: argparse.Namespace,
    token: str,
    place: Peer | Disk | None,
    keeper: ReplicaKeeper | None,
    link: MasterLink | None,
    failed: threading.Event,
    fail: Callable[[], None],
) -> int:
    """Restore the shard, and serve it until a signal to end. Returns the number of the signal."""
    asked = _SignalWatch(place.close if isinstance(place, Peer) else lambda: None)
    try:
        with asked:
            state = ChangeLog(place) if place else None
            shard = _restored(args, fail, state)
    except (EdlError, OSError) as error:
        if asked.number:
            return asked.number
        if link is not None:
            link.tell(str(error))
            if isinstance(error, JournalDamagedError | StateLostError):
                link.register("", lost=str(error))
        raise
    with ExitStack() as closing:
        if state:
            closing.callback(state.close)
        service = PserverService(
            shard,
            fence=pserver_pb2.Fence(job=args.job, incarnation=args.incarnation),
            stem=f"shard-{args.shard}-of-{args.shards}",
            log=state,
            keeper=keeper,
        )
        server, port = serve(
            services.PSERVER + (services.REPLICAS if keeper else ()),
            service.handlers(),
            address=f"{args.host}:{args.port}",
            token=token,
            threads=_THREADS,
        )
        closing.callback(lambda: server.stop(_STOP_GRACE_S).wait())
        data_plane = _serve_data(service, args, token, closing)
        closing.callback(service.close)
        if isinstance(place, Peer):
            closing.callback(place.close)
        address = f"{args.host}:{port}"
        if link is None:
            sys.stdout.write(f"listening on {data_plane} {address}\n")
            sys.stdout.flush()
        else:
            closing.callback(link.close)
            link.version, link.size = lambda: shard.version, lambda: _size(shard)
            link.counts = service.counts.to_proto
            link.problem = lambda: shard.room.problem or (place.problem if place else "")
            link.register(
                address,
                data_plane=data_plane,
                updates_lost=shard.lost,
                damage=state.place.damage.text if state else "",
                watermarks=shard.watermarks(received=True),
            )
            preemption.watch(functools.partial(_heed, link))
        number = asked.number or signal.sigwait(_STOP_SIGNALS)
        if link is not None and not failed.is_set():
            if link.notice:  # until the machine is taken away, which SIGTERM may announce
                link.leave(_STOP_SIGNALS, within_s=math.inf)
            link.leave(_STOP_SIGNALS, within_s=_LEAVE_S)
    return number


def _heed(link: MasterLink, notice: str) -> None:
    """Leave as after SIGTERM, because of a notice of preemption."""
    link.notice = notice
    os.kill(os.getpid(), signal.SIGTERM)


def _restored(
    args: argparse.Namespace, end: Callable[[], None], state: ChangeLog | None
) -> ModelShard:
    rules = TrainConfig(mode=args.mode, grads_to_wait=args.grads_to_wait, staleness=args.staleness)
    source = None
    # A log with a snapshot contains the restored state, and the checkpoint may have been removed.
    if args.restore and not (state and state.base.path):
        source = CheckpointReader(
            args.restore,
            args.shard,
            args.shards,
            values_only=args.values_only,
            optimizer=args.load_optimizer,
        )
    shard = ModelShard(rules, source, end, args.shards, state)
    if state:
        recover(shard, state)
    return shard


def _serve_data(
    service: PserverService, args: argparse.Namespace, token: str, closing: ExitStack
) -> str:
    """Answer pulls and pushes: over a Unix socket on a loopback host, else over encrypted TCP.
    Returns the endpoint to which workers connect.

    Raises:
        UsageError: the host is not an address of this machine.
    """
    try:
        found = socket.getaddrinfo(args.host.strip("[]"), 0, type=socket.SOCK_STREAM)
    except OSError as error:
        raise UsageError(f"{args.host}: no address of this machine: {error}") from error
    numeric = str(found[0][4][0])
    where = f"tcp://{_bracketed(numeric)}:*"
    if ipaddress.ip_address(numeric).is_loopback:
        path = str(_scratch(args, closing) / "data")
        if len(path.encode()) <= _SOCKET_PATH:
            where = LOCAL + path
    usual = service.steady_state(token, is_local=where.startswith(LOCAL))
    server = DataServer(
        service.data_answers(),
        endpoint=where,
        token=token,
        threads=_THREADS,
        quick=service.counts.timed_quick(usual.answer),
    )
    closing.callback(server.close, _STOP_GRACE_S)
    if server.endpoint.startswith(LOCAL):
        return server.endpoint
    port = server.endpoint.rpartition(":")[2]
    return f"tcp://{_bracketed(args.host)}:{port}"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _scratch(args: argparse.Namespace, closing: ExitStack) -> Path:
    """Return a new scratch folder, removed at the end."""
    scratch = Scratch(f"{args.job}-shard-{args.shard}")
    closing.callback(scratch.close)
    return scratch.path


def _link(
    args: argparse.Namespace, token: str, end: Callable[[], None], place: Peer | Disk | None
) -> MasterLink | None:
    """Return the connection to the master, which sends heartbeats from now on. None without a
    master: the process then writes its address to stdout."""
    master = os.environ.get(ENV_MASTER, "")
    if not master:
        return None
    peer = place if isinstance(place, Peer) else None

    def fenced() -> None:
        if peer:
            peer.close("another server has the shard")
        # The master logs the reason, unless the user requested other servers.
        log.info("another server has shard %d: this one was replaced and ends", args.shard)
        end()

    link = MasterLink(
        master, token, shard=args.shard, incarnation=args.incarnation, on_fenced=fenced, peer=peer
    )
    link.start()
    return link


def _size(shard: ModelShard) -> tuple[int, int]:
    """Return the rows and the bytes of all tables of a shard."""
    cores = [table.core for table in list(shard.tables.values())]
    return sum(core.size for core in cores), sum(core.bytes for core in cores)


class _SignalWatch:
    """A context in which the first signal to end calls ``end``, in a thread: the main thread waits
    for other processes."""

    def __init__(self, end: Callable[[], None]) -> None:
        self._end = end
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="signals", daemon=True)
        self.number = 0
        """Number of the received signal; 0 before."""

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.is_set():
            found = signal.sigtimedwait(_STOP_SIGNALS, _LOOK_S)
            if found is not None:
                self.number = found.si_signo
                self._end()
                return


if __name__ == "__main__":
    sys.exit(main())
