"""``torch-edl stop``: end a running job."""

from __future__ import annotations

import argparse
import time

from torch_edl import job_folder
from torch_edl.cli.terminal import stdout
from torch_edl.errors import EdlError

_POLL_S = 0.1
_PATIENCE_S = 15.0


def main(args: argparse.Namespace) -> int:
    """Asks the master to stop the job, and waits until it is gone.

    Raises:
        UsageError: no such job, or it is over.
        EdlError: it is still there after 15 seconds.
    """
    from torch_edl.wire import master_pb2 as pb

    job = job_folder.find(args.job)
    job_folder.ask(job, "Stop", pb.StopRequest(reason="torch-edl stop"))
    deadline = time.monotonic() + _PATIENCE_S
    while job.is_alive():
        if time.monotonic() > deadline:
            raise EdlError(f"{job.name}: asked to stop, but still there after {_PATIENCE_S:.0f} s")
        time.sleep(_POLL_S)
    stdout().print(f"{job.name}: stopped", soft_wrap=True)
    return 0
