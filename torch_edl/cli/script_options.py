"""Our options for a training script, which stand beside torchrun's."""

from __future__ import annotations

import argparse

from torch_edl.cli import options


def add_script(parser: argparse.ArgumentParser) -> None:
    """Adds them to the parser of torchrun's."""
    group = parser.add_argument_group("options of torch-edl, for a script that uses torch_edl")
    options.add_workers(
        group,
        default=None,
        help="workers of this machine: MAX are started, MIN are enough to begin and to go on",
    )
    options.add_servers(group)
    options.add_strategy(group, "auto|ps|allreduce")
    options.add_seed(group, "the order of records")
    options.add_heartbeat_timeout(group)
    options.add_output(group)
    options.add_checkpoints(group)
    options.add_job_name(group)
    options.add_detach(group)
    options.add_tensorboard(group)
