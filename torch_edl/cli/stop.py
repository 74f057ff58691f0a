"""``torch-edl stop``: end a running job."""

from __future__ import annotations

import argparse
import time

from torch_edl.cli.terminal import stderr, stdout
from torch_edl.errors import EdlError
from torch_edl.jobs import calls, catalog

_POLL_S = 0.1
# A last checkpoint may be written; the master stops waiting for it earlier.
_PATIENCE_S = 100.0
# Seconds until a message says that the job is still stopping.
_SAY_S = 2.0


def main(args: argparse.Namespace) -> int:
    """Asks the master to stop the job, and waits until it is gone.

    Raises:
        UsageError: no such job, or it is over.
        EdlError: it is still there after 100 seconds.
    """
    from torch_edl.wire import master_pb2 as pb

    job = catalog.find(args.job)
    request = pb.StopRequest(reason="torch-edl stop", at_once=args.now)
    calls.ask(job, "Stop", request)
    began, told = time.monotonic(), False
    while job.is_alive():
        waited_s = time.monotonic() - began
        if waited_s > _SAY_S and not told:
            told = True
            text = f"{job.name}: waiting for its processes to end; --now ends them at once"
            stderr().print(text, style="yellow", soft_wrap=True)
        if waited_s > _PATIENCE_S:
            raise EdlError(f"{job.name}: asked to stop, but still there after {_PATIENCE_S:.0f} s")
        time.sleep(_POLL_S)
    stdout().print(f"{job.name}: stopped", soft_wrap=True)
    return 0
