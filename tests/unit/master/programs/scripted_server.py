"""A parameter server that only registers: the master's side of its life is what is tested."""

import os
import signal
import sys

from torch_edl.wire import master_pb2 as pb
from torch_edl.wire import services
from torch_edl.wire.channel import Stub

args = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=False))
master = Stub(
    services.MASTER,
    os.environ["TORCH_EDL_MASTER"],
    os.environ["TORCH_EDL_TOKEN"],
)
master.call(
    pb.RegisterServerRequest(
        shard=int(args["--shard"]),
        incarnation=int(args["--incarnation"]),
        address=f"127.0.0.1:{1000 + os.getpid() % 1000}",
    ),
    timeout_s=10,
    wait=True,
)
signal.sigwait({signal.SIGTERM})
