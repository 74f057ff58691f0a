"""Our options for a training script, which stand beside torchrun's."""

from __future__ import annotations

import argparse

from torch_edl.cli import options
from torch_edl.config import ClusterConfig, TrainConfig

_TRAIN = TrainConfig()
_CLUSTER = ClusterConfig()


def add_script(parser: argparse.ArgumentParser) -> None:
    """Adds them to the parser of torchrun's."""
    group = parser.add_argument_group("options of torch-edl, for a script that uses torch_edl")
    group.add_argument(
        "--workers",
        type=options.worker_range,
        default=None,
        metavar="N|MIN:MAX",
        help="workers of this machine: MAX are started, MIN are enough to begin and to go on",
    )
    group.add_argument(
        "--ps",
        dest="servers",
        type=options.whole,
        default=None,
        metavar="N",
        help=f"parameter servers; the strategy is ps then (otherwise {_CLUSTER.servers})",
    )
    group.add_argument(
        "--strategy",
        default=_TRAIN.strategy,
        metavar="NAME",
        help="auto, ps or allreduce: how workers share (default %(default)s)",
    )
    group.add_argument(
        "--seed",
        type=options.whole,
        default=_TRAIN.seed,
        metavar="N",
        help="of the order of records (default %(default)s)",
    )
    group.add_argument(
        "--heartbeat-timeout",
        type=options.seconds,
        default=_CLUSTER.heartbeat_timeout_s,
        metavar="S",
        help=f"silence that means lost, in seconds (default {_CLUSTER.heartbeat_timeout_s:g})",
    )
    options.add_checkpoints(group)
    group.add_argument(
        "--job-name", default="", metavar="NAME", help="default: the script's name and a suffix"
    )
