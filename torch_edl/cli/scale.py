"""``torch-edl scale``: another number of workers for a running job."""

from __future__ import annotations

import argparse

from torch_edl.cli.terminal import stdout
from torch_edl.config import ClusterConfig
from torch_edl.jobs import calls, catalog


def main(args: argparse.Namespace) -> int:
    """Tells the master, which starts workers, or lets some finish their tasks and leave.

    Raises:
        UsageError: a range that cannot be, no such job, or the master refused.
    """
    from torch_edl.wire import master_pb2 as pb

    least, most = args.workers
    ClusterConfig(min_workers=least, max_workers=most)  # refuses 0 and 8:2
    request = pb.ScaleRequest(min_workers=least, max_workers=most)
    answer = calls.ask(catalog.find(args.job), "Scale", request)
    stdout().print(answer.text, soft_wrap=True)
    return 0
