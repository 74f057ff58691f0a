"""A parameter server that only registers and lives: the master's side of its life is tested."""

import os
import signal
import sys
import threading

from torch_edl.wire import master_pb2 as pb
from torch_edl.wire import services
from torch_edl.wire.channel import Stub

args = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=False))
shard, incarnation = int(args["--shard"]), int(args["--incarnation"])
master = Stub(
    services.MASTER,
    os.environ["TORCH_EDL_MASTER"],
    os.environ["TORCH_EDL_TOKEN"],
)
ended = threading.Event()


def live() -> None:
    while not ended.wait(0.2):
        master.call(pb.ServerHeartbeatRequest(shard=shard, incarnation=incarnation), timeout_s=10)


address = f"127.0.0.1:{1000 + os.getpid() % 1000}"
master.call(
    pb.RegisterServerRequest(shard=shard, incarnation=incarnation, address=address),
    timeout_s=10,
    wait=True,
)
threading.Thread(target=live, daemon=True).start()
signal.sigwait({signal.SIGTERM})
ended.set()
