"""``python -m torch_edl.ps_server``: the process of one shard."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from torch_edl import _core
from torch_edl.checkpoint.reader import CheckpointReader
from torch_edl.config.environment import ENV_MASTER, ENV_TOKEN, own_host
from torch_edl.config.parts import FSYNC_MODES
from torch_edl.config.training import SYNC_MODES, TrainConfig
from torch_edl.errors import EdlError, JournalDamagedError, StateLostError, UsageError
from torch_edl.processes.this_process import setup_logging
from torch_edl.ps_server.data_plane import DataPlane
from torch_edl.ps_server.durability.disk.disk import Disk
from torch_edl.ps_server.durability.identity import JournalIdentity, run_of
from torch_edl.ps_server.durability.log import Log
from torch_edl.ps_server.durability.peer.replica import ShardReplica
from torch_edl.ps_server.master_link import MasterLink
from torch_edl.ps_server.recovery import recover
from torch_edl.ps_server.service import PserverService
from torch_edl.ps_server.shard import ModelShard
from torch_edl.ps_server.signal_watch import SignalWatch
from torch_edl.wire import pserver_pb2, services
from torch_edl.wire.server import serve

log = logging.getLogger(__name__)

# Each push that waits for the end of a hold occupies a thread, and the call that ends the hold
# needs one.
_THREADS = 256
_STOP_GRACE_S = 2.0
# Below the 30 s after which Kubernetes kills a terminating pod.
_LEAVE_S = 25.0
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m torch_edl.ps_server", description=__doc__)
    parser.add_argument("--job", required=True, help="name of the job")
    parser.add_argument("--shard", type=int, required=True, help="index of this shard, from 0")
    parser.add_argument("--shards", type=int, required=True, help="number of shards")
    parser.add_argument("--incarnation", type=int, required=True, help="incarnation of the servers")
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
    setup_logging("ps", args.shard)
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
    rules = TrainConfig(mode=args.mode, grads_to_wait=args.grads_to_wait, staleness=args.staleness)
    replica = (
        ShardReplica(_identity(args, token), args.incarnation, token, is_successor=args.successor)
        if args.replica
        else None
    )
    link = _link(args, token, fail, replica)
    try:
        return _serve(args, token, rules, link, replica, failed, fail)
    finally:
        if link is not None:
            link.close()
        if replica is not None:
            replica.close()


def _serve(
    args: argparse.Namespace,
    token: str,
    rules: TrainConfig,
    link: MasterLink | None,
    replica: ShardReplica | None,
    failed: threading.Event,
    fail: Callable[[], None],
) -> int:
    asked = SignalWatch(_STOP_SIGNALS, replica.peer.close if replica else lambda: None)
    try:
        with asked:
            place = replica.peer if replica else _disk(args, fail, token)
            state = Log(place) if place else None
            shard = _restored(args, rules, fail, state)
    except (EdlError, OSError) as error:
        if asked.number:
            return 1 if failed.is_set() else 128 + asked.number
        if link is not None:
            link.tell(str(error))
            if isinstance(error, JournalDamagedError | StateLostError):
                link.register("", lost=str(error))
        raise
    service = PserverService(
        shard,
        fence=pserver_pb2.Fence(job=args.job, incarnation=args.incarnation),
        stem=f"shard-{args.shard}-of-{args.shards}",
        log=state,
        keeper=replica.keeper if replica else None,
    )
    server, port = serve(
        services.PSERVER + (services.REPLICAS if replica else ()),
        service.handlers(),
        address=f"{args.host}:{args.port}",
        token=token,
        threads=_THREADS,
    )
    address = f"{args.host}:{port}"
    data: DataPlane | None = None
    try:
        data = DataPlane(
            service.data_answers(),
            host=args.host,
            name=f"{args.job}-shard-{args.shard}",
            token=token,
            threads=_THREADS,
        )
        if link is None:
            sys.stdout.write(f"listening on {data.endpoint} {address}\n")
            sys.stdout.flush()
        else:
            link.version = lambda: shard.version
            if place:
                link.problem = lambda: place.problem
            damage = state.damage.text if state else ""
            link.register(
                address,
                data_plane=data.endpoint,
                updates_lost=shard.lost,
                damage=damage,
                watermarks=shard.watermarks(received=True),
            )
        number = asked.number or signal.sigwait(_STOP_SIGNALS)
        if link is not None and not failed.is_set():
            link.leave(_STOP_SIGNALS, within_s=_LEAVE_S)
    finally:
        if link is not None:
            link.close()
        if replica:
            replica.peer.close()
        service.close()
        if data:
            data.close(_STOP_GRACE_S)
        server.stop(_STOP_GRACE_S).wait()
        if state:
            state.close()
    log.info("stopped")
    return 1 if failed.is_set() else 128 + number


def _restored(
    args: argparse.Namespace, rules: TrainConfig, end: Callable[[], None], state: Log | None
) -> ModelShard:
    source = None
    # A log with a snapshot contains the restored state, and the checkpoint may have been removed.
    if args.restore and not (state and state.base.path):
        source = CheckpointReader(
            args.restore, args.shard, args.shards, values_only=args.values_only
        )
    shard = ModelShard(rules, source, end, args.shards, state)
    if state:
        recover(shard, state)
    return shard


def _disk(args: argparse.Namespace, end: Callable[[], None], token: str) -> Disk | None:
    if args.journal is None:
        return None
    identity = _identity(args, token)
    return Disk(
        args.journal,
        identity,
        args.incarnation,
        fsync=args.fsync,
        on_lost=lambda _: end(),
        repair=args.repair,
    )


def _identity(args: argparse.Namespace, token: str) -> JournalIdentity:
    return JournalIdentity(
        job=args.job,
        shard=args.shard,
        shards=args.shards,
        model=args.model_incarnation,
        run=run_of(token),
    )


def _link(
    args: argparse.Namespace, token: str, end: Callable[[], None], replica: ShardReplica | None
) -> MasterLink | None:
    """Return the connection to the master, which sends heartbeats from now on. None without a
    master: the process then writes its address to stdout."""
    master = os.environ.get(ENV_MASTER, "")
    if not master:
        return None

    def fenced() -> None:
        if replica:
            replica.peer.close("another server has the shard")
        # The master logs the reason, unless the user requested other servers.
        log.info("another server has shard %d: this one was replaced and ends", args.shard)
        end()

    link = MasterLink(
        master, token, shard=args.shard, incarnation=args.incarnation, on_fenced=fenced
    )
    if replica:
        peer = replica.peer
        link.keeper, link.note, link.problem = peer.keeper, peer.note, lambda: peer.problem
        link.on_answer, link.hurries = peer.heard, peer.waits
    link.start()
    return link


if __name__ == "__main__":
    sys.exit(main())
