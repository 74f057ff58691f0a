"""The process of a node: ``python -m torch_edl.node --name NAME``, with the address of the master
and the token of the job in the environment."""

from __future__ import annotations

import argparse
import fcntl
import os
import queue
import sys
from collections.abc import Sequence
from pathlib import Path

from torch_edl.config.environment import ENV_MASTER, ENV_TOKEN
from torch_edl.node.children import Children
from torch_edl.processes.this_process import setup_logging

# Module of the workers that can be forked, by framework.
_WORKERS = {"torch": "torch_edl.training.worker"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the processes of one node; see :meth:`torch_edl.node.node.Node.run` for the exit code."""
    parser = argparse.ArgumentParser(prog="torch_edl.node")
    parser.add_argument("--job", default="", help="name of the job, shown by ps")
    parser.add_argument("--name", required=True)
    parser.add_argument("--incarnation", required=True)
    parser.add_argument("--host", default="", help="name of the machine of a node that joins")
    parser.add_argument("--slots", type=int, default=0, help="workers; 0: as the job decides")
    parser.add_argument("--logs", type=Path, help="default: the output of this process")
    parser.add_argument("--lock", type=Path, help="file that is locked while this node runs")
    parser.add_argument(
        "--preload",
        nargs="*",
        default=[],
        help="fork the workers of a framework; what follows is passed to their preload()",
    )
    args = parser.parse_args(argv)
    setup_logging("node", 0)
    if args.lock:
        # Held until this process exits. If a master and its successor have both started a node, the
        # second node waits here.
        fcntl.lockf(os.open(args.lock, os.O_WRONLY | os.O_CREAT, 0o600), fcntl.LOCK_EX)
    wakes: queue.SimpleQueue[None] = queue.SimpleQueue()
    # Started first, so that the fork server imports while this process imports gRPC.
    forked = [_WORKERS[args.preload[0]], *args.preload[1:]] if args.preload else []
    children = Children(args.logs or "", job=args.job, forked=forked, wakes=wakes)
    from torch_edl.node.node import Node
    from torch_edl.wire import master_pb2 as pb
    from torch_edl.wire import services
    from torch_edl.wire.channel import MASTER_AWAY_S, Stub

    address, token = os.environ[ENV_MASTER], os.environ.get(ENV_TOKEN, "")
    stubs = [Stub(services.NODES, address, token) for _ in range(2)]
    identity = pb.NodeReportRequest(
        node=args.name, incarnation=args.incarnation, host=args.host, slots=args.slots
    )
    node = Node(identity, children, *stubs, away_s=MASTER_AWAY_S, wakes=wakes)
    try:
        return node.run()
    finally:
        for stub in stubs:
            stub.close()


if __name__ == "__main__":
    sys.exit(main())
