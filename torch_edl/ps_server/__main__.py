"""``python -m torch_edl.ps_server``: the process of one shard."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from pathlib import Path

import grpc

from torch_edl import _core
from torch_edl.checkpoint.reader import CheckpointReader
from torch_edl.config import SYNC_MODES, TrainConfig
from torch_edl.environment import ENV_MASTER, ENV_TOKEN
from torch_edl.errors import EdlError, UsageError
from torch_edl.processes.output import setup_logging
from torch_edl.ps_server.service import PserverService
from torch_edl.ps_server.shard import Shard
from torch_edl.wire import master_pb2, pserver_pb2, services
from torch_edl.wire.channel import Stub
from torch_edl.wire.server import serve

log = logging.getLogger(__name__)

# A push that waits for the end of a hold occupies a thread, and the call that ends it needs one.
_THREADS = 256
_STOP_GRACE_S = 2.0
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_REGISTER_TIMEOUT_S = 30.0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m torch_edl.ps_server", description=__doc__)
    parser.add_argument("--job", required=True, help="name of the job")
    parser.add_argument("--shard", type=int, required=True, help="index of this shard, from 0")
    parser.add_argument("--shards", type=int, required=True, help="number of shards")
    parser.add_argument("--incarnation", type=int, required=True, help="incarnation of the servers")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=0, help="port (default: a free one)")
    parser.add_argument("--mode", choices=SYNC_MODES, default="async")
    parser.add_argument("--grads-to-wait", type=int, default=1, help="sync: pushes per update")
    parser.add_argument(
        "--staleness",
        type=int,
        default=0,
        help="sync: versions that a push may lag",
    )
    parser.add_argument("--learning-rate-by-staleness", action="store_true")
    parser.add_argument("--restore", type=Path, help="checkpoint or exported model to restore")
    parser.add_argument(
        "--values-only", action="store_true", help="restore without watermarks and optimizer state"
    )
    return parser


def main() -> int:
    """Serves until SIGTERM or SIGINT; returns the exit code: 128 + the signal, 1 for an error."""
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

    # Blocked in all threads and waited for below. A handler that sets an Event would deadlock where
    # it interrupts this thread while the thread holds the lock of that Event.
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
    rules = TrainConfig(
        mode=args.mode,
        grads_to_wait=args.grads_to_wait,
        staleness=args.staleness,
        learning_rate_by_staleness=args.learning_rate_by_staleness,
    )
    source = None
    if args.restore:
        source = CheckpointReader(
            args.restore, args.shard, args.shards, values_only=args.values_only
        )
    service = PserverService(
        Shard(rules, source, fail, args.shards),
        fence=pserver_pb2.Fence(job=args.job, incarnation=args.incarnation),
        stem=f"shard-{args.shard}-of-{args.shards}",
    )
    server, port = serve(
        services.PSERVER,
        service.handlers(),
        address=f"{args.host}:{args.port}",
        token=token,
        threads=_THREADS,
    )
    address = f"{args.host}:{port}"
    try:
        _announce(args, address, token)
        number = signal.sigwait(_STOP_SIGNALS)
    finally:
        service.close()
        server.stop(_STOP_GRACE_S).wait()
    log.info("stopped")
    return 1 if failed.is_set() else 128 + number


def _announce(args: argparse.Namespace, address: str, token: str) -> None:
    """Registers the address of this shard with the master; without one, prints it."""
    master = os.environ.get(ENV_MASTER, "")
    if not master:
        sys.stdout.write(f"listening on {address}\n")
        sys.stdout.flush()
        return
    stub = Stub(services.SERVERS, master, token)
    request = master_pb2.RegisterServerRequest(
        shard=args.shard, incarnation=args.incarnation, address=address
    )
    try:
        stub.call(request, timeout_s=_REGISTER_TIMEOUT_S, wait=True)
    except grpc.RpcError as error:
        raise EdlError(f"master {master}: registration rejected: {error.details()}") from None
    finally:
        stub.close()


if __name__ == "__main__":
    sys.exit(main())
